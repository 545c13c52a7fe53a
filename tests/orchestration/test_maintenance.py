"""The maintenance on a schedule: what a run does and reports, and several at once."""

import json
import subprocess
import sys
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, Protocol

import dagster as dg
import psycopg
import pytest

from dagster_sqlqueue import QueueSpec, SqlQueue
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.orchestration import SqlQueueResource, build_maintenance_schedule
from dagster_sqlqueue.queue.maintenance_run import begin
from tests.orchestration.support import Deployment
from tests.support import Work, rows, value
from tests.support.archived import archive, days_with_partitions, kept

MAINTAINER = Path(__file__).with_name("maintainer.py")
NOON = datetime(2026, 1, 31, 12, 31, tzinfo=UTC)


@pytest.fixture
def queue(fresh: SqlQueue) -> SqlQueue:
    """Of a schema of its own: what is maintained are the tables themselves."""
    return fresh


@pytest.fixture
def today(queue: SqlQueue) -> date:
    day: date = value(queue, "SELECT CAST(timezone('UTC', now()) AS date)")
    return day


class Maintenance(Protocol):
    def __call__(self, **config: Any) -> dg.ExecuteInProcessResult: ...


@pytest.fixture
def maintain(in_memory: Deployment) -> Maintenance:
    """A run of the maintenance, whether it fails or not."""
    job = build_maintenance_schedule().job
    assert isinstance(job, dg.JobDefinition)
    return lambda **config: in_memory.execute(job, sqlqueue_maintenance_op=config)


def reported(done: dg.ExecuteInProcessResult) -> dict[str, Any]:
    (output,) = done.filter_events(lambda event: event.is_successful_output)
    return {name: found.value for name, found in output.step_output_data.metadata.items()}


def test_a_run_does_what_the_command_does_and_counts_it(queue: SqlQueue, maintain: Maintenance, today: date) -> None:
    rows(queue, "UPDATE {s}.queue SET retention_days = 3")
    queue.create_queue(QueueSpec("other", Work, retention_days=30))
    queue.create_queue(QueueSpec("rare", Work))
    old = today - timedelta(days=10)
    rows(queue, "SELECT {s}.make_archive_partition(%s)", today - timedelta(days=60))
    rows(queue, "SELECT {s}.make_archive_partition(%s)", old)
    archive(queue, old, count=4)
    archive(queue, old, name="other", count=2)
    archive(queue, today - timedelta(days=1), count=1)
    archive(queue, today + timedelta(days=9), name="other", count=2)
    rows(queue, "INSERT INTO {s}.waiter VALUES ('work', 'gone', now() - interval '2 minutes')")
    done = maintain(days_ahead=9)
    assert {name: one for name, one in reported(done).items() if name not in ("result", "details")} == {
        "ran": True,
        "partitions_made": 2,
        "partitions_dropped": 1,
        "rows_moved": 2,
        "rows_trimmed": 4,
        "steps_of_people_trimmed": 0,
        "expired_removed": 1,
        "batches_swept": 0,
        "keys_healed": 0,
        "jobs_moved": 0,
        "reply_queues_removed": 0,
        "days_left_for_the_next_run": 0,
    }
    said = reported(done)
    assert said["rows_trimmed"] == 4
    assert f"| partitions dropped | {today - timedelta(days=60)} |" in said["details"]
    assert "| trimmed of work | 4 jobs, 0 steps of people |" in said["details"]
    (observed,) = [
        event.asset_observation_data.asset_observation
        for event in done.filter_events(lambda event: event.event_type is dg.DagsterEventType.ASSET_OBSERVATION)
    ]
    assert observed.asset_key == dg.AssetKey(["queues", "work"])
    assert observed.metadata["rows_trimmed"].value == 4
    assert kept(queue) == {
        ("other", old): 2,
        ("work", today - timedelta(days=1)): 1,
        ("other", today + timedelta(days=9)): 2,
    }
    assert days_with_partitions(queue)[-1] == today + timedelta(days=9)
    again = reported(maintain(days_ahead=9))
    assert again["result"] == "nothing had to be done"
    assert again["details"] == "Nothing had to be done."


def test_a_run_that_finds_another_one_at_it_ends_as_success_and_says_so(
    queue: SqlQueue, maintain: Maintenance, today: date
) -> None:
    rows(queue, f"DROP TABLE {{s}}.job_archive_{today:%Y%m%d}")
    with queue.database.connection() as other:
        run = begin(other, queue.database, forced=True)
        assert run is not None
        done = maintain()
        with run.ending():
            pass
    assert done.success
    said = "another process maintains the schema; nothing was done here"
    assert reported(done) == {"result": said, "ran": False}
    assert today not in days_with_partitions(queue)
    assert reported(maintain())["partitions_made"] == 1


