"""Before the first job: may we, and are the groups there?"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TypeAlias, TypeVar

from streamq import _durability
from streamq._ops import access, groups, registry
from streamq._requests import Plan, Reply, Request, through
from streamq._spec import Spec
from streamq.errors import ServerError
from streamq.migrations import gate

T = TypeVar("T")
R = TypeVar("R")

Opening: TypeAlias = Callable[[Spec[T]], Plan[None]]

_log = logging.getLogger("streamq")


def migrated(spec: Spec[T]) -> Plan[None]:
    """For everybody: see that the stream is stored as this version stores it. Two requests; one on a cluster."""
    yield from gate.check(spec.keys)


def reader(spec: Spec[T]) -> Plan[None]:
    """For who reads: see that server and user can do what streamq needs, make the groups, note the name. Four requests."""
    yield from access.check(spec, access.READER)
    yield from groups.create(spec, spec.options.all_groups, spec.options.group_start)
    yield from registry.note(spec.keys)


def worker(spec: Spec[T]) -> Plan[None]:
    """For a worker: all that a reader needs, once the stream is stored as this version stores it. Six requests."""
    yield from migrated(spec)
    yield from reader(spec)


def warn_of_eviction(spec: Spec[T]) -> Plan[None]:
    """Log a warning if a full memory would make the server throw away keys of the stream. One request."""
    policy = yield from access.eviction_policy()
    if policy not in {None, "noeviction"}:
        _log.warning(
            "stream %s: the server's maxmemory-policy is %s: when its memory is full it throws away jobs, or what is "
            "remembered of them, without a trace; set it to noeviction",
            *(spec.keys.name, policy),
        )


def producer(spec: Spec[T]) -> Plan[None]:
    """For who adds: make the groups, where several are named. Two requests.

    Without `groups` nothing is made: a producer that knows no groups would make one that nobody reads, which pins all.
    """
    if spec.options.groups:
        yield from groups.create(spec, spec.options.all_groups, spec.options.group_start)
        yield from registry.note(spec.keys)


def remembering_producer(spec: Spec[T]) -> Plan[None]:
    """For who adds jobs by script: may the user do all that it does? Two requests."""
    yield from access.check(spec, access.PRODUCER)


def scheduler(spec: Spec[T]) -> Plan[None]:
    """For who adds jobs that wait for their time: may he, and note the name. Three requests.

    A stream of which all jobs wait has no key that `streamq inspect` looks for.
    """
    yield from access.check(spec, access.SCHEDULER)
    yield from registry.note(spec.keys)


def replicating(spec: Spec[T]) -> Plan[None]:
    """For who waits for replicas. One request."""
    yield from _durability.check(spec, "replicated")


def fsyncing(spec: Spec[T]) -> Plan[None]:
    """For who waits for the disk. One request."""
    yield from _durability.check(spec, "fsynced")


def operator(spec: Spec[T]) -> Plan[None]:
    """For who cancels, redrives, purges or changes what is scheduled: may the user do all that those scripts do? Two requests."""
    yield from access.check(spec, access.OPERATOR)


def behind(spec: Spec[T], plan: Plan[R], first: Iterable[Opening[T]], done: set[Opening[T]]) -> Plan[R]:
    """Run `plan` behind those of `first` that are not `done` yet, but only if it has something to ask.

    So input that the plan refuses, and work that there is none of, send nothing. What fails before the plan fails in it, as if
    its first request had: it may have something to say about it.
    """
    left = list(first)

    def asked(request: Request) -> Plan[Reply]:
        openings, left[:] = [*left], []  # before the first request only, whatever comes of them
        for opening in openings:
            if opening not in done:
                yield from opening(spec)
                done.add(opening)
        return (yield request)

    return (yield from through(plan, asked))


def with_group(spec: Spec[T], again: Callable[[], Plan[R]]) -> Plan[R]:
    """Run a plan; when the group is missing (fresh store, flush, failover) make it again, log it, and run it once more.

    It begins at the stream's oldest entry, whatever `group_start` says: what was added since it went is work.
    """
    try:
        return (yield from again())
    except ServerError as error:
        if error.code not in {"NOGROUP", "UNBLOCKED"}:
            raise
    _log.warning("group %s of stream %s was missing; making it again", spec.options.group, spec.keys.name)
    yield from groups.create(spec, spec.options.all_groups, "all")
    yield from registry.note(spec.keys)
    return (yield from again())
