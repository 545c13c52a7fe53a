"""Ops of graphs that enqueue: nothing twice however often a step is done, and nothing of what does not fit."""

from typing import Any

import dagster as dg
import pyarrow as pa
import pytest

from dagster_sqlqueue import NewJob, SqlQueue
from dagster_sqlqueue.orchestration import (
    build_enqueue_op,
    enqueue_jobs,
)
from tests.orchestration.support import WORK, Deployment, error_of, of_environment
from tests.support import Work, claim, rows


def test_a_step_that_is_retried_after_its_commit_enqueues_nothing_twice(
    queue: SqlQueue, in_memory: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    @dg.op
    def table() -> pa.Table:
        return pa.table({"n": list(range(2500)), "note": ["row"] * 2500})

    put = build_enqueue_op(WORK).with_retry_policy(dg.RetryPolicy(max_retries=1))

    @dg.job
    def graph() -> None:
        put(table())

    enqueue_many = SqlQueue.enqueue_many
    done = []

    def breaking(*arguments: Any, **named: Any) -> Any:
        done.append(enqueue_many(*arguments, **named))
        if len(done) == 1:
            raise ConnectionResetError("after the commit")
        return done[-1]

    monkeypatch.setattr(SqlQueue, "enqueue_many", breaking)
    result = in_memory.execute(graph)
    assert result.success
    assert done[0].inserted == 2500
    assert result.output_for_node("enqueue_work") == {"enqueued": 0, "duplicates": 2500, "replaced": 0}
    assert rows(queue, "SELECT count(*), count(DISTINCT payload ->> 'n') FROM {s}.job") == [(2500, 2500)]


def enqueuing() -> dg.JobDefinition:
    put = build_enqueue_op(WORK)

    @dg.op
    def make() -> list[NewJob]:
        return [NewJob(Work(n=n), priority=3) for n in range(10)]

    @dg.job(resource_defs={"sqlqueue": of_environment()}, executor_def=dg.in_process_executor)
    def graph() -> None:
        put(make())

    return graph


def test_a_re_executed_run_enqueues_nothing_twice_and_a_new_one_does(
    queue: SqlQueue, persistent: dg.DagsterInstance, environment: None
) -> None:
    job = dg.reconstructable(enqueuing)
    with dg.execute_job(job, persistent) as first:
        assert first.output_for_node("enqueue_work")["enqueued"] == 10
    queue.complete(claim(queue))
    assert rows(queue, "SELECT count(*), min(priority) FROM {s}.job_archive") == [(10, 3)]
    with dg.execute_job(
        job, persistent, reexecution_options=dg.ReexecutionOptions(parent_run_id=first.dagster_run.run_id)
    ) as again:
        assert again.output_for_node("enqueue_work") == {"enqueued": 0, "duplicates": 10, "replaced": 0}
    with dg.execute_job(job, persistent) as new:
        assert new.output_for_node("enqueue_work")["enqueued"] == 10


def test_a_re_execution_enqueues_nothing_twice_after_the_root_run_was_deleted(
    queue: SqlQueue, persistent: dg.DagsterInstance, environment: None
) -> None:
    job = dg.reconstructable(enqueuing)
    with dg.execute_job(job, persistent) as first:
        assert first.output_for_node("enqueue_work")["enqueued"] == 10
    with dg.execute_job(job, persistent, reexecution_options=dg.ReexecutionOptions(first.run_id)) as second:
        assert second.success
    persistent.delete_run(first.run_id)
    with dg.execute_job(job, persistent, reexecution_options=dg.ReexecutionOptions(second.run_id)) as third:
        assert third.dagster_run.root_run_id == first.run_id
        assert third.output_for_node("enqueue_work") == {"enqueued": 0, "duplicates": 10, "replaced": 0}


@pytest.mark.parametrize("given", ["text", 7, None])
def test_what_are_no_jobs_is_refused(in_memory: Deployment, given: Any) -> None:
    @dg.op
    def make() -> Any:
        return given

    @dg.job
    def graph() -> None:
        enqueue_jobs(make())

    result = in_memory.execute(graph, enqueue_jobs={"queue": "work"})
    assert f"jobs were expected, not a {type(given).__name__}" in error_of(result, "enqueue_jobs")


def test_bad_jobs_enqueue_nothing(queue: SqlQueue, in_memory: Deployment) -> None:
    put = build_enqueue_op(WORK)

    @dg.op
    def make() -> list[Any]:
        return [*({"n": n} for n in range(3000)), {"n": "x"}]

    @dg.job
    def graph() -> None:
        put(make())

    result = in_memory.execute(graph)
    assert "row 3000: the payload does not fit Work of queue 'work': n:" in error_of(result, "enqueue_work")
    assert queue.depth("work").live == 0
