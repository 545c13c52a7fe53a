"""What a tick says of the runs before it that failed, and why."""

from collections.abc import Callable
from typing import Any

import dagster as dg
import pytest

from dagster_sqlqueue import Job
from dagster_sqlqueue.orchestration import QueueConsumer, queue_consumer
from tests.orchestration.support import Deployment, configs, expire
from tests.support import Work

SECRET = "the password is geheim"
_NEVER_RUN = (
    "the handler returned a coroutine, which is to be awaited, and nothing awaits it: make the handler async def, or let it"
    " return an outcome; "
)


async def push(job: Job[Work]) -> None: ...


@pytest.fixture
def wrong(deployment: Deployment) -> QueueConsumer[Work]:
    """A consumer whose handler returns a coroutine that nothing awaits."""
    return queue_consumer(deployment.spec)(lambda job: push(job))


def run(deployment: Deployment, consumer: QueueConsumer[Work], result: Any) -> dg.ExecuteInProcessResult:
    """The only run that the tick requests, as its sensor tags it."""
    (request,) = result.run_requests
    return consumer.job.execute_in_process(
        run_config=request.run_config,
        tags=request.tags,
        resources={"sqlqueue": deployment.resource},
        instance=deployment.instance,
        raise_on_error=False,
    )


def status(result: Any) -> str:
    return str(result.cursor.split("\n")[0])


def test_the_next_tick_names_the_run_and_what_was_wrong_with_its_handler(
    deployment: Deployment, wrong: QueueConsumer[Work]
) -> None:
    deployment.enqueue_many(3)
    first = deployment.tick(wrong.sensor)
    assert "failed" not in status(first)
    failed = run(deployment, wrong, first)
    assert not failed.success
    second = deployment.tick(wrong.sensor, cursor=first.cursor)
    assert f"; run {failed.run_id[:8]} failed: {_NEVER_RUN}" in status(second)
    assert configs(second)
    again = run(deployment, wrong, second)
    waiting = deployment.tick(wrong.sensor, cursor=second.cursor)
    assert not waiting.run_requests
    assert f"; run {again.run_id[:8]} failed: {_NEVER_RUN}" in waiting.skip_reason.skip_message
    assert "; no run took a job of bucket" in waiting.skip_reason.skip_message


def test_it_says_no_more_of_it_once_a_run_has_taken_the_jobs(
    deployment: Deployment, wrong: QueueConsumer[Work], consumer: QueueConsumer[Work]
) -> None:
    deployment.enqueue_many(3)
    first = deployment.tick(wrong.sensor)
    run(deployment, wrong, first)
    deployment.drain(consumer)
    deployment.enqueue_many(3)
    assert "failed" not in status(deployment.tick(wrong.sensor, cursor=first.cursor))


class InvalidInput(Exception):
    """Another's, with the name of one of the library's."""


@pytest.mark.parametrize("kind", [RuntimeError, InvalidInput])
def test_the_error_of_others_is_named_by_its_class_alone(
    deployment: Deployment, consumer: QueueConsumer[Work], monkeypatch: pytest.MonkeyPatch, kind: type[Exception]
) -> None:
    """It may quote what is in a job, or a password."""

    def broken(*_: object) -> None:
        raise kind(SECRET)

    deployment.enqueue_many(3)
    first = deployment.tick(consumer.sensor)
    monkeypatch.setattr("dagster_sqlqueue.schema.migrations.check", broken)
    failed = run(deployment, consumer, first)
    monkeypatch.undo()
    assert not failed.success
    expire(deployment.queue)
    second = deployment.tick(consumer.sensor, cursor=first.cursor)
    assert f"; run {failed.run_id[:8]} failed with {kind.__name__}; see its page" in status(second)
    assert SECRET not in second.cursor


def test_a_tick_where_nothing_failed_does_not_ask_for_failures(
    deployment: Deployment, consumer: QueueConsumer[Work], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dg.RunsFilter] = []
    get_runs: Callable[..., Any] = deployment.instance.get_runs

    def counted(filters: dg.RunsFilter, *given: Any, **named: Any) -> Any:
        asked.append(filters)
        return get_runs(filters, *given, **named)

    monkeypatch.setattr(deployment.instance, "get_runs", counted)
    deployment.enqueue_many(3)
    first = deployment.tick(consumer.sensor)
    assert deployment.drain(consumer, **configs(first)[0]).success
    deployment.enqueue_many(3)
    deployment.tick(consumer.sensor, cursor=first.cursor)
    assert [one for one in asked if dg.DagsterRunStatus.FAILURE in one.statuses] == []
