"""A loop over a bare socket, with hiredis to pack and parse: what is possible beyond redis-py."""

import socket

import hiredis

from adapters.base import HOST, PAYLOAD, PORT, Adapter, handle
from adapters.raw_sync import RawSync


class Connection:
    """A blocking connection."""

    def __init__(self):
        self.socket = socket.create_connection((HOST, PORT))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.reader = hiredis.Reader()

    def send(self, *commands):
        self.socket.sendall(b"".join(map(hiredis.pack_command, commands)))

    def receive(self):
        while (reply := self.reader.gets()) is False:
            self.reader.feed(self.socket.recv(262_144))
        return reply


def xadd(i):
    return ("XADD", "s", "*", "i", i, "p", PAYLOAD)


class RawSocket(Adapter):
    name = "raw-socket"
    is_async = False
    bulk = "100 XADD in one write"
    profiles = {
        "default": RawSync.profiles["default"],
        "best": "XACK, XDEL and the next XREADGROUP COUNT 200 in one write",
    }
    limits = RawSync.limits

    def open(self):
        self.connection = Connection()
        self.connection.send(("XGROUP", "CREATE", "s", "g", "0", "MKSTREAM"))
        self.connection.receive()

    def close(self):
        self.connection.socket.close()

    def add_one(self, i):
        self.connection.send(xadd(i))
        self.connection.receive()

    def add_bulk(self, low, high):
        self.connection.send(*map(xadd, range(low, high)))
        for _ in range(low, high):
            self.connection.receive()

    def worker(self, profile):
        self.open()
        connection, is_best, done = self.connection, profile == "best", []
        count = "200" if is_best else "100"
        read = ("XREADGROUP", "GROUP", "g", "c", "COUNT", count, "BLOCK", "2000", "STREAMS", "s", ">")
        while True:
            if is_best and done:
                connection.send(("XACK", "s", "g", *done), ("XDEL", "s", *done), read)
                connection.receive()
                connection.receive()
                done = []
            else:
                connection.send(read)
            reply = connection.receive()
            if not reply:
                continue
            for entry_id, fields in reply[0][1]:
                handle(int(fields[1]))
                done.append(entry_id)
            if not is_best:
                connection.send(("XACK", "s", "g", *done))
                connection.receive()
                done = []


ADAPTER = RawSocket
