"""What a step still holds of the jobs that an earlier one claimed, and holds for longer."""

import os
import time
from datetime import datetime, tzinfo
from typing import Any

import dagster as dg
import pytest
from dagster._core.execution.plan.resume_retry import ReexecutionStrategy
from dagster._core.storage.tags import RETRY_STRATEGY_TAG

from dagster_sqlqueue import SqlQueue
from dagster_sqlqueue.orchestration import (
    RETRY_ALL_STEPS,
    LeasedJob,
    SqlQueueResource,
    build_claim_op,
    complete_jobs,
    give_back_on_failure,
    still_held,
)
from tests.orchestration.support import WORK, Deployment, of_environment
from tests.support import Work, claim, rows

claim_work = build_claim_op(WORK)


def sending() -> dg.JobDefinition:
    @dg.op
    def send(sqlqueue: SqlQueueResource, jobs: list[LeasedJob[Work]]) -> list[Any]:
        if os.environ["SENDING"] == "broken":
            raise ValueError("broken")
        return still_held(sqlqueue.queue, jobs)

    @dg.job(
        hooks={give_back_on_failure},
        executor_def=dg.in_process_executor,
        resource_defs={"sqlqueue": of_environment()},
        tags=RETRY_ALL_STEPS,
    )
    def graph() -> None:
        complete_jobs(send(claim_work()))

    return graph


def test_a_run_from_failure_works_on_no_job_that_another_has_claimed(
    queue: SqlQueue, persistent: dg.DagsterInstance, environment: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.enqueue_many(WORK, [Work(n=n) for n in range(3)])
    monkeypatch.setenv("SENDING", "broken")
    job = dg.reconstructable(sending)
    with dg.execute_job(job, persistent, raise_on_error=False) as first:
        assert not first.success
    taken = claim(queue, worker="another")
    assert taken, "they were given back"
    monkeypatch.setenv("SENDING", "mended")
    options = dg.ReexecutionOptions.from_failure(first.run_id, persistent)
    with dg.execute_job(job, persistent, reexecution_options=options) as again:
        assert again.output_for_node("complete_jobs") == {"completed": 3 - len(taken), "stale": 0}
    assert queue.depth("work").running == len(taken)
    assert first.dagster_run.tags[RETRY_STRATEGY_TAG] == ReexecutionStrategy.ALL_STEPS.value


def test_what_is_still_held_is_held_for_longer(queue: SqlQueue) -> None:
    queue.enqueue_many(WORK, [Work(n=n) for n in range(4)])
    jobs = [LeasedJob(job, Work.model_validate_json(job.payload)) for job in claim(queue, lease_seconds=600)]
    queue.complete([jobs[1].claimed])
    assert [job.id for job in still_held(queue, jobs)] == [jobs[0].id, jobs[2].id, jobs[3].id]
    assert rows(queue, "SELECT count(*) FROM {s}.job WHERE available_at > now() + interval '9 minutes'") == [(3,)]
    assert len(still_held(queue, jobs, lease_seconds=3600)) == 3
    assert rows(queue, "SELECT count(*) FROM {s}.job WHERE available_at > now() + interval '59 minutes'") == [(3,)]


def test_no_lease_is_shortened_by_a_later_call_or_by_the_clock_of_the_run_s_machine(
    queue: SqlQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Ahead(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> "Ahead":
            return cls.fromtimestamp(time.time() + 86_400, tz)

    monkeypatch.setattr("dagster_sqlqueue.orchestration.leased_jobs.datetime", Ahead)
    queue.enqueue_many(WORK, [Work(n=n) for n in range(2)])
    jobs = [LeasedJob(job, Work.model_validate_json(job.payload)) for job in claim(queue, lease_seconds=1_200)]
    left = "SELECT min(extract(epoch FROM available_at - now()))::float8 FROM {s}.job"
    held = still_held(queue, jobs)
    assert rows(queue, left)[0][0] > 1_100
    held = still_held(queue, held, lease_seconds=7_200)
    assert rows(queue, left)[0][0] > 7_100
    ends = {job.lease_until for job in still_held(queue, held)}
    assert rows(queue, "SELECT max(abs(extract(epoch FROM available_at - %s))) < 1 FROM {s}.job", *ends) == [(True,)]


@pytest.mark.parametrize("seconds", [None, 3_600])
def test_leases_that_a_step_has_extended_are_given_back_all_the_same(
    queue: SqlQueue, in_memory: Deployment, seconds: float | None
) -> None:
    @dg.op
    def extend_and_break(sqlqueue: SqlQueueResource, jobs: list[LeasedJob[Work]]) -> None:
        assert len(still_held(sqlqueue.queue, jobs, lease_seconds=seconds)) == 10
        raise ValueError("broken")

    @dg.job(hooks={give_back_on_failure})
    def graph() -> None:
        extend_and_break(claim_work())

    in_memory.enqueue_many(10)
    assert not in_memory.execute(graph, claim_work={"lease_seconds": 60}).success
    assert queue.depth("work").ready == 10
