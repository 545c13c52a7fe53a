"""What `queue_consumer` makes of a function."""

import asyncio
import inspect
import threading
from collections.abc import Sequence
from typing import Any, get_type_hints

import dagster as dg
import pytest

from dagster_sqlqueue import Done, Job, NewJob, QueueSpec, SqlQueue
from dagster_sqlqueue.consumer import upkeep
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.orchestration import (
    DrainConfig,
    DrainMode,
    QueueConsumer,
    SqlQueueResource,
    queue_asset_key,
    queue_consumer,
)
from dagster_sqlqueue.orchestration.consumer import QueueArguments
from dagster_sqlqueue.orchestration.drain import Pace
from tests.gate.patience import PATIENCE
from tests.orchestration.support import Deployment, configs, done_by
from tests.support import Work, rows, value


def test_a_queue_by_its_name_and_model() -> None:
    @queue_consumer(queue="reminders", payload=Work, max_attempts=7, bucket_count=2, mode="linger")
    def remind(job: Job[Work]) -> None:
        """Remind somebody."""

    assert remind.spec == QueueSpec("reminders", Work, max_attempts=7, bucket_count=2)
    assert remind.mode is DrainMode.LINGER
    assert queue_consumer(queue="reminders", payload=Work)(lambda job: None).mode is DrainMode.LINGER
    assert remind.asset_key == queue_asset_key("reminders")
    assert remind.job.name == "drain_reminders"
    assert remind.op.name == "work_off_reminders"
    assert remind.op.description == "Remind somebody."
    assert remind.sensor.name == "reminders_sensor"
    assert remind.sensor is remind.sensor
    defs = dg.Definitions(
        jobs=[remind.job], sensors=[remind.sensor], resources={"sqlqueue": SqlQueueResource(url="postgresql://x/y")}
    )
    dg.Definitions.validate_loadable(defs)


def test_its_own_sensor_takes_options(deployment: Deployment, spec: QueueSpec[Work]) -> None:
    key = dg.AssetKey(["payments", "work"])

    @queue_consumer(spec, asset_key=key, sensor={"name": "my_sensor", "default_status": dg.DefaultSensorStatus.RUNNING})
    def handle(job: Job[Work]) -> None: ...

    assert handle.sensor.name == "my_sensor"
    assert handle.sensor.default_status is dg.DefaultSensorStatus.RUNNING
    deployment.enqueue(Work(n=1))
    result = deployment.tick(handle.sensor)
    assert {event.asset_key for event in result.asset_events} == {key}
    assert done_by(deployment.drain(handle, **configs(result)[0]))["succeeded"] == 1


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"concurrency": 0}, "concurrency is 0; it must be 1 to 1,000"),
        ({"lease_seconds": 0}, "lease_seconds is 0; it must be positive"),
        ({"lease_seconds": "60"}, "lease_seconds is '60'; it must be positive"),
        ({"job_timeout_seconds": -1}, "job_timeout_seconds is -1; it must be positive"),
    ],
)
def test_numbers_that_no_run_could_work_with_are_refused_at_decoration(
    spec: QueueSpec[Work], given: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidInput, match=said):
        queue_consumer(spec, **given)(lambda job: None)


def test_options_that_its_sensor_does_not_take_are_named(spec: QueueSpec[Work]) -> None:
    with pytest.raises(InvalidInput, match=r"queue 'work' has the option 'max_runs', .* SensorSettings\(max_runs=…\)"):
        queue_consumer(spec, sensor={"name": "my_sensor", "max_runs": 2})
    with pytest.raises(InvalidInput, match=r"option 'interval', which it does not take; it takes name, settings, .*"):
        queue_consumer(spec, sensor={"interval": 2})
    options: dict[str, str] = {"settings": "SensorSettings", "thresholds": "CheckThresholds"}
    for name, kind in options.items():
        consumer = queue_consumer(spec, sensor={name: {"max_runs": 2}})(lambda job: None)
        with pytest.raises(InvalidInput, match=rf"{name} of the sensor of queue 'work' is \{{.*; give a {kind}\(…\)"):
            _ = consumer.sensor


@pytest.mark.parametrize("shape", ["batch", "async", "async batch", "transactional"])
def test_handlers_of_every_shape(queue: SqlQueue, deployment: Deployment, spec: QueueSpec[Work], shape: str) -> None:
    consumer: QueueConsumer[Any]
    if shape == "batch":

        @queue_consumer(spec, batch=True)
        def consumer(jobs: Sequence[Job[Work]]) -> list[Done]:
            return [Done({"n": job.payload.n}) for job in jobs]
    elif shape == "async":

        @queue_consumer(spec)
        async def consumer(job: Job[Work]) -> Done:
            await asyncio.sleep(0)
            return Done({"n": job.payload.n})
    elif shape == "async batch":

        @queue_consumer(spec, batch=True)
        async def consumer(jobs: Sequence[Job[Work]]) -> list[Done]:
            await asyncio.sleep(0)
            return [Done({"n": job.payload.n}) for job in jobs]
    else:

        @queue_consumer(spec, transactional=True)
        def consumer(job: Job[Work]) -> Done:
            job.connection.execute("SELECT 1")
            return Done({"n": job.payload.n})

    deployment.enqueue_many(20)
    assert done_by(deployment.drain(consumer))["succeeded"] == 20
    results = sorted(n for (n,) in rows(queue, "SELECT (result->>'n')::int FROM {s}.job_archive"))
    assert results == list(range(20))


