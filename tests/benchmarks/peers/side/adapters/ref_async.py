"""No peer either: the least that an asyncio framework over consumer groups must do, which bounds what is possible.

A JSON envelope with a task's name and arguments, a task of asyncio for each job, bounded concurrency, reads ahead, and
acknowledgements in batches (XACK and XDEL together, one at a time on its way).
"""

import asyncio
import json
from collections import deque
from functools import partial

import hiredis
import redis
import redis.asyncio

from adapters.base import HOST, PAYLOAD, PORT, URL, Adapter, handle_async, run
from adapters.raw_sync import RawSync, entries

READ = ("XREADGROUP", "GROUP", "g", "c", "COUNT")


class Protocol(asyncio.Protocol):
    """A connection without a client library."""

    def __init__(self):
        self.reader = hiredis.Reader()
        self.waiting = deque()

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.reader.feed(data)
        while (reply := self.reader.gets()) is not False:
            future = self.waiting.popleft()
            if future is not None:
                future.set_result(reply)

    def send(self, *commands):
        """Send all in one write; the future is of the last one's reply."""
        future = asyncio.get_running_loop().create_future()
        self.waiting.extend([None] * (len(commands) - 1))
        self.waiting.append(future)
        self.transport.write(b"".join(map(hiredis.pack_command, commands)))
        return future


async def connect():
    return (await asyncio.get_running_loop().create_connection(Protocol, HOST, PORT))[1]


async def job(i, payload):
    await handle_async(i)


TASKS = {"job": job}


class Consumer:
    """Starts a task for each entry and acknowledges those that are done; `read` and `ack` speak to the server."""

    def __init__(self, concurrency, read, ack, field):
        self.concurrency, self.read, self.ack, self.field = concurrency, read, ack, field
        self.active = set()
        self.done = []
        self.has_room = asyncio.Event()
        self.has_done = asyncio.Event()

    async def handle(self, entry_id, envelope):
        try:
            call = json.loads(envelope)
            await TASKS[call["f"]](*call["a"])
        finally:
            self.done.append(entry_id)
            self.has_done.set()

    def ended(self, task):
        self.active.discard(task)
        self.has_room.set()

    async def acknowledge(self):
        while True:
            await self.has_done.wait()
            self.has_done.clear()
            ids, self.done = self.done, []
            if ids:
                await self.ack(ids)

    async def run(self):
        acknowledging = asyncio.create_task(self.acknowledge())
        while not acknowledging.done():
            room = self.concurrency - len(self.active)
            if room < self.concurrency // 2:
                self.has_room.clear()
                await self.has_room.wait()
                continue
            reply = await self.read(room)
            if reply:
                for entry_id, fields in entries(reply):
                    task = asyncio.create_task(self.handle(entry_id, self.field(fields)))
                    self.active.add(task)
                    task.add_done_callback(self.ended)


async def consume_by_redis_py():
    client = redis.asyncio.Redis.from_url(URL)
    try:
        await client.xgroup_create("s", "g", "0", mkstream=True)
    except redis.ResponseError:
        pass  # it is there

    def ack(ids):
        pipeline = client.pipeline(transaction=False)
        pipeline.xack("s", "g", *ids)
        pipeline.xdel("s", *ids)
        return pipeline.execute()

    read = partial(client.xreadgroup, "g", "c", {"s": ">"}, block=2000)
    await Consumer(100, lambda count: read(count=count), ack, lambda fields: fields[b"d"]).run()


async def consume_by_protocol():
    reading, acking = await connect(), await connect()
    await create_group(acking)
    await Consumer(
        200,
        lambda count: reading.send((*READ, count, "BLOCK", 2000, "STREAMS", "s", ">")),
        lambda ids: acking.send(("XACK", "s", "g", *ids), ("XDEL", "s", *ids)),
        lambda fields: fields[1],
    ).run()


async def create_group(connection):
    await connection.send(("XGROUP", "CREATE", "s", "g", "0", "MKSTREAM"))  # an error, if it is there, is a reply


def xadd(i):
    return ("XADD", "s", "*", "d", json.dumps({"f": "job", "a": [i, PAYLOAD]}))


class RefAsync(Adapter):
    name = "ref-async"
    bulk = "100 XADD in one write"
    profiles = {
        "default": "redis-py's asyncio, concurrency 100, COUNT 100",
        "best": "a protocol of its own on uvloop, concurrency 200, COUNT 200",
    }
    packages = ("redis", "hiredis", "uvloop")
    limits = RawSync.limits

    async def open(self):
        self.connection = await connect()
        await create_group(self.connection)

    async def close(self):
        self.connection.transport.close()

    async def add_one(self, i):
        await self.connection.send(xadd(i))

    async def add_bulk(self, low, high):
        await self.connection.send(*map(xadd, range(low, high)))

    def worker(self, profile):
        is_best = profile == "best"
        run(consume_by_protocol() if is_best else consume_by_redis_py(), fast=is_best)


ADAPTER = RefAsync
