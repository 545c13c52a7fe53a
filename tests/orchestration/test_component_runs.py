"""The component at work: how its queue is made, what its sensor says, and what its runs do."""

import dataclasses

import dagster as dg
import pytest

from dagster_sqlqueue import Backoff, NewJob, QueueSpec, RateLimit
from dagster_sqlqueue.errors import SchemaMissing, UnknownQueue
from dagster_sqlqueue.orchestration import SensorSettings, SqlQueueComponent, queue_asset_key
from dagster_sqlqueue.payload.serialization import AnyObject
from dagster_sqlqueue.schema import migrations, window
from dagster_sqlqueue.schema.migrations import Migration
from tests.orchestration.component_support import WARNINGS, Location, Reminder
from tests.orchestration.support import done_by, error_of

pytestmark = WARNINGS


def test_a_queue_is_made_and_worked_off_from_yaml_alone(location: Location) -> None:
    location.write(buckets=2)
    spec = QueueSpec("reminders", Reminder)
    with location.loaded() as defs:
        with pytest.raises(SchemaMissing, match="launch the job create_reminders"):
            location.tick(defs)
        assert location.run(defs, "create_reminders").success
        location.queue.enqueue_many(spec, [Reminder(text=str(n)) for n in range(20)])
        (request,) = location.tick(defs).run_requests
        config = request.run_config
        config["ops"]["work_off_reminders"]["config"]["linger_seconds"] = 0
        assert location.run(defs, "drain_reminders", run_config=config).success
    assert location.queue.archived("reminders", since_seconds=3_600) == {"succeeded": 20}
    results = {row.result for row in location.queue.jobs("reminders", archived=True)}
    assert '{"sent": "7"}' in results
    assert location.instance.get_latest_materialization_event(queue_asset_key("reminders")) is not None


def test_the_settings_in_yaml_are_those_of_the_queue(location: Location) -> None:
    location.write(
        buckets=6,
        strategy="fifo",
        lease_seconds=45,
        timeout_seconds=90,
        max_attempts=7,
        backoff={"seconds": 1, "factor": 3, "max_seconds": 30, "jitter": 0},
        ordered=True,
        on_poison="stop",
        max_running=12,
        max_running_per_key=2,
        rate={"starts": 50, "seconds": 60},
        retention_days=14,
    )
    with location.loaded() as defs:
        assert done_by(location.run(defs, "create_reminders"), "make_reminders")["buckets"] == 6
        made = location.queue.settings("reminders")
        assert location.run(defs, "create_reminders").success
        assert location.queue.settings("reminders") == made
    assert (made.bucket_count, str(made.strategy), made.lease_seconds, made.timeout_seconds) == (6, "fifo", 45, 90)
    assert (made.max_attempts, made.backoff) == (7, Backoff(1, factor=3, max_seconds=30, jitter=0))
    assert (made.ordered, str(made.on_poison)) == (True, "stop")
    assert (made.max_running, made.max_running_per_key, made.rate) == (12, 2, RateLimit(50, seconds=60))
    assert made.retention_days == 14


def test_the_settings_of_sensor_and_runs_come_from_yaml(location: Location) -> None:
    """Each of them is given, so that none is left out on the way."""
    given = {
        "max_runs": 2,
        "run_seconds": 10.0,
        "jobs_per_run": 100,
        "start_seconds": 90.0,
        "starting_seconds": 900.0,
        "budget_seconds": 60.0,
        "linger_seconds": 0.0,
        "hand_over_seconds": 5.0,
        "batch_size": 7,
        "share": False,
        "region": "eu",
    }
    location.queue.migrate()
    location.write(**given, job_tags=["urgent"], run_tags={"team": "mail"})
    component = SqlQueueComponent(queue="reminders", handler="none", job_tags=["urgent"], **given)
    assert component.sensor_settings() == SensorSettings(**given, tags=["urgent"])
    assert {one.name for one in dataclasses.fields(SensorSettings)} == {*given, "tags"}
    spec = QueueSpec("reminders", Reminder, bucket_count=2)
    location.queue.create_queue(spec)
    location.queue.set_region("reminders", "eu", [0])
    location.queue.enqueue_many(spec, [NewJob(Reminder(text=str(n)), tags=["urgent"]) for n in range(20)])
    location.queue.enqueue_many(spec, [Reminder(text=str(n)) for n in range(20)])
    with location.loaded() as defs:
        (request,) = location.tick(defs).run_requests
        config = request.run_config["ops"]["work_off_reminders"]["config"]
        assert config["buckets"] == [0]
        assert (config["tags"], config["batch_size"]) == (["urgent"], 7)
        assert [config[f"{name}_seconds"] for name in ("budget", "linger", "hand_over")] == [60.0, 0.0, 5.0]
        done = location.run(defs, "drain_reminders", run_config=request.run_config)
        assert done.dagster_run.tags["team"] == "mail"
    ended = [(job.bucket, job.tags) for job in location.queue.jobs("reminders", archived=True)]
    assert set(map(str, ended)) == {str((0, ["urgent"]))}


