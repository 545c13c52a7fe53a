"""Runs of graphs that fail or are interrupted: what they had claimed is given back."""

import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
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
    build_cleanup_sensors,
    complete_jobs,
    give_back_on_failure,
    still_held,
)
from dagster_sqlqueue.orchestration.run_claims import claims_of, note_claim
from tests.gate.patience import PATIENCE
from tests.orchestration.support import WORK, Deployment, of_environment
from tests.support import Work, claim, rows

claim_work = build_claim_op(WORK)


def test_a_failed_run_gives_back_what_it_has_not_ended(queue: SqlQueue, in_memory: Deployment) -> None:
    @dg.op
    def complete_two_and_break(sqlqueue: SqlQueueResource, jobs: list[LeasedJob[Work]]) -> None:
        sqlqueue.queue.complete([job.claimed for job in jobs[:2]])
        raise ValueError("broken")

    @dg.job(hooks={give_back_on_failure})
    def graph() -> None:
        complete_two_and_break(claim_work())

    in_memory.enqueue_many(2000)
    assert len(claim(queue, limit=3, worker="another")) == 3
    assert not in_memory.execute(graph, claim_work={"limit": 1500, "lease_seconds": 7200}).success
    depth = queue.depth("work")
    assert (depth.ready, depth.running) == (1995, 3)
    attempts = "SELECT attempt, count(*) FROM {s}.job WHERE claimed_by IS DISTINCT FROM 'another' GROUP BY 1 ORDER BY 1"
    assert rows(queue, attempts) == [(0, 497), (1, 1498)]


@dg.op(out=dg.DynamicOut())
def in_twos(jobs: list[LeasedJob[Work]]) -> Iterator[dg.DynamicOutput[Any]]:
    ordered = sorted(jobs, key=lambda job: job.payload.n)
    for at in range(0, len(ordered), 2):
        yield dg.DynamicOutput(ordered[at : at + 2], mapping_key=str(at))


def test_a_failed_step_leaves_the_run_the_jobs_of_steps_that_can_still_run(
    queue: SqlQueue, in_memory: Deployment
) -> None:
    @dg.op
    def send(jobs: list[LeasedJob[Work]]) -> list[Any]:
        if jobs[0].payload.n == 0:
            raise ValueError("broken")
        assert queue.depth("work").running == 4, "another consumer could have taken them"
        return jobs

    @dg.job(hooks={give_back_on_failure})
    def graph() -> None:
        in_twos(claim_work()).map(send).map(complete_jobs)

    in_memory.enqueue_many(4)
    result = in_memory.execute(graph)
    assert not result.success
    failed = {event.step_key for event in result.all_events if event.is_step_failure}
    assert failed == {"send[0]"}
    assert result.output_for_node("complete_jobs") == {"2": {"completed": 2, "stale": 0}}
    assert queue.depth("work").running == 2, "the sensor gives them back"


def test_the_last_step_that_fails_gives_back_the_jobs_of_all(queue: SqlQueue, in_memory: Deployment) -> None:
    @dg.op
    def send(sqlqueue: SqlQueueResource, jobs: list[LeasedJob[Work]]) -> None:
        if jobs[0].payload.n != 2:
            raise ValueError("broken")
        sqlqueue.queue.complete([job.claimed for job in jobs])

    @dg.op
    def report(sent: list[Any]) -> None:
        raise AssertionError("it needs what was sent")

    @dg.op(out=dg.Out(is_required=False))
    def none_to_report() -> Iterator[dg.Output[Any]]:
        yield from ()

    @dg.job(hooks={give_back_on_failure})
    def graph() -> None:
        report.alias("report_nothing")(none_to_report())
        report(in_twos(claim_work()).map(send).collect())

    in_memory.enqueue_many(6)
    assert not in_memory.execute(graph).success
    depth = queue.depth("work")
    assert (depth.ready, depth.running) == (4, 0)


def test_claims_side_by_side_are_all_recorded(persistent: dg.DagsterInstance) -> None:
    @dg.job
    def graph() -> None: ...

    for _ in range(3):
        run = persistent.create_run_for_job(graph)
        context: Any = SimpleNamespace(instance=persistent, run_id=run.run_id)
        together = threading.Barrier(2, timeout=PATIENCE)

        def claim_from(queue: str, context: Any = context, together: threading.Barrier = together) -> None:
            together.wait()
            for seconds in (60.0, 120.0, 90.0):
                note_claim(context, queue, seconds)

        with ThreadPoolExecutor(2) as threads:
            list(threads.map(claim_from, ["first", "second"]))
        assert claims_of(persistent, run) == {"first": 120.0, "second": 120.0}


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


def test_an_interrupted_run_s_jobs_are_given_back_by_a_sensor(queue: SqlQueue, deployment: Deployment) -> None:
    @dg.op
    def interrupted(jobs: list[LeasedJob[Work]]) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    @dg.job(hooks={give_back_on_failure}, executor_def=dg.in_process_executor)
    def graph() -> None:
        interrupted(claim_work())

    deployment.enqueue_many(10)
    result = deployment.execute(graph, claim_work={"limit": 7})
    assert not result.success
    assert queue.depth("work").running == 7, "a run that is interrupted calls no hook"
    failed, cancelled = build_cleanup_sensors([graph])
    run = deployment.instance.get_run_by_id(result.run_id)
    assert run is not None
    (event,) = [
        entry.dagster_event
        for entry in deployment.instance.all_logs(result.run_id)
        if entry.dagster_event and entry.dagster_event.event_type_value == "PIPELINE_FAILURE"
    ]
    for _ in range(2):
        context = dg.build_run_status_sensor_context(
            sensor_name=failed.name,
            dagster_event=event,
            dagster_instance=deployment.instance,
            dagster_run=run,
            resources={"sqlqueue": deployment.resource},
        )
        with context:
            failed(context)
        assert queue.depth("work").ready == 10
    assert {failed.name, cancelled.name} == {f"{graph.name}_failed_runs", f"{graph.name}_cancelled_runs"}


def test_a_job_that_breaks_the_graph_each_time_ends_in_the_dead_letter(queue: SqlQueue, in_memory: Deployment) -> None:
    @dg.op
    def break_it(jobs: list[LeasedJob[Work]]) -> None:
        if jobs:
            raise ValueError("broken")

    @dg.job(hooks={give_back_on_failure})
    def graph() -> None:
        break_it(claim_work())

    in_memory.enqueue(Work(n=1))
    assert [in_memory.execute(graph).success for _ in range(4)] == [False, False, False, True]
    assert len(queue.dead_letters("work")) == 1
