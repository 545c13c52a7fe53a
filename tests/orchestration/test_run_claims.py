"""Runs of graphs that fail or are interrupted: what they had claimed is given back."""

import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest

from dagster_sqlqueue import SqlQueue
from dagster_sqlqueue.orchestration import (
    LeasedJob,
    SqlQueueResource,
    build_claim_op,
    build_cleanup_sensors,
    complete_jobs,
    fail_jobs,
    give_back_on_failure,
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


def test_where_no_mapped_step_can_follow_the_jobs_are_given_back(queue: SqlQueue, in_memory: Deployment) -> None:
    @dg.op(out=dg.DynamicOut())
    def divide(jobs: list[LeasedJob[Work]]) -> Any:
        assert len(jobs) == 4
        raise ValueError("broken")

    @dg.job(hooks={give_back_on_failure})
    def graph() -> None:
        divide(claim_work()).map(complete_jobs)

    in_memory.enqueue_many(4)
    assert not in_memory.execute(graph).success
    depth = queue.depth("work")
    assert (depth.ready, depth.running) == (4, 0)


def test_a_mapped_step_that_fails_leaves_the_jobs_to_the_sensor(queue: SqlQueue, deployment: Deployment) -> None:
    @dg.op
    def send(sqlqueue: SqlQueueResource, jobs: list[LeasedJob[Work]]) -> None:
        if jobs[0].payload.n != 2:
            raise ValueError("broken")
        sqlqueue.queue.complete([job.claimed for job in jobs])

    @dg.op
    def report(sent: list[Any]) -> None:
        raise AssertionError("it needs what was sent")

    @dg.job(hooks={give_back_on_failure})
    def graph() -> None:
        report(in_twos(claim_work()).map(send).collect())

    deployment.enqueue_many(6)
    result = deployment.execute(graph)
    assert not result.success
    depth = queue.depth("work")
    assert (depth.ready, depth.running) == (0, 4)
    clean_up_after(graph, result, deployment)
    depth = queue.depth("work")
    assert (depth.ready, depth.running) == (4, 0)


def test_a_failed_branch_leaves_the_run_the_jobs_of_the_other(queue: SqlQueue, in_memory: Deployment) -> None:
    seen: list[int] = []

    @dg.op(out={"first": dg.Out(), "second": dg.Out()})
    def split(jobs: list[LeasedJob[Work]]) -> Iterator[dg.Output[Any]]:
        for at, name in enumerate(("first", "second")):
            yield dg.Output([job for job in jobs if job.payload.n % 2 == at], name)

    @dg.op(config_schema={"breaks": bool})
    def send(context: dg.OpExecutionContext, jobs: list[LeasedJob[Work]]) -> list[Any]:
        seen.append(queue.depth("work").running)
        if context.op_config["breaks"]:
            raise ValueError("broken")
        return jobs

    @dg.job(hooks={give_back_on_failure})
    def graph() -> None:
        first, second = split(claim_work())
        complete_jobs.alias("first_sent")(send.alias("send_first")(first))
        complete_jobs.alias("second_sent")(send.alias("send_second")(second))

    in_memory.enqueue_many(4)
    result = in_memory.execute(graph, send_first={"breaks": True}, send_second={"breaks": False})
    assert not result.success
    assert result.output_for_node("second_sent") == {"completed": 2, "stale": 0}
    assert seen == [4, 4], "another consumer could have taken them"
    assert queue.depth("work").running == 2, "the sensor gives them back"
    in_memory.enqueue_many(3)
    result = in_memory.execute(graph, send_first={"breaks": True}, send_second={"breaks": True})
    assert not result.success
    depth = queue.depth("work")
    assert (depth.ready, depth.running) == (3, 2), "the last branch that fails gives back the jobs of both"


def branching() -> dg.JobDefinition:
    """It breaks or not, as `SENDING` says; the step `look` is skipped, and `report` runs last if it can run before."""

    @dg.op(out={"fine": dg.Out(is_required=False), "odd": dg.Out(is_required=False)})
    def check(jobs: list[LeasedJob[Work]]) -> Iterator[dg.Output[Any]]:
        yield dg.Output(jobs, "fine")

    @dg.op
    def look(odd: list[Any]) -> list[Any]:
        raise AssertionError("there are none")

    @dg.op
    def prepare() -> str:
        return "now"

    @dg.op(out={"sent": dg.Out(is_required=False), "failed": dg.Out(is_required=False)})
    def send(sqlqueue: SqlQueueResource, jobs: list[LeasedJob[Work]], when: str) -> Iterator[dg.Output[Any]]:
        yield dg.Output(jobs, "sent")
        yield dg.Output([(job, "refused") for job in jobs[:0]], "failed")
        if os.environ["SENDING"] == "broken":
            raise ValueError("broken")

    @dg.op(tags={"dagster/priority": "-1"})
    def report(completed: dict[str, int]) -> None: ...

    @dg.job(
        hooks={give_back_on_failure},
        executor_def=dg.multi_or_in_process_executor,
        resource_defs={"sqlqueue": of_environment()},
    )
    def graph() -> None:
        fine, odd = check(claim_work())
        look(odd)
        sent, failed = send(fine, prepare())
        report(complete_jobs(sent))
        fail_jobs(failed)

    return graph


@pytest.mark.parametrize("processes", ["in_process", pytest.param("multiprocess", marks=pytest.mark.prove)])
def test_steps_that_were_skipped_or_need_the_failed_one_keep_no_jobs(
    queue: SqlQueue,
    persistent: dg.DagsterInstance,
    environment: None,
    monkeypatch: pytest.MonkeyPatch,
    processes: str,
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).resolve().parents[2]))
    monkeypatch.setenv("SENDING", "broken")
    queue.enqueue_many(WORK, [Work(n=n) for n in range(3)])
    config = {"execution": {"config": {processes: {}}}}
    with dg.execute_job(dg.reconstructable(branching), persistent, run_config=config, raise_on_error=False) as result:
        assert {event.step_key for event in result.all_events if event.is_step_failure} == {"send"}
    depth = queue.depth("work")
    assert (depth.ready, depth.running) == (3, 0)


