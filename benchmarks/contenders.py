"""Who drains: the library in both of its modes, pgmq's SQL functions, and a bare table. Each takes one batch and ends it.

All get the payloads to Python as text, and nothing is parsed. The library goes through its own verbs; the others are one
or two prepared statements on a psycopg connection.
"""

from collections.abc import Callable
from dataclasses import dataclass

import psycopg
from psycopg import sql

from dagster_sqlqueue import SqlQueue
from dagster_sqlqueue.ending import Ending
from dagster_sqlqueue.hints import SWEEP_SECONDS, HeadHints
from dagster_sqlqueue.model import ArchiveState, ClaimedJob

BATCH = 100
_LEASE_SECONDS = 60

TakeBatch = Callable[[], int]
"""Take a batch and end it; gives how many jobs it held, 0 when nothing was there."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a process drains, and which one it is of how many."""

    queue: SqlQueue
    connection: "psycopg.Connection[tuple[object, ...]]"
    number: int
    of: int


def leased(place: Place, name: str = "bench", sweep_seconds: float = SWEEP_SECONDS, batch: int = BATCH) -> TakeBatch:
    """Claim under a lease, then move to the archive: two transactions."""

    def take(hints: HeadHints, lanes: list[int]) -> list[ClaimedJob]:
        jobs = place.queue.claim(
            name, limit=batch, worker=f"bench-{place.number}", buckets=lanes, lease_seconds=_LEASE_SECONDS, hints=hints
        )
        if jobs:
            place.queue.finish([Ending(job, ArchiveState.SUCCEEDED) for job in jobs])
        return jobs

    return _bucket_by_bucket(place, name, HeadHints(sweep_seconds), take)


def transactional(place: Place, name: str = "bench") -> TakeBatch:
    """Lock, and move to the archive: one transaction, no lease."""
    worker = f"bench-{place.number}"

    def take(hints: HeadHints, lanes: list[int]) -> list[ClaimedJob]:
        with place.queue.database.transaction() as transaction:
            jobs = place.queue.lock_due(transaction, name, limit=BATCH, buckets=lanes, hints=hints)
            if jobs:
                endings = [Ending(job, ArchiveState.SUCCEEDED) for job in jobs]
                place.queue.finish_locked(transaction, endings, worker=worker)
        return jobs

    return _bucket_by_bucket(place, name, HeadHints(), take)


def pgmq(place: Place, name: str = "bench") -> TakeBatch:
    """`pgmq.read` under a visibility timeout, then `pgmq.archive`: two transactions."""
    read = sql.SQL(
        "SELECT msg_id, read_ct, enqueued_at, vt, CAST(message AS text), CAST(headers AS text)"
        " FROM pgmq.read({}, {}, {})"
    ).format(name, _LEASE_SECONDS, BATCH)
    archive = sql.SQL("SELECT pgmq.archive({}, CAST(%b AS bigint[]))").format(name)

    def take() -> int:
        rows = place.connection.execute(read).fetchall()
        if rows:
            place.connection.execute(archive, ([row[0] for row in rows],)).fetchall()
        return len(rows)

    return take


def bare(place: Place) -> TakeBatch:
    """`DELETE … SKIP LOCKED … RETURNING` on a table of its own, no archive: in a transaction, as a handler would need."""
    table = sql.Identifier(place.queue.database.schema, "bare")
    statement = sql.SQL(
        "DELETE FROM {table} AS b USING ("
        "SELECT id FROM {table} ORDER BY id LIMIT {limit} FOR UPDATE SKIP LOCKED"
        ") AS head WHERE b.id = head.id RETURNING b.id, CAST(b.payload AS text)"
    ).format(table=table, limit=BATCH)

    def take() -> int:
        with place.connection.transaction():
            return len(place.connection.execute(statement).fetchall())

    return take


CONTENDERS: dict[str, Callable[..., TakeBatch]] = {
    "leased": leased,
    "transactional": transactional,
    "pgmq": pgmq,
    "bare": bare,
}


def _bucket_by_bucket(
    place: Place, name: str, hints: HeadHints, take: Callable[[HeadHints, list[int]], list[ClaimedJob]]
) -> TakeBatch:
    """Begin at a bucket of one's own and go on behind the last one, as a consumer does."""
    count = place.queue.settings(name).lanes
    at = place.number * count // place.of
    lanes = [*range(at, count), *range(at)]

    def take_batch() -> int:
        nonlocal lanes
        jobs = take(hints, lanes)
        if not jobs and not hints.swept:
            hints.sweep_next()
            jobs = take(hints, lanes)
        if jobs:
            turn = lanes.index(jobs[0].bucket) + 1
            lanes = [*lanes[turn:], *lanes[:turn]]
        return len(jobs)

    return take_batch
