"""The bucket-head sensor: when it asks for runs, for which buckets, and when it does not."""

import json
from typing import Any

import dagster as dg
import pytest

from dagster_sqlqueue import QueueSpec, SqlQueue, slots
from dagster_sqlqueue.errors import DatabaseUnavailable, SchemaMissing, SchemaTooNew, SchemaTooOld
from dagster_sqlqueue.orchestration import QueueConsumer, SensorSettings, SqlQueueResource, build_sqlqueue_sensor
from tests.core.support import Work, make_due, rows


def tick(
    sensor: dg.SensorDefinition, resource: SqlQueueResource, instance: dg.DagsterInstance, cursor: str | None = None
) -> Any:
    with dg.build_sensor_context(instance=instance, cursor=cursor, resources={"sqlqueue": resource}) as context:
        return sensor(context)


def configs(result: Any) -> list[dict[str, Any]]:
    return [request.run_config["ops"]["work_off_work"]["config"] for request in result.run_requests or []]


@pytest.fixture
def sensor(consumer: QueueConsumer[Work]) -> dg.SensorDefinition:
    return build_sqlqueue_sensor(consumer, settings=SensorSettings(max_runs=3, jobs_per_run=10))


def test_an_empty_queue_starts_nothing_and_says_so(
    sensor: dg.SensorDefinition, resource: SqlQueueResource, instance: dg.DagsterInstance
) -> None:
    result = tick(sensor, resource, instance)
    assert not result.run_requests
    assert result.skip_reason.skip_message == "work: 0 ready, 0 leased, 0 scheduled"


def test_a_paused_queue_starts_nothing_and_says_so(
    queue: SqlQueue,
    spec: QueueSpec[Work],
    sensor: dg.SensorDefinition,
    resource: SqlQueueResource,
    instance: dg.DagsterInstance,
) -> None:
    queue.enqueue(spec, Work(n=1))
    queue.pause("work")
    result = tick(sensor, resource, instance)
    assert not result.run_requests
    assert "1 ready" in result.skip_reason.skip_message
    assert result.skip_reason.skip_message.endswith("UTC, resume it with: sqlqueue resume work")
    queue.resume("work")
    assert len(configs(tick(sensor, resource, instance))) == 1


def test_a_small_backlog_gets_one_run_for_all_its_buckets(
    queue: SqlQueue,
    spec: QueueSpec[Work],
    sensor: dg.SensorDefinition,
    resource: SqlQueueResource,
    instance: dg.DagsterInstance,
) -> None:
    queue.enqueue_many(spec, [Work(n=n) for n in range(9)])
    with_work = {bucket for (bucket,) in rows(queue, "SELECT DISTINCT bucket FROM {s}.job")}
    (config,) = configs(tick(sensor, resource, instance))
    assert set(config["buckets"]) == with_work


def test_a_backlog_is_shared_by_at_most_max_runs_and_no_bucket_twice(
    queue: SqlQueue,
    spec: QueueSpec[Work],
    sensor: dg.SensorDefinition,
    resource: SqlQueueResource,
    instance: dg.DagsterInstance,
) -> None:
    queue.enqueue_many(spec, [Work(n=n) for n in range(500)])
    asked = configs(tick(sensor, resource, instance))
    assert len(asked) == 3
    assert sorted(bucket for config in asked for bucket in config["buckets"]) == [0, 1, 2, 3]
    assert not configs(tick(sensor, resource, instance)), "the runs asked for have not started yet"


def test_runs_that_died_before_claiming_free_their_buckets(
    queue: SqlQueue,
    spec: QueueSpec[Work],
    sensor: dg.SensorDefinition,
    resource: SqlQueueResource,
    instance: dg.DagsterInstance,
) -> None:
    queue.enqueue_many(spec, [Work(n=n) for n in range(5)])
    first = configs(tick(sensor, resource, instance))
    rows(queue, "UPDATE {s}.consumer_slot SET expires_at = now() - interval '1 second'")
    second = configs(tick(sensor, resource, instance))
    assert [set(config["buckets"]) for config in first] == [set(config["buckets"]) for config in second]
    assert first[0]["token"] != second[0]["token"]