@pytest.mark.prove
def test_two_deployments_maintain_one_schema(queue: SqlQueue, url: str, schema: str, today: date) -> None:
    for ahead in range(8):
        rows(queue, f"DROP TABLE {{s}}.job_archive_{today + timedelta(days=ahead):%Y%m%d}")
    rows(queue, "UPDATE {s}.queue SET retention_days = 3")
    old = today - timedelta(days=10)
    queue.create_queue(QueueSpec("other", Work, retention_days=30))
    archive(queue, old, count=500)
    archive(queue, old, name="other")
    processes = [
        subprocess.Popen(
            [sys.executable, MAINTAINER, url, schema],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    found = []
    for process in processes:
        out, err = process.communicate()
        assert process.returncode == 0, err
        found.append(json.loads(out.splitlines()[-1]))
    worked = [each for each in found if each["ran"]]
    assert worked
    assert sum(each["partitions_made"] for each in worked) == 9
    assert sum(each["rows_trimmed"] for each in worked) == 500
    assert kept(queue) == {("other", old): 3}
    assert value(queue, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'") == 0


@pytest.mark.prove
def test_days_that_were_in_use_are_named(
    queue: SqlQueue, maintain: Maintenance, today: date, url: str, schema: str
) -> None:
    over = today - timedelta(days=40)
    rows(queue, "UPDATE {s}.queue SET retention_days = 3")
    rows(queue, "SELECT {s}.make_archive_partition(%s)", over)
    with psycopg.connect(url) as reader:
        reader.execute(f"SELECT count(*) FROM {schema}.job_archive".encode())
        done = maintain()
        reader.rollback()
    assert reported(done)["days_left_for_the_next_run"] == 1
    assert f"| left for the next run | {over} |" in reported(done)["details"]
    assert reported(maintain())["partitions_dropped"] == 1


def test_the_schedule_is_hourly_in_utc_and_off(resource: SqlQueueResource, persistent: dg.DagsterInstance) -> None:
    schedule = build_maintenance_schedule(days_ahead=3)
    assert (schedule.cron_schedule, schedule.execution_timezone) == ("31 * * * *", "UTC")
    assert schedule.default_status is dg.DefaultScheduleStatus.STOPPED
    assert schedule.job.executor_def.name == "in_process"
    definitions = dg.Definitions(schedules=[schedule], resources={"sqlqueue": resource})
    dg.Definitions.validate_loadable(definitions)
    context = dg.build_schedule_context(instance=persistent, scheduled_execution_time=NOON)
    request = schedule(context)
    assert isinstance(request, dg.RunRequest)
    job = definitions.resolve_job_def("sqlqueue_maintenance_job")
    assert job.execute_in_process(instance=persistent, run_config=request.run_config).success
    with pytest.raises(InvalidInput, match="days_ahead is 400"):
        build_maintenance_schedule(days_ahead=400)


def test_a_run_that_goes_on_is_not_joined_by_another(persistent: dg.DagsterInstance) -> None:
    schedule = build_maintenance_schedule()
    run_of = persistent.create_run_for_job(job_def=schedule.job, status=dg.DagsterRunStatus.STARTED)
    created = persistent.get_run_record_by_id(run_of.run_id)
    assert created is not None

    def tick(later: timedelta) -> object:
        moment = created.create_timestamp + later
        return schedule(dg.build_schedule_context(instance=persistent, scheduled_execution_time=moment))

    skipped = tick(timedelta(hours=1))
    assert isinstance(skipped, dg.SkipReason)
    assert skipped.skip_message == "a maintenance run is active already"
    assert isinstance(tick(timedelta(hours=7)), dg.RunRequest), "a run that died keeps the others away"


def test_how_far_ahead_is_checked_in_a_run_too(maintain: Maintenance) -> None:
    done = maintain(days_ahead=-1)
    (failure,) = done.filter_events(lambda event: event.is_step_failure)
    assert (
        "days_ahead is -1; it must be a whole number of days" in failure.step_failure_data.user_failure_data.description
    )


def test_the_assets_of_queues_may_have_other_keys(
    queue: SqlQueue, resource: SqlQueueResource, instance: dg.DagsterInstance, today: date
) -> None:
    rows(queue, "UPDATE {s}.queue SET retention_days = 3")
    queue.create_queue(QueueSpec("other", Work, retention_days=30))
    archive(queue, today - timedelta(days=10), count=4)
    archive(queue, today - timedelta(days=10), name="other")
    key = dg.AssetKey(["payments", "work"])
    done = build_maintenance_schedule(asset_keys={"work": key}).job.execute_in_process(
        instance=instance, resources={"sqlqueue": resource}
    )
    (seen,) = done.filter_events(lambda event: event.event_type is dg.DagsterEventType.ASSET_OBSERVATION)
    assert seen.asset_key == key
