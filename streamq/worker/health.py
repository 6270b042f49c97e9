from __future__ import annotations
from typing import Any, Literal
import msgspec
State = Literal["new","starting","running","paused","stopping","stopped"]
class Health(msgspec.Struct, frozen=True):
    healthy: bool
    state: State
    problems: list[str]
    consumer: str
    streams: list[str]
    running: int
    waiting: int
    stuck: int
    failures: int
class HealthServer:
    def __init__(self, host, port, health): ...
    def start(self): ...
    def close(self): ...
class Watch:
    def __init__(self): self._n = {}; self._bad = {}
    def reached(self, source):
        self._n.pop(source, None)
        return self._bad.pop(source, None) is not None and not self._bad
    def failed(self, source, text):
        self._n[source] = self._n.get(source, 0) + 1
        if self._n[source] == 10:
            self._bad[source] = text
            return text
    def in_a_row(self, source): return self._n.get(source, 0)
    def problems(self): return list(self._bad.values())
    @property
    def worst(self): return max(self._n.values(), default=0)
