"""What is known of a stream under the explorer, and what must hold after every step.

Every job carries a *marker* in its payload, by which it is found again in whatever entry it lies. Effects count runs: a
commit adds one to the job's receipt. Two kinds of checks: of one view (a job is in one place), and of a step, which
compares the views before and after it: whatever left its place must have gone where the counters and the plan say.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

from faults.explorer import Violation
from faults.view import NOBODYS, Asked, GroupView, Look, Row, Server, View, view_of

from streamq._requests import Command, Pipeline, Reply, Request, Script, Transaction
from streamq._scripts_upkeep import Role
from streamq.keys import Keys
from streamq.lifecycle import STEPS, State
from streamq.messages import Job

SCRIPT_VERBS = {
    "add": "add", "claim_id": "claim ID", "renew": "renew", "reclaim": "reclaim", "start": "start", "ack": "ack",
    "commit": "commit", "retry": "retry", "release": "release", "dead_letter": "dead-letter", "pass_over": "pass over",
    "cancel": "cancel", "redrive": "redrive", "purge": "purge", "trim": "trim", "prune": "prune", "delete": "delete",
    "drop_group": "drop group", "leave": "leave", "pause": "pause", "tick": "tick", "once": "once", "result": "result",
    "sweep": "sweep", "schedule": "schedule", "promote": "promote", "reschedule": "reschedule", "run_now": "run now",
}  # fmt: skip
"""What a request is called in `streamq.lifecycle`, or here if it moves no job. What only its outcome tells (tombstone,
replace, drop orphan) is noted when it is seen."""

COMMAND_VERBS = {"XADD": "add", "XREADGROUP": "read", "XGROUP": "create group"}


def verbs_of(request: Request) -> set[str]:
    """Which steps a request takes. A script without a verb fails: give it one, and its pairs."""
    match request:
        case Script("retry", _, args) if not args[-1]:
            return {"retry at once"}
        case Script(name):
            return {SCRIPT_VERBS[name]}
        case Command(args):
            return {COMMAND_VERBS[args[0]]} if args[0] in COMMAND_VERBS else set()
        case Pipeline(parts) | Transaction(parts):
            return set().union(*map(verbs_of, parts))


MOVES = {(step.source, step.target) for step in STEPS if step.source is not None}

SAME = {(State.READY, State.PENDING), (State.PENDING, State.PENDING), (State.SCHEDULED, State.SCHEDULED)}
"""Moves in which the job stays what it is, under the same ID."""


class Copy(NamedTuple):
    """Where a group has a job."""

    state: State
    id: str
    """Of its entry, or of its timer."""
    attempt: int | None
    """None if nobody can tell: it is dead, or its body is gone."""


Copies: TypeAlias = Mapping[str, list[Copy]]
"""By marker: all that a group has of each job. More than one is a fault."""


class Ground:
    """See the module.

    Args:
        server: Where it is.
        groups: Those that may exist.
        effects: Whether all that settle successfully commit with effects, so that done means a receipt.
        max_deliveries: Starts that a job has.
        max_ready: Most unread entries of a group, or None.
    """

    def __init__(
        self, server: Server, groups: tuple[str, ...], *, effects: bool, max_deliveries: int, max_ready: int | None
    ) -> None:
        self._server = server
        self._keys = Keys(server.next_name(), server.deployment)
        self._groups = groups
        self._effects = effects
        self._max_deliveries = max_deliveries
        self._max_ready = max_ready
        self._look = Look(server, self._keys, groups)
        self._looked: list[Any] | None = None  # by the request under way
        self.verbs: dict[str, set[str]] = defaultdict(set)
        """Actor -> steps that it took."""
        self._markers: dict[str, str] = {}  # entry ID -> marker
        self._foreign: dict[str, str] = {}  # entry ID -> the only group it is for
        self._receipt_of: dict[str, str] = {}  # marker -> field of the receipts
        self._own: dict[str, set[str]] = {group: set() for group in groups}  # markers that the group ever had
        self._gone: dict[str, set[str]] = {group: set() for group in groups}  # of them, those in no place any more
        self._done: dict[str, set[str]] = {group: set() for group in groups}  # of these, those it has settled
        self._ever_done: set[str] = set()
        self._ever_dead: set[str] = set()
        self._ever_waited: set[str] = set()
        self._orphans: set[str] = set()  # what was scheduled by hand and is no job
        self._lives: Counter[tuple[str, str]] = Counter()  # (group, marker) -> how often its attempts began anew
        self._attempts: dict[
            tuple[str, str, int, int, int], str
        ] = {}  # of a group, job, life, drop -> entry that ran it
        self._drops: Counter[str] = Counter()  # group -> how often it was dropped
        self._deleted = False
        self._allowed: dict[str, set[tuple[str, ...]]] = defaultdict(set)  # actor -> what it may make go
        self._starts: Counter[tuple[str, str]] = Counter()  # (group, entry) -> starts that were not taken back
        self._epochs: Counter[tuple[str, str]] = Counter()  # (group, entry) -> changes of its row
        self._epochs_before: Counter[tuple[str, str]] = Counter()
        self._seen: dict[str, dict[tuple[str, str, Row], int]] = {}  # actor -> rows after its steps -> epoch
        self._actor = ""
        self._rows: dict[tuple[str, str], Row] = {}
        self._rows_before: dict[tuple[str, str], Row] = {}
        self._view: View  # after the latest step
        self._view_before: View
        self._copies: dict[str, Copies] = {}  # group -> its jobs, after the latest step

    @property
    def keys(self) -> Keys:
        return self._keys

    @property
    def view(self) -> View:
        return self._view

    def raw(self, *commands: tuple[Any, ...]) -> list[Any]:
        return self._server.raw(*commands)

    # --- what the explorer calls ----------------------------------------------------------

    def begin(self) -> None:
        """Look at what a seed has made by hand; nothing to compare it with."""
        self._actor = "seed"
        self._view = self._take_in(self._look.replies())
        self._note_rows("seed")
        self._copies = self._all_copies(self._view)
        self._check_view(self._view)

    def ask(self, request: Request) -> Reply:
        self.verbs[self._actor] |= verbs_of(request)
        if isinstance(request, Script) and request.name == "promote":
            self._pass_time()
        asked = Asked(self._server, request, self._look)
        try:
            return asked.reply()
        finally:
            self._looked = asked.seen

    def before(self, actor: str) -> None:
        self._actor = actor
        self._epochs_before = self._epochs.copy()
        self._rows_before = self._rows
        self._view_before = self._view

    def after(self, actor: str) -> None:
        assert self._looked is not None
        was, now = self._view, self._take_in(self._looked)
        before = self._copies
        self._view, self._copies = now, self._all_copies(now)
        self._note_rows(actor)
        self._check_step(was, now, before, self._allowed[actor])
        self._check_view(now)

    def _pass_time(self) -> None:
        """All that waits is due when somebody promotes: any time may pass between two requests."""
        if timers := self._view.timers.keys() | self._view.orphans:
            self.raw(("ZADD", self._keys.scheduled, "XX", *(part for timer in timers for part in (1, timer))))

    def close(self) -> None:
        keys = self._keys
        data = [keys.data(name) for name in ("receipts", "~probe")]
        ticks = [keys.tick(role.token(group)) for role in Role for group in self._groups]
        rest = (keys.stream, keys.dead, keys.meta, keys.workers, keys.wake, *keys.ids, *keys.done, *data, *ticks)
        self.raw(("UNLINK", keys.scheduled, keys.jobs, *rest))

    def _take_in(self, replies: list[Any]) -> View:
        view = view_of(replies, self._groups)
        for entry_id, fields in view.entries.items():
            if b"sq:group" in fields:
                self._foreign[entry_id] = fields[b"sq:group"].decode()
            if entry_id not in self._markers:
                self._markers[entry_id] = self._recognize(fields)
        for timer in view.timers.values():
            self._recognize(timer.fields)
        return view

    def _recognize(self, fields: Mapping[bytes, bytes]) -> str:
        """The marker of a job, by its entry; its receipt is known then."""
        marker: str = _marker(fields)
        job_id = None if b"sq:generated" in fields else fields.get(b"sq:id")
        if job_id is not None:  # maybe another than before: a redrive may give it a new one
            self._receipt_of[marker] = job_id.decode()
        self._receipt_of.setdefault(marker, marker)
        return marker

    def _all_copies(self, view: View) -> dict[str, Copies]:
        return {name: self._copies_of(view, name) for name in view.groups}

    def _copies_of(self, view: View, name: str) -> Copies:
        """All jobs that a group has, and where. What only another handles is not its own; what is no job is nobody's."""
        found: dict[str, list[Copy]] = defaultdict(list)
        group = view.groups[name]
        letters = [one.source for one in view.letters.values() if one.group == name]
        for state, ids in ((State.READY, group.unread), (State.PENDING, group.pending), (State.DEAD, letters)):
            for entry_id in ids:
                if entry_id in self._markers and self.handles(name, entry_id):
                    fields = None if state is State.DEAD else view.entries.get(entry_id)
                    attempt = None if fields is None else int(fields.get(b"sq:attempt", 1))
                    found[self._markers[entry_id]].append(Copy(state, entry_id, attempt))
        for timer_id, timer in view.timers.items():
            if timer.group in {"", name}:
                attempt = int(timer.fields.get(b"sq:attempt", 1))
                found[_marker(timer.fields)].append(Copy(State.SCHEDULED, timer_id, attempt))
        return found

    def _note_rows(self, actor: str) -> None:
        rows = {(name, i): row for name, group in self._view.groups.items() for i, row in group.pending.items()}
        for place, row in rows.items():
            if self._rows.get(place) != row:
                self._epochs[place] += 1
        self._rows = rows
        seen = self._seen.setdefault(actor, {})
        for (name, entry_id), row in rows.items():
            seen[name, entry_id, row] = self._epochs[name, entry_id]

    def _note_attempt(self, job: Job[Any], name: str) -> None:
        """A handler begins: each attempt is made by one entry only, however often that is delivered."""
        marker = self._markers[job.entry_id]
        attempt = name, marker, self._lives[name, marker], self._drops[name], job.attempt
        if self._attempts.setdefault(attempt, job.entry_id) != job.entry_id:
            raise Violation(f"attempt {job.attempt} of {marker} was made twice in {name}: as {job.entry_id}, too")

    def knows(self, marker: str) -> bool:
        """Whether there is, or was, a job of that marker."""
        return marker in self._receipt_of

    def handles(self, name: str, entry_id: str) -> bool:
        """Whether the entry is that group's, and not one of those that only another handles."""
        return self._foreign.get(entry_id, name) == name

    def _names(self, entry_ids: Any) -> str:
        return ", ".join(f"{self._markers.get(i, '?')} ({i})" for i in sorted(entry_ids))

    # --- a step ---------------------------------------------------------------------------

    def _check_step(self, was: View, now: View, before: Mapping[str, Copies], allowed: set[tuple[str, ...]]) -> None:
        """Whatever left its place went where it may go, and is counted."""
        had, has = ({*v.entries, *v.groups, *v.timers} for v in (was, now))
        if ("delete",) in allowed and had and not has:
            self._forget_all()
            return
        for name in was.groups.keys() - now.groups.keys():
            if ("drop", name) not in allowed:
                raise Violation(f"group {name} is gone")
            self._forget_group(name)
        if any(now.letters[i].reason == "entry_missing" for i in now.letters.keys() - was.letters.keys()):
            self.verbs[self._actor].add("tombstone")
        if was.orphans - now.orphans:
            self.verbs[self._actor].add("drop orphan")
        born = {(self._markers[i], self._foreign.get(i, "")) for i in now.entries.keys() - was.entries.keys()}
        self._check_timers_gone(was, now, before, born, allowed)
        redriven = self._check_letters_gone(was, now, born, allowed)
        for name in was.groups.keys() & now.groups.keys():
            self._check_group_step(name, was, now, before[name], redriven[name])
            self._check_removed(name, was, now, allowed)
            self._check_moves(name, before[name])

    def _check_timers_gone(
        self,
        was: View,
        now: View,
        before: Mapping[str, Copies],
        born: set[tuple[str, str]],
        allowed: set[tuple[str, ...]],
    ) -> None:
        """What does not wait any more is in the stream, for whom it waited, or somebody cancelled or replaced it.

        Of several entries with one ID, by plain producers, the latest that fails is the one whose next attempt waits.
        """
        for timer_id, timer in was.timers.items():
            marker, after = _marker(timer.fields), now.timers.get(timer_id)
            instead = None if after is None else _marker(after.fields)
            stays = after is not None and (instead, after.group) == (marker, timer.group)
            if stays or (marker, timer.group) in born:
                continue
            job_id = timer_id.partition("/")[2]
            failed = [one.state for one in before.get(timer.group, {}).get(instead or "", ())] == [State.PENDING]
            others = {self._receipt_of[other] for other, group in born if group == timer.group}
            if ("replace", job_id) in allowed and (after is not None or job_id in others):
                self.verbs[self._actor].add("replace")
            elif ("cancel", job_id) not in allowed and not (failed and self._receipt_of[instead or ""] == job_id):
                raise Violation(f"lost: {marker} ({timer_id}) does not wait any more, and is nowhere")

    def _check_moves(self, name: str, before: Copies) -> None:
        """Each job moved as `streamq.lifecycle` says, its attempts counted on with each retry, and from 1 after a redrive."""
        for marker, copies in before.items():
            if len(copies) > 1 or len(self._copies[name].get(marker, ())) != 1:
                continue  # it is gone, as others see
            [a], [b] = copies, self._copies[name][marker]
            step = a.state, b.state
            if a == b:
                continue
            if step not in MOVES or (step in SAME and a.id != b.id):
                raise Violation(f"{marker} went from {a} to {b} in {name}: there is no such step")
            begins = a.state is State.DEAD
            self._lives[name, marker] += begins
            tries = a.state is State.PENDING and b.state in {State.SCHEDULED, State.READY}
            expected = 1 if begins else None if a.attempt is None else a.attempt + tries
            if None not in {expected, b.attempt} and expected != b.attempt:
                raise Violation(f"{marker} went from {a} to {b} in {name}: its attempt should be {expected}")

    def _check_letters_gone(
        self, was: View, now: View, born: set[tuple[str, str]], allowed: set[tuple[str, ...]]
    ) -> Counter[str]:
        """Letters that are gone were redriven, and their jobs are back, or purged by somebody; how many were redriven."""
        redriven: Counter[str] = Counter()
        for letter_id in was.letters.keys() - now.letters.keys():
            letter = was.letters[letter_id]
            unknown = letter.reason == "unknown_group"
            group = self._foreign.get(letter.source, letter.group) if unknown else letter.group
            if (self._markers.get(letter.source), group) in born:
                redriven[group] += 1
            elif not allowed & {("purge", letter_id), ("purge", "*")}:
                raise Violation(f"lost: the letter of {self._names([letter.source])} is gone, and so is its job")
        return redriven

    def _check_group_step(self, name: str, was: View, now: View, before: Copies, redriven: int) -> None:
        a, b = was.groups[name], now.groups[name]
        born = {self._markers[i] for i in now.entries.keys() - was.entries.keys() if self._foreign.get(i) == name}
        born |= _waiting(self._copies[name]) - _waiting(before)
        self._ever_waited |= _waiting(self._copies[name])
        letters = [one.source for i, one in now.letters.items() if i not in was.letters and one.group == name]
        self._check_letters_new(name, was, now)
        left = a.pending.keys() - b.pending.keys() - set(letters)
        passed = {i for i in left if not self.handles(name, i)}
        retried = {i for i in left - passed if self._markers[i] in born}
        done = left - passed - retried
        found = {
            "done": len(done), "passed": len(passed), "retried": len(retried), "dead": len(letters), "redriven": redriven,
        }  # fmt: skip
        for word, count in found.items():
            counted = now.counter(word, name) - was.counter(word, name)
            if counted > count:
                raise Violation(f"{name} counts {counted} {word}, but {count} went there: others are {word} twice")
            if counted < count:
                what = self._names(done) if word == "done" else ""
                raise Violation(f"lost: {what} left {name}, {count} of them as {word}, but it counts {counted} {word}")
        self._done[name] |= {self._markers[i] for i in done}
        self._ever_done |= self._done[name]
        self._ever_dead |= {self._markers[i] for i in letters if i != NOBODYS}

    def _check_letters_new(self, name: str, was: View, now: View) -> None:
        """What only another group handles is never given up here, but where it cannot even be read, or is nobody's."""
        for letter_id in now.letters.keys() - was.letters.keys():
            letter = now.letters[letter_id]
            here = letter.group == name and not self.handles(name, letter.source)
            if here and letter.reason not in {"unknown_group", "oversized", "entry_missing"}:
                raise Violation(f"{name} gave up {self._names([letter.source])} ({letter.reason}), which is another's")

    def _check_removed(self, name: str, was: View, now: View, allowed: set[tuple[str, ...]]) -> None:
        """No entry that the group has not read leaves the stream, but by cancel."""
        a, b = was.groups[name], now.groups[name]
        for entry_id in a.unread - now.entries.keys() - b.pending.keys():
            job_id = self._receipt_of[self._markers[entry_id]]
            if not allowed & {("cancel", job_id), ("cancel", entry_id)}:
                raise Violation(f"lost: {self._names([entry_id])} was removed before {name} has read it")

    def _forget_group(self, name: str) -> None:
        """It was dropped: what it had is nobody's any more, and if it is made again it begins anew."""
        self._drops[name] += 1
        for known in (self._own, self._gone, self._done):
            known[name] = set()
        for place in [place for place in self._starts if place[0] == name]:
            del self._starts[place]

    def _forget_all(self) -> None:
        self._deleted = True
        for name in self._groups:
            self._forget_group(name)
        self._drops.clear()

    # --- a view ---------------------------------------------------------------------------

    def _check_view(self, view: View) -> None:
        if torn := view.orphans - self._orphans:
            raise Violation(f"lost: a time without an entry, or an entry without a time: {sorted(torn)}")
        for name, group in view.groups.items():
            dead = [one.source for one in view.letters.values() if one.group == name and one.source != NOBODYS]
            self._check_places(name, group, dead)
            self._check_starts(name, group)
        self._check_receipts(view)
        self._check_kept(view)

    def _check_places(self, name: str, group: GroupView, dead: list[str]) -> None:
        """Every job is exactly one of scheduled, unread, pending, dead, gone; and no entry is dead twice."""
        twice = [entry_id for entry_id, n in Counter(dead).items() if n > 1]
        if twice:
            raise Violation(f"dead-lettered twice: {self._names(twice)}")
        both = group.pending.keys() & set(dead)
        if both:
            raise Violation(f"pending and dead: {self._names(both)}")
        copies = self._copies[name]
        if several := {marker: places for marker, places in copies.items() if len(places) > 1}:
            raise Violation(f"more than one copy in {name}: {several}")
        self._own[name] |= copies.keys()
        gone = self._own[name] - copies.keys()
        if risen := self._gone[name] - gone:
            raise Violation(f"was done and is there again: {sorted(risen)}")
        self._gone[name] = gone
        most = self._max_ready
        if most is not None and len(group.unread) > most:
            raise Violation(f"{len(group.unread)} are ready for {name}, max_ready is {most}")

    def _check_starts(self, name: str, group: GroupView) -> None:
        most = self._max_deliveries
        for entry_id, (owner, count) in group.pending.items():
            starts = self._starts[name, entry_id]
            if count < starts:
                raise Violation(
                    f"{self._names([entry_id])} of {owner} was started {starts} times, its count says {count}"
                )
            if starts > most:
                raise Violation(
                    f"{self._names([entry_id])} was started {starts} times, max_deliveries {most}, count {count}"
                )

    def _check_receipts(self, view: View) -> None:
        if self._deleted:
            return  # the receipts go with the stream, one request later
        several = {k: n for k, n in view.receipts.items() if n > 1 + self._drops[k.partition("/")[0]]}
        if several:
            raise Violation(f"effects applied more than once: {several}")
        done = {f"{name}/{self._receipt_of[marker]}" for name, gone in self._done.items() for marker in gone}
        applied = {k for k in view.receipts if not k.startswith("once/") and not self._drops[k.partition("/")[0]]}
        if early := applied - done:
            raise Violation(f"effects applied, but not done: {sorted(early)}")
        if self._effects and (without := done - view.receipts.keys()):
            raise Violation(f"done without effects: {sorted(without)}")

    def _check_kept(self, view: View) -> None:
        """Entries that letters refer to are there, and counted exactly."""
        wanted = Counter(one.source for one in view.letters.values() if one.refers)
        if lost := wanted.keys() - view.entries.keys():
            raise Violation(f"a dead letter refers to {self._names(lost)}, which is gone")
        if view.kept() != dict(wanted) or int(view.meta.get("kept", 0)) != len(wanted):
            raise Violation(f"letters refer to {dict(wanted)}, but the stream counts {view.kept()}, {view.meta}")

    # --- what plans may do ----------------------------------------------------------------

    def _allow(self, *what: str) -> None:
        self._allowed[self._actor].add(what)

    def _unchanged(self, what: str) -> None:
        """A request that was refused, or found nothing, wrote nothing."""
        a, b = self._view_before, self._view
        if any(
            of(a) != of(b) for of in (lambda v: v.entries.keys(), lambda v: (v.groups, v.letters, v.timers, v.orphans))
        ):
            raise Violation(f"{self._actor}: {what}, but something was changed")


def _marker(fields: Mapping[bytes, bytes]) -> str:
    """The marker in the payload of an entry."""
    return json.loads(fields[b"job"])["marker"]


def _waiting(copies: Copies) -> set[str]:
    """Markers of those that wait for their time."""
    return {marker for marker, places in copies.items() if any(one.state is State.SCHEDULED for one in places)}
