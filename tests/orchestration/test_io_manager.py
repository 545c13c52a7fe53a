"""Outputs that become jobs: whole or not at all, once however often the step is done, in constant memory."""

import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import dagster as dg
import pandas as pd
import pyarrow as pa
import pytest
from pydantic import BaseModel

from dagster_sqlqueue import NewJob, QueueSpec, SqlQueue
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.orchestration import SqlQueueIOManager, SqlQueueResource, build_sqlqueue_io_manager
from tests.orchestration.support import error_of
from tests.support import Work, claim, rows, states

WORK = QueueSpec("work", Work, bucket_count=4)
OTHER = QueueSpec("other", Work, bucket_count=4)
META = {"sqlqueue/queue": "work"}


@pytest.fixture
def resources(resource: SqlQueueResource) -> dict[str, Any]:
    return {"sqlqueue": resource, "queue_io": build_sqlqueue_io_manager(WORK, OTHER)}


def put(resources: dict[str, Any], made: Callable[[], Any]) -> dg.ExecuteInProcessResult:
    """A run of one op, whose output is what `made` returns."""

    @dg.op(out=dg.Out(Any, io_manager_key="queue_io", metadata=META))
    def make() -> dg.Output[Any]:
        return dg.Output(made())

    @dg.job
    def graph() -> None:
        make()

    return graph.execute_in_process(resources=resources, raise_on_error=False)


def handled(result: dg.ExecuteInProcessResult) -> dict[str, Any]:
    """What the output's metadata says."""
    (event,) = [event for event in result.all_events if event.event_type_value == "HANDLED_OUTPUT"]
    return {key: value.value for key, value in event.event_specific_data.metadata.items()}  # type: ignore[union-attr]


def stored(queue: SqlQueue) -> list[int]:
    return [n for (n,) in rows(queue, "SELECT (payload ->> 'n')::int FROM {s}.job WHERE queue = 'work' ORDER BY 1")]


@pytest.mark.parametrize(
    "made",
    [
        lambda: [Work(n=n) for n in range(5)],
        lambda: (Work(n=n) for n in range(5)),
        lambda: [{"n": n} for n in range(5)],
        lambda: tuple(NewJob(Work(n=n), priority=n) for n in range(5)),
        lambda: pa.table({"n": list(range(5))}),
        lambda: pa.record_batch({"n": list(range(5))}),
        lambda: pa.table({"n": list(range(5))}).to_reader(max_chunksize=2),
        lambda: pd.DataFrame({"n": range(5), "note": "row"}),
    ],
)
def test_whatever_holds_payloads_becomes_jobs(queue: SqlQueue, resources: dict[str, Any], made: Any) -> None:
    result = put(resources, made)
    assert result.success
    assert stored(queue) == list(range(5))
    assert handled(result) == {"sqlqueue/queue": "work", "jobs_enqueued": 5, "duplicates": 0}


def test_one_job_alone_and_none_at_all(queue: SqlQueue, resources: dict[str, Any]) -> None:
    for made in (Work(n=1), {"n": 2}, NewJob(Work(n=3)), [], iter(())):
        assert put(resources, lambda: made).success  # noqa: B023
    assert stored(queue) == [1, 2, 3]


def test_an_asset_ends_in_the_queue_that_its_metadata_names(
    queue: SqlQueue, resources: dict[str, Any], instance: dg.DagsterInstance
) -> None:
    queue.create_queue(OTHER)

    @dg.asset(io_manager_key="queue_io", metadata={"sqlqueue/queue": "other"})
    def invitations() -> list[Work]:
        return [Work(n=n) for n in range(3)]

    @dg.asset(io_manager_key="queue_io", metadata=META)
    def reminders() -> dg.MaterializeResult:
        return dg.MaterializeResult(value=(Work(n=n) for n in range(4)))

    assert dg.materialize([invitations, reminders], resources=resources, instance=instance).success
    event = instance.get_latest_materialization_event(dg.AssetKey("invitations"))
    assert event is not None
    assert event.asset_materialization is not None
    assert event.asset_materialization.metadata["jobs_enqueued"].value == 3
    assert (queue.depth("other").ready, queue.depth("work").ready) == (3, 4)


def test_each_partition_has_its_own_jobs_and_the_output_can_name_the_queue(
    queue: SqlQueue, resources: dict[str, Any]
) -> None:
    @dg.asset(io_manager_key="queue_io", partitions_def=dg.StaticPartitionsDefinition(["a", "b"]))
    def daily(context: dg.AssetExecutionContext) -> dg.Output[list[Work]]:
        return dg.Output([Work(n=ord(context.partition_key))], metadata=META)

    for partition in ("a", "b", "a"):
        assert dg.materialize([daily], resources=resources, partition_key=partition).success
    assert stored(queue) == [97, 97, 98], "materialising a partition again is new work"


