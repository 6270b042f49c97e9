"""What ``streamq run faults.chaos.target:worker`` runs: the laboratory's worker, with settings from the environment."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

from faults.chaos.process import tell_stalls, use_scripts
from worker.fleet import Events, handler_of, options_of

from streamq import Stream, Worker

SETTINGS = "CHAOS_SETTINGS"


def make(given: dict[str, Any]) -> Worker[Any]:
    """A worker of this process. Which connection and which kind of handler it has is up to its process ID."""
    if given["lua"]:
        use_scripts(Path(given["lua"]))
    events = Events(given["events"])
    threading.Thread(target=tell_stalls, args=(events,), daemon=True).start()
    stream: Stream[Any] = Stream(
        given["stream"], redis=given["urls"][os.getpid() % 2], options=options_of(given["options"])
    )
    handler = handler_of("async def" if os.getpid() // 2 % 2 == 0 else "def", events)
    events.tell("up")
    return Worker(stream, handler, **given["worker"])


worker = make(json.loads(os.environ[SETTINGS]))
