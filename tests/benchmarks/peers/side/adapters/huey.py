"""Huey."""

import logging

from huey import RedisHuey

from adapters.base import PAYLOAD, URL, Adapter, handle

huey = RedisHuey("h", url=URL)
OPTIONS = {"best": {"workers": 4}, "hold": {"workers": 100}}


@huey.task(name="job")
def job(i, p):
    handle(i)


class Huey(Adapter):
    name = "huey"
    is_async = False
    bulk = "none documented: a loop of job()"
    profiles = {"default": "1 worker thread", "best": "-w 4 -k thread", "hold": "-w 100 -k thread"}
    packages = ("huey", "redis", "hiredis")
    limits = "takes a job off the queue before it runs: whatever a crashed worker held is lost"

    def add_one(self, i):
        job(i, PAYLOAD)

    def add_bulk(self, low, high):
        for i in range(low, high):
            job(i, PAYLOAD)

    def worker(self, profile):
        logging.getLogger("huey").setLevel(logging.ERROR)
        huey.create_consumer(**OPTIONS.get(profile, {})).run()


ADAPTER = Huey