def test_buckets_of_a_live_run_are_left_to_it(
    queue: SqlQueue,
    spec: QueueSpec[Work],
    sensor: dg.SensorDefinition,
    resource: SqlQueueResource,
    instance: dg.DagsterInstance,
) -> None:
    queue.enqueue_many(spec, [Work(n=n) for n in range(200)])
    assert slots.acquire(queue, "work", 1, [0, 2], seconds=60)
    asked = configs(tick(sensor, resource, instance))
    assert sorted(bucket for config in asked for bucket in config["buckets"]) == [1, 3]
    assert {config["slot"] for config in asked} == {0, 2}


def test_expired_leases_are_work(
    queue: SqlQueue,
    spec: QueueSpec[Work],
    sensor: dg.SensorDefinition,
    resource: SqlQueueResource,
    instance: dg.DagsterInstance,
) -> None:
    queue.enqueue(spec, Work(n=1))
    queue.claim("work", buckets=range(4), limit=10, lease_seconds=60, worker="dead")
    assert not configs(tick(sensor, resource, instance))
    make_due(queue)
    assert len(configs(tick(sensor, resource, instance))) == 1


def test_the_run_carries_the_head_priority_and_no_run_key(
    queue: SqlQueue,
    consumer: QueueConsumer[Work],
    spec: QueueSpec[Work],
    sensor: dg.SensorDefinition,
    resource: SqlQueueResource,
    instance: dg.DagsterInstance,
) -> None:
    from dagster_sqlqueue import NewJob

    queue.enqueue(spec, NewJob(Work(n=1), priority=7))
    (request,) = tick(sensor, resource, instance).run_requests
    assert request.run_key is None
    assert request.tags["dagster/priority"] == "7"
    result = consumer.job.execute_in_process(
        run_config={"ops": {"work_off_work": {"config": {**configs_of(request), "linger_seconds": 0}}}},
        resources={"sqlqueue": resource},
        instance=instance,
    )
    assert result.output_for_node("work_off_work")["succeeded"] == 1


def configs_of(request: dg.RunRequest) -> dict[str, Any]:
    return dict(request.run_config["ops"]["work_off_work"]["config"])


def test_the_depth_is_observed_when_it_changes(
    queue: SqlQueue,
    spec: QueueSpec[Work],
    sensor: dg.SensorDefinition,
    resource: SqlQueueResource,
    instance: dg.DagsterInstance,
) -> None:
    queue.enqueue_many(spec, [Work(n=n) for n in range(3)])
    first = tick(sensor, resource, instance)
    (event,) = first.asset_events
    assert event.asset_key.path == ["queues", "work"]
    assert event.metadata["ready"].value == 3
    assert json.loads(first.cursor)["figures"] == [3, 0, 0, 0]
    assert not tick(sensor, resource, instance, cursor=first.cursor).asset_events


def test_a_database_that_is_away_fails_the_tick_and_hides_the_password(
    sensor: dg.SensorDefinition, instance: dg.DagsterInstance
) -> None:
    away = SqlQueueResource(url="postgresql://me:s3cret@127.0.0.1:1/nowhere", connect_timeout_seconds=2)
    with pytest.raises(DatabaseUnavailable) as refused:
        tick(sensor, away, instance)
    assert "s3cret" not in str(refused.value)
    assert "127.0.0.1:1/nowhere" in str(refused.value)


@pytest.mark.parametrize(
    ("change", "error", "cure"),
    [
        ("DELETE FROM {s}.schema_version WHERE version = 3", SchemaTooOld, "sqlqueue init"),
        ("INSERT INTO {s}.schema_version VALUES (9999, 'future')", SchemaTooNew, "pip install --upgrade"),
        ("DROP SCHEMA {s} CASCADE", SchemaMissing, "sqlqueue init"),
    ],
)
def test_another_version_of_the_schema_fails_the_tick_and_the_run_with_the_cure(
    queue: SqlQueue,
    consumer: QueueConsumer[Work],
    sensor: dg.SensorDefinition,
    resource: SqlQueueResource,
    instance: dg.DagsterInstance,
    change: str,
    error: type[Exception],
    cure: str,
) -> None:
    rows(queue, change)
    with pytest.raises(error, match=cure):
        tick(sensor, resource, instance)
    run = consumer.job.execute_in_process(resources={"sqlqueue": resource}, instance=instance, raise_on_error=False)
    assert not run.success
    failure = run.failure_data_for_node("work_off_work")
    assert failure is not None
    assert cure in str(failure.error)