def test_a_step_that_is_retried_after_the_commit_enqueues_nothing_twice(
    queue: SqlQueue, resource: SqlQueueResource
) -> None:
    class Breaking(SqlQueueIOManager):
        attempts = 0

        def handle_output(self, context: dg.OutputContext, obj: Any) -> None:
            super().handle_output(context, obj)
            if context.name == "first":
                # What is live, and what has ended, is met again.
                queue.complete(claim(queue, limit=3))
            Breaking.attempts += 1
            if Breaking.attempts in (1, 3):
                raise dg.RetryRequested(max_retries=3)

    @dg.io_manager(required_resource_keys={"sqlqueue"})
    def breaking(context: dg.InitResourceContext) -> SqlQueueIOManager:
        return Breaking(context.resources.sqlqueue.queue, [WORK])

    @dg.op(
        out={name: dg.Out(io_manager_key="queue_io") for name in ("first", "second")},
        retry_policy=dg.RetryPolicy(max_retries=3),
    )
    def make() -> Iterator[dg.Output[Any]]:
        yield dg.Output((Work(n=n) for n in range(10)), "first")
        yield dg.Output([Work(n=n) for n in range(100, 110)], "second")

    @dg.job
    def graph() -> None:
        make()

    result = graph.execute_in_process(resources={"sqlqueue": resource, "queue_io": breaking})
    assert result.success
    assert Breaking.attempts == 5
    assert sorted(states(queue)) == [*range(10), *range(100, 110)]
    assert queue.archived("work", since_seconds=3_600)["succeeded"] >= 3


def test_a_bad_row_enqueues_nothing(queue: SqlQueue, resources: dict[str, Any]) -> None:
    def bad() -> Iterator[Any]:
        yield from ({"n": n} for n in range(2500))
        yield {"n": "x"}

    result = put(resources, bad)
    assert "row 2500: the payload does not fit Work of queue 'work': n:" in error_of(result, "make")
    assert queue.depth("work").live == 0


@pytest.mark.prove
def test_a_generator_is_read_in_constant_memory(queue: SqlQueue, resources: dict[str, Any]) -> None:
    """Of 16,000 payloads of 4 kB, 64 MB, a chunk is held at a time."""

    def made() -> Iterator[Work]:
        yield from (Work(n=n, note=f"{n}" + "x" * 4_000) for n in range(16_000))

    tracemalloc.start()
    try:
        assert put(resources, made).success
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert queue.depth("work", cap=20_000).ready == 16_000
    assert peak < 50_000_000


@pytest.mark.parametrize(
    ("specs", "metadata", "message"),
    [
        ((WORK, OTHER), {}, "does not name the queue of its jobs"),
        ((WORK, OTHER), {"sqlqueue/queue": "Work"}, "queue name 'Work' is not usable"),
        ((WORK, OTHER), {"sqlqueue/queue": "nowhere"}, "there is no queue 'nowhere'"),
    ],
)
def test_a_queue_that_is_not_named_or_not_there(
    queue: SqlQueue, resource: SqlQueueResource, specs: Any, metadata: Any, message: str
) -> None:
    @dg.op(out=dg.Out(Any, io_manager_key="queue_io", metadata=metadata))
    def make() -> Any:
        return [Work(n=1)]

    @dg.job
    def graph() -> None:
        make()

    resources = {"sqlqueue": resource, "queue_io": build_sqlqueue_io_manager(*specs)}
    result = graph.execute_in_process(resources=resources, raise_on_error=False)
    assert message in error_of(result, "make")


class Other(BaseModel):
    m: int


def test_the_default_and_the_only_queue(queue: SqlQueue, resource: SqlQueueResource) -> None:
    @dg.op(out=dg.Out(Any, io_manager_key="queue_io"))
    def make() -> Any:
        return [Work(n=1)]

    @dg.job
    def graph() -> None:
        make()

    for manager in (
        build_sqlqueue_io_manager(WORK),
        build_sqlqueue_io_manager(default="work"),
        build_sqlqueue_io_manager(OTHER, default=WORK),
    ):
        assert graph.execute_in_process(resources={"sqlqueue": resource, "queue_io": manager}).success
    assert stored(queue) == [1, 1, 1]
    with pytest.raises(InvalidInput, match="'No' is not usable"):
        build_sqlqueue_io_manager(default="No")


def test_a_queue_known_by_its_name_takes_one_model_at_a_time(queue: SqlQueue, resource: SqlQueueResource) -> None:
    @dg.op(out=dg.Out(Any, io_manager_key="queue_io"))
    def make() -> Any:
        return [Other(m=1), Work(n=1)]

    @dg.job
    def graph() -> None:
        make()

    resources = {"sqlqueue": resource, "queue_io": build_sqlqueue_io_manager(default="work")}
    result = graph.execute_in_process(resources=resources, raise_on_error=False)
    assert "row 1: the payload is a Work; queue 'work' takes Other" in error_of(result, "make")


def test_loading_says_what_to_do_instead(queue: SqlQueue, resources: dict[str, Any]) -> None:
    @dg.asset(io_manager_key="queue_io", metadata=META)
    def invitations() -> list[Work]:
        return [Work(n=1)]

    @dg.asset
    def report(invitations: Any) -> None: ...

    @dg.asset(deps=[invitations])
    def after() -> None: ...

    result = dg.materialize([invitations, report, after], resources=resources, raise_on_error=False)
    assert "asset 'invitations' was enqueued, and cannot be loaded as an input" in error_of(result, "report")
    assert {event.step_key for event in result.get_step_success_events()} == {"invitations", "after"}
