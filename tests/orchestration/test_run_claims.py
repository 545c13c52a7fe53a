"""Runs of graphs that fail or are interrupted: what they had claimed is given back."""

import os
import signal

import dagster as dg

from dagster_sqlqueue import SqlQueue
from dagster_sqlqueue.orchestration import (
    LeasedJob,
    SqlQueueResource,
    build_claim_op,
    build_cleanup_sensors,
    give_back_on_failure,
)
from tests.orchestration.support import WORK, Deployment
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
    assert {failed.name, cancelled.name} == {"sqlqueue_failed_runs", "sqlqueue_cancelled_runs"}


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
