"""Plan the runs that a tick requests: from the bucket heads to groups of buckets. No I/O."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from dagster_sqlqueue.model.job import Head
from dagster_sqlqueue.orchestration.slots import Asked

SUSPECT_STARTS = 2
"""After this many requested runs without a claim a bucket is a suspect: it gets its runs apart from the others, and less and
less often. A standing run keeps all of its buckets, and waits if one of them has to."""

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
    works = _works(urgent, covered, asked)
    every_wait = _waits([asked[bucket] for bucket in urgent if suspect(asked.get(bucket))], works=works)
    waits = {bucket: every_wait[bucket] for bucket in due if bucket in every_wait}
    healthy = [bucket for bucket in due if bucket not in waits]
    suspects = [bucket for bucket, wait in waits.items() if wait <= 0]
    # Suspects get one run a tick beside those of the others, which a live run may take over; where only one run is allowed,
    # they wait for their turn.
    live = _least_busy(urgent, covered, asked)
    room = len(free) > 1 or (bool(free) and (not healthy or live is not None or _overdue(asked, suspects)))
    tried = _tried(suspects, [asked[bucket] for bucket in every_wait], works=works) if room else ()
    count = min(len(free) - bool(tried), len(healthy), worth)
    idle = [
        bucket
        for bucket in buckets
        if bucket not in taken and bucket not in set(due) and not suspect(asked.get(bucket))
    ]
    groups = [(*healthy[i::count], *idle[i::count]) for i in range(count)] + ([tried] if tried else [])
    resting = {bucket for bucket, wait in every_wait.items() if wait > 0}
    left = tuple(bucket for bucket in urgent if bucket in still and bucket not in resting) if share else ()
    shared = bool(left) and not groups
    if shared:
        others = (bucket for bucket in buckets if bucket not in left and not suspect(asked.get(bucket)))
        groups = [(*left, *others)] * min(len(free), ready)
    elif share and not groups and worth > len(covered):
        shared, groups = True, _shares(urgent, covered, worth - len(covered))
    waiting = {bucket: wait for bucket, wait in waits.items() if wait > 0}
    widened = {live: (*healthy, *idle)} if live is not None and healthy and count <= 0 else {}
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
    """In how many seconds the next run for a bucket by itself may be requested; not positive: now."""
    return _backoff(asked.starts - SUSPECT_STARTS) - asked.seconds


def _backoff(trials: int) -> float:
    return min(_FIRST_WAIT_SECONDS * 2.0 ** min(trials, 20), _LONGEST_WAIT_SECONDS)


def _waits(suspects: Sequence[Asked], *, works: bool) -> dict[int, float]:
    """In how many seconds each suspect with work may have its next run.

    Where other buckets' runs work, the fault is the bucket's own, and so is its wait. Else it may be that of the handler, or
    of the whole deployment: all suspects wait together, since the latest run of any of them.
    """
    if works or len(suspects) < 2:
        return {one.bucket: retry_seconds(one) for one in suspects}
    usual = _usual_starts(suspects)
    # After each run of them all but the first ones a part of them had another one.
    trials = max(2 * (usual - SUSPECT_STARTS) - 1, 0) + _part_was_tried(suspects, usual)
    wait = _backoff(trials) - min(one.seconds for one in suspects)
    return {one.bucket: wait for one in suspects}


def _tried(ready: Sequence[int], suspects: Sequence[Asked], *, works: bool) -> tuple[int, ...]:
    """Choose the suspects that get a run.

    Where runs of other buckets work, a part of them, so that a poisoned bucket is found, and the others recover. Else all of
    them, which so recover at once from a fault of the whole deployment, and a part of them in turns. A part that fails is
    left out of the next run of all: if it has the poisoned bucket, the others recover.

    Args:
        ready: the suspects that have waited, the most urgent first.
        suspects: all of them that have work.
        works: whether runs of other buckets work.
    """
    if not ready:
        return ()
    starts = {one.bucket: one.starts for one in suspects}
    usual = min(starts[bucket] for bucket in ready) if works else _usual_starts(suspects)
    if not works and (usual == SUSPECT_STARTS or len(suspects) == 1 or _part_was_tried(suspects, usual)):
        return tuple(bucket for bucket in ready if starts[bucket] <= usual)
    alike = [bucket for bucket in ready if starts[bucket] == usual]
    return _part(alike, usual - SUSPECT_STARTS)


def _part(buckets: Sequence[int], trial: int) -> tuple[int, ...]:
    """Choose all buckets at first, then a fourth, a sixteenth, a sixty-fourth of them, at least one, and again a fourth.

    The least urgent come first, as what waits for longest is a poisoned bucket as a rule; and others than the last time, as
    several may be poisoned.
    """
    if not buckets or trial <= 0:
        return tuple(buckets)
    size = max(len(buckets) // 4 ** (1 + (trial - 1) % 3), 1)
    begin = (trial - 1) * size % len(buckets)
    return tuple(sorted((*buckets[::-1], *buckets[::-1])[begin : begin + size], key=buckets.index))


def _works(urgent: Sequence[int], covered: Mapping[int, Sequence[int]], asked: Mapping[int, Asked]) -> bool:
    """Whether runs work, as far as it is known: a live one has claimed jobs, which is noted for all of its buckets, or a
    bucket has work that no run was requested for in vain.
    """
    taken = {bucket for run in covered.values() for bucket in run}
    return any(not asked.keys() & set(run) for run in covered.values()) or bool(set(urgent) - taken - asked.keys())


def _usual_starts(suspects: Sequence[Asked]) -> int:
    """The starts of most suspects: neither of one that is poisoned for long, nor of one that is new, beside many others."""
    return sorted(one.starts for one in suspects)[(len(suspects) - 1) // 2]


def _part_was_tried(suspects: Sequence[Asked], usual: int) -> bool:
    """Whether a part of them had a run since the latest run of them all."""
    return any(one.starts == usual + 1 for one in suspects)


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
