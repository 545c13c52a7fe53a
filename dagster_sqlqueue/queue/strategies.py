"""Pick the jobs to claim next: the searches of the strategies, shared by claims of several steps and transactional mode."""

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from dagster_sqlqueue.db.execution import Row, Step
from dagster_sqlqueue.db.executors import Executor
from dagster_sqlqueue.model.job import ClaimedJob
from dagster_sqlqueue.model.queue import QueueSettings, Strategy
from dagster_sqlqueue.queue.claim_request import ClaimRequest

FREES_KEY, SUSPECT = -2, -1
"""Where a row that was picked says whether its claim frees its unique key; and whether its lease ran out: its consumer died
or hung, perhaps of this job."""
BUCKET, LEASE_NO, ATTEMPT, LEASE_UNTIL, KEY, ORDER_NO = map(
    ClaimedJob._fields.index, ("bucket", "lease_no", "attempt", "lease_until", "ordering_key", "order_no")
)

AT_ONCE = {Strategy.ROUND_ROBIN: "claim_round_robin", Strategy.FANOUT: "claim_fanout"}
"""The statements that pick jobs and grant them, for queues without turns and limits."""

_MOST_HEADS = 100_000
_PICKS = {
    Strategy.ROUND_ROBIN: "pick_round_robin",
    Strategy.TOKEN: "pick_round_robin",
    Strategy.FANOUT: "pick_fanout",
    Strategy.ASSIGN: "list_executable",
}


def pick(executor: Executor, settings: QueueSettings, request: ClaimRequest, limit: int) -> Sequence[Row]:
    """Pick jobs by the queue's strategy; they are locked until the transaction ends, except by `assign`.

    Call `HeadHints.found` with those of them that are taken.
    """
    if settings.strategy is not Strategy.FIFO:
        return executor.run(*pick_step(settings, request, limit))
    per_bucket, choice = limit, _choice(settings, request, limit)
    while rows := executor.run("pick_fifo", {**choice, "per_bucket": per_bucket}):
        heads = rows[0][-1]
        if rows[0][0] is not None:
            return [row[:-1] for row in rows]
        if heads < per_bucket or per_bucket > _MOST_HEADS:
            break
        # Others hold everything that was read, and there is more behind it.
        per_bucket *= 4
    return []


def pick_step(settings: QueueSettings, request: ClaimRequest, limit: int) -> Step:
    """Return the statement that picks jobs, for every strategy but `fifo`, which may take more than one."""
    return _PICKS[settings.strategy], _choice(settings, request, limit)


def without_suspects(rows: Sequence[Row], *, joining: bool = False) -> Sequence[Row]:
    """Return the picked rows that may run together, in their order: the first one alone, if its lease ran out,
    since it may be what its consumer died of; else all before such a
    one; where they join others, that may be none.
    """
    first = next((place for place, row in enumerate(rows) if row[SUSPECT]), None)
    return rows if first is None else rows[: first if joining else max(first, 1)]


def under_lease(
    rows: Sequence[Row], leases_until: Mapping[UUID, Any] | None, settings: QueueSettings, *, alone: bool = False
) -> list[ClaimedJob]:
    """Return the jobs of picked rows, as they are once they are granted, in their order.

    Args:
        rows: of a statement that picks.
        leases_until: by job id the end of its lease; a row that is missing was not granted. None: all are, and the jobs are
            locked by a transaction instead.
        settings: the queue's.
        alone: whether the job was granted by itself.
    """
    limited, name = settings.max_running is not None, settings.name
    return [
        ClaimedJob._make(
            (
                *row[:LEASE_NO],
                row[LEASE_NO] + 1,
                row[ATTEMPT] + 1,
                *row[ATTEMPT + 1 : LEASE_UNTIL],
                row[LEASE_UNTIL] if leases_until is None else leases_until[row[0]],
                *row[LEASE_UNTIL + 1 : -3],
                limited,
                alone,
                name,
            )
        )
        for row in rows
        if leases_until is None or row[0] in leases_until
    ]


def _choice(settings: QueueSettings, request: ClaimRequest, limit: int) -> dict[str, Any]:
    search = request.hints.search(settings, request.buckets)
    return {"queue": settings.name, "revision": settings.revision, "limit": limit, **search}
