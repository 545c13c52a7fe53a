"""Groups that steps enqueue: once however often a step is done, and whole or not at all."""

import logging
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import dagster as dg
import pytest

from dagster_sqlqueue import Consumer, NewJob, QueueSpec, SqlQueue
from dagster_sqlqueue.errors import InvalidInput, UnknownQueue
from dagster_sqlqueue.followers import Callback, Groups
from dagster_sqlqueue.orchestration import (
    EnqueuedGroup,
    SqlQueueResource,
    await_group,
    enqueue_group,
    group_ops,
    group_results,
)
from dagster_sqlqueue.orchestration.step_ids import StepIds
from tests.gate.patience import PATIENCE
from tests.orchestration.group_support import JOINS
from tests.orchestration.support import WORK, Deployment, error_of
from tests.support import Work, rows, until

pytestmark = pytest.mark.usefixtures("joins")


def test_ops_that_are_called_directly_do_without_a_run(queue: SqlQueue, in_memory: Deployment) -> None:
    with dg.build_op_context(resources={"sqlqueue": in_memory.resource}) as context:
        made = [enqueue_group(context, queue, WORK, [Work(n=n)]) for n in range(2)]
    assert made[0].id != made[1].id
    Consumer(queue, WORK, lambda job: None).drain()
    assert [await_group(queue, group.id, timeout_seconds=0).succeeded for group in made] == [1, 1]
    assert [len(page) for page in group_results(queue, made[0])] == [1]
    with pytest.raises(InvalidInput, match="'seven' is no group"):
        next(group_results(queue, "seven"))


def test_a_step_that_is_done_again_after_its_commit_enqueues_nothing_twice(
    queue: SqlQueue, in_memory: Deployment
) -> None:
    groups: list[EnqueuedGroup] = []

    @dg.op(retry_policy=dg.RetryPolicy(max_retries=2))
    def flaky(context: dg.OpExecutionContext, sqlqueue: SqlQueueResource) -> None:
        jobs = (Work(n=100 * len(groups) + n) for n in range(len(groups) + 5))
        groups.append(enqueue_group(context, sqlqueue.queue, WORK, jobs, joined_by=JOINS))
        if len(groups) < 3:
            Consumer(sqlqueue.queue, WORK, lambda job: None).drain()
            raise ValueError("after the commit")

    @dg.job
    def graph() -> None:
        flaky()

    assert in_memory.execute(graph).success
    assert len({group.id for group in groups}) == 1
    assert [(group.enqueued, group.repeated) for group in groups] == [(5, False), (0, True), (0, True)]
    assert queue.archived("work", since_seconds=3_600) == {"succeeded": 5}
    assert queue.depth("work").live == 0
    assert queue.depth("joins").ready == 1


@pytest.mark.parametrize("first_fails", [False, True])
def test_two_attempts_of_a_step_at_once_enqueue_one_batch(queue: SqlQueue, first_fails: bool) -> None:
    """An attempt that was given up lives on: the other waits for it, and adds nothing unless it fails."""
    ids = StepIds(datetime(2026, 1, 1, tzinfo=UTC), "run step group")
    begun, go_on = threading.Event(), threading.Event()

    def slow() -> Iterator[Work]:
        yield from (Work(n=n) for n in range(2500))
        begun.set()
        assert go_on.wait(PATIENCE)
        if first_fails:
            raise KeyError("the source breaks")

    def attempt(jobs: Any) -> EnqueuedGroup:
        return group_ops._enqueue(queue, WORK, ids, jobs, Callback(JOINS), "merge")

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(attempt, slow())
        assert begun.wait(PATIENCE)
        second = pool.submit(attempt, (Work(n=n) for n in range(2500)))
        waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE %s"
        until(lambda: rows(queue, waits, f"%{queue.database.schema}%job_group%") == [(1,)], "the second one waits")
        go_on.set()
        assert (first.exception() is not None) == first_fails
        assert (second.result().enqueued, second.result().repeated) == ((2500, False) if first_fails else (0, True))
    assert queue.depth("work").ready == 2500
    assert Groups(queue).group(second.result().id).members == 2500


def test_several_groups_of_one_step_and_one_that_fails_to_be_enqueued(queue: SqlQueue, in_memory: Deployment) -> None:
    made: list[EnqueuedGroup] = []

    @dg.op
    def parts(context: dg.OpExecutionContext, sqlqueue: SqlQueueResource) -> None:
        for part in ("a", "b"):
            made.append(enqueue_group(context, sqlqueue.queue, WORK, [Work(n=1)], part=part, about={"part": part}))
        enqueue_group(context, sqlqueue.queue, WORK, [Work(n=1), {"n": "x"}], part="c")

    @dg.job
    def graph() -> None:
        parts()

    result = in_memory.execute(graph)
    assert "row 1: the payload does not fit Work" in error_of(result, "parts")
    assert len({group.id for group in made}) == 2
    assert queue.depth("work").ready == 2
    assert len(Groups(queue).groups()) == 2, "of the third nothing is there"


def test_a_second_group_of_a_step_without_a_part_of_its_own_is_warned_of(
    queue: SqlQueue, in_memory: Deployment
) -> None:
    @dg.op
    def chunks(context: dg.OpExecutionContext, sqlqueue: SqlQueueResource) -> None:
        for n in range(2):
            enqueue_group(context, sqlqueue.queue, WORK, [Work(n=n)])

    @dg.job
    def graph() -> None:
        chunks()

    run = in_memory.execute(graph)
    assert run.success
    said = [entry.user_message for entry in in_memory.instance.all_logs(run.run_id) if entry.level == logging.WARNING]
    assert len(said) == 1
    assert "no job was added to it" in said[0]
    assert "give each of them a part=" in said[0]
    assert queue.depth("work").ready == 1


@pytest.mark.parametrize(("of", "joined_by"), [(QueueSpec("nowhere", Work), JOINS), (WORK, "nowhere")])
def test_a_queue_that_is_not_there_opens_no_group(queue: SqlQueue, of: QueueSpec[Work], joined_by: Any) -> None:
    with dg.build_op_context() as context, pytest.raises(UnknownQueue, match="there is no queue 'nowhere'"):
        enqueue_group(context, queue, of, [Work(n=1)], joined_by=joined_by)
    assert Groups(queue).groups() == []
    assert queue.depth("work").live == 0


def test_an_equal_live_job_is_a_member_and_an_empty_batch_ends_at_once(queue: SqlQueue, in_memory: Deployment) -> None:
    made: list[EnqueuedGroup] = []

    @dg.op
    def equal(context: dg.OpExecutionContext, sqlqueue: SqlQueueResource) -> None:
        jobs = [NewJob(Work(n=n), unique_key=str(n)) for n in range(3)]
        made.append(enqueue_group(context, sqlqueue.queue, WORK, jobs, part="equal"))
        made.append(enqueue_group(context, sqlqueue.queue, WORK, iter(()), part="empty", joined_by=JOINS))

    @dg.job
    def graph() -> None:
        equal()

    queue.enqueue(WORK, NewJob(Work(n=1), unique_key="1"))
    assert in_memory.execute(graph).success
    assert [(group.enqueued, group.merged) for group in made] == [(2, 1), (0, 0)]
    assert Groups(queue).group(made[0].id).pending == 3
    assert Groups(queue).group(made[1].id).ended_at is not None
    assert queue.depth("joins").ready == 1
