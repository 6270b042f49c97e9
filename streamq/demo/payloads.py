"""The webhooks of the demo: 329 real payloads of 58 kinds. Their origin and licence lie beside the data."""

from __future__ import annotations

import gzip
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

_FILE = "github-webhooks.jsonl.gz"


class Webhook(msgspec.Struct):
    """One webhook to deliver.

    Attributes:
        event: Kind of event.
        payload: The body, as JSON, untouched.
        action: What happened, for kinds that say so.
        poison: ``raises`` makes its handler fail always, ``kills`` makes it end its process.
    """

    event: str
    payload: msgspec.Raw
    action: str | None = None
    poison: str | None = None


def load() -> list[Webhook]:
    """All webhooks, in the order of the file."""
    lines = gzip.decompress((_folder() / _FILE).read_bytes()).splitlines()
    decoder = msgspec.json.Decoder(Webhook)
    return [decoder.decode(line) for line in lines]


def _folder() -> Traversable:
    packaged = files("streamq.demo") / "data"
    if packaged.is_dir():
        return packaged
    return Path(__file__).parent.parent.parent / "examples" / "data"  # a checkout
