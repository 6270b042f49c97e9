"""The supervisor's journal: what a process noted is there when it is dead, whole, and nothing else."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time

import pytest

from streamq.worker.journal import Journal, Note, NoteState

READ, HELD, STARTING, STARTED = NoteState


@pytest.fixture
def make_journal(tmp_path):
    """Make a journal for this test; its parent's side is opened by `Journal.open`."""
    opened = []

    def make(capacity=8):
        opened.append(Journal.create(tmp_path / f"journal-{len(opened)}", capacity=capacity))
        return opened[-1]

    yield make
    for journal in opened:
        journal.close()


def notes(journal):
    """As who else has mapped the file sees them."""
    other = Journal.open(journal.path)
    found = sorted(other.notes())
    other.close()
    return found


def test_notes_are_seen_by_who_maps_the_file(make_journal):
    journal = make_journal()
    journal.note(0, "1-0", 1, READ)
    journal.note(1, "1-0", 3, HELD)
    journal.note(0, "18446744073709551615-18446744073709551615", 2**31, STARTING)
    assert notes(journal) == [
        Note(0, "1-0", 1, READ),
        Note(0, "18446744073709551615-18446744073709551615", 2**31, STARTING),
        Note(1, "1-0", 3, HELD),
    ]


def test_a_note_takes_the_place_of_the_one_before(make_journal):
    journal = make_journal()
    for count, state in ((1, HELD), (2, STARTING), (2, STARTED)):
        journal.note(0, "5-1", count, state)
        assert notes(journal) == [Note(0, "5-1", count, state)]


def test_what_is_forgotten_is_gone_and_its_slot_free(make_journal):
    journal = make_journal(capacity=2)
    for n in range(10):
        journal.note(0, f"{n}-0", 1, READ)
        journal.note(0, f"{n}-1", 1, READ)
        journal.forget(0, f"{n}-0")
        assert notes(journal) == [Note(0, f"{n}-1", 1, READ)]
        journal.forget(0, f"{n}-1")
    journal.forget(0, "unknown-0")
    assert (notes(journal), journal.dropped) == ([], 0)


def test_a_full_journal_counts_what_it_drops_and_goes_on(make_journal):
    journal = make_journal(capacity=2)
    for n in range(5):
        journal.note(0, f"{n}-0", 1, READ)
    journal.note(0, "1-0", 1, STARTED)  # what is in it still changes
    assert notes(journal) == [Note(0, "0-0", 1, READ), Note(0, "1-0", 1, STARTED)]
    assert Journal.open(journal.path).dropped == 3
    journal.forget(0, "0-0")
    journal.note(0, "4-0", 1, STARTED)
    assert notes(journal) == [Note(0, "1-0", 1, STARTED), Note(0, "4-0", 1, STARTED)]


def test_reclaims_under_way_are_flagged_by_stream(make_journal):
    journal = make_journal()
    for stream in (0, 2, 63):
        journal.reclaiming(stream, True)
    journal.reclaiming(2, False)
    journal.reclaiming(5, False)
    other = Journal.open(journal.path)
    assert [stream for stream in range(64) if other.is_reclaiming(stream)] == [0, 63]


@pytest.mark.parametrize("content", [b"", b"not a journal", b"streamqJ" + bytes(100), bytes(4096)])
def test_another_file_is_refused(tmp_path, content):
    path = tmp_path / "journal"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"not a journal|empty"):
        Journal.open(path)


def test_the_file_is_made_once_and_removed_more_than_once(make_journal):
    journal = make_journal()
    with pytest.raises(FileExistsError):
        Journal.create(journal.path, capacity=8)
    journal.unlink()
    journal.unlink()
    journal.note(0, "1-0", 1, READ)
    assert not journal.path.exists()
    assert journal.notes() == [Note(0, "1-0", 1, READ)]  # who has it mapped keeps it


_WRITER = """
import sys
from streamq.worker.journal import Journal, NoteState
journal = Journal.open(sys.argv[1])
print(flush=True)
n = 0
while True:
    for state in NoteState:
        for i in range(n, n + 3):
            journal.note(i % 7, f"{i}-{i}", 2 * i + (state >= NoteState.STARTING), state)
    for i in range(n, n + 3):
        journal.forget(i % 7, f"{i}-{i}")
    n += 3
"""
"""Notes in which everything follows from one number and the state, so that a mixture of two shows."""


def test_no_note_is_torn_when_its_writer_is_killed(make_journal):
    for _ in range(12):
        journal = make_journal(capacity=4)
        with subprocess.Popen([sys.executable, "-c", _WRITER, str(journal.path)], stdout=subprocess.PIPE) as writer:
            writer.stdout.readline()
            time.sleep(random.uniform(0.01, 0.05))
            writer.send_signal(signal.SIGKILL)
            writer.wait()
        found = journal.notes()
        numbers = [int(note.entry_id.partition("-")[0]) for note in found]
        assert max(numbers, default=0) - min(numbers, default=0) < 3
        for n, note in zip(numbers, found, strict=True):
            assert note == Note(n % 7, f"{n}-{n}", 2 * n + (note.state >= STARTING), note.state)
