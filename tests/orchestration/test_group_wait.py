"""Groups waited for by a run, and their results read."""

import threading
from typing import Any

import dagster as dg
import pytest
from uuid_utils.compat import uuid7

from dagster_sqlqueue import Consumer, Done, Job, Reject, SqlQueue
from dagster_sqlqueue.errors import DatabaseUnavailable, UnknownGroup, WaitTimedOut
from dagster_sqlqueue.followers import Group, Groups
from dagster_sqlqueue.orchestration import (
    EnqueuedGroup,
    SqlQueueResource,
    await_group,
    enqueue_group,
    group_of_run,
    group_results,
    group_wait,
    wait_for_group,
)
from dagster_sqlqueue.results import waits
from tests.gate.patience import PATIENCE
from tests.orchestration.group_support import batch, enqueue, group_of
from tests.orchestration.support import WORK, Deployment, error_of, failure_of
from tests.support import Work, claim, rows, until

pytestmark = pytest.mark.usefixtures("joins")


def waiting_job(seen: list[Group]) -> dg.JobDefinition:
    @dg.op
    def use(group: Group) -> None:
        seen.append(group)

    @dg.job(executor_def=dg.in_process_executor)
    def graph() -> None:
        use(wait_for_group(enqueue(batch())))

    return graph


def test_a_run_waits_for_its_group_while_others_work_it_off(queue: SqlQueue, in_memory: Deployment) -> None:
    def handle(job: Job[Work]) -> Done | Reject:
        return Done() if job.payload.n % 2 else Reject("even")

    def consume() -> None:
        until(lambda: Groups(queue).groups(), "the group")
        Consumer(queue, WORK, handle, batch_size=50).drain()

    threads = [threading.Thread(target=consume) for _ in range(2)]
    for thread in threads:
        thread.start()
    seen: list[Group] = []
    result = in_memory.execute(waiting_job(seen))
    for thread in threads:
        thread.join()
    assert result.success
    assert [(group.members, group.succeeded, group.failed) for group in seen] == [(1000, 500, 500)]


def test_a_wait_ends_when_its_time_is_up_and_says_what_is_left(in_memory: Deployment) -> None:
    result = in_memory.execute(waiting_job([]), wait_for_group={"timeout_seconds": 0.2})
    said, metadata = failure_of(result, "wait_for_group")
    assert "has not ended within 0.2 seconds: 1000 of its 1000 jobs have not ended; job " in said
    assert metadata["pending"] == 1000


def test_a_wait_can_ask_for_all_to_succeed(in_memory: Deployment) -> None:
    @dg.op
    def one_that_fails(context: dg.OpExecutionContext, sqlqueue: SqlQueueResource) -> EnqueuedGroup:
        group = enqueue_group(context, sqlqueue.queue, WORK, [Work(n=0), Work(n=1)])
        Consumer(sqlqueue.queue, WORK, lambda job: Reject("no") if job.payload.n else Done()).drain()
        return group

    @dg.job
    def graph() -> None:
        wait_for_group(one_that_fails())

    assert in_memory.execute(graph).output_for_node("wait_for_group").failed == 1
    result = in_memory.execute(graph, wait_for_group={"all_must_succeed": True})
    assert "1 of the 2 jobs" in failure_of(result, "wait_for_group")[0]


def test_a_wait_is_notified_of_the_last_end(queue: SqlQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    """By itself it would poll only once an hour."""
    for module, name in (
        (waits, "_FIRST_LISTENING_SECONDS"),
        (waits, "_LAST_LISTENING_SECONDS"),
        (group_wait, "_NOTIFIED_SECONDS"),
    ):
        monkeypatch.setattr(module, name, 3_600.0)
    id = group_of(queue, 3)
    jobs = claim(queue)
    done: list[Group] = []
    thread = threading.Thread(daemon=True, target=lambda: done.append(await_group(queue, id, timeout_seconds=7_200)))
    thread.start()
    until(lambda: rows(queue, "SELECT count(*) FROM {s}.follower WHERE notify") == [(3,)], "the wait is registered")
    queue.complete(jobs)
    thread.join(PATIENCE)
    assert [group.succeeded for group in done] == [3]
    assert rows(queue, "SELECT count(*) FROM {s}.follower WHERE notify") == [(0,)]


def test_a_wait_outlives_a_database_that_goes_away_at_any_of_its_statements(
    queue: SqlQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = group_of(queue, 3)
    asked: list[str] = []

    def goes_away_once(name: str) -> None:
        ask = getattr(Groups, name)

        def asked_again(*given: Any, **named: Any) -> Any:
            asked.append(name)
            if asked.count(name) == 1:
                raise DatabaseUnavailable("the server restarts")
            found = ask(*given, **named)
            if name == "members":
                Consumer(queue, WORK, lambda job: None).drain()
            return found

        monkeypatch.setattr(Groups, name, asked_again)

    goes_away_once("group")
    goes_away_once("members")
    assert await_group(queue, id, timeout_seconds=60).succeeded == 3
    assert {name for name in asked if asked.count(name) > 1} == {"group", "members"}


def test_waits_for_groups_that_are_not_there_or_not_closed(queue: SqlQueue) -> None:
    with pytest.raises(UnknownGroup):
        await_group(queue, uuid7(), timeout_seconds=1)
    with pytest.raises(WaitTimedOut, match="it is not closed"):
        await_group(queue, Groups(queue).open(), timeout_seconds=0.1)


def test_results_come_in_pages_with_what_the_handlers_left(queue: SqlQueue) -> None:
    id = group_of(queue, 250)
    Consumer(queue, WORK, lambda job: Done({"n": job.payload.n}) if job.payload.n >= 20 else Reject("small")).drain()
    pages = list(group_results(queue, id, page=100))
    assert [len(page) for page in pages] == [100, 100, 50]
    assert sorted(one.result["n"] for page in pages for one in page if one.succeeded) == list(range(20, 250))  # type: ignore
    failed = [one for page in group_results(queue, str(id), states=["failed"]) for one in page]
    assert [one.error for one in failed] == ["small"] * 20
    with pytest.raises(UnknownGroup):
        list(group_results(queue, uuid7()))


def test_a_run_that_joins_nothing_says_so(in_memory: Deployment) -> None:
    @dg.op
    def join(context: dg.OpExecutionContext) -> None:
        group_of_run(context)

    @dg.job
    def graph() -> None:
        join()

    assert "the run has no tag 'sqlqueue/group'" in error_of(in_memory.execute(graph), "join")