@pytest.mark.parametrize(
    ("chosen", "given_back"),
    [
        (["claim_work", "check", "send", "complete_jobs", "fail_jobs"], True),
        # It reports what the earlier run completed, and runs last.
        (["claim_work", "check", "send", "report"], False),
    ],
)
def test_of_a_run_of_some_steps_the_others_do_not_count(
    queue: SqlQueue,
    persistent: dg.DagsterInstance,
    environment: None,
    monkeypatch: pytest.MonkeyPatch,
    chosen: list[str],
    given_back: bool,
) -> None:
    job = dg.reconstructable(branching)
    config = {"execution": {"config": {"in_process": {}}}}
    monkeypatch.setenv("SENDING", "mended")
    with dg.execute_job(job, persistent, run_config=config) as first:
        assert first.success
    queue.enqueue_many(WORK, [Work(n=n) for n in range(3)])
    monkeypatch.setenv("SENDING", "broken")
    options = dg.ReexecutionOptions(first.run_id, step_selection=chosen)
    with dg.execute_job(job, persistent, run_config=config, reexecution_options=options, raise_on_error=False) as again:
        assert {event.step_key for event in again.all_events if event.is_step_failure} == {"send"}
    depth = queue.depth("work")
    assert (depth.ready, depth.running) == ((3, 0) if given_back else (0, 3))


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
    for _ in range(2):
        clean_up_after(graph, result, deployment)
        assert queue.depth("work").ready == 10


def clean_up_after(graph: dg.JobDefinition, result: dg.ExecuteInProcessResult, deployment: Deployment) -> None:
    """A tick of the sensor for failed runs."""
    failed, cancelled = build_cleanup_sensors([graph])
    assert {failed.name, cancelled.name} == {f"{graph.name}_failed_runs", f"{graph.name}_cancelled_runs"}
    run = deployment.instance.get_run_by_id(result.run_id)
    assert run is not None
    (event,) = [
        entry.dagster_event
        for entry in deployment.instance.all_logs(result.run_id)
        if entry.dagster_event and entry.dagster_event.event_type_value == "PIPELINE_FAILURE"
    ]
    context = dg.build_run_status_sensor_context(
        sensor_name=failed.name,
        dagster_event=event,
        dagster_instance=deployment.instance,
        dagster_run=run,
        resources={"sqlqueue": deployment.resource},
    )
    with context:
        failed(context)


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
