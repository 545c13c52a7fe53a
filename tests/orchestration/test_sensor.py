"""The bucket-head sensor: when it asks for runs, for which buckets, and when it does not."""

from dataclasses import replace
from typing import Any

import dagster as dg
import pytest

from dagster_sqlqueue import NewJob, SqlQueue
from dagster_sqlqueue.errors import DatabaseUnavailable, SchemaMissing, SchemaTooNew, SchemaTooOld
from dagster_sqlqueue.orchestration import QueueConsumer, SensorSettings, SqlQueueResource, build_sqlqueue_sensor, slots
from tests.orchestration.support import Deployment, configs, done_by, error_of, evaluations, observations, remembered
from tests.support import Work, make_due, rows


@pytest.fixture
def sensor(consumer: QueueConsumer[Work]) -> dg.SensorDefinition:
    return build_sqlqueue_sensor(consumer, settings=SensorSettings(max_runs=3, jobs_per_run=10))


def test_an_empty_queue_starts_nothing_and_says_so(deployment: Deployment, sensor: dg.SensorDefinition) -> None:
    result = deployment.tick(sensor)
    assert not result.run_requests
    assert result.skip_reason.skip_message == "work: 0 ready, 0 leased, 0 scheduled"


def test_a_paused_queue_starts_nothing_and_says_so(
    queue: SqlQueue, deployment: Deployment, sensor: dg.SensorDefinition
) -> None:
    deployment.enqueue(Work(n=1))
    queue.pause("work")
    result = deployment.tick(sensor)
    assert not result.run_requests
    assert "1 ready" in result.skip_reason.skip_message
    assert result.skip_reason.skip_message.endswith("UTC, resume it with: sqlqueue resume work")
    queue.resume("work")
    assert len(configs(deployment.tick(sensor))) == 1


def test_a_small_backlog_gets_one_run_for_all_buckets(
    queue: SqlQueue, deployment: Deployment, sensor: dg.SensorDefinition
) -> None:
    deployment.enqueue_many(9)
    with_work = {bucket for (bucket,) in rows(queue, "SELECT DISTINCT bucket FROM {s}.job")}
    (config,) = configs(deployment.tick(sensor))
    assert set(config["buckets"][: len(with_work)]) == with_work
    assert sorted(config["buckets"]) == [0, 1, 2, 3]


def test_a_backlog_is_shared_by_at_most_max_runs_and_no_bucket_twice(
    deployment: Deployment, sensor: dg.SensorDefinition
) -> None:
    deployment.enqueue_many(500)
    asked = configs(deployment.tick(sensor))
    assert len(asked) == 3
    assert sorted(bucket for config in asked for bucket in config["buckets"]) == [0, 1, 2, 3]
    assert not configs(deployment.tick(sensor)), "the runs asked for have not started yet"


def test_runs_that_died_before_claiming_free_their_buckets(
    queue: SqlQueue, deployment: Deployment, sensor: dg.SensorDefinition
) -> None:
    deployment.enqueue_many(5)
    first = configs(deployment.tick(sensor))
    rows(queue, "UPDATE {s}.consumer_slot SET expires_at = now() - interval '1 second'")
    second = configs(deployment.tick(sensor))
    assert [set(config["buckets"]) for config in first] == [set(config["buckets"]) for config in second]
    assert first[0]["token"] != second[0]["token"]


def test_buckets_of_a_live_run_are_left_to_it(
    queue: SqlQueue, deployment: Deployment, sensor: dg.SensorDefinition
) -> None:
    deployment.enqueue_many(200)
    assert slots.acquire(queue, "work", 1, [0, 2], seconds=3_600, sensor="work_sensor")
    asked = configs(deployment.tick(sensor))
    assert sorted(bucket for config in asked for bucket in config["buckets"]) == [1, 3]
    assert {config["slot"] for config in asked} == {0, 2}


@pytest.mark.parametrize("share", [True, False])
def test_a_backlog_that_overruns_a_live_run_gets_others_beside_it(
    deployment: Deployment, consumer: QueueConsumer[Work], share: bool
) -> None:
    settings = SensorSettings(max_runs=3, jobs_per_run=10, share=share)
    sensor = build_sqlqueue_sensor(consumer, settings=settings)
    deployment.enqueue(Work(n=1))
    (lone,) = configs(deployment.tick(sensor))
    assert sorted(lone["buckets"]) == [0, 1, 2, 3]
    deployment.enqueue_many(200)
    beside = configs(deployment.tick(sensor))
    if share:
        (other,) = beside
        assert len(other["buckets"]) == 2
        drain = deployment.drain(consumer, **other)
        assert done_by(drain)["succeeded"] > 0
    else:
        assert beside == []


