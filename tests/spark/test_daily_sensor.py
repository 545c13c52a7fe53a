"""The sensor of the daily asset, in Dagster."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from pyspark.sql import SparkSession

from dagster_sqlqueue import NewJob, QueueSpec, SqlQueue
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.orchestration import SqlQueueResource
from dagster_sqlqueue.orchestration.fanout import DailyAccount
from dagster_sqlqueue.spark.assets import build_daily_sensor
from tests.gate.patience import PATIENCE
from tests.spark.asset_support import daily_asset
from tests.spark.daily_support import DAILY, DAYS, expected, in_files, in_table, prepare
from tests.support import rows

SHARES_A_SCHEMA = True


@pytest.fixture
def asset(queue: SqlQueue, output: Path) -> dg.AssetsDefinition:
    return daily_asset(queue, output)


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
    assert 600 - PATIENCE <= int(message.split()[-2]) <= 600


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
