"""The daily asset and its sensor, in Dagster."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import DataFrame, SparkSession

from dagster_sqlqueue import NewJob, QueueSpec, SqlQueue
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.orchestration import SqlQueueResource
from dagster_sqlqueue.orchestration.fanout import DailyAccount
from dagster_sqlqueue.spark.assets import SparkResource, build_daily_sensor, sqlqueue_daily_asset
from tests.core.support import rows
from tests.spark.daily_support import (
    DAILY,
    DAYS,
    READS,
    compute,
    endings,
    expected,
    in_files,
    in_table,
    once,
    prepare,
    table,
)

PARTITIONS = dg.DailyPartitionsDefinition(start_date=DAYS[0], end_date="2013-01-10")


def figures(result: pa.Table) -> dict[str, int | float]:
    return {"events": pc.sum(result["events"]).as_py()}


@pytest.fixture
def asset(queue: SqlQueue, output: Path) -> dg.AssetsDefinition:
    @sqlqueue_daily_asset(
        DAILY, reads=READS, partitions_def=PARTITIONS, table=table(queue), output=lambda: output, figures=figures
    )
    def sizes(events: DataFrame) -> DataFrame:
        """Each account's day."""
        return compute(events)

    return sizes


@pytest.fixture
def resources(queue: SqlQueue, url: str) -> dict[str, Any]:
    return {"sqlqueue": SqlQueueResource(url=url, schema_name=queue.database.schema), "spark": SparkResource()}


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral(tempdir=str(tmp_path)) as instance:
        yield instance


def test_one_partition_is_materialised(
    queue: SqlQueue, session: SparkSession, output: Path, asset: dg.AssetsDefinition, resources: dict[str, Any],
    instance: dg.DagsterInstance,
) -> None:  # fmt: skip
    prepare(queue)
    done = dg.materialize([asset], partition_key=DAYS[0], resources=resources, instance=instance)
    assert done.success
    assert in_table(queue) == in_files(output) == expected(DAYS[:1])
    assert endings(queue) == once(DAYS[:1])
    (event,) = done.asset_materializations_for_node("sizes")
    assert event.partition == DAYS[0]
    found = {name: value.value for name, value in event.metadata.items()}
    assert found["dagster/partition_row_count"] == found["jobs_consumed"] == 3
    assert found["events"] == sum(events for _, _, events, _ in expected(DAYS[:1]))
    assert found["parquet"] == str(output)
    assert session.range(2).count() == 2
    assert rows(queue, "SELECT DISTINCT claimed_by FROM {s}.job_archive WHERE queue = 'daily'") == [
        (f"run/{done.run_id}",)
    ]


def test_a_range_of_partitions_is_one_run(
    queue: SqlQueue, session: SparkSession, output: Path, asset: dg.AssetsDefinition, resources: dict[str, Any],
    instance: dg.DagsterInstance,
) -> None:  # fmt: skip
    prepare(queue)
    tags = {"dagster/asset_partition_range_start": DAYS[0], "dagster/asset_partition_range_end": "2013-01-04"}
    done = dg.materialize([asset], tags=tags, resources=resources, instance=instance)
    assert in_table(queue) == in_files(output) == expected(DAYS)
    counts = {
        event.partition: event.metadata["dagster/partition_row_count"].value
        for event in done.asset_materializations_for_node("sizes")
    }
    assert counts == {DAYS[0]: 3, DAYS[1]: 2, DAYS[2]: 3, "2013-01-04": 0}


def test_the_asset_says_what_it_comes_from(asset: dg.AssetsDefinition, queue: SqlQueue) -> None:
    spec = asset.get_asset_spec(dg.AssetKey("sizes"))
    assert {dep.asset_key.to_user_string() for dep in spec.deps} == {"queues/work", "queues/daily"}
    assert spec.description == "Each account's day."
    assert spec.metadata["dagster/table_name"] == table(queue)
    assert {"spark", "parquet", "postgres"} <= spec.kinds


class Tick:
    """The sensor, evaluated by hand."""

    def __init__(self, asset: dg.AssetsDefinition, resources: dict[str, Any], instance: dg.DagsterInstance) -> None:
        self.sensor = build_daily_sensor(asset, DAILY, upstream="work")
        self.definitions = dg.Definitions(assets=[asset], sensors=[self.sensor], resources=resources)
        self.instance, self.queue = instance, resources["sqlqueue"]

    def __call__(self) -> Any:
        with dg.build_sensor_context(instance=self.instance, resources={"sqlqueue": self.queue}) as context:
            return self.sensor(context)


@pytest.fixture
def tick(asset: dg.AssetsDefinition, resources: dict[str, Any], instance: dg.DagsterInstance) -> Tick:
    return Tick(asset, resources, instance)


