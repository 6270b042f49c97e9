"""The public surface as users write it. Never run: `test_typing` has two type checkers read it.

``assert_type`` says what a call gives. A line that must be refused has the codes of both checkers, which complain of
themselves where there is no error.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, assert_type

import msgspec

from streamq import (
    Added,
    AsyncStream,
    Backoff,
    Buried,
    ConnectionLostError,
    DeadLetter,
    Effects,
    Failed,
    FoundJob,
    FullSnapshot,
    GroupSnapshot,
    Health,
    Hooks,
    Job,
    JobInGroup,
    JobStateError,
    LeaseLostError,
    QueueFullError,
    Rates,
    Reclaimed,
    Redriven,
    Reject,
    Release,
    Result,
    Retry,
    ScheduledJob,
    Snapshot,
    Stream,
    StreamOptions,
    Worker,
)
from streamq.telemetry import StreamCollector, Tracing, WorkerMetrics


class Order(msgspec.Struct):
    customer: str
    cents: int


class Refund(msgspec.Struct, tag=True):
    cents: int


class Payment(msgspec.Struct, tag=True):
    cents: int


OPTIONS = StreamOptions(
    group="mail",
    groups=("audit",),
    group_start="new",
    lease=timedelta(seconds=20),
    max_deliveries=3,
    retry=Backoff.custom(lambda attempt: attempt * 5, cap=60, limit=5, jitter=0.1),
    idempotency_ttl=3_600,
    retention="keep",
    keep_for=timedelta(days=1),
    keep_last=10_000,
    max_ready=100_000,
)
orders = Stream("orders", Order, redis="redis://localhost", deployment="dp_1", options=OPTIONS)
assert_type(orders, Stream[Order])
assert_type(Stream("names", str), Stream[str])
assert_type(Stream("lists", list[Order]), Stream[list[Order]])
assert_type(Stream("raw", bytes), Stream[bytes])
either: Stream[Refund | Payment] = Stream("either", Refund | Payment)
plain: Stream[dict[str, Any]] = Stream("plain")
assert_type(orders.options, StreamOptions)

Stream("orders", Order).add({"customer": "ada"})  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
Stream("orders", 7)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
StreamOptions(retention="forever")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
StreamOptions(group_start="0")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


# --- adding ----------------------------------------------------------------------------------


def produce() -> None:
    added = orders.add(Order("ada", 1), job_id="order:1", headers={"trace": "t"})
    assert_type(added, Added)
    assert_type(added.created, bool)
    try:
        assert_type(orders.add_many((Order("ada", n) for n in range(9)), job_id=lambda o: o.customer), int)
    except QueueFullError as error:
        assert_type((error.ready, error.max_ready), tuple[int, int])
        assert_type(error.added, int)
    except ConnectionLostError as error:
        assert_type(error.maybe_executed, bool)
    orders.add("ada")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    orders.add_many([1, 2])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
    orders.add(Order("ada", 1), job_id=7)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    assert_type(added.entry_id, str | None)
    orders.add(Order("ada", 1), delay=timedelta(minutes=1), retry=Backoff.schedule([1, timedelta(minutes=5)]))
    orders.add(
        Order("ada", 1), job_id="order:1", at=datetime.now(UTC), replace=True, retry=Backoff.constant(5, limit=2)
    )
    orders.add_many([Order("ada", 1)], delay=lambda o: o.cents / 100, retry=Backoff.exponential(2))
    orders.add_many([Order("ada", 1)], delay=60)
    orders.add(Order("ada", 1), delay="1m")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    orders.add(Order("ada", 1), at=1.5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    orders.add(Order("ada", 1), retry=5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    plain.add({"anything": [1, 2]})
    either.add(Refund(1))
    either.add(Order("ada", 1))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


# --- a loop by hand --------------------------------------------------------------------------


def loop() -> None:
    batch = orders.read("w", count=10, block=2.0)
    assert_type(batch, list[Job[Order]])
    job = batch[0]
    assert_type(job.payload, Order)
    assert_type(job.payload.cents, int)
    assert_type((job.id, job.entry_id, job.attempt, job.deliveries), tuple[str, str, int, int])
    assert_type((job.headers, job.enqueued_at), tuple[dict[str, str], datetime])
    assert_type((job.lease_lost, job.timed_out), tuple[bool, bool])
    job.effects.hincrby("receipts", job.id, 1).set("last", job.id)
    try:
        assert_type(orders.ack(job), bool)
        assert_type(orders.ack(batch), int)
        assert_type(orders.extend(batch), int)
        orders.extend(job)
        orders.commit(job, {"total": 1})
        assert_type(orders.retry(job, "why"), bool)
        assert_type(orders.retry(job, delay=timedelta(seconds=9)), bool)
        assert_type(orders.promote(), int)
        orders.reject(job, "why")
        orders.release(job)
    except LeaseLostError as error:
        assert_type((error.entry_id, error.gone), tuple[str, bool])
    found = orders.reclaim("w", min_idle=timedelta(minutes=1), exclude=batch)
    assert_type(found, Reclaimed[Order])
    claimed, dead, missing = found
    assert_type(claimed, list[Job[Order]])
    assert_type(dead, list[str])
    assert_type(missing, list[str])
    assert_type(found.claimed, list[Job[Order]])
    assert_type(found.failed, list[Failed])
    Stream("names", str).ack(job)  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
    job.payload.nothing  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    payload = either.read("w")[0].payload
    match payload:
        case Refund():
            assert_type(payload, Refund)
        case Payment():
            assert_type(payload, Payment)


# --- looking after it ------------------------------------------------------------------------


def look_at_what_waits() -> None:
    page = orders.scheduled.list(count=10, due_before=datetime.now(UTC))
    assert_type(page, list[ScheduledJob])
    orders.scheduled.list(after=page[-1])
    one = page[0]
    assert_type((one.job_id, one.group, one.due_at, one.attempt), tuple[str, str | None, datetime, int])
    assert_type((one.errors, one.enqueued_at), tuple[tuple[str, ...], datetime | None])
    assert_type((one.fields, one.payload), tuple[tuple[tuple[bytes, bytes], ...], bytes | None])
    assert_type(orders.scheduled.get("order:1"), ScheduledJob | None)
    assert_type(orders.scheduled.cancel("order:1"), bool)
    assert_type(orders.scheduled.reschedule("order:1", delay=9), datetime)
    assert_type(orders.scheduled.reschedule("order:1", at=datetime.now(UTC)), datetime)
    assert_type(orders.scheduled.run_now("order:1"), str)
    orders.scheduled.list(after="order:1")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    orders.scheduled.run_now(one)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def operate() -> None:
    assert_type(orders.cancel("order:1"), bool)
    result = orders.result("order:1")
    assert_type(result, Result)
    if result.state == "done":
        print(result.value["total"])
    assert_type(orders.once("x", Effects().incrby("n")), bool)
    assert_type(orders.inspect(full=True).groups["workers"].rates, Rates | None)
    assert_type(orders.find("order:17"), FoundJob)
    seen = orders.inspect()
    assert_type(seen, Snapshot)
    assert_type(seen.groups["mail"], GroupSnapshot)
    assert_type((orders.pause(), orders.resume()), tuple[bool, bool])
    assert_type(orders.trim(), int)
    assert_type(orders.prune_consumers(timedelta(hours=2)), list[str])
    assert_type(orders.groups.create("audit", start="new"), bool)
    try:
        assert_type(orders.groups.drop("audit", force=True), bool)
        assert_type(orders.delete(force=True), int)
    except JobStateError as error:
        assert_type(error.state, str)
    letters = orders.dead_letters.list(count=10)
    assert_type(letters, list[DeadLetter])
    assert_type(letters[0].fields, tuple[tuple[bytes, bytes], ...])
    assert_type(letters[0].payload, bytes | None)
    assert_type(orders.dead_letters.get(letters[0].id), DeadLetter | None)
    again = orders.dead_letters.redrive([letter.id for letter in letters], max_redrives=3)
    assert_type(again, Redriven)
    assert_type(again.moved, dict[str, str])
    orders.dead_letters.redrive(letters[0].id, new_id="order:1b", payload=b"{}", dry_run=True)
    assert_type(orders.dead_letters.purge(older_than=timedelta(days=30)), int)
    assert_type(orders.dead_letters.purge("1-0"), int)
    orders.dead_letters.redrive(letters)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    orders.groups.create("audit", start="$")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    with orders as same:
        assert_type(same, Stream[Order])


# --- handlers --------------------------------------------------------------------------------


def by_payload(order: Order) -> None:
    raise Retry(f"not yet, {order.customer}", delay=timedelta(seconds=order.cents))


def with_job(order: Order, job: Job[Order]) -> dict[str, int]:
    if order.cents < 0:
        raise Reject("negative amount")
    if job.timed_out:
        raise Release("not from here")
    job.effects.hincrby("receipts", job.id)
    return {"total": order.cents}


async def waiting(order: Order, job: Job[Order]) -> int:
    return order.cents + job.attempt


async def waiting_for_payload(order: Order) -> None:
    print(order)


def wrong(name: str) -> None:
    print(name)


def wrong_job(order: Order, job: Job[str]) -> None:
    print(order, job)


async def wrong_waiting(order: Refund) -> None:
    print(order)


def three(order: Order, job: Job[Order], more: int) -> None:
    print(order, job, more)


class Mailer:
    def handle(self, order: Order, job: Job[Order]) -> None:
        print(self, order, job)

    def __call__(self, order: Order) -> None:
        print(self, order)


worker = Worker(orders, with_job, concurrency=16, drain=timedelta(seconds=5), block=0.5)
assert_type(worker, Worker[Order])
worker.run()
worker.stop()
for handler in (by_payload,):
    Worker(orders, handler)
Worker(orders, waiting)
Worker(orders, waiting_for_payload)
Worker(orders, lambda order: print(order.cents))
Worker(orders, Mailer().handle)
Worker(orders, Mailer())
Worker(plain, print)
Worker(orders, wrong)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
Worker(orders, wrong_job)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
Worker(orders, wrong_waiting)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
Worker(orders, three)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def batched(jobs: list[Job[Order]]) -> list[int | Exception]:
    return [job.payload.cents if job.payload.cents else ValueError("empty") for job in jobs]


async def batched_waiting(jobs: list[Job[Order]]) -> None:
    print(jobs)


def wrong_batch(jobs: list[Job[str]]) -> None:
    print(jobs)


assert_type(Worker(orders, batched, batch=100, batch_wait=0.5), Worker[Order])
Worker(orders, batched_waiting, batch=10, timeout=timedelta(seconds=3), weight=2)
Worker(orders, lambda jobs: [job.payload.cents for job in jobs], batch=10)
worker.add_stream(plain, print, errors={KeyError: "reject"})
worker.add_stream(orders, batched, batch=100)
worker.add_stream(Stream("names", str), wrong, weight=0.5)
Worker(orders, batched)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
Worker(orders, by_payload, batch=10)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType, reportCallIssue]
Worker(orders, wrong_batch, batch=10)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType, reportCallIssue]
worker.add_stream(orders, batched)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
worker.add_stream(orders, by_payload, batch=10)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType, reportCallIssue]
Worker(orders, by_payload, errors={ValueError: "ignore"})  # type: ignore[dict-item]  # pyright: ignore[reportArgumentType]


# --- what a worker tells ---------------------------------------------------------------------


class Counting(Hooks):
    def retried(self, job: Job[Any], error: str) -> None:
        print(job.attempt, error)

    def dead_lettered(self, dead: Buried) -> None:
        assert_type((dead.stream, dead.group, dead.entry_id, dead.job_id), tuple[str, str, str, str | None])
        assert_type(dead.error, str)
        assert_type(dead.job, Job[Any] | None)


class WrongCounting(Hooks):
    def retried(self, job: Job[Any]) -> None:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
        print(job)


def probe(health: Health) -> int:
    assert_type((health.problems, health.streams), tuple[list[str], list[str]])
    if health.state == "stoped":  # type: ignore[comparison-overlap]  # pyright: ignore[reportUnnecessaryComparison]
        print(health.consumer)
    return 200 if health.healthy else 503


def observed(orders: Stream[Order]) -> None:
    tracing = Tracing(messages=True)
    assert_type(tracing.inject({"a": "b"}), dict[str, str])
    with tracing.sending(orders) as headers:
        orders.add(Order("ada", 1), headers=headers)
    with tracing.processing(orders.read("w")):
        pass
    Worker(orders, waiting, hooks=[WorkerMetrics(buckets=(1, 10))], middlewares=[tracing])
    StreamCollector([orders]).close()
    StreamCollector(["orders"])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]


# --- the same, awaited -----------------------------------------------------------------------


async def with_asyncio() -> None:
    async with AsyncStream("orders", Order) as stream:
        assert_type(stream, AsyncStream[Order])
        assert_type(await stream.add(Order("ada", 1)), Added)
        assert_type(await stream.add_many([Order("ada", 1)]), int)
        jobs = await stream.read("w", block=1)
        assert_type(jobs, list[Job[Order]])
        assert_type(await stream.ack(jobs), int)
        assert_type(await stream.ack(jobs[0]), bool)
        assert_type(await stream.extend(jobs), int)
        claimed, _, _ = await stream.reclaim("w")
        assert_type(claimed, list[Job[Order]])
        assert_type(await stream.retry(jobs[0], delay=1.5), bool)
        assert_type(await stream.promote(), int)
        assert_type(await stream.add(Order("ada", 1), delay=5, retry=Backoff.constant(1)), Added)
        page = await stream.scheduled.list(due_before=datetime.now(UTC))
        assert_type(page, list[ScheduledJob])
        assert_type(await stream.scheduled.get("x"), ScheduledJob | None)
        assert_type(await stream.scheduled.cancel("x"), bool)
        assert_type(await stream.scheduled.reschedule("x", delay=1), datetime)
        assert_type(await stream.scheduled.run_now("x"), str)
        assert_type(await stream.result("x"), Result)
        assert_type(await stream.inspect(), Snapshot)
        assert_type(await stream.inspect(full=True), FullSnapshot)
        assert_type((await stream.find("order:17")).groups, list[JobInGroup])
        assert_type(await stream.dead_letters.list(), list[DeadLetter])
        assert_type(await stream.dead_letters.redrive("1-0"), Redriven)
        assert_type(await stream.dead_letters.purge("1-0"), int)
        assert_type(await stream.groups.create("audit"), bool)
        await stream.add("ada")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        await Worker(stream, waiting).run_async()
        Worker(stream, wrong)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
