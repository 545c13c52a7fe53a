"""Runs of handlers that return what no handler may."""

from typing import Any

import pytest

from dagster_sqlqueue import Job, SqlQueue
from dagster_sqlqueue.orchestration import queue_consumer, slots
from tests.orchestration.support import WORK, Deployment, configs, error_of
from tests.support import Work, rows


@pytest.mark.parametrize("more", [{}, {"concurrency": 3}, {"transactional": True}])
def test_a_run_whose_handler_returns_what_is_no_outcome_does_the_work_once(
    queue: SqlQueue, deployment: Deployment, more: dict[str, Any]
) -> None:
    called: list[int] = []

    def send(job: Job[Work]) -> Any:
        called.append(job.payload.n)
        return {"sent": True}

    deployment.enqueue_many(3)
    deployment.drain(queue_consumer(WORK, **more)(send))
    assert sorted(called) == [0, 1, 2]
    letters = queue.dead_letters("work")
    assert [letter.attempt for letter in letters] == [1, 1, 1]
    assert all((letter.error or "").startswith("the handler returned a dict; return Done") for letter in letters)


@pytest.mark.parametrize("more", [{}, {"concurrency": 3}, {"transactional": True}])
def test_a_run_whose_handler_returns_what_nothing_awaits_fails_and_gives_its_jobs_back(
    queue: SqlQueue, deployment: Deployment, more: dict[str, Any]
) -> None:
    """Attempts spent in a run that succeeds would send all jobs of the queue to the dead letter."""

    async def send(job: Job[Work]) -> None: ...

    wrong = queue_consumer(WORK, **more)(lambda job: send(job))
    deployment.enqueue_many(5)
    result = deployment.execute(wrong.job, **{wrong.op.name: {"linger_seconds": 0}})
    assert not result.success
    assert "make the handler async def, or let it return an outcome" in error_of(result, wrong.op.name)
    assert set(rows(queue, "SELECT state, attempt FROM {s}.job")) == {("queued", 0)}
    assert queue.depth("work").ready == 5


def test_runs_of_such_a_handler_are_requested_less_and_less_often(queue: SqlQueue, deployment: Deployment) -> None:
    async def send(job: Job[Work]) -> None: ...

    wrong, right = queue_consumer(WORK)(lambda job: send(job)), queue_consumer(WORK)(lambda job: None)
    deployment.enqueue_many(9)
    for starts in (1, 2):
        (config,) = configs(deployment.tick(wrong.sensor))
        result = deployment.execute(wrong.job, **{wrong.op.name: {**config, "linger_seconds": 0}})
        assert not result.success
        assert {one.starts for one in slots.asked(queue, "work").values()} == {starts}
    waiting = deployment.tick(wrong.sensor)
    assert not configs(waiting)
    assert "no run took a job of bucket" in waiting.cursor
    rows(queue, "UPDATE {s}.bucket SET asked_at = asked_at - interval '31 seconds'")
    (config,) = configs(deployment.tick(right.sensor))
    assert deployment.drain(right, **config).success
    assert slots.asked(queue, "work") == {}