def test_expired_leases_are_work(queue: SqlQueue, deployment: Deployment, sensor: dg.SensorDefinition) -> None:
    deployment.enqueue(Work(n=1))
    queue.claim("work", buckets=range(4), limit=10, lease_seconds=300, worker="dead")
    assert not configs(deployment.tick(sensor))
    make_due(queue)
    assert len(configs(deployment.tick(sensor))) == 1


def test_the_run_carries_the_head_priority_and_no_run_key(
    deployment: Deployment, consumer: QueueConsumer[Work], sensor: dg.SensorDefinition
) -> None:
    deployment.enqueue(NewJob(Work(n=1), priority=7))
    asked = deployment.tick(sensor)
    (request,) = asked.run_requests
    assert request.run_key is None
    assert request.tags["dagster/priority"] == "7"
    shown = {name for name in request.tags if not name.startswith(".dagster/")}
    assert shown == {"dagster/priority", "sqlqueue/queue", "sqlqueue/sensor", "sqlqueue/buckets"}
    result = deployment.drain(consumer, **{**configs(asked)[0], "linger_seconds": 0})
    assert done_by(result)["succeeded"] == 1


def test_the_depth_is_observed_when_it_changes(deployment: Deployment, sensor: dg.SensorDefinition) -> None:
    deployment.enqueue_many(3)
    first = deployment.tick(sensor)
    (event,) = observations(first)
    assert event.asset_key.path == ["queues", "work"]
    assert event.metadata["ready"].value == 3
    assert remembered(first.cursor)["counts"] == {"ready": 3, "leased": 0, "scheduled": 0, "held": 0}
    plotted = [
        name for name, found in event.metadata.items() if isinstance(found, dg.IntMetadataValue | dg.FloatMetadataValue)
    ]
    assert plotted == [
        "ready",
        "most_leased",
        "scheduled",
        "oldest_ready_seconds",
        "dead_letters",
        "in_per_minute",
        "done_per_minute",
        "wait_seconds_p95",
    ]
    assert not deployment.tick(sensor, cursor=first.cursor).asset_events


def test_a_database_that_is_away_fails_the_tick_and_hides_the_password(
    deployment: Deployment, sensor: dg.SensorDefinition
) -> None:
    away = SqlQueueResource(url="postgresql://me:s3cret@127.0.0.1:1/nowhere", connect_timeout_seconds=2)
    with pytest.raises(DatabaseUnavailable) as refused:
        replace(deployment, resource=away).tick(sensor)
    assert "s3cret" not in str(refused.value)
    assert "127.0.0.1:1/nowhere" in str(refused.value)


@pytest.mark.parametrize(
    ("change", "error", "cure"),
    [
        ("DELETE FROM {s}.schema_version", SchemaTooOld, "sqlqueue migrate"),
        ("INSERT INTO {s}.schema_version VALUES (9999, 'future', 9999)", SchemaTooNew, "pip install --upgrade"),
        ("DROP SCHEMA {s} CASCADE", SchemaMissing, "sqlqueue migrate"),
    ],
)
def test_another_version_of_the_schema_fails_the_tick_and_the_run_with_the_cure(
    fresh: SqlQueue,
    deployment: Deployment,
    resource: SqlQueueResource,
    consumer: QueueConsumer[Work],
    sensor: dg.SensorDefinition,
    change: str,
    error: type[Exception],
    cure: str,
) -> None:
    rows(fresh, change)
    changed = replace(deployment, resource=SqlQueueResource(url=resource.url, schema_name=fresh.database.schema))
    with pytest.raises(error, match=cure):
        changed.tick(sensor)
    run = changed.execute(consumer.job)
    assert not run.success
    assert cure in error_of(run, "work_off_work")


def test_a_tick_reads_the_events_of_the_asset_only_after_a_run_has_changed(
    deployment: Deployment, consumer: QueueConsumer[Work], sensor: dg.SensorDefinition, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With SQLite the first read of a tick takes as long as all else that it does. Runs of other jobs are found in time."""
    reads = []
    fetch = dg.DagsterInstance.fetch_materializations

    def counted(*arguments: Any, **named: Any) -> Any:
        reads.append(arguments)
        return fetch(*arguments, **named)

    monkeypatch.setattr(dg.DagsterInstance, "fetch_materializations", counted)
    monkeypatch.setattr("dagster_sqlqueue.orchestration.sensor._OTHER_RUNS_SECONDS", 3_600.0)
    idle = deployment.tick(sensor, deployment.tick(sensor).cursor)
    assert len(reads) == 1
    deployment.enqueue(Work(n=1))
    deployment.drain(consumer, linger_seconds=0)
    after = deployment.tick(sensor, idle.cursor)
    assert len(reads) == 2
    assert {check.check_name for check in evaluations(after)} >= {"oldest_ready", "dead_letters"}
    monkeypatch.setattr("dagster_sqlqueue.orchestration.sensor._OTHER_RUNS_SECONDS", 0.0)
    deployment.tick(sensor, after.cursor)
    assert len(reads) == 3
