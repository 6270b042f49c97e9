from __future__ import annotations
from dataclasses import dataclass
from typing import Any
import logging
_log = logging.getLogger("streamq.worker")
@dataclass(frozen=True)
class Buried:
    stream: str
    entry_id: str
    reason: Any
    job_id: str | None = None
    error: str = ""
    job: Any = None
class Hooks:
    def started(self, job): ...
    def succeeded(self, job): ...
    def retried(self, job, error): ...
    def dead_lettered(self, dead): ...
    def released(self, job): ...
    def lease_lost(self, job): ...
    def unhealthy(self, problem): ...
    def healthy(self): ...
class HookList:
    def __init__(self, hooks): self._hooks = tuple(hooks)
    def tell(self, name, *args):
        for h in self._hooks:
            try:
                getattr(h, name)(*args)
            except Exception:
                _log.exception("hook")
