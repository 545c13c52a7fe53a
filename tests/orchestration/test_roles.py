"""What each process of a Dagster deployment does, as a user who has the role that the documentation says and no more."""

import json
from collections.abc import Iterator
from datetime import date
from typing import Any
from uuid import uuid4

import dagster as dg
import pyarrow as pa
import pytest
from prometheus_client import CollectorRegistry
from psycopg import sql
from pyspark.sql.types import IntegerType, StructField, StructType

from dagster_sqlqueue import QueueSpec, SqlQueue
from dagster_sqlqueue.db.permissions import Role, role_name
from dagster_sqlqueue.errors import AccessRefused
from dagster_sqlqueue.metrics import QueueCollector
from dagster_sqlqueue.orchestration import (
    Account,
    DailyAccount,
    QueueConsumer,
    SqlQueueResource,
    build_deadline_check,
    build_fanout_asset,
    build_maintenance_schedule,
    build_sqlqueue_schedules_sensor,
    build_sqlqueue_sensor,
)
from dagster_sqlqueue.people import HumanWork
from dagster_sqlqueue.queue.selection import Selection
from dagster_sqlqueue.schedules import Schedules
from dagster_sqlqueue.schema import migrations
from dagster_sqlqueue.spark import batches, sinks
from dagster_sqlqueue.spark.source import _Source
from tests.orchestration.launchpad_support import Launchpad
from tests.orchestration.support import done_by
from tests.roles.support import Staff, dropping_roles, staff_of, url_of
from tests.support import Work, rows, value


@pytest.fixture
def schema(url: str) -> Iterator[str]:
    """A name that no role of the server was named after."""
    name = f"r_{uuid4().hex[:12]}"
    with dropping_roles(url, name):
        yield name


@pytest.fixture
def queue(fresh: SqlQueue) -> SqlQueue:
    return fresh


@pytest.fixture
def staff(queue: SqlQueue, url: str) -> Iterator[Staff]:
    """A user for each role."""
    queue.install_roles()
    with staff_of(queue, url) as staff:
        yield staff


def resource(staff: Staff, role: Role) -> SqlQueueResource:
    """The resource of a process that connects as the user with that role."""
    return SqlQueueResource(url=url_of(staff.url, staff.user(role)), schema_name=staff.schema)


def tick(sensor: dg.SensorDefinition, resource: SqlQueueResource, instance: dg.DagsterInstance) -> Any:
    with dg.build_sensor_context(instance=instance, resources={"sqlqueue": resource}) as context:
        return sensor(context)


def test_a_sensor_and_its_runs_are_consumers(
    staff: Staff, spec: QueueSpec[Work], consumer: QueueConsumer[Work], instance: dg.DagsterInstance
) -> None:
    staff.users[Role.PRODUCER].enqueue_many(spec, [Work(n=n) for n in range(20)])
    sensor = build_sqlqueue_sensor(consumer)
    for role in (Role.PRODUCER, Role.OBSERVER):
        with pytest.raises(AccessRefused):
            tick(sensor, resource(staff, role), instance)
    (request,) = tick(sensor, resource(staff, Role.CONSUMER), instance).run_requests
    config = {**request.run_config["ops"]["work_off_work"]["config"], "linger_seconds": 0}
    done = consumer.job.execute_in_process(
        instance=instance,
        run_config={"ops": {"work_off_work": {"config": config}}},
        resources={"sqlqueue": resource(staff, Role.CONSUMER)},
    )
    assert done_by(done)["succeeded"] == 20
    assert rows(staff.owner, "SELECT 1 FROM {s}.consumer_slot") == []


def test_a_sensor_that_ticks_schedules_is_an_operator(
    staff: Staff, spec: QueueSpec[Work], instance: dg.DagsterInstance
) -> None:
    Schedules(staff.owner).put(spec, "often", Work(n=1), every=3600)
    rows(
        staff.owner, "UPDATE {s}.schedule SET anchor = anchor - interval '2 h', next_tick = next_tick - interval '2 h'"
    )
    sensor = build_sqlqueue_schedules_sensor()
    for role in (Role.PRODUCER, Role.CONSUMER, Role.OBSERVER):
        with pytest.raises(AccessRefused):
            tick(sensor, resource(staff, role), instance)
    tick(sensor, resource(staff, Role.OPERATOR), instance)
    assert staff.owner.depth("work").ready == 1


