"""Schedules that are ticked by a sensor."""

import re
from dataclasses import replace

import dagster as dg
import pytest

from dagster_sqlqueue import QueueSpec, SqlQueue
from dagster_sqlqueue.errors import DatabaseUnavailable, InvalidInput, SchemaMissing
from dagster_sqlqueue.orchestration import QueueConsumer, SqlQueueResource, build_sqlqueue_schedules_sensor
from dagster_sqlqueue.orchestration.assets import queue_asset_key
from dagster_sqlqueue.schedules import Schedules
from tests.orchestration.support import Deployment, done_by
from tests.schedules.support import overdue_by, ticks_of
from tests.support import Work, rows


@pytest.fixture
def sensor() -> dg.SensorDefinition:
    return build_sqlqueue_schedules_sensor()


def test_what_is_due_is_enqueued_and_reported(
    queue: SqlQueue, deployment: Deployment, spec: QueueSpec[Work], sensor: dg.SensorDefinition
) -> None:
    assert deployment.tick(sensor).skip_reason.skip_message == "no schedule ticks"
    other = replace(spec, name="other")
    queue.create_queue(other)
    schedules = Schedules(queue)
    schedules.put(spec, "a", Work(n=1), every=600, catch_up="all")
    schedules.put(other, "b", Work(n=2), every=600)
    nothing = deployment.tick(sensor)
    assert re.fullmatch(r"next due in ([1-5]\d\d|600) s", nothing.skip_reason.skip_message)
    assert nothing.asset_events == []
    overdue_by(queue, "a", ticks=2_500, every=600)
    overdue_by(queue, "b", ticks=3, every=600)
    result = deployment.tick(sensor)
    assert re.match(r"enqueued 2501: work/a 2500, other/b 1; next due in [1-5]\d\d s", result.skip_reason.skip_message)
    observed = {event.asset_key: event.metadata for event in result.asset_events}
    assert set(observed) == {queue_asset_key("work"), queue_asset_key("other")}
    assert observed[queue_asset_key("work")]["scheduled"].value == 2_500
    assert observed[queue_asset_key("other")]["scheduled_by"].value == {"b": 1}
    assert len(ticks_of(queue, "a")) == 2_500
    assert deployment.tick(sensor).asset_events == []


def test_it_is_reported_under_the_asset_key_that_the_queue_has(
    queue: SqlQueue, deployment: Deployment, spec: QueueSpec[Work]
) -> None:
    ours = build_sqlqueue_schedules_sensor(asset_keys={"work": dg.AssetKey(["ours", "work"])})
    Schedules(queue).put(spec, "a", Work(n=1), every=600)
    overdue_by(queue, "a", ticks=1, every=600)
    (event,) = deployment.tick(ours).asset_events
    assert event.asset_key == dg.AssetKey(["ours", "work"])


def test_past_its_budget_the_rest_is_left_to_the_next_tick(
    queue: SqlQueue, deployment: Deployment, spec: QueueSpec[Work]
) -> None:
    hasty = build_sqlqueue_schedules_sensor(budget_seconds=1e-6)
    Schedules(queue).put(spec, "a", Work(n=1), every=600, catch_up="all")
    overdue_by(queue, "a", ticks=1_500, every=600)
    assert "more is due, left to the next tick" in deployment.tick(hasty).skip_reason.skip_message
    with pytest.raises(InvalidInput, match="budget_seconds is 0"):
        build_sqlqueue_schedules_sensor(budget_seconds=0)


def test_a_schedule_that_cannot_be_used_is_named(
    queue: SqlQueue, deployment: Deployment, spec: QueueSpec[Work], sensor: dg.SensorDefinition
) -> None:
    schedules = Schedules(queue)
    schedules.put(spec, "a", Work(n=1), every=600)
    schedules.put(spec, "b", Work(n=1), every=600)
    overdue_by(queue, "a", ticks=1, every=600)
    overdue_by(queue, "b", ticks=1, every=600)
    rows(queue, "UPDATE {s}.schedule SET time_zone = 'Mars/Olympus' WHERE name = 'a'")
    said = deployment.tick(sensor).skip_reason.skip_message
    assert said.startswith("enqueued 1: work/b 1; paused work/a: there is no time zone 'Mars/Olympus'")
    assert len(ticks_of(queue, "b")) == 1


def test_its_jobs_are_worked_off_by_a_run(
    queue: SqlQueue,
    spec: QueueSpec[Work],
    consumer: QueueConsumer[Work],
    sensor: dg.SensorDefinition,
    resource: SqlQueueResource,
    instance: dg.DagsterInstance,
) -> None:
    Schedules(queue).put(spec, "a", Work(n=5), every=600)
    overdue_by(queue, "a", ticks=1, every=600)
    defs = dg.Definitions(jobs=[consumer.job], sensors=[sensor], resources={"sqlqueue": resource})
    found = defs.resolve_sensor_def("sqlqueue_schedules")
    context = dg.build_sensor_context(
        instance=instance, repository_def=defs.get_repository_def(), resources={"sqlqueue": resource}
    )
    with context:
        data = found.evaluate_tick(context)
    assert data.run_requests == []
    assert data.skip_message is not None
    assert data.skip_message.startswith("enqueued 1: work/a 1")
    assert [event.asset_key for event in data.asset_events] == [queue_asset_key("work")]
    job = defs.resolve_job_def("drain_work")
    done = job.execute_in_process(
        instance=instance, run_config={"ops": {"work_off_work": {"config": {"linger_seconds": 0}}}}
    )
    assert done_by(done)["succeeded"] == 1


def test_a_database_that_is_not_usable_fails_the_tick(
    url: str, deployment: Deployment, sensor: dg.SensorDefinition
) -> None:
    with pytest.raises(SchemaMissing, match="sqlqueue migrate"):
        replace(deployment, resource=SqlQueueResource(url=url, schema_name="nothing_here")).tick(sensor)
    away = SqlQueueResource(url="postgresql://me@127.0.0.1:1/none", connect_timeout_seconds=1)
    with pytest.raises(DatabaseUnavailable, match=r"127\.0\.0\.1:1/none"):
        replace(deployment, resource=away).tick(sensor)
