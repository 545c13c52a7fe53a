"""Drain runs: what they do to the queue, what they say, and what is left when they are interrupted."""

import os
import signal
from typing import Annotated

import pytest
from pydantic import BaseModel

from dagster_sqlqueue import Done, Job, QueueSpec, Sensitive, SqlQueue
from dagster_sqlqueue.orchestration import QueueConsumer, queue_asset_key, queue_consumer, slots
from tests.gate.patience import sized
from tests.orchestration.support import Deployment, error_of
from tests.support import Work, rows


def test_a_run_works_the_queue_off_and_says_what_it_did(
    queue: SqlQueue, deployment: Deployment, consumer: QueueConsumer[Work]
) -> None:
    deployment.enqueue_many(20)
    deployment.enqueue(Work(n=99, note="fail"))
    result = deployment.drain(consumer, linger_seconds=0)
    assert result.success
    summary = result.output_for_node("work_off_work")
    assert (summary["claimed"], summary["succeeded"], summary["retried"], summary["failed"]) == (23, 20, 2, 1)
    assert queue.depth("work").live == 0
    assert [letter.error for letter in queue.dead_letters("work")] == ["cannot do 99"]
    event = deployment.instance.get_latest_materialization_event(queue_asset_key("work"))
    assert event is not None
    assert event.asset_materialization is not None
    assert event.asset_materialization.metadata["ready"].value == 0


def test_a_run_shows_no_sensitive_value(
    queue: SqlQueue, deployment: Deployment, caplog: pytest.LogCaptureFixture
) -> None:
    class Login(BaseModel):
        password: Annotated[str, Sensitive()]

    @queue_consumer(QueueSpec("work", Login, bucket_count=4, max_attempts=1))
    def handle(job: Job[Login]) -> Done:
        if job.payload.password == "correct horse 1":
            raise ValueError(f"refused {job.payload.password}")
        return Done({"password": job.payload.password})

    queue.enqueue_many(handle.spec, [Login(password=f"correct horse {n}") for n in range(3)])
    result = deployment.drain(handle, linger_seconds=0)
    assert result.output_for_node("work_off_work")["failed"] == 1
    told = [str(entry) for entry in deployment.instance.all_logs(result.run_id)]
    assert len(told) >= 5
    assert "horse" not in "".join([*told, caplog.text])


def test_a_run_has_as_many_events_for_many_jobs_as_for_one(
    deployment: Deployment, consumer: QueueConsumer[Work]
) -> None:
    events: list[list[str]] = []
    for jobs in (1, sized(400, 2_000)):
        deployment.enqueue_many(jobs)
        result = deployment.drain(consumer, linger_seconds=0, batch_size=10)
        assert result.output_for_node("work_off_work")["batches"] >= jobs // 10
        logs = deployment.instance.all_logs(result.run_id)
        seconds = result.output_for_node("work_off_work")["seconds"]
        events.append([entry.dagster_event_type.value if entry.dagster_event_type else "LOG" for entry in logs])
    one, many = events
    # A line of progress in ten seconds is the only thing that there may be more of.
    assert [event for event in one if event != "LOG"] == [event for event in many if event != "LOG"]
    assert many.count("LOG") - one.count("LOG") <= 1 + seconds / 10


def test_a_run_takes_only_its_buckets(queue: SqlQueue, deployment: Deployment, consumer: QueueConsumer[Work]) -> None:
    deployment.enqueue_many(100)
    per_bucket = dict(rows(queue, "SELECT bucket, count(*) FROM {s}.job GROUP BY bucket"))
    result = deployment.drain(consumer, linger_seconds=0, buckets=[1, 2])
    assert result.output_for_node("work_off_work")["succeeded"] == per_bucket[1] + per_bucket[2]
    assert dict(rows(queue, "SELECT bucket, count(*) FROM {s}.job GROUP BY bucket")) == {
        0: per_bucket[0],
        3: per_bucket[3],
    }


def test_a_run_gives_its_slot_back_and_one_without_its_slot_does_nothing(
    queue: SqlQueue, deployment: Deployment, consumer: QueueConsumer[Work]
) -> None:
    deployment.enqueue_many(5)
    slot = slots.acquire(queue, "work", 0, [0, 1, 2, 3], seconds=3_600)
    assert slot is not None
    mine = {"buckets": [0, 1, 2, 3], "slot": 0, "token": str(slot.token)}
    other = deployment.drain(consumer, linger_seconds=0, **{**mine, "token": "00000000-0000-7000-8000-000000000000"})
    assert other.success
    assert other.output_for_node("work_off_work")["claimed"] == 0
    assert slots.taken(queue, "work") == {0: (0, 1, 2, 3)}
    assert deployment.drain(consumer, linger_seconds=0, **mine).output_for_node("work_off_work")["succeeded"] == 5
    assert slots.taken(queue, "work") == {}


def test_a_cancelled_run_gives_its_leases_and_its_slot_back_at_once(
    queue: SqlQueue, deployment: Deployment, spec: QueueSpec[Work]
) -> None:
    handled = []

    @queue_consumer(spec)
    def interrupted(job: Job[Work]) -> Done:
        handled.append(job.payload.n)
        if len(handled) == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return Done()

    deployment.enqueue_many(10)
    slot = slots.acquire(queue, "work", 0, [0, 1, 2, 3], seconds=3_600)
    assert slot is not None
    result = deployment.execute(
        interrupted.job, work_off_work={"linger_seconds": 0, "slot": 0, "token": str(slot.token)}
    )
    assert not result.success
    assert len(handled) == 3
    depth = queue.depth("work")
    assert depth.running == 0
    assert depth.ready == 8, "the two that were done stay done"
    assert queue.archived("work", since_seconds=3_600) == {"succeeded": 2}
    assert slots.taken(queue, "work") == {}
    assert rows(queue, "SELECT DISTINCT attempt FROM {s}.job") == [(0,)]


def test_a_queue_that_does_not_exist_fails_the_run_with_its_name(deployment: Deployment) -> None:
    @queue_consumer(QueueSpec("nowhere", Work))
    def handle(job: Job[Work]) -> Done:
        return Done()

    result = deployment.execute(handle.job)
    assert not result.success
    assert "there is no queue 'nowhere'" in error_of(result, "work_off_nowhere")