def test_who_starts_launchpad_jobs_is_an_operator_and_who_reads_an_observer(
    staff: Staff, spec: QueueSpec[Work], instance: dg.DagsterInstance
) -> None:
    job = str(staff.users[Role.PRODUCER].enqueue(spec, Work(n=1)))
    task = str(staff.users[Role.PRODUCER].enqueue(spec, Work(n=2)))
    HumanWork(staff.owner).hand_over("work", Selection(ids=[task]), by="boss", reason="too hard")
    for role in (Role.PRODUCER, Role.CONSUMER):
        launchpad = Launchpad(resource(staff, role), instance)
        for verb, config in (
            ("reprioritise", {"queue": "work", "all": True, "priority": 3, "dry_run": False}),
            ("pause", {"queue": "work", "dry_run": False}),
            ("assign", {"queue": "work", "by": "boss", "to": "anna", "ids": [task], "dry_run": False}),
        ):
            assert "have a DBA run GRANT" in launchpad.refused(verb, **config)
    observer = Launchpad(resource(staff, Role.OBSERVER), instance)
    assert observer("show", id=job).value["queue"] == "work"
    assert observer("cancel", queue="work", all=True).value["jobs_would_be_changed"] == 2
    operator = Launchpad(resource(staff, Role.OPERATOR), instance)
    for verb, config in (
        ("show", {"id": job}),
        ("reprioritise", {"queue": "work", "ids": [job], "priority": 3, "dry_run": False}),
        ("reschedule", {"queue": "work", "ids": [job], "seconds": 0.0, "dry_run": False}),
        ("hold", {"queue": "work", "ids": [job], "dry_run": False}),
        ("release", {"queue": "work", "ids": [job], "dry_run": False}),
        ("cancel", {"queue": "work", "ids": [job], "dry_run": False}),
        ("redrive", {"queue": "work", "ids": [job], "dry_run": False}),
        ("pause", {"queue": "work", "dry_run": False}),
        ("resume", {"queue": "work", "dry_run": False}),
        ("rebucket", {"queue": "work", "buckets": 8, "dry_run": False}),
        ("assign", {"queue": "work", "by": "boss", "to": "anna", "ids": [task], "dry_run": False}),
    ):
        operator(verb, **config)
    assert staff.owner.job(job).state == "queued"


@pytest.mark.prove
def test_maintenance_is_an_operators(staff: Staff, instance: dg.DagsterInstance) -> None:
    job = build_maintenance_schedule().job
    for role in Role:
        done = job.execute_in_process(
            instance=instance, resources={"sqlqueue": resource(staff, role)}, raise_on_error=False
        )
        assert done.success is (role is Role.OPERATOR)


@pytest.mark.prove
def test_anybody_may_check_deadlines(staff: Staff, instance: dg.DagsterInstance) -> None:
    daily = QueueSpec("daily", DailyAccount)
    staff.owner.create_queue(daily)
    check = build_deadline_check(daily, lambda: [Account("a", "UTC")])
    job = dg.define_asset_job("deadlines", dg.AssetSelection.checks(check), executor_def=dg.in_process_executor)
    for role in Role:
        definitions = dg.Definitions(asset_checks=[check], jobs=[job], resources={"sqlqueue": resource(staff, role)})
        done = definitions.resolve_job_def("deadlines").execute_in_process(instance=instance, raise_on_error=False)
        assert done.success is (role is not Role.PRODUCER)


