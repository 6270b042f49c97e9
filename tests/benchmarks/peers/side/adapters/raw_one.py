"""A loop over redis-py, blocking, that reads, handles and acknowledges one job at a time."""

from adapters.base import handle
from adapters.raw_sync import RawSync, entries


class RawOne(RawSync):
    name = "raw-one"
    bulk = ""
    profiles = {
        "default": "XREADGROUP COUNT 1, XACK",
        "best": "XACK, XDEL and the next XREADGROUP in one pipeline: one round trip a job",
    }

    def worker(self, profile):
        self.open()
        client, last = self.client, None
        while True:
            if last is not None:
                pipeline = client.pipeline(transaction=False)
                pipeline.xack("s", "g", last)
                pipeline.xdel("s", last)
                pipeline.xreadgroup("g", "c", {"s": ">"}, count=1)
                reply, last = pipeline.execute()[2], None
            else:
                reply = client.xreadgroup("g", "c", {"s": ">"}, count=1, block=2000)
            if not reply:
                continue
            for entry_id, fields in entries(reply):
                handle(int(fields[b"i"]))
                if profile == "best":
                    last = entry_id
                else:
                    client.xack("s", "g", entry_id)


ADAPTER = RawOne
