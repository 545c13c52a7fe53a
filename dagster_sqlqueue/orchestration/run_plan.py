"""Plan the runs that a tick requests: from the bucket heads to groups of buckets. No I/O."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from dagster_sqlqueue.model.job import Head
from dagster_sqlqueue.orchestration.slots import Asked

SUSPECT_STARTS = 2
"""After this many requested runs without a claim a bucket is a suspect: it gets its runs apart from the others, every other
time alone, and less and less often. A standing run keeps all of its buckets, and waits if one of them has to."""

_LONGEST_WAIT_SECONDS = 1_800.0
_FIRST_WAIT_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Plan:
    """The runs that a tick requests.

    Attributes:
        groups: the buckets of each run, by the number of its slot.
        waiting: the suspects with work whose next run has to wait, and for how many seconds.
        shared: whether live runs cover the same buckets.
        widened: the buckets that live runs take over, or share, beside their own, by the number of the run's slot.
    """

    groups: dict[int, tuple[int, ...]]
    waiting: dict[int, float]
    shared: bool = False
    widened: dict[int, tuple[int, ...]] = field(default_factory=dict)


def drains(
    heads: Sequence[Head],
    *,
    buckets: Sequence[int],
    covered: Mapping[int, Sequence[int]],
    asked: Mapping[int, Asked],
    runs: int,
    ready: int,
    jobs_per_run: int,
    share: bool = True,
    still: Collection[int] = (),
) -> Plan:
    """Plan the runs for the due buckets that no live run covers, as many as the backlog is worth, the most urgent first.

    They also cover the buckets without work, for jobs that come while they live. Where no further run is allowed, a live run
    takes over the uncovered buckets.

    For due jobs that live runs leave, it plans as many runs as are allowed and there are jobs: what is behind a job of
    minutes may be another one. Where none is allowed, the live runs without due jobs share their buckets.

    Args:
        heads: the first job of each bucket and priority.
        buckets: the buckets to be covered.
        covered: the buckets of live runs, by the number of their slot.
        asked: the buckets whose requested runs have done nothing so far.
        runs: the most runs at a time.
        ready: the number of due jobs.
        jobs_per_run: a backlog below it is worth one run, below twice as much two.
        share: where live runs cover all buckets and the backlog is worth more runs, further runs share their buckets.
        still: the buckets whose due jobs live runs leave, at the second tick that finds it.
    """
    taken = {bucket for run in covered.values() for bucket in run}
    free = [number for number in range(runs) if number not in covered]
    worth = max(math.ceil(ready / jobs_per_run), 1)
    urgent = _by_urgency(heads)
    due = [bucket for bucket in urgent if bucket not in taken]
    waits = {bucket: retry_seconds(asked[bucket]) for bucket in due if suspect(asked.get(bucket))}
    healthy = [bucket for bucket in due if bucket not in waits]
    suspects = [bucket for bucket, wait in waits.items() if wait <= 0]
    # Suspects get one run a tick beside those of the others; where only one run is allowed, they wait for their turn.
    tried = _tried(suspects, asked) if len(free) > 1 or not healthy or _overdue(asked, suspects) else ()
    count = min(len(free) - bool(tried), len(healthy), worth)
    idle = [
        bucket
        for bucket in buckets
        if bucket not in taken and bucket not in set(due) and not suspect(asked.get(bucket))
    ]
    groups = [(*healthy[i::count], *idle[i::count]) for i in range(count)] + ([tried] if tried else [])
    resting = {bucket for bucket in urgent if suspect(asked.get(bucket)) and retry_seconds(asked[bucket]) > 0}
    left = tuple(bucket for bucket in urgent if bucket in still and bucket not in resting) if share else ()
    shared = bool(left) and not groups
    if shared:
        others = (bucket for bucket in buckets if bucket not in left and not suspect(asked.get(bucket)))
        groups = [(*left, *others)] * min(len(free), ready)
    elif share and not groups and worth > len(covered):
        shared, groups = True, _shares(urgent, covered, worth - len(covered))
    waiting = {bucket: wait for bucket, wait in waits.items() if wait > 0}
    widest = _least_busy(urgent, covered, asked) if healthy and count <= 0 else None
    widened = {} if widest is None else {widest: (*healthy, *idle)}
    if left and not free:
        for number in _without_due_jobs(urgent, covered, asked):
            widened[number] = (*widened.get(number, ()), *left)
    return Plan(dict(zip(free, groups, strict=False)), waiting, shared, widened)


def left_by_runs(
    heads: Sequence[Head],
    *,
    covered: Mapping[int, Sequence[int]],
    at_work: Mapping[int, float],
    asked: Mapping[int, Asked],
    start_seconds: float,
) -> set[int]:
    """Find the buckets with due jobs whose runs have all come, and have not taken these jobs.

    Args:
        heads: the first job of each bucket and priority.
        covered: the buckets of live runs, by the number of their slot.
        at_work: for how many seconds these runs have run, by the same number; without those that have not started.
        asked: the buckets whose requested runs have done nothing so far.
        start_seconds: how long a run may run before its first claim.
    """
    come = {
        number
        for number, buckets in covered.items()
        if number in at_work and (at_work[number] >= start_seconds or not asked.keys() & set(buckets))
    }
    due = {head.bucket for head in heads if head.due_seconds >= 0}
    reached = {bucket for number in come for bucket in covered[number]}
    coming = {bucket for number, buckets in covered.items() if number not in come for bucket in buckets}
    return due & reached - coming


def standing(
    buckets: Sequence[int], *, runs: int, covered: Mapping[int, Sequence[int]], asked: Mapping[int, Asked]
) -> Plan:
    """Plan the standing runs that are missing, with work for them or without; and the buckets that live ones take over if
    there are more than at their start.

    Args:
        buckets: the buckets to be covered.
        runs: how many standing runs share them.
        covered: the buckets of live runs, by the number of their slot.
        asked: the buckets whose requested runs have done nothing so far.
    """
    taken = {bucket for run in covered.values() for bucket in run}
    shares = {
        number: tuple(bucket for bucket in buckets[number::runs] if bucket not in taken) for number in range(runs)
    }
    groups = {number: buckets for number, buckets in shares.items() if buckets and number not in covered}
    waiting = {
        bucket: wait
        for buckets in groups.values()
        for bucket in buckets
        if suspect(asked.get(bucket)) and (wait := retry_seconds(asked[bucket])) > 0
    }
    ready = {number: buckets for number, buckets in groups.items() if not waiting.keys() & set(buckets)}
    widened = {number: buckets for number, buckets in shares.items() if buckets and number in covered}
    return Plan(ready, waiting, widened=widened)


def suspect(asked: Asked | None) -> bool:
    """Whether the bucket's runs die before they claim a job."""
    return asked is not None and asked.starts >= SUSPECT_STARTS


