"""What a consumer waits for on a queue whose jobs may have to wait: for its own jobs, and for those of nobody else."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from dagster_sqlqueue import Consumer, Job, QueueSpec, SqlQueue
from dagster_sqlqueue.consumer.settlement import DrainSummary
from dagster_sqlqueue.queue.claim_filter import ClaimFilter
from tests.gate.patience import PATIENCE
from tests.support import Work, claim, rows, until

LIMITED: dict[str, dict[str, Any]] = {
    "a limit": {"max_running": 1},
    "a limit of keys": {"max_running_per_key": 1},
    "an order": {"ordered": True},
}


def nothing(job: Job[Work]) -> None: ...


class Looking(ClaimFilter):
    """Counts the looks for jobs that fit."""

    looks = 0

    def finds(self, *given: Any, **named: Any) -> bool:
        self.looks += 1
        return super().finds(*given, **named)


@contextmanager
def draining(consumer: Consumer[Work]) -> Iterator[Any]:
    """The drain's result in the future, whatever the test says."""
    with ThreadPoolExecutor(1) as pool:
        try:
            yield pool.submit(consumer.drain)
        finally:
            consumer.stop()


@pytest.mark.parametrize("limit", LIMITED)
def test_a_drain_ends_beside_due_jobs_of_other_buckets(queue: SqlQueue, spec: QueueSpec[Work], limit: str) -> None:
    queue.create_queue(replace(spec, **LIMITED[limit]))
    queue.enqueue_many(spec, [Work(n=n) for n in range(40)])
    mine = len(rows(queue, "SELECT id FROM {s}.job WHERE bucket = 2"))
    with draining(Consumer(queue, spec, nothing, buckets=[2])) as drain:
        summary: DrainSummary = drain.result(PATIENCE)
    assert summary.succeeded == mine
    assert rows(queue, "SELECT count(*) FROM {s}.job WHERE bucket <> 2") == [(40 - mine,)]


@pytest.mark.parametrize("limit", LIMITED)
def test_a_drain_ends_beside_due_jobs_that_do_not_fit(queue: SqlQueue, spec: QueueSpec[Work], limit: str) -> None:
    queue.create_queue(replace(spec, **LIMITED[limit]))
    queue.enqueue_many(spec, [Work(n=n) for n in range(40)])
    with draining(Consumer(queue, spec, nothing, filter=ClaimFilter(payload={"n": 30}))) as drain:
        assert drain.result(PATIENCE).succeeded == 1
    assert rows(queue, "SELECT count(*) FROM {s}.job") == [(39,)]


def test_a_job_that_fits_is_waited_for_wherever_it_is(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    queue.create_queue(replace(spec, max_running=1))
    queue.enqueue_many(spec, [Work(n=n) for n in range(40)])
    (held,) = claim(queue, 1)
    last = rows(queue, "SELECT payload ->> 'n' FROM {s}.job WHERE id <> %s ORDER BY bucket DESC, id DESC", held.id)
    fits = Looking(payload={"n": int(last[0][0])}, scan=3)
    with draining(Consumer(queue, spec, nothing, filter=fits)) as drain:
        until(lambda: fits.looks or drain.done(), "a look for jobs that fit")
        queue.complete([held])
        assert drain.result(PATIENCE).succeeded == 1
