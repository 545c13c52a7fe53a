"""Which runs a tick asks for: from the bucket heads to groups of buckets. No I/O."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from dagster_sqlqueue.model.job import Head
from dagster_sqlqueue.orchestration.slots import Asked

SUSPECT_STARTS = 2
"""After so many runs for a bucket none of which took a job, the bucket gets its runs apart from the others, every other
time alone, and less and less often. A standing run keeps all of its buckets, and waits if one of them has to."""

_LONGEST_WAIT_SECONDS = 1_800.0
_FIRST_WAIT_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Plan:
    """What a tick asks for.

    Attributes:
        groups: the buckets of each run, by the number of its slot.
        waiting: buckets with work whose runs died so often that the next one has to wait, and for how many seconds.
        shared: live runs cover the same buckets.
    """

    groups: dict[int, tuple[int, ...]]
    waiting: dict[int, float]
    shared: bool = False


def drains(
    heads: Sequence[Head],
    *,
    lanes: Sequence[int],
    covered: Mapping[int, Sequence[int]],
    asked: Mapping[int, Asked],
    runs: int,
    ready: int,
    jobs_per_run: int,
    share: bool = True,
) -> Plan:
    """The runs for the due buckets that no live run covers, as many as the backlog is worth, the most urgent first.

    The buckets without work are dealt out to them as well, for what comes while they are there.

    Args:
        heads: the first job of each bucket and priority.
        lanes: the buckets to be covered.
        covered: the buckets of live runs, by the number of their slot.
        asked: buckets for which runs were asked in vain so far.
        runs: the most runs at a time.
        ready: jobs that are due.
        jobs_per_run: a backlog below it is worth one run, below twice of it two.
        share: where live runs cover all and the backlog has grown over their heads, further runs share their buckets.
    """
    taken = {bucket for buckets in covered.values() for bucket in buckets}
    free = [number for number in range(runs) if number not in covered]
    worth = max(math.ceil(ready / jobs_per_run), 1)
    urgent = _by_urgency(heads)
    due = [bucket for bucket in urgent if bucket not in taken]
    waits = {bucket: retry_seconds(asked[bucket]) for bucket in due if suspect(asked.get(bucket))}
    healthy = [bucket for bucket in due if bucket not in waits]
    suspects = [bucket for bucket, wait in waits.items() if wait <= 0]
    # Suspects get one run a tick beside those of the others; where there is room for one run only, they wait for their turn.
    tried = _tried(suspects, asked) if len(free) > 1 or not healthy or _overdue(asked, suspects) else ()
    count = min(len(free) - bool(tried), len(healthy), worth)
    idle = [
        bucket for bucket in lanes if bucket not in taken and bucket not in set(due) and not suspect(asked.get(bucket))
    ]
    groups = [(*healthy[i::count], *idle[i::count]) for i in range(count)] + ([tried] if tried else [])
    shared = share and not due and worth > len(covered)
    if shared:
        groups = _shares(urgent, covered, worth - len(covered))
    waiting = {bucket: wait for bucket, wait in waits.items() if wait > 0}
    return Plan(dict(zip(free, groups, strict=False)), waiting, shared)


def standing(lanes: Sequence[int], *, runs: int, taken: Collection[int], asked: Mapping[int, Asked]) -> Plan:
    """The standing runs that are not there, with work for them or without.

    Args:
        lanes: the buckets to be covered.
        runs: how many standing runs share them.
        taken: slots of live runs.
        asked: buckets for which runs were asked in vain so far.
    """
    groups = {number: tuple(lanes[number::runs]) for number in range(runs) if number not in taken}
    waiting = {
        bucket: wait
        for buckets in groups.values()
        for bucket in buckets
        if suspect(asked.get(bucket)) and (wait := retry_seconds(asked[bucket])) > 0
    }
    ready = {number: buckets for number, buckets in groups.items() if buckets and not waiting.keys() & set(buckets)}
    return Plan(ready, waiting)


def suspect(asked: Asked | None) -> bool:
    """Whether the bucket's runs die before they take a job."""
    return asked is not None and asked.starts >= SUSPECT_STARTS


def retry_seconds(asked: Asked) -> float:
    """In how long the next run may be asked for; not positive: now."""
    backoff = _FIRST_WAIT_SECONDS * 2.0 ** min(asked.starts - SUSPECT_STARTS, 20)
    return min(backoff, _LONGEST_WAIT_SECONDS) - asked.seconds


def _tried(suspects: Sequence[int], asked: Mapping[int, Asked]) -> tuple[int, ...]:
    """The suspects that get a run: every other time all of them, which are soon back where it was a fault of the whole
    deployment; and else one of them, so that a poisoned one is found, and the others are not held up by it.
    """
    together = tuple(bucket for bucket in suspects if asked[bucket].starts % 2 == 0)
    return together or tuple(suspects[:1])


def _shares(urgent: Sequence[int], covered: Mapping[int, Sequence[int]], count: int) -> list[tuple[int, ...]]:
    """Every second bucket with work of the live runs that have most of them."""
    loads = [[bucket for bucket in urgent if bucket in set(buckets)] for buckets in covered.values()]
    busiest = sorted((load for load in loads if load), key=len, reverse=True)
    return [tuple(load[1::2] or load) for load in busiest[:count]]


def _overdue(asked: Mapping[int, Asked], suspects: Sequence[int]) -> bool:
    return any(asked[bucket].seconds > 2 * _LONGEST_WAIT_SECONDS for bucket in suspects)


def _by_urgency(heads: Sequence[Head]) -> list[int]:
    due = sorted(
        (head for head in heads if head.due_seconds >= 0), key=lambda head: (-head.priority, -head.due_seconds)
    )
    return list(dict.fromkeys(head.bucket for head in due))