@pytest.mark.prove
def test_a_fan_out_is_a_producer(staff: Staff, instance: dg.DagsterInstance) -> None:
    daily = QueueSpec("daily", DailyAccount)
    staff.owner.create_queue(daily)
    days = dg.DailyPartitionsDefinition(start_date="2013-03-08", end_date="2013-03-11")
    asset = build_fanout_asset(daily, lambda: [Account("ATL", "America/New_York")], days)

    def materialise(role: Role, **how: Any) -> dg.ExecuteInProcessResult:
        return dg.materialize(
            [asset],
            instance=instance,
            resources={"sqlqueue": resource(staff, role)},
            tags={
                "dagster/asset_partition_range_start": "2013-03-08",
                "dagster/asset_partition_range_end": "2013-03-10",
            },
            **how,
        )

    assert not materialise(Role.OBSERVER, raise_on_error=False).success
    for _ in range(2):
        assert materialise(Role.PRODUCER).success
    assert staff.owner.depth("daily").ready == 3


class _Own(_Source):
    """The data source of Spark, asked without a Spark session."""


def _read(staff: Staff, role: Role, **options: str) -> list[dict[str, Any]]:
    class Own(_Own):
        _where = (url_of(staff.url, staff.user(role)), staff.schema)

    columns = json.dumps({"n": {"path": "payload.n", "type": "int"}})
    reader = Own({"queue": "work", "columns": columns, **options}).reader(StructType([StructField("n", IntegerType())]))
    found = [pa.Table.from_batches([batch]) for part in reader.partitions() for batch in reader.read(part)]
    return [row for table in found for row in table.to_pylist()]


@pytest.mark.prove
def test_an_asset_of_spark_is_a_consumer_and_reads_the_archive_as_an_observer(
    staff: Staff, spec: QueueSpec[Work]
) -> None:
    queue = staff.users[Role.CONSUMER]
    staff.users[Role.PRODUCER].enqueue_many(spec, [Work(n=n) for n in range(3)])
    migrations.check(queue.database)
    events = {"events": "work", "day_path": ["day"], "account_path": ["account"], "prefix": "sizes/"}
    span = {"queue": "work", "earliest": "2013-01-01", "latest": "2013-01-02", **events}
    span |= {"zoned": True, "day_zone": None, "zone_path": ["zone"]}
    queue.database.run("due_days", {**span, "cap": 10, "late": []})
    batch = batches.seal(queue, "work", "k", owner="run")
    read = _read(staff, Role.CONSUMER, state="batch", batch_id=str(batch.id))
    assert sorted(row["n"] for row in read) == [0, 1, 2]
    # The results are not the queue's: their table is in a schema of its own.
    place = f"{staff.schema}_results"
    rows(staff.owner, f'CREATE SCHEMA "{place}" AUTHORIZATION "{staff.user(Role.CONSUMER)}"')
    daily = pa.table({"day": pa.array([date(2013, 1, 1)]), "jobs": pa.array([3], pa.int64())})
    with batches.kept(queue, [batch]) as check, queue.database.transaction() as transaction:
        sinks.replace_days(transaction.connection, f"{place}.daily", daily, "day", ["day"], [date(2013, 1, 1)])
        batches.publish(queue, batch, transaction, output={"rows": 1})
        check()
    assert value(staff.owner, f"SELECT sum(jobs)::integer FROM {place}.daily") == 3
    # What has ended was somebody's: reading payloads of the archive takes the right to read.
    with pytest.raises(Exception, match="permission denied for table job_archive"):
        _read(staff, Role.CONSUMER)
    assert len(_read(staff, Role.OBSERVER)) == 3
    with staff.owner.database.connection() as connection:
        connection.execute(
            sql.SQL("GRANT {} TO {}").format(
                sql.Identifier(role_name(staff.schema, Role.OBSERVER)), sql.Identifier(staff.user(Role.CONSUMER))
            )
        )
    assert len(_read(staff, Role.CONSUMER)) == 3


@pytest.mark.prove
def test_metrics_are_an_observers(staff: Staff) -> None:
    for role, up in ((Role.OBSERVER, 1.0), (Role.PRODUCER, 0.0), (Role.CONSUMER, 0.0)):
        registry = CollectorRegistry()
        registry.register(QueueCollector(staff.users[role]))
        assert registry.get_sample_value("sqlqueue_up") == up