def test_a_run_is_one_process_whatever_the_executor_of_the_location(consumer: QueueConsumer[Work]) -> None:
    resource = SqlQueueResource(url="postgresql://")
    defs = dg.Definitions(jobs=[consumer.job], resources={"sqlqueue": resource}, executor=dg.multiprocess_executor)
    assert defs.resolve_job_def(consumer.job.name).executor_def is dg.in_process_executor


def test_jobs_are_worked_on_side_by_side(deployment: Deployment, spec: QueueSpec[Work]) -> None:
    together = threading.Barrier(3, timeout=PATIENCE)

    @queue_consumer(spec, concurrency=3)
    def handle(job: Job[Work], context: dg.OpExecutionContext) -> None:
        together.wait()
        context.log.info("met %d", job.payload.n)

    assert handle.concurrency == 3
    deployment.enqueue_many(6)
    result = deployment.drain(handle)
    assert done_by(result)["succeeded"] == 6
    said = [log.user_message for log in deployment.instance.all_logs(result.run_id)]
    assert sorted(text for text in said if text.startswith("met ")) == [f"met {n}" for n in range(6)]
    for refused in ({"transactional": True}, {"batch": True}):
        with pytest.raises(InvalidInput, match="concurrency=3 with"):
            queue_consumer(spec, concurrency=3, **refused)(lambda job: None)  # type: ignore[call-overload]


@pytest.mark.parametrize("maintain", [True, False])
def test_a_run_maintains_when_that_is_due_unless_switched_off(
    queue: SqlQueue, in_memory: Deployment, spec: QueueSpec[Work], monkeypatch: pytest.MonkeyPatch, maintain: bool
) -> None:
    monkeypatch.setattr(upkeep, "_checked_at", {})
    monkeypatch.setattr(upkeep, "_LEAVE_SECONDS", PATIENCE)
    rows(queue, "INSERT INTO {s}.maintenance (due_at) VALUES (now())")
    drain = queue_consumer(spec, **({} if maintain else {"maintain": False}))(lambda job: None)
    assert drain.maintain is maintain
    in_memory.drain(drain)
    assert value(queue, "SELECT done_at IS NOT NULL FROM {s}.maintenance") is maintain


def test_a_lingering_run_takes_what_comes_while_it_waits(deployment: Deployment, spec: QueueSpec[Work]) -> None:
    @queue_consumer(spec, mode="linger")
    def handle(job: Job[Work]) -> None:
        if job.payload.n < 3:
            deployment.enqueue(Work(n=job.payload.n + 1))

    deployment.enqueue(Work(n=0))
    done = done_by(deployment.drain(handle, linger_seconds=1, budget_seconds=3_600))
    assert done["succeeded"] == 4
    assert done["seconds"] >= 1


@pytest.mark.parametrize(
    ("mode", "said", "pace"),
    [
        ("batch", {}, Pace(300, 0, 0)),
        ("linger", {}, Pace(300, 60, 0)),
        ("linger", {"linger_seconds": 5}, Pace(300, 5, 0)),
        ("standing", {}, Pace(1_800, 1_800, 30)),
        ("standing", {"hand_over_seconds": 0}, Pace(1_800, 1_800, 0)),
        # Else it would give its slot back at once, and be succeeded at every tick.
        ("standing", {"budget_seconds": 20}, Pace(20, 1_800, 10)),
    ],
)
def test_the_pace_is_the_modes_where_nothing_else_is_said(mode: str, said: dict[str, Any], pace: Pace) -> None:
    assert DrainConfig(**said).pace(DrainMode(mode)) == pace


def test_a_run_takes_jobs_of_its_tags_only(
    queue: SqlQueue, deployment: Deployment, spec: QueueSpec[Work], consumer: QueueConsumer[Work]
) -> None:
    queue.enqueue_many(spec, [NewJob(Work(n=n), tags=["even"] if n % 2 == 0 else []) for n in range(10)])
    assert done_by(deployment.drain(consumer, tags=["even"]))["succeeded"] == 5
    assert queue.depth("work").ready == 5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "needs the queue"),
        ({"queue": "work"}, "needs the queue"),
        ({"queue": "Work", "payload": Work}, "queue name 'Work' is not usable"),
        ({"queue": "work", "payload": Work, "attempts": 3}, "'attempts'; it takes backoff, bucket_count"),
        ({"spec": QueueSpec("work", Work), "max_attempts": 3}, "max_attempts beside it; set it in the spec"),
        ({"spec": "work"}, "was given 'work'"),
        ({"spec": QueueSpec("work", Work), "mode": "forever"}, "'batch', 'linger', 'standing'"),
    ],
)
def test_a_consumer_that_cannot_be(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        queue_consumer(**arguments)(lambda job: None)


def test_type_checkers_know_every_argument() -> None:
    own = {"name", *inspect.signature(queue_consumer).parameters}
    others = {name: kind for name, kind in get_type_hints(QueueSpec).items() if name not in own}
    assert get_type_hints(QueueArguments) == others


def test_a_handler_that_does_not_fit() -> None:
    async def handler(job: Job[Work]) -> None: ...

    with pytest.raises(InvalidInput, match="of shape 'async', and transactional"):
        queue_consumer(QueueSpec("work", Work), transactional=True)(handler)
    with pytest.raises(InvalidInput, match="decorate a function of a job"):
        queue_consumer(QueueSpec("work", Work))("handler")  # type: ignore[arg-type]