def test_the_sensor_asks_for_one_run_for_the_days_that_are_due(queue: SqlQueue, tick: Tick) -> None:
    prepare(queue, [DAYS[2], DAYS[0]])
    request = tick()
    assert isinstance(request, dg.RunRequest)
    assert request.run_key is None
    assert request.tags == {
        "dagster/asset_partition_range_start": DAYS[0],
        "dagster/asset_partition_range_end": DAYS[2],
    }


def test_the_run_that_the_sensor_asks_for_consumes_the_days(
    queue: SqlQueue, session: SparkSession, output: Path, tick: Tick
) -> None:
    prepare(queue)
    request = tick()
    job = tick.definitions.resolve_job_def("materialize_sizes")
    assert job.execute_in_process(tags=request.tags, instance=tick.instance).success
    assert in_table(queue) == in_files(output) == expected(DAYS)
    assert "nothing due" in tick().skip_message


def test_the_sensor_says_when_the_next_is_due(queue: SqlQueue, tick: Tick) -> None:
    queue.create_queue(DAILY)
    assert tick().skip_message == "daily: nothing due"
    payload = DailyAccount(account="ATL", day=DAYS[0], zone="UTC")  # type: ignore[arg-type]
    queue.enqueue(DAILY, NewJob(payload, run_at=datetime.now(UTC) + timedelta(seconds=600)))
    message = tick().skip_message
    assert message.startswith("daily: nothing due, next in ")
    assert 590 <= int(message.split()[-2]) <= 600


def test_the_sensor_waits_while_a_day_is_still_open(queue: SqlQueue, tick: Tick, spec: QueueSpec[Any]) -> None:
    prepare(queue, DAYS[:2])
    rows(
        queue,
        "INSERT INTO {s}.job (id, queue, bucket, priority, available_at, run_at, max_attempts, payload) SELECT"
        " gen_random_uuid(), 'work', 0, 5, now() + interval '1 hour', now(), 3, jsonb_build_object('day', day)"
        " FROM unnest(%s::text[]) AS day",
        [DAYS[1], DAYS[2]],
    )
    message = tick().skip_message
    assert message == f"daily: 6 jobs due for {DAYS[0]} to {DAYS[1]}; waiting for work to finish them"
    rows(queue, "DELETE FROM {s}.job WHERE queue = 'work' AND payload->>'day' = %s", DAYS[1])
    assert isinstance(tick(), dg.RunRequest)


def test_the_sensor_asks_for_no_partition_that_is_not_there(queue: SqlQueue, tick: Tick) -> None:
    prepare(queue, ["2012-12-31", "2013-01-10"])
    assert (
        tick().skip_message == "daily: no job is due for one of the asset's partitions (from 2013-01-01 to 2013-01-09)"
    )
    prepare(queue, [DAYS[1]])
    assert set(tick().tags.values()) == {DAYS[1]}


def test_the_sensor_starts_no_second_run(queue: SqlQueue, tick: Tick) -> None:
    prepare(queue)
    job = tick.definitions.resolve_job_def("materialize_sizes")
    run = tick.instance.create_run_for_job(job, status=dg.DagsterRunStatus.STARTED)
    assert tick().skip_message == "daily: a run is consuming already"
    tick.instance.report_run_failed(run)
    assert isinstance(tick(), dg.RunRequest)


def test_a_database_that_is_gone_fails_the_tick_without_its_password(
    asset: dg.AssetsDefinition, resources: dict[str, Any], instance: dg.DagsterInstance
) -> None:
    gone = {**resources, "sqlqueue": SqlQueueResource(url="postgresql://me:hunter2@/x?host=/nowhere", schema_name="s")}
    with pytest.raises(Exception, match="cannot use the database") as caught:
        Tick(asset, gone, instance)()
    assert "hunter2" not in str(caught.value)


def test_an_asset_without_days_has_no_sensor() -> None:
    @dg.asset
    def plain() -> None: ...

    with pytest.raises(InvalidInput, match="asset plain has no daily partitions"):
        build_daily_sensor(plain, DAILY, upstream="work")


def test_a_failed_computation_fails_the_run_and_says_why(
    queue: SqlQueue, session: SparkSession, output: Path, resources: dict[str, Any], instance: dg.DagsterInstance
) -> None:
    prepare(queue, DAYS[:1])

    @sqlqueue_daily_asset(
        DAILY, reads=READS, partitions_def=PARTITIONS, table=table(queue), output=lambda: output, name="named"
    )
    def closed(events: DataFrame) -> DataFrame:
        raise RuntimeError("the café is closed")

    assert closed.key == dg.AssetKey("named")
    done = dg.materialize([closed], partition_key=DAYS[0], resources=resources, instance=instance, raise_on_error=False)
    assert not done.success
    assert in_table(queue) == in_files(output) == []
    errors = rows(queue, "SELECT DISTINCT error FROM {s}.job WHERE queue = 'daily'")
    assert errors == [("the batch's run failed: RuntimeError: the café is closed",)]
