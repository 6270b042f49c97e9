"""What you see of the demo: where all jobs are, and what becomes of some of them."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from streamq.demo.payloads import Webhook
from streamq.messages import ScheduledJob
from streamq.stream import Stream


class Watch:
    """A line that shows where all jobs are, and lines that tell what becomes of some. A context manager.

    Args:
        stream: The demo's.
        jobs: How many there are.
        told: IDs of the jobs whose attempts are told.
        console: Where to show it.
    """

    def __init__(self, stream: Stream[Webhook], jobs: int, told: Iterable[str], console: Console) -> None:
        self._stream = stream
        self.jobs = jobs
        self._told = dict.fromkeys(told, 1)
        self._last_letter: str | None = None
        self._console = console
        self._progress = Progress(
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[where]}"),
            TimeElapsedColumn(),
            console=console,
        )
        self._bar = self._progress.add_task("", total=jobs, where="")

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def look(self) -> int:
        """Ask the server where all jobs are, and show it; how many are not over yet."""
        now = self._stream.inspect()
        over = now.dead + sum(group.done for group in now.groups.values())
        where = f"ready {now.ready} · pending {now.pending} · scheduled {now.scheduled} · dead {now.dead}"
        self._progress.update(self._bar, completed=over, where=where)
        for job_id in list(self._told):
            self._tell(job_id)
        for letter in self._stream.dead_letters.list(after=self._last_letter):
            self._last_letter = letter.id
            self._told.pop(letter.job_id, None)
            self.say(f"{letter.job_id}  dead letter, reason {letter.reason}: {letter.error}")
        return self.jobs - over

    def say(self, what: str) -> None:
        """A line of its own."""
        self._console.print(what, highlight=False, markup=False)

    def _tell(self, job_id: str) -> None:
        waiting = self._stream.scheduled.get(job_id)
        if waiting is not None and waiting.attempt > self._told[job_id]:
            self._told[job_id] = waiting.attempt
            self.say(f"{job_id}  attempt {waiting.attempt - 1}: {waiting.errors[-1]}; next {due(waiting)}")
        elif waiting is None and (found := self._stream.result(job_id)).state == "done":
            del self._told[job_id]
            self.say(f"{job_id}  attempt {found.value}: delivered")


def due(waiting: ScheduledJob) -> str:
    """When a job is due, as people say it."""
    seconds = (waiting.due_at - datetime.now(UTC)).total_seconds()
    return f"in {seconds:.1f} s" if seconds < 60 else f"in {seconds / 60:.0f} min"  # noqa: PLR2004
