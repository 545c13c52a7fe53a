"""What the tests of batches claimed ahead share."""

from collections.abc import Callable, Sequence
from typing import Any

import psycopg
import pytest

from dagster_sqlqueue import Consumer, QueueSpec, SqlQueue
from dagster_sqlqueue.db.channel import Channel
from dagster_sqlqueue.queue.claim_ahead import SentClaim
from dagster_sqlqueue.queue.endings import Endings
from tests.support import Work, rows, value
from tests.support.around import Around
from tests.support.locked_ahead import LONG, SIZE, fill


def running(queue: SqlQueue) -> int:
    count: int = value(queue, "SELECT count(*) FROM {s}.job WHERE state = 'running' AND available_at > now()")
    return count


def fill_evenly(queue: SqlQueue, spec: QueueSpec[Work], jobs: int, buckets: Sequence[int] = range(4)) -> None:
    """Enqueue so many jobs, of which each of these buckets has as many as the others."""
    fill(queue, spec, jobs)
    rows(
        queue,
        "UPDATE {s}.job SET bucket = (CAST(%s AS integer[]))[1 + no %% %s]"
        " FROM (SELECT id, row_number() OVER (ORDER BY id) AS no FROM {s}.job) AS numbered WHERE job.id = numbered.id",
        list(buckets),
        len(buckets),
    )


class SendingClaims(Around):
    """Leases that note each claim that is sent ahead, and lose the one that is to be lost."""

    sent = 0
    lost_at = 0
    lose: Callable[[Channel, Callable[[], SentClaim]], SentClaim]

    def send_claim_ahead(self, channel: Channel, endings: Endings | None, *given: Any, **named: Any) -> SentClaim:
        self.sent += 1
        send = lambda: self.inner.send_claim_ahead(channel, endings, *given, **named)  # noqa: E731
        return self.lose(channel, send) if self.sent == self.lost_at else send()


@pytest.fixture
def sending_claims(queue: SqlQueue) -> Any:
    """The queue's leases, watched for the test."""
    watched = SendingClaims(queue.leases)
    queue.leases = watched  # type: ignore[assignment]
    yield watched
    queue.leases = watched.inner


def consumer_of(queue: SqlQueue, spec: QueueSpec[Work], handler: Any, **settings: Any) -> Consumer[Work]:
    return Consumer(queue, spec, handler, **{"batch_size": SIZE, "lease_seconds": LONG, **settings})


def gone_before(channel: Channel, send: Callable[[], SentClaim]) -> SentClaim:
    raise psycopg.OperationalError("the connection was lost before anything was sent")
