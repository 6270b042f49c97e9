"""A loop over redis-py, blocking: the yardstick."""

import redis

from adapters.base import PAYLOAD, URL, Adapter, handle

BATCH = 100


def entries(reply):
    """What XREADGROUP read of the only stream: its reply is a list or, in RESP3, a dict."""
    return reply[0][1] if isinstance(reply, list) else next(iter(reply.values()))[0]


class RawSync(Adapter):
    name = "raw-sync"
    is_async = False
    bulk = "pipeline(transaction=False) of 100 XADD"
    profiles = {
        "default": "XREADGROUP COUNT 100, one XACK with 100 IDs",
        "best": "the same, and an XDEL of the batch, so that nothing is left",
    }
    limits = "a loop, not a system: no retries, no lease, nothing after a crash"

    def open(self):
        self.client = redis.Redis.from_url(URL)
        try:
            self.client.xgroup_create("s", "g", "0", mkstream=True)
        except redis.ResponseError:
            pass  # it is there

    def close(self):
        self.client.close()

    def add_one(self, i):
        self.client.xadd("s", {"i": i, "p": PAYLOAD})

    def add_bulk(self, low, high):
        pipeline = self.client.pipeline(transaction=False)
        for i in range(low, high):
            pipeline.xadd("s", {"i": i, "p": PAYLOAD})
        pipeline.execute()

    def worker(self, profile):
        self.open()
        client = self.client
        while True:
            reply = client.xreadgroup("g", "c", {"s": ">"}, count=BATCH, block=2000)
            if not reply:
                continue
            ids = []
            for entry_id, fields in entries(reply):
                handle(int(fields[b"i"]))
                ids.append(entry_id)
            if profile == "best":
                pipeline = client.pipeline(transaction=False)
                pipeline.xack("s", "g", *ids)
                pipeline.xdel("s", *ids)
                pipeline.execute()
            else:
                client.xack("s", "g", *ids)


ADAPTER = RawSync
