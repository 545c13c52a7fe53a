"""Keys that take turns: nobody overtakes, nobody runs beside another of its key, and nobody waits for nobody."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from dagster_sqlqueue import Backoff, NewJob, QueueSpec, SqlQueue
from dagster_sqlqueue.model import ClaimedJob
from dagster_sqlqueue.outcomes import Retry
from tests.core.support import Work, caller, numbers, rows

ORDERED = QueueSpec("work", Work, bucket_count=2, max_attempts=5, ordered=True, backoff=Backoff(0, jitter=0))


def take(queue: SqlQueue, limit: int = 10) -> list[ClaimedJob]:
    return queue.claim("work", limit=limit, worker="w")


def overtaken(queue: SqlQueue, url: str) -> ClaimedJob:
    """The second of two jobs runs: the producer of the first got its number earlier, and committed later."""
    queue.create_queue(ORDERED)
    with caller(url) as connection:
        queue.enqueue(ORDERED, NewJob(Work(n=1), ordering_key="k"), connection=connection)
        queue.enqueue(ORDERED, NewJob(Work(n=2), ordering_key="k"))
        (second,) = take(queue)
        connection.commit()
    assert take(queue) == []
    return second


GIVEN_UP: dict[str, Callable[[SqlQueue, ClaimedJob], object]] = {
    "ended": lambda queue, job: queue.complete([job]),
    "given back": lambda queue, job: queue.requeue([(job, Retry("again", 0))]),
    "held": lambda queue, job: queue.hold([(job, "wait")]),
    "left behind by a kill": lambda queue, _: rows(
        queue, "UPDATE {s}.job SET available_at = now() WHERE state = 'running'"
    ),
}


@pytest.mark.parametrize("way", list(GIVEN_UP))
def test_the_first_of_a_key_does_not_wait_for_ever_behind_one_that_was_quicker(
    queue: SqlQueue, url: str, way: str
) -> None:
    GIVEN_UP[way](queue, overtaken(queue, url))
    assert numbers(take(queue)) == [1]


@pytest.mark.parametrize("turns", [{"ordered": True}, {"max_running_per_key": 2}])
def test_a_queue_that_is_given_turns_while_its_jobs_run_goes_on(queue: SqlQueue, turns: dict[str, int]) -> None:
    plain = replace(ORDERED, ordered=False)
    queue.create_queue(plain)
    queue.enqueue_many(plain, [NewJob(Work(n=n), ordering_key="k") for n in range(5)])
    running = take(queue, 2)
    queue.create_queue(replace(plain, **turns))  # type: ignore[arg-type]
    assert take(queue) == []
    queue.complete(running)
    assert numbers(take(queue))[0] == 2
