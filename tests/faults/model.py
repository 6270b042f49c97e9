"""The life of jobs in plain Python: what every operation answers and changes, without time, crashes and wire.

One class for the stream; every method is an operation of the public interface and returns what that should answer. It is
written from the documentation, not from the scripts, and is as slow as it likes.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

MAX_DELIVERIES = 2
ATTEMPTS = 2
MAX_REDRIVES = 2


@dataclass(eq=False)
class Entry:
    """An entry of the stream."""

    at: int
    """Its place in the order of adding."""
    marker: str
    chosen: str | None = None
    only: str | None = None
    attempt: int = 1
    redrives: int = 0
    id: str = ""


@dataclass(eq=False)
class Group:
    """A consumer group."""

    last: int = -1
    pending: dict[Entry, tuple[str, int]] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)


@dataclass(eq=False)
class Letter:
    """A dead letter."""

    entry: Entry
    group: str
    reason: str
    chosen: str | None


@dataclass(eq=False)
class Delivery:
    """A job in somebody's hands, who may not know that it is not his any more."""

    entry: Entry
    group: str
    consumer: str
    count: int
    over: bool = False
    """Given back, or known to be lost."""


class Lost(Exception):  # noqa: N818  # an answer
    """LeaseLostError."""


class Refused(Exception):  # noqa: N818  # an answer
    """JobStateError, with the state."""