def test_the_sensor_makes_a_missing_queue_and_changes_none(location: Location) -> None:
    location.write(buckets=2, max_attempts=9)
    with location.loaded() as defs:
        with pytest.raises(SchemaMissing, match="launch the job create_reminders"):
            location.tick(defs)
        location.queue.migrate()
        assert location.tick(defs).skip_reason.skip_message.startswith("reminders: 0 ready")
        assert location.queue.settings("reminders").max_attempts == 9
        location.queue.create_queue(QueueSpec("reminders", AnyObject, max_attempts=3))
        before = location.queue.settings("reminders")
        location.tick(defs)
        assert location.queue.settings("reminders") == before


def test_the_sensor_names_the_job_that_makes_the_queue(location: Location) -> None:
    location.queue.migrate()
    location.write(create=False)
    said = r"sqlqueue create\. Or launch the job create_reminders"
    with location.loaded() as defs, pytest.raises(UnknownQueue, match=said):
        location.tick(defs)
    assert location.queue.queues() == []


@pytest.mark.prove
def test_tables_of_an_older_version_are_brought_up_to_date_only_on_request(
    location: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    location.queue.migrate()
    later = Migration(9999, "later", "CREATE TABLE sqlqueue.later (n integer)")
    known = (*migrations.available(), later)
    monkeypatch.setattr(migrations, "available", lambda: known)
    monkeypatch.setattr(window, "OLDEST_SCHEMA", later.version)
    location.write()
    with location.loaded() as defs:
        result = location.run(defs, "create_reminders", raise_on_error=False)
        assert "SchemaTooOld" in error_of(result, "make_reminders")
        config = {"ops": {"make_reminders": {"config": {"migrate": True}}}}
        assert location.run(defs, "create_reminders", run_config=config).success
    assert migrations.check(location.queue.database) == later.version
    assert location.queue.settings("reminders").bucket_count == 16


@pytest.mark.prove
def test_depth_progress_and_checks_are_reported_under_the_assets_key(location: Location) -> None:
    key = dg.AssetKey(["shop", "queues", "reminders"])
    location.write(asset={"key_prefix": "shop"}, checks={"dead_letters": 7})
    location.queue.migrate()
    with location.loaded() as defs:
        dg.Definitions.validate_loadable(defs)
        keys = {check.asset_key for check in defs.resolve_asset_graph().asset_check_keys}
        assert keys == {key}
        first = location.tick(defs)
        location.queue.enqueue(QueueSpec("reminders", Reminder), Reminder(text="now"))
        assert {event.asset_key for event in first.asset_events} == {key}
        letters = [event for event in first.asset_events if getattr(event, "check_name", "") == "dead_letters"]
        assert ["at most 7" in str(event.description) for event in letters] == [True]
        config = {"ops": {"work_off_reminders": {"config": {"linger_seconds": 0}}}}
        location.run(defs, "drain_reminders", run_config=config)
    assert location.instance.get_latest_materialization_event(key) is not None
    assert location.instance.get_latest_materialization_event(queue_asset_key("reminders")) is None


def test_concurrency_and_no_cleanup_come_from_yaml(location: Location) -> None:
    location.queue.migrate()
    location.write("reminders", ".handler:both", concurrency=2, cleanup=False)
    with location.loaded() as defs:
        assert [sensor.name for sensor in defs.sensors or ()] == ["reminders_sensor"]
        location.run(defs, "create_reminders")
        location.queue.enqueue_many(QueueSpec("reminders", Reminder), [Reminder(text="a"), Reminder(text="b")])
        config = {"ops": {"work_off_reminders": {"config": {"linger_seconds": 0}}}}
        assert location.run(defs, "drain_reminders", run_config=config).success
    assert location.queue.archived("reminders", since_seconds=3_600) == {"succeeded": 2}


@pytest.mark.prove
def test_handlers_of_a_batch_and_cleanup_come_from_yaml(location: Location) -> None:
    location.queue.migrate()
    location.write("reminders", ".handler:all_at_once", batch=True, mode="linger")
    with location.loaded() as defs:
        dg.Definitions.validate_loadable(defs)
        names = {sensor.name for sensor in defs.sensors or ()}
        assert names == {
            "reminders_sensor",
            "sqlqueue_reminders_failed_runs",
            "sqlqueue_reminders_cancelled_runs",
        }
        location.run(defs, "create_reminders")
        location.queue.enqueue_many(QueueSpec("reminders", Reminder), [Reminder(text="a"), Reminder(text="b")])
        config = {"ops": {"work_off_reminders": {"config": {"linger_seconds": 0}}}}
        assert location.run(defs, "drain_reminders", run_config=config).success
        (spec,) = defs.resolve_all_asset_specs()
        assert spec.metadata["sqlqueue/payload"].endswith(".handler.Reminder")
    assert location.queue.archived("reminders", since_seconds=3_600) == {"succeeded": 2}