def retry_seconds(asked: Asked) -> float:
    """In how many seconds the next run may be requested; not positive: now."""
    backoff = _FIRST_WAIT_SECONDS * 2.0 ** min(asked.starts - SUSPECT_STARTS, 20)
    return min(backoff, _LONGEST_WAIT_SECONDS) - asked.seconds


def _tried(suspects: Sequence[int], asked: Mapping[int, Asked]) -> tuple[int, ...]:
    """Choose the suspects that get a run: every other time all of them, which soon recover from a fault of the whole
    deployment; else one of them, so that a poisoned bucket shows, and does not hold up the others.
    """
    together = tuple(bucket for bucket in suspects if asked[bucket].starts % 2 == 0)
    return together or tuple(suspects[:1])


def _shares(urgent: Sequence[int], covered: Mapping[int, Sequence[int]], count: int) -> list[tuple[int, ...]]:
    """Choose every second bucket with work of the live runs that have most of them."""
    loads = [[bucket for bucket in urgent if bucket in set(buckets)] for buckets in covered.values()]
    busiest = sorted((load for load in loads if load), key=len, reverse=True)
    return [tuple(load[1::2] or load) for load in busiest[:count]]


def _least_busy(urgent: Sequence[int], covered: Mapping[int, Sequence[int]], asked: Mapping[int, Asked]) -> int | None:
    """The slot with the fewest buckets that have work, without the slots of suspects; None: there is none."""
    loads = {
        number: len(set(urgent) & set(buckets))
        for number, buckets in covered.items()
        if not any(suspect(asked.get(bucket)) for bucket in buckets)
    }
    return min(loads, key=lambda number: loads[number], default=None)


def _without_due_jobs(
    urgent: Sequence[int], covered: Mapping[int, Sequence[int]], asked: Mapping[int, Asked]
) -> list[int]:
    """The slots none of whose buckets has a due job, without the slots of suspects."""
    return [
        number
        for number, buckets in covered.items()
        if not any(bucket in urgent or suspect(asked.get(bucket)) for bucket in buckets)
    ]


def _overdue(asked: Mapping[int, Asked], suspects: Sequence[int]) -> bool:
    return any(asked[bucket].seconds > 2 * _LONGEST_WAIT_SECONDS for bucket in suspects)


def _by_urgency(heads: Sequence[Head]) -> list[int]:
    due = sorted(
        (head for head in heads if head.due_seconds >= 0), key=lambda head: (-head.priority, -head.due_seconds)
    )
    return list(dict.fromkeys(head.bucket for head in due))
