"""What a stream is: its keys, its settings and its codec. Plans take one instead of three arguments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from streamq._codec import EntryCodec
from streamq.keys import Keys
from streamq.options import StreamOptions

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Spec(Generic[T]):
    """Definition of one stream."""

    keys: Keys
    options: StreamOptions
    codec: EntryCodec[T]
