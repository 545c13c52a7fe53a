"""Schedules that are ticked by a sensor."""

from dataclasses import replace
from typing import Any

import dagster as dg
import pytest

from dagster_sqlqueue import QueueSpec, SqlQueue
from dagster_sqlqueue.errors import DatabaseUnavailable, InvalidInput, SchemaMissing
from dagster_sqlqueue.orchestration import QueueConsumer, SqlQueueResource, build_sqlqueue_schedules_sensor
from dagster_sqlqueue.orchestration.assets import queue_asset_key
from dagster_sqlqueue.schedules import Schedules
from tests.core.support import Work, rows
from tests.schedules.support import overdue_by, ticks_of


@pytest.fixture
def sensor() -> dg.SensorDefinition:
    return build_sqlqueue_schedules_sensor()


def tick(sensor: dg.SensorDefinition, resource: SqlQueueResource, instance: dg.DagsterInstance) -> Any:
    with dg.build_sensor_context(instance=instance, resources={"sqlqueue": resource}) as context:
        return sensor(context)


def test_what_is_due_is_enqueued_and_reported(
    queue: SqlQueue,
    spec: QueueSpec[Work],
    sensor: dg.SensorDefinition,
    resource: SqlQueueResource,
    instance: dg.DagsterInstance,
) -> None:
    assert tick(sensor, resource, instance).skip_reason.skip_message == "no schedule ticks"
    other = replace(spec, name="other")
    queue.create_queue(other)
    schedules = Schedules(queue)
    schedules.put(spec, "a", Work(n=1), every=600, catch_up="all")
    schedules.put(other, "b", Work(n=2), every=600)
    nothing = tick(sensor, resource, instance)
    assert nothing.skip_reason.skip_message in ("next due in 600 s", "next due in 599 s")
    assert nothing.asset_events == []
    overdue_by(queue, "a", ticks=2_500, every=600)
    overdue_by(queue, "b", ticks=3, every=600)
    result = tick(sensor, resource, instance)
    assert result.skip_reason.skip_message.startswith("enqueued 2501: work/a 2500, other/b 1; next due in 59")
    observed = {event.asset_key: event.metadata for event in result.asset_events}
    assert set(observed) == {queue_asset_key("work"), queue_asset_key("other")}
    assert observed[queue_asset_key("work")]["scheduled"].value == 2_500
    assert observed[queue_asset_key("other")]["scheduled_by"].value == {"b": 1}
    assert len(ticks_of(queue, "a")) == 2_500
    assert tick(sensor, resource, instance).asset_events == []


def test_past_its_budget_the_rest_is_left_to_the_next_tick(
    queue: SqlQueue, spec: QueueSpec[Work], resource: SqlQueueResource, instance: dg.DagsterInstance
) -> None:
    hasty = build_sqlqueue_schedules_sensor(budget_seconds=1e-6)
    Schedules(queue).put(spec, "a", Work(n=1), every=600, catch_up="all")
    overdue_by(queue, "a", ticks=1_500, every=600)
    assert "more is due, left to the next tick" in tick(hasty, resource, instance).skip_reason.skip_message
    with pytest.raises(InvalidInput, match="budget_seconds is 0"):
        build_sqlqueue_schedules_sensor(budget_seconds=0)


def test_a_schedule_that_cannot_be_used_is_named(
    queue: SqlQueue,
    spec: QueueSpec[Work],
    sensor: dg.SensorDefinition,
    resource: SqlQueueResource,
    instance: dg.DagsterInstance,
) -> None:
    schedules = Schedules(queue)
    schedules.put(spec, "a", Work(n=1), every=600)
    schedules.put(spec, "b", Work(n=1), every=600)
    overdue_by(queue, "a", ticks=1, every=600)
    overdue_by(queue, "b", ticks=1, every=600)
    rows(queue, "UPDATE {s}.schedule SET time_zone = 'Mars/Olympus' WHERE name = 'a'")
    said = tick(sensor, resource, instance).skip_reason.skip_message
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
    assert done.output_for_node("work_off_work")["succeeded"] == 1


def test_a_database_that_is_not_usable_fails_the_tick(
    url: str, sensor: dg.SensorDefinition, instance: dg.DagsterInstance
) -> None:
    with pytest.raises(SchemaMissing, match="sqlqueue init"):
        tick(sensor, SqlQueueResource(url=url, schema_name="nothing_here"), instance)
    away = SqlQueueResource(url="postgresql://me@127.0.0.1:1/none", connect_timeout_seconds=1)
    with pytest.raises(DatabaseUnavailable, match=r"127\.0\.0\.1:1/none"):
        tick(sensor, away, instance)
