"""Jobs worked on side by side by a consumer whose database is away when it ends them or gives them back."""

import threading
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pytest

from dagster_sqlqueue import Consumer, QueueSpec, SqlQueue
from dagster_sqlqueue.errors import DatabaseUnavailable
from dagster_sqlqueue.model.job import ClaimedJob
from tests.gate.patience import PATIENCE
from tests.support import Work, rows, until, value
from tests.support.around import Around
from tests.support.meeting import handlers


class Away(Around):
    """Leases in a database that is away while it is said to be, for the writes of outcomes and of what is given back.

    Attributes:
        away: whether it is.
        asked: set once something was written meanwhile.
        extended: the jobs whose leases were extended.
    """

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.away = False
        self.asked = threading.Event()
        self.extended: set[UUID] = set()

    def finish(self, *given: Any, **named: Any) -> Any:
        self._ask()
        return self.inner.finish(*given, **named)

    def release(self, *given: Any, **named: Any) -> Any:
        self._ask()
        return self.inner.release(*given, **named)

    def heartbeat(self, jobs: list[ClaimedJob], **named: Any) -> Any:
        kept = self.inner.heartbeat(jobs, **named)
        self.extended |= {job.id for job in jobs}
        return kept

    def _ask(self) -> None:
        if self.away:
            self.asked.set()
            raise DatabaseUnavailable("the database is away")


@pytest.fixture
def leases(queue: SqlQueue, monkeypatch: pytest.MonkeyPatch) -> Away:
    leases = Away(queue.leases)
    monkeypatch.setattr(queue, "leases", leases)
    return leases


@pytest.mark.parametrize("kind", ["threads", "async"])
def test_a_drain_after_one_that_could_not_end_its_job_leaves_it_to_others(
    queue: SqlQueue, spec: QueueSpec[Work], leases: Away, kind: str
) -> None:
    """The heartbeat of the next drain does not extend its lease."""

    def meeting(n: int) -> None:
        if n > 0:
            consumer.stop()
            until(lambda: second in leases.extended, "a heartbeat of the second drain")

    first = queue.enqueue(spec, Work(n=0))
    consumer = Consumer(queue, spec, handlers(meeting)[kind], concurrency=2, lease_seconds=1.0)
    leases.away = True
    with pytest.raises(DatabaseUnavailable):
        consumer.drain()
    leases.away = False
    leases.extended.clear()
    rows(queue, "UPDATE {s}.job SET available_at = now() + interval '1 hour'")
    second = queue.enqueue(spec, Work(n=1))
    assert consumer.drain().succeeded == 1
    assert leases.extended == {second}
    rows(queue, "UPDATE {s}.job SET available_at = now()")
    assert Consumer(queue, spec, lambda job: None).drain().succeeded == 1
    assert value(queue, "SELECT id FROM {s}.job_archive ORDER BY finished_at DESC LIMIT 1") == first


@pytest.mark.parametrize("kind", ["threads", "async"])
def test_a_drain_that_cannot_give_back_what_it_has_not_begun_leaves_nothing_to_the_next_one(
    queue: SqlQueue, spec: QueueSpec[Work], leases: Away, kind: str
) -> None:
    claims: list[int] = []

    def meeting(n: int) -> None:
        if len(claims) == 1:
            queue.enqueue(spec, Work(n=1))
            assert leases.asked.wait(PATIENCE)

    def stop(jobs: Sequence[ClaimedJob]) -> None:
        claims.append(len(jobs))
        if len(claims) == 2:
            leases.away = True
            consumer.stop()

    queue.enqueue(spec, Work(n=0))
    consumer = Consumer(queue, spec, handlers(meeting)[kind], concurrency=2, on_claim=stop)
    with pytest.raises(DatabaseUnavailable):
        consumer.drain()
    leases.away = False
    consumer.stopping.clear()
    rows(queue, "UPDATE {s}.job SET available_at = now()")
    assert consumer.drain().succeeded == 2
