"""Drain runs: what they do to the queue, what they say, and what is left when they are interrupted."""

import os
import signal
from typing import Annotated

import dagster as dg
import pytest
from pydantic import BaseModel

from dagster_sqlqueue import Done, Job, QueueSpec, Sensitive, SqlQueue, slots
from dagster_sqlqueue.orchestration import QueueConsumer, SqlQueueResource, queue_asset_key, queue_consumer
from tests.core.support import Work, rows


def drain(
    consumer: QueueConsumer[Work], resource: SqlQueueResource, instance: dg.DagsterInstance, **config: object
) -> dg.ExecuteInProcessResult:
    return consumer.job.execute_in_process(
        run_config={"ops": {"work_off_work": {"config": {"linger_seconds": 0, **config}}}},
        resources={"sqlqueue": resource},
        instance=instance,
        raise_on_error=False,
    )


def test_a_run_works_the_queue_off_and_says_what_it_did(
    queue: SqlQueue,
    spec: QueueSpec[Work],
    consumer: QueueConsumer[Work],
    resource: SqlQueueResource,
    instance: dg.DagsterInstance,
) -> None:
    queue.enqueue_many(spec, [Work(n=n) for n in range(20)] + [Work(n=99, note="fail")])
    result = drain(consumer, resource, instance)
    assert result.success
    summary = result.output_for_node("work_off_work")
    assert (summary["claimed"], summary["succeeded"], summary["retried"], summary["failed"]) == (23, 20, 2, 1)
    assert queue.depth("work").live == 0
    assert [letter.error for letter in queue.dead_letters("work")] == ["cannot do 99"]
    event = instance.get_latest_materialization_event(queue_asset_key("work"))
    assert event is not None
    assert event.asset_materialization is not None
    assert event.asset_materialization.metadata["jobs_succeeded"].value == 20


def test_a_run_shows_no_sensitive_value(
    queue: SqlQueue, resource: SqlQueueResource, instance: dg.DagsterInstance, caplog: pytest.LogCaptureFixture
) -> None:
    class Login(BaseModel):
        password: Annotated[str, Sensitive()]

    @queue_consumer(QueueSpec("work", Login, bucket_count=4, max_attempts=1))
    def handle(job: Job[Login]) -> Done:
        if job.payload.password == "correct horse 1":
            raise ValueError(f"refused {job.payload.password}")
        return Done({"password": job.payload.password})

    queue.enqueue_many(handle.spec, [Login(password=f"correct horse {n}") for n in range(3)])
    result = drain(handle, resource, instance)
    assert result.output_for_node("work_off_work")["failed"] == 1
    told = [str(entry) for entry in instance.all_logs(result.run_id)]
    assert len(told) >= 5
    assert "horse" not in "".join([*told, caplog.text])


def test_a_run_takes_only_its_buckets(
    queue: SqlQueue,
    spec: QueueSpec[Work],
    consumer: QueueConsumer[Work],
    resource: SqlQueueResource,
    instance: dg.DagsterInstance,
) -> None:
    queue.enqueue_many(spec, [Work(n=n) for n in range(100)])
    per_bucket = dict(rows(queue, "SELECT bucket, count(*) FROM {s}.job GROUP BY bucket"))
    result = drain(consumer, resource, instance, buckets=[1, 2])
    assert result.output_for_node("work_off_work")["succeeded"] == per_bucket[1] + per_bucket[2]
    assert dict(rows(queue, "SELECT bucket, count(*) FROM {s}.job GROUP BY bucket")) == {
        0: per_bucket[0],
        3: per_bucket[3],
    }


def test_a_run_gives_its_slot_back_and_one_without_its_slot_does_nothing(
    queue: SqlQueue,
    spec: QueueSpec[Work],
    consumer: QueueConsumer[Work],
    resource: SqlQueueResource,
    instance: dg.DagsterInstance,
) -> None:
    queue.enqueue_many(spec, [Work(n=n) for n in range(5)])
    slot = slots.acquire(queue, "work", 0, [0, 1, 2, 3], seconds=60)
    assert slot is not None
    mine = {"buckets": [0, 1, 2, 3], "slot": 0, "token": str(slot.token)}
    other = drain(consumer, resource, instance, **{**mine, "token": "00000000-0000-7000-8000-000000000000"})
    assert other.success
    assert other.output_for_node("work_off_work")["claimed"] == 0
    assert slots.taken(queue, "work") == {0: (0, 1, 2, 3)}
    assert drain(consumer, resource, instance, **mine).output_for_node("work_off_work")["succeeded"] == 5
    assert slots.taken(queue, "work") == {}


def test_a_cancelled_run_gives_its_leases_and_its_slot_back_at_once(
    queue: SqlQueue, spec: QueueSpec[Work], resource: SqlQueueResource, instance: dg.DagsterInstance
) -> None:
    handled = []

    @queue_consumer(spec)
    def interrupted(job: Job[Work]) -> Done:
        handled.append(job.payload.n)
        if len(handled) == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return Done()

    queue.enqueue_many(spec, [Work(n=n) for n in range(10)])
    slot = slots.acquire(queue, "work", 0, [0, 1, 2, 3], seconds=60)
    assert slot is not None
    result = drain(interrupted, resource, instance, slot=0, token=str(slot.token))
    assert not result.success
    assert len(handled) == 3
    depth = queue.depth("work")
    assert depth.running == 0
    assert depth.ready == 8, "the two that were done stay done"
    assert queue.archived("work", since_seconds=60) == {"succeeded": 2}
    assert slots.taken(queue, "work") == {}
    assert rows(queue, "SELECT DISTINCT attempt FROM {s}.job") == [(0,)]


def test_a_queue_that_does_not_exist_fails_the_run_with_its_name(
    resource: SqlQueueResource, instance: dg.DagsterInstance
) -> None:
    @queue_consumer(QueueSpec("nowhere", Work))
    def handle(job: Job[Work]) -> Done:
        return Done()

    result = handle.job.execute_in_process(resources={"sqlqueue": resource}, instance=instance, raise_on_error=False)
    assert not result.success
    failure = result.failure_data_for_node("work_off_nowhere")
    assert failure is not None
    assert "there is no queue 'nowhere'" in str(failure.error)
