"""Which jobs are taken out next: the looks of the five strategies, shared by claims and by transactional mode."""

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from dagster_sqlqueue.db.executors import Executor, Row, Step
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.model.backoff import MAX_DELAY_SECONDS
from dagster_sqlqueue.model.job import ClaimedJob
from dagster_sqlqueue.model.queue import MAX_BUCKETS, QueueSettings, Strategy
from dagster_sqlqueue.queue.claim_filter import ClaimFilter
from dagster_sqlqueue.queue.head_hints import HeadHints

MAX_BATCH = 10_000
FROM_THE_HEAD = (Strategy.ROUND_ROBIN, Strategy.FIFO, Strategy.TOKEN)
"""Only where a batch is the oldest that was due, nothing is older than it."""
FREES_KEY, SUSPECT = -2, -1
"""Where a row that was picked says whether its claim frees its unique key; and whether its lease ran out: its consumer died
or hung, perhaps of this job."""
BUCKET, LEASE_NO, LEASE_UNTIL, KEY, ORDER_NO = map(
    ClaimedJob._fields.index, ("bucket", "lease_no", "lease_until", "ordering_key", "order_no")
)

_LONGEST_LOOK = 100_000
_PICKS = {
    Strategy.ROUND_ROBIN: "pick_round_robin",
    Strategy.TOKEN: "pick_round_robin",
    Strategy.FANOUT: "pick_fanout",
    Strategy.ASSIGN: "list_executable",
}
_ANYWHERE = (Strategy.FANOUT, Strategy.TOKEN)
"""Consumers of these do not follow each other through the buckets: each look begins at a random one."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What one claim asks for."""

    lanes: list[int]
    limit: int
    lease_seconds: float
    worker: str
    hints: HeadHints
    filter: ClaimFilter | None = None
    joining: bool = False


def wanted_of(
    settings: QueueSettings,
    buckets: Sequence[int] | None,
    limit: int,
    lease_seconds: float | None,
    worker: str,
    hints: HeadHints,
    filter: ClaimFilter | None,
    joining: bool = False,
) -> Wanted:
    """What a claim asks for, with the queue's settings where it says nothing."""
    lanes = list(range(settings.lanes)) if buckets is None else list(buckets)
    lease = settings.lease_seconds if lease_seconds is None else lease_seconds
    return Wanted(lanes, limit, lease, worker, hints, filter, joining)


def check_buckets(buckets: Sequence[int]) -> Sequence[int]:
    """The buckets, if a claim may look there.

    Raises:
        InvalidInput: there are none, or one is out of range.
    """
    if not buckets or min(buckets) < 0 or max(buckets) >= MAX_BUCKETS:
        raise InvalidInput(
            f"buckets is {list(buckets)}; name at least one, each 0 to {MAX_BUCKETS - 1}, or give None for all"
        )
    return buckets


def check_claim(limit: int, lease_seconds: float | None, buckets: Sequence[int] | None) -> None:
    """Raises:
    InvalidInput: an argument of a claim is out of range; the message names it.
    """
    if not 1 <= limit <= MAX_BATCH:
        raise InvalidInput(f"limit is {limit}; a claim takes 1 to {MAX_BATCH:,} jobs")
    if lease_seconds is not None and not 0 < lease_seconds <= MAX_DELAY_SECONDS:
        raise InvalidInput(f"lease_seconds is {lease_seconds}; it must be positive, at most a hundred years")
    if buckets is not None:
        check_buckets(buckets)


def pick(executor: Executor, settings: QueueSettings, wanted: Wanted, limit: int) -> Sequence[Row]:
    """Look for jobs by the queue's strategy; they are locked until the transaction ends, except by `assign`."""
    if settings.strategy is not Strategy.FIFO:
        rows = executor.run(*pick_step(settings, wanted, limit))
        saw(settings, wanted.hints, [row[BUCKET] for row in rows], filled=len(rows) >= limit or wanted.joining)
        return rows
    look, choice = limit, _choice(settings, wanted, limit)
    while rows := executor.run("pick_fifo", {**choice, "look": look}):
        heads = rows[0][-1]
        if rows[0][0] is not None:
            saw(settings, wanted.hints, [row[BUCKET] for row in rows], filled=True)
            return [row[:-1] for row in rows]
        if heads < look or look > _LONGEST_LOOK:
            break
        # Others hold everything that was looked at, and there is more behind it.
        look *= 4
    return []


def saw(settings: QueueSettings, hints: HeadHints, buckets: Collection[int], *, filled: bool) -> None:
    """Note how far a claim came that found something.

    Args:
        settings: the queue's.
        hints: of the claim.
        buckets: those of the jobs that it found.
        filled: whether these are as many as it asked for, so that there may be more.
    """
    if not buckets:
        return
    if not filled or settings.strategy is Strategy.ASSIGN:
        hints.saw_all()
    elif settings.strategy is Strategy.FIFO:
        # It looks at all heads and takes the oldest: where it took none, it is not known where the next one begins.
        hints.saw(buckets)
    else:
        hints.saw_up_to(buckets)


def pick_step(settings: QueueSettings, wanted: Wanted, limit: int) -> Step:
    """The statement that looks for jobs, for every strategy but `fifo`, which may look more than once."""
    return _PICKS[settings.strategy], _choice(settings, wanted, limit)


def claim_parameters(settings: QueueSettings, wanted: Wanted) -> dict[str, Any]:
    """What a statement that chooses jobs and puts them under a lease is given."""
    lease = {"lease_seconds": wanted.lease_seconds, "worker": wanted.worker}
    return {**_choice(settings, wanted, wanted.limit), **lease, "suspects": not wanted.joining}


def without_suspects(rows: Sequence[Row], *, joining: bool = False) -> Sequence[Row]:
    """Of the rows that were picked those that may run together, in their order: the first one alone, if its lease ran out,
    since it may be what its consumer died of; else all before such a one, and
    where they join others that is all.
    """
    first = next((place for place, row in enumerate(rows) if row[SUSPECT]), None)
    return rows if first is None else rows[: first if joining else max(first, 1)]


def under_lease(row: Row, lease_until: Any, settings: QueueSettings, *, alone: bool = False) -> ClaimedJob:
    """The job of a row that was picked, as it is once it has been granted.

    Args:
        row: of a statement that picks.
        lease_until: the end of its lease.
        settings: the queue's.
        alone: whether it was granted by itself.
    """
    lease_no, attempt = row[LEASE_NO] + 1, row[4] + 1
    return ClaimedJob(
        *(*row[:3], lease_no, attempt, *row[5:7], lease_until, *row[8:-3], settings.limited, alone, settings.name)
    )


def _choice(settings: QueueSettings, wanted: Wanted, limit: int) -> dict[str, Any]:
    lanes = wanted.lanes
    if settings.strategy in _ANYWHERE:
        start = random.randrange(len(lanes))
        lanes = lanes[start:] + lanes[:start]
    return {
        "queue": settings.name,
        "revision": settings.revision,
        "buckets": lanes,
        "hints": wanted.hints.array(lanes),
        "limit": limit,
    }
