"""A worker with metrics for ``streamq run``; what its handlers do comes as in `worker.crew`."""

from __future__ import annotations

import json
import os
from typing import Any

from worker.fleet import Events, handler_of, options_of

from streamq import Stream, Worker
from streamq.telemetry import WorkerMetrics


def worker() -> Worker[Any]:
    """The worker of this run."""
    given = json.loads(os.environ["CREW"])
    events = Events(given["events"])
    events.tell("up")
    stream: Stream[Any] = Stream(given["stream"], redis=given["url"], options=options_of(given["options"]))
    return Worker(stream, handler_of(given["handler"], events), hooks=[WorkerMetrics()], **given["worker"])
