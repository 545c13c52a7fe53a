"""Every strategy on every server: the same queue, the same promises."""

import itertools
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

import pytest

from dagster_sqlqueue import Backoff, NewJob, QueueSpec, SqlQueue, Strategy
from dagster_sqlqueue.model.job import ClaimedJob
from tests.support import Work, drop, rows, value

STRATEGIES = list(Strategy)
LOCKING = [Strategy.ROUND_ROBIN, Strategy.FANOUT, Strategy.FIFO]
"""Those that step over what others hold, and can work jobs off inside a transaction."""
TAKING_TURNS = [strategy for strategy in Strategy if strategy is not Strategy.TOKEN]
"""Those that queues with ordered keys or limits may have."""
LEASE = 600.0
"""Seconds: longer than any test waits for anything."""
EARLIER = datetime.now(UTC) - timedelta(hours=1)

_numbers = itertools.count(1)


class Row(NamedTuple):
    """A job as the tables have it.

    Attributes:
        wait: seconds until it may be claimed; for a job that ended, or that nobody may claim, None.
    """

    state: str
    attempt: int
    lease_no: int
    wait: float | None
    error: str | None
    payload: dict[str, Any]
    result: Any
    priority: int
    cancel_requested: bool


ROW = """
SELECT j.state, j.attempt, j.lease_no,
    CASE WHEN j.available_at < 'infinity' THEN CAST(EXTRACT(EPOCH FROM j.available_at - clock_timestamp()) AS float8) END,
    j.error, j.payload, NULL, j.priority, j.cancel_requested_at IS NOT NULL
FROM {s}.job AS j WHERE j.id = %s
UNION ALL
SELECT a.state, a.attempt, a.lease_no, NULL, a.error, a.payload, a.result, a.priority, false
FROM {s}.job_archive AS a WHERE a.id = %s
"""


@dataclass
class Line:
    """One queue, under test."""

    queue: SqlQueue
    spec: QueueSpec[Work]

    @property
    def name(self) -> str:
        return self.spec.name

    def change(self, **settings: Any) -> None:
        """Give the queue other settings."""
        self.spec = replace(self.spec, **settings)
        self.queue.create_queue(self.spec)

    def put(self, *numbers: int, **more: Any) -> list[UUID]:
        """Enqueue jobs with these numbers, one after the other; returns their ids."""
        ids = [self.queue.enqueue(self.spec, NewJob(Work(n=n), **more)) for n in numbers]
        assert None not in ids
        return [id for id in ids if id]

    def take(self, limit: int = 100, **more: Any) -> list[ClaimedJob]:
        return self.queue.claim(self.name, limit=limit, **{"worker": "w", **more})

    def one(self, **more: Any) -> ClaimedJob:
        (job,) = self.take(**more)
        return job

    def claimed(self, **more: Any) -> ClaimedJob:
        """Enqueue one job, and claim it."""
        self.put(1, **more)
        return self.one()

    def row(self, id: UUID) -> Row:
        ((*columns,),) = rows(self.queue, ROW, id, id)
        return Row(*columns)

    def states(self) -> list[str]:
        """Of every job of the queue, live and ended, by number."""
        query = """
            SELECT state FROM (
                SELECT state, payload FROM {s}.job WHERE queue = %s
                UNION ALL
                SELECT state, payload FROM {s}.job_archive WHERE queue = %s
            ) AS every
            ORDER BY CAST(payload ->> 'n' AS integer)
        """
        return [row[0] for row in rows(self.queue, query, self.name, self.name)]

    def let_time_pass(self) -> None:
        """What was scheduled is due, and every lease has run out."""
        rows(
            self.queue,
            "UPDATE {s}.job SET available_at = available_at - interval '1 year' WHERE queue = %s",
            self.name,
        )

    def stale_writes(self) -> int:
        query = "SELECT COALESCE(sum(writes), 0) FROM {s}.stale_write WHERE queue = %s"
        return int(value(self.queue, query, self.name))


def numbers(jobs: Sequence[ClaimedJob]) -> list[int]:
    return [Work.model_validate_json(job.payload).n for job in jobs]


def at(n: int) -> datetime:
    """A moment that is over: so many seconds after `EARLIER`."""
    return EARLIER + timedelta(seconds=n)


@pytest.fixture(scope="session")
def queues(any_server: str) -> Iterator[SqlQueue]:
    """A schema of its own on the server, gone afterwards."""
    schema = f"conformance_{uuid.uuid4().hex[:12]}"
    with SqlQueue(any_server, schema=schema) as queue:
        queue.migrate()
        yield queue
        drop(queue)


@pytest.fixture(params=STRATEGIES)
def strategy(request: pytest.FixtureRequest) -> Strategy:
    """All of them, unless a test names its own."""
    strategy: Strategy = request.param
    return strategy


@pytest.fixture
def line(queues: SqlQueue, strategy: Strategy) -> Line:
    """A fresh queue in four buckets; what fails is due again at once."""
    spec = QueueSpec(
        f"q{next(_numbers)}",
        Work,
        bucket_count=4,
        lease_seconds=LEASE,
        max_attempts=3,
        backoff=Backoff(0, jitter=0),
        strategy=strategy,
    )
    queues.create_queue(spec)
    return Line(queues, spec)
