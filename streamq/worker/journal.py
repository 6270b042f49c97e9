"""What a child of `streamq run` holds, in memory that outlives it: so its parent can give its jobs back at once.

A file mapped by both. What the child stored before it was killed is in the page cache, whatever killed it; only a power
cut loses it, and then the leases bring the jobs back as they do without a journal.

Why no lock is needed. There is one writer, the child, and it calls everything here from one thread, its event loop's. The
parent reads only when the child is dead, so it never looks at a slot in motion. What a SIGKILL can cut in two is only a
note's several words, so each is told by one of them: the first two, the entry ID, mean nothing while the third is zero, and
the third, with the state and all that changes with it, is one aligned word that the processor stores whole.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import sys
from pathlib import Path
from typing import Final

from streamq._flows.recovery import Note, NoteState

__all__ = ["MAX_STREAMS", "Journal", "Note", "NoteState"]

MAX_STREAMS: Final = 64
"""Most streams of one journal: their flags are the bits of one word."""

_MAGIC: Final = int.from_bytes(b"streamqJ", sys.byteorder)
_VERSION: Final = 1

# Words of 8 bytes: the header's, then three a slot.
_AT_MAGIC, _AT_VERSION, _AT_CAPACITY, _AT_RECLAIMING, _AT_DROPPED = range(5)
_HEADER: Final = 8
_SLOT: Final = 3
_WORD: Final = 8

# The third word of a slot: 32 bits count, 16 bits stream, 8 bits state; zero is a free slot.
_COUNT_SHIFT: Final = 24
_STREAM_SHIFT: Final = 8
_STATE_MASK: Final = 0xFF
_STREAM_MASK: Final = 0xFFFF


class Journal:
    """Notes of one process, in a file that the process and its parent have mapped.

    Made by `create` and `open`. Each call costs one or two microseconds and no system call.

    Attributes:
        path: The file.
        dropped: Notes that found no slot. While it is not zero, a delivery without a note may be a started one.
    """

    def __init__(self, path: Path, mapped: mmap.mmap) -> None:
        self.path = path
        self._mapped = mapped
        self._words = memoryview(mapped).cast("Q")
        self._slots: dict[tuple[int, str], int] = {}
        last = _HEADER + (self.capacity - 1) * _SLOT
        self._free = list(range(last, _HEADER - 1, -_SLOT))

    @classmethod
    def create(cls, path: str | os.PathLike[str], *, capacity: int) -> Journal:
        """Make the file, for `capacity` notes at once.

        Raises:
            FileExistsError: There is one.
            OSError: It cannot be written. There is no such error later: its room is taken now.
        """
        words = memoryview(bytearray((_HEADER + capacity * _SLOT) * _WORD)).cast("Q")
        words[_AT_MAGIC], words[_AT_VERSION], words[_AT_CAPACITY] = _MAGIC, _VERSION, capacity
        with Path(path).open("xb") as file:
            file.write(words)  # zeros and all: a store into a hole of a full disk would be SIGBUS, not an error
        return cls.open(path)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Journal:
        """Map a file that `create` has made.

        Raises:
            OSError: There is none.
            ValueError: It is something else, or another version's.
        """
        with Path(path).open("r+b") as file:
            mapped = mmap.mmap(file.fileno(), 0)
        head = memoryview(mapped[: _HEADER * _WORD].ljust(_HEADER * _WORD, b"\0")).cast("Q")
        size = (_HEADER + head[_AT_CAPACITY] * _SLOT) * _WORD
        if (head[_AT_MAGIC], head[_AT_VERSION], size) != (_MAGIC, _VERSION, len(mapped)):
            mapped.close()
            raise ValueError(f"{path} is not a journal of version {_VERSION}")
        return cls(Path(path), mapped)

    @property
    def capacity(self) -> int:
        """Most notes at once."""
        return self._words[_AT_CAPACITY]

    @property
    def dropped(self) -> int:
        """Notes that found no slot, since the file was made."""
        return self._words[_AT_DROPPED]

    # The child's side: one thread

    def note(self, stream: int, entry_id: str, count: int, state: NoteState) -> None:
        """Note how far a delivery has come, in place of what was noted of it. In a full journal it is only counted."""
        at = self._slots.get((stream, entry_id))
        words = self._words
        if at is None:
            if not self._free:
                words[_AT_DROPPED] += 1
                return
            at = self._slots[stream, entry_id] = self._free.pop()
            ms, _, seq = entry_id.partition("-")
            words[at], words[at + 1] = int(ms), int(seq)
        words[at + 2] = count << _COUNT_SHIFT | stream << _STREAM_SHIFT | state

    def forget(self, stream: int, entry_id: str) -> None:
        """Take the note away: the delivery is settled, given back or lost, and the server has said so."""
        at = self._slots.pop((stream, entry_id), None)
        if at is not None:
            self._words[at + 2] = 0
            self._free.append(at)

    def reclaiming(self, stream: int, under_way: bool) -> None:  # noqa: FBT001  # a flag is all it sets
        """Say whether a reclaim of `stream` is asked for without an answer yet: what it takes over is not charged."""
        if under_way:
            self._words[_AT_RECLAIMING] |= 1 << stream
        else:
            self._words[_AT_RECLAIMING] &= ~(1 << stream)

    # The parent's side: when the child is dead

    def notes(self) -> list[Note]:
        """All notes, in no order."""
        found = []
        words = self._words
        for at in range(_HEADER, len(words), _SLOT):
            if word := words[at + 2]:
                entry_id = f"{words[at]}-{words[at + 1]}"
                stream = word >> _STREAM_SHIFT & _STREAM_MASK
                found.append(Note(stream, entry_id, word >> _COUNT_SHIFT, NoteState(word & _STATE_MASK)))
        return found

    def is_reclaiming(self, stream: int) -> bool:
        """Whether a reclaim of `stream` had no answer yet."""
        return bool(self._words[_AT_RECLAIMING] >> stream & 1)

    def close(self) -> None:
        """Let go of the mapping. The file stays."""
        self._words.release()
        self._mapped.close()

    def unlink(self) -> None:
        """Remove the file, if it is still there. Who has it mapped keeps it."""
        with contextlib.suppress(FileNotFoundError):
            self.path.unlink()