class Model:
    """A stream and its groups."""

    def __init__(self, *groups: str) -> None:
        self.entries: list[Entry] = []
        self.groups: dict[str, Group] = {name: Group() for name in groups}
        self.letters: list[Letter] = []
        self.timers: dict[str, Entry] = {}  # <group>/<job ID>, or /<job ID> for all groups -> what waits
        self.queued: dict[str, Entry] = {}  # job ID -> the entry it was added as
        self.finished: set[str] = set()  # job IDs that some group has done
        self.running: dict[tuple[str, str], Entry] = {}
        self.done: set[tuple[str, str]] = set()
        self.receipts: Counter[tuple[str, str]] = Counter()
        self._added = 0

    # --- looking --------------------------------------------------------------------------

    def unread(self, name: str) -> list[Entry]:
        return [entry for entry in self.entries if entry.at > self.groups[name].last]

    def state(self, entry: Entry) -> str | None:
        """ready, pending, or None when no group has to do with it any more."""
        if any(entry in group.pending for group in self.groups.values()):
            return "pending"
        if entry not in self.entries:
            return None
        handlers = [name for name in self.groups if entry.only in {None, name}]
        if not handlers or any(entry.at > self.groups[name].last for name in handlers):
            return "ready"
        return None

    def timer(self, name: str, job_id: str) -> str | None:
        """The timer by which a group has a job: its own, or that of all groups."""
        return next((timer for timer in (f"{name}/{job_id}", f"/{job_id}") if timer in self.timers), None)

    def timers_of(self, job_id: str) -> list[str]:
        """All timers of a job, in the groups that there are."""
        return [timer for name in ("", *sorted(self.groups)) if (timer := f"{name}/{job_id}") in self.timers]

    def result(self, name: str, job_id: str) -> str:
        if self.timer(name, job_id):
            return "scheduled"
        if (name, job_id) in self.done:
            return "done"
        entry = self.running.get((name, job_id)) or self.queued.get(job_id)
        if entry is None:
            return "unknown"
        group = self.groups.get(name)
        if group is not None and entry in group.pending:
            return "pending"
        waits = entry in self.entries and entry.only in {None, name} and (group is None or entry.at > group.last)
        return "ready" if waits else "unknown"

    # --- adding ---------------------------------------------------------------------------

    def _append(self, entry: Entry) -> Entry:
        entry.at = self._added
        self._added += 1
        self.entries.append(entry)
        return entry

    def _known(self, job_id: str | None) -> tuple[str, Entry | None] | None:
        """Where a job of that ID is, and its entry if it has one."""
        if job_id is None:
            return None
        if self.timers_of(job_id):
            return "scheduled", None
        if job_id in self.finished:
            return "done", self.queued[job_id]
        known = self.queued.get(job_id)
        state = known and self.state(known)
        return (state, known) if state else None

    def add(self, marker: str, job_id: str | None) -> tuple[bool, str, Entry | None]:
        """Whether it was added, its state, and the entry."""
        if known := self._known(job_id):
            return False, *known
        return True, "ready", self._join(Entry(0, marker, job_id))

    def _join(self, entry: Entry) -> Entry:
        """It is ready."""
        if entry.chosen is not None:
            self.finished.discard(entry.chosen)
            self.queued[entry.chosen] = entry
        return self._append(entry)

    # --- waiting --------------------------------------------------------------------------

    def schedule(
        self, marker: str, job_id: str | None, new_id: str, *, later: bool, replace: bool
    ) -> tuple[bool, str, Entry | None]:
        """As `add`; `new_id` is what a job without an ID is called, `later` whether it is not due yet."""
        known = self._known(job_id)
        if known is not None and not (replace and known[0] == "scheduled"):
            return False, *known
        name = job_id or new_id
        entry = None
        for timer in (job_id and self.timers_of(job_id)) or [f"/{name}"]:
            only = timer.partition("/")[0] or None
            entry = Entry(0, marker, job_id, only)
            if later:
                self.timers[timer] = entry
            else:
                self.timers.pop(timer, None)
                self._join(entry)
        return True, *(("scheduled", None) if later else ("ready", entry))

    def promote(self) -> int:
        """All of it is due, what was scheduled first is so first; how many."""
        timers = list(self.timers)
        for timer in timers:
            self._join(self.timers.pop(timer))
        return len(timers)

    def run_now(self, name: str, job_id: str) -> Entry:
        if (timer := self.timer(name, job_id)) is None:
            raise Refused(self.result(name, job_id))
        return self._join(self.timers.pop(timer))

    def reschedule(self, name: str, job_id: str) -> None:
        if self.timer(name, job_id) is None:
            raise Refused(self.result(name, job_id))

    # --- cancelling -----------------------------------------------------------------------

    def cancel(self, name: str, job_id: str, *, only_scheduled: bool = False) -> bool:
        if timer := self.timer(name, job_id):
            del self.timers[timer]
            earlier = self.queued.get(job_id)
            if earlier is not None and self.state(earlier) is None:
                self._free(job_id, earlier)
            return True
        try:
            entry = self._cancellable(job_id)
        except Refused as refused:
            if only_scheduled and str(refused) == "done":
                return False
            raise
        if entry is None:
            return False
        if only_scheduled:
            raise Refused("ready")
        self.entries.remove(entry)
        self._free(job_id, entry)
        return True

    def _cancellable(self, job_id: str) -> Entry | None:
        if job_id in self.finished:
            raise Refused("done")
        entry = self.queued.get(job_id)
        state = entry and self.state(entry)
        if state == "pending":
            raise Refused(state)
        if entry is None or entry not in self.entries:
            return None
        if state is None:
            raise Refused("done")
        handlers = [group for name, group in self.groups.items() if entry.only in {None, name}]
        begun = entry.only is not None and bool(self.groups.keys() - {entry.only})  # in this entry or in another
        if begun or any(entry.at <= group.last for group in handlers):
            raise Refused("pending")
        return entry

    def vandalize(self, entry: Entry) -> None:
        """XDEL by hand."""
        self.entries.remove(entry)

    def _free(self, job_id: str | None, entry: Entry) -> None:
        if job_id is not None and self.queued.get(job_id) is entry and job_id not in self.finished:
            del self.queued[job_id]

    # --- taking ---------------------------------------------------------------------------

    def read(self, name: str, consumer: str, count: int) -> list[Delivery]:
        group = self.groups.setdefault(name, Group())
        taken = self.unread(name)[:count]
        for entry in taken:
            group.last = entry.at
            group.pending[entry] = (consumer, 1)
        return self._take_in(name, consumer, taken, [])

    def reclaim(self, name: str, consumer: str) -> tuple[list[Delivery], list[Entry], list[Entry]]:
        """Claimed, dead, missing."""
        group = self.groups.setdefault(name, Group())
        claimed: list[Entry] = []
        spent: list[Entry] = []
        missing: list[Entry] = []
        for entry, (_, count) in sorted(group.pending.items(), key=lambda item: item[0].at):
            if entry not in self.entries:
                missing.append(entry)
                self._tombstone(name, entry)
            elif count >= MAX_DELIVERIES and entry.only in {None, name}:
                group.pending[entry] = (consumer, count)
                spent.append(entry)
            else:
                group.pending[entry] = (consumer, count + 1)
                claimed.append(entry)
        before = len(self.letters)
        jobs = self._take_in(name, consumer, claimed, spent)
        return jobs, [letter.entry for letter in self.letters[before:]], missing

    def _take_in(self, name: str, consumer: str, taken: list[Entry], spent: list[Entry]) -> list[Delivery]:
        jobs, done, elsewhere = self._claim(name, [entry for entry in taken if entry.only in {None, name}])
        pending = self.groups[name].pending
        for entry in done:
            self._settle(name, entry, "done")
        for entry in elsewhere:
            owner, count = pending[entry]
            pending[entry] = (owner, count - 1)
        nobodys: list[Entry] = []
        for entry in taken:
            if entry.only not in {None, name} and entry.only not in self.groups and not self._needed(name, entry):
                nobodys.append(entry)
            elif entry.only not in {None, name}:
                self._settle(name, entry, "passed")
        for entry in spent:
            self._bury(name, entry, "deliveries")
        for entry in nobodys:
            self._bury(name, entry, "unknown_group")
        return [Delivery(entry, name, consumer, pending[entry][1]) for entry in jobs]

    def _claim(self, name: str, entries: list[Entry]) -> tuple[list[Entry], list[Entry], list[Entry]]:
        """Those that may run, those whose ID the group has done, and those whose ID it runs as another entry."""
        run: list[Entry] = []
        done: list[Entry] = []
        elsewhere: list[Entry] = []
        for entry in entries:
            key = (name, entry.chosen or "")
            other = self.running.get(key)
            if key in self.done:
                done.append(entry)
            elif other not in {None, entry} and other in self.groups[name].pending:
                elsewhere.append(entry)
            else:
                run.append(entry)
                if entry.chosen is not None:
                    self.running[key] = entry
        return run, done, elsewhere

    # --- settling -------------------------------------------------------------------------

    def _settle(self, name: str, entry: Entry, word: str) -> None:
        """It leaves the group, and the stream if it was the last."""
        group = self.groups[name]
        del group.pending[entry]
        group.counts[word] += 1
        if entry in self.entries and not self._needed(name, entry):
            self.entries.remove(entry)

    def _needed(self, name: str, entry: Entry) -> bool:
        """Whether a group beside this one has not read it, or not settled it."""
        others = [group for other, group in self.groups.items() if other != name]
        return any(entry.at > group.last or entry in group.pending for group in others)

    def _tombstone(self, name: str, entry: Entry) -> None:
        self.letters.append(Letter(entry, name, "entry_missing", None))
        self._leave_dead(name, entry)

    def _leave_dead(self, name: str, entry: Entry) -> None:
        self.groups[name].counts["dead"] += 1
        del self.groups[name].pending[entry]

    def _bury(self, name: str, entry: Entry, reason: str) -> None:
        if entry not in self.entries:
            self._tombstone(name, entry)
        else:
            self.letters.append(Letter(entry, name, reason, entry.chosen))
            self._settle(name, entry, "dead")
        self._stop(name, entry)
        if entry.only == name or not self._needed(name, entry):
            self._free(entry.chosen, entry)

    def _stop(self, name: str, entry: Entry) -> None:
        if entry.chosen is not None and self.running.get((name, entry.chosen)) is entry:
            del self.running[name, entry.chosen]

    def fence(self, d: Delivery) -> bool | None:
        """True: his. None: not pending. False: another delivery."""
        row = self.groups[d.group].pending.get(d.entry) if d.group in self.groups else None
        return None if row is None else row == (d.consumer, d.count)

    def _guard(self, d: Delivery) -> None:
        if d.over or not self.fence(d):
            raise Lost

    def ack(self, d: Delivery) -> bool:
        if d.over or self.fence(d) is False:
            raise Lost
        if self.fence(d) is None:
            return False
        self._finish(d)
        return True

    def commit(self, d: Delivery) -> None:
        self._guard(d)
        self.receipts[d.group, d.entry.marker] += 1
        self._finish(d)

    def _finish(self, d: Delivery) -> None:
        self._settle(d.group, d.entry, "done")
        if (job_id := d.entry.chosen) is not None:
            self.running.pop((d.group, job_id), None)
            self.done.add((d.group, job_id))
            other = None if job_id in self.finished else self.queued.get(job_id)
            if other is None or other not in self.entries or other.only in {None, d.group} or len(self.groups) == 1:
                self.finished.add(job_id)
                self.queued[job_id] = d.entry

    def retry(self, d: Delivery, job_id: str, *, later: bool = False) -> bool:
        """Whether it runs again; `later` waits for its time."""
        self._guard(d)
        if d.entry.attempt >= ATTEMPTS or d.entry not in self.entries:
            self._bury(d.group, d.entry, "attempts")
            return False
        e = d.entry
        new = Entry(0, e.marker, e.chosen, d.group, e.attempt + 1, e.redrives)
        if later:
            self.timers[f"{d.group}/{job_id}"] = new
        else:
            self._join(new)
        self._settle(d.group, e, "retried")
        self._stop(d.group, e)
        return True

    def reject(self, d: Delivery) -> None:
        self._guard(d)
        self._bury(d.group, d.entry, "rejected")

    def release(self, d: Delivery) -> None:
        his = not d.over and self.fence(d)
        d.over = True
        if not his:
            raise Lost
        if d.entry not in self.entries:
            self._tombstone(d.group, d.entry)
            self._stop(d.group, d.entry)
            raise Lost
        self.groups[d.group].pending[d.entry] = (d.consumer, d.count - 1)
        self._stop(d.group, d.entry)

    def extend(self, d: Delivery) -> None:
        if d.over:
            raise Lost
        if not self.fence(d):
            d.over = True
            raise Lost
        if d.entry not in self.entries:
            d.over = True
            self._tombstone(d.group, d.entry)
            raise Lost

    # --- operators ------------------------------------------------------------------------

    def redrive(self, letter: Letter) -> str:
        """moved, superseded, refused, or missing."""
        if letter not in self.letters:
            return "missing"
        e = letter.entry
        name = e.only or letter.group if letter.reason == "unknown_group" else letter.group
        if letter.reason == "entry_missing" or name not in self.groups or e.redrives >= MAX_REDRIVES:
            return "refused"
        if letter.chosen is not None and self._held_by(name, letter.chosen):
            return "superseded"
        self._join(Entry(0, e.marker, letter.chosen, name, 1, e.redrives + 1))
        self.letters.remove(letter)
        self.groups[name].counts["redriven"] += 1
        return "moved"

    def _held_by(self, name: str, job_id: str) -> bool:
        """Whether the group has done the ID, or has it still."""
        if self.timer(name, job_id):
            return True
        group = self.groups[name]
        running = self.running.get((name, job_id))
        if (name, job_id) in self.done or (running is not None and running in group.pending):
            return True
        entry = None if job_id in self.finished else self.queued.get(job_id)
        if entry is None or entry not in self.entries or entry.only not in {None, name}:
            return False
        return entry in group.pending or entry.at > group.last

    def purge(self, letter: Letter) -> int:
        if letter not in self.letters:
            return 0
        self.letters.remove(letter)
        return 1

    def trim(self) -> int:
        finished = [
            e
            for e in self.entries
            if self.groups and not any(e.at > g.last or e in g.pending for g in self.groups.values())
        ]
        for entry in finished:
            self.entries.remove(entry)
        return len(finished)

    def create(self, name: str) -> bool:
        made = name not in self.groups
        self.groups.setdefault(name, Group())
        return made

    def drop(self, name: str, *, force: bool) -> bool:
        if name not in self.groups:
            return False
        group = self.groups[name]
        waits = any(timer.startswith(f"{name}/") for timer in self.timers)
        if not force and (group.pending or self.unread(name) or waits):
            raise Refused("pending" if group.pending else "ready" if self.unread(name) else "scheduled")
        del self.groups[name]
        return True

    def snapshot(self) -> dict[str, Any]:
        """What `inspect` says."""
        return {
            name: (
                len(self.unread(name)), len(g.pending), g.counts["done"], g.counts["retried"], g.counts["dead"],
                g.counts["redriven"],
            )
            for name, g in self.groups.items()
        }  # fmt: skip
