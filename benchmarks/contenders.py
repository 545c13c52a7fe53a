"""Who drains: the library in both of its modes, pgmq's SQL functions, and a bare table. Each takes one batch and ends it.

All get the payloads to Python as text, and nothing is parsed. The library goes through its own verbs; the others are one
or two prepared statements on a psycopg connection.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import psycopg
from psycopg import sql

from dagster_sqlqueue import SqlQueue
from dagster_sqlqueue.model.job import ArchiveState, ClaimedJob
from dagster_sqlqueue.queue.claim_request import ClaimRequest
from dagster_sqlqueue.queue.complete import Ending
from dagster_sqlqueue.queue.head_hints import SWEEP_SECONDS, HeadHints

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
    """Claim under a lease; end a batch and claim the next one in one transaction, as `Consumer.drain` does."""
    hints = HeadHints(sweep_seconds)
    lanes = _lanes(place, name)
    known = False
    ahead: list[ClaimedJob] = []
    wanted = {"limit": batch, "worker": f"bench-{place.number}", "lease_seconds": _LEASE_SECONDS, "hints": hints}

    def take_batch() -> int:
        nonlocal lanes, ahead, known
        if sweep_seconds and not known:
            place.queue.leases.note_sweep(name)
            hints.know(place.queue.leases.head_hints(name))
            known = True
        jobs = ahead or place.queue.claim(name, buckets=lanes, **wanted)
        if not jobs and not hints.swept:
            hints.sweep_next()
            jobs = place.queue.claim(name, buckets=lanes, **wanted)
        ahead = []
        if jobs:
            lanes = _behind(jobs[0].bucket, lanes)
            endings = [Ending(job, ArchiveState.SUCCEEDED) for job in jobs]
            _, ahead = place.queue.leases.finish_and_claim(endings, ClaimRequest(name, buckets=lanes, **wanted))
        return len(jobs)

    return take_batch


def transactional(place: Place, name: str = "bench") -> TakeBatch:
    """Lock, and move to the archive: one transaction, no lease; the next one begins in the round trip that commits it, as
    in `Consumer.drain`.
    """

    def batches() -> Iterator[int]:
        hints = HeadHints()
        lanes = _lanes(place, name)
        wanted = {"limit": BATCH, "hints": hints}
        while True:
            with place.queue.database.transaction() as transaction:
                jobs = place.queue.leases.lock_due(transaction, ClaimRequest(name, buckets=lanes, **wanted))
                while jobs:
                    taken = len(jobs)
                    lanes = _behind(jobs[0].bucket, lanes)
                    endings = [Ending(job, ArchiveState.SUCCEEDED) for job in jobs]
                    jobs = place.queue.leases.finish_and_lock(
                        transaction,
                        endings,
                        ClaimRequest(name, worker=f"bench-{place.number}", buckets=lanes, **wanted),
                    )
                    yield taken
            if hints.swept:
                yield 0
            hints.sweep_next()

    return batches().__next__


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


def _lanes(place: Place, name: str) -> list[int]:
    """The buckets, from one's own on."""
    count = place.queue.settings(name).lanes
    at = place.number * count // place.of
    return [*range(at, count), *range(at)]


def _behind(bucket: int, lanes: list[int]) -> list[int]:
    """The next look begins behind the bucket that the last one found something in, as a consumer's does."""
    turn = lanes.index(bucket) + 1
    return [*lanes[turn:], *lanes[:turn]]
