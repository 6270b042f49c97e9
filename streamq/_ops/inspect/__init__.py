"""Look at a stream, or at a job, without touching it: read commands only, of bounded cost."""

from streamq._ops.inspect.brief import abandoned, snapshot
from streamq._ops.inspect.find import find
from streamq._ops.inspect.full import full

__all__ = ["abandoned", "find", "full", "snapshot"]
