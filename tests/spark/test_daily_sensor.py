"""The sensor of the daily asset, in Dagster."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.storage.runs.schema import RunsTable
from pyspark.sql import SparkSession

from dagster_sqlqueue import NewJob, SqlQueue
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.orchestration import SqlQueueResource
from dagster_sqlqueue.orchestration.fanout import DailyAccount
from dagster_sqlqueue.spark import batches, build_daily_sensor, sinks
from tests.gate.patience import PATIENCE, sized
from tests.spark.asset_support import Run, checks, daily_asset, data_versions
from tests.spark.daily_support import (
    DAILY,
    DAYS,
    consume,
    endings,
    expected,
    in_files,
    in_table,
    once,
    prepare,
)
from tests.spark.support import Done, archive
from tests.support import rows

SHARES_A_SCHEMA = True


@pytest.fixture
def asset(queue: SqlQueue, output: Path) -> dg.AssetsDefinition:
    return daily_asset(queue, output)


class Tick:
    """The sensor, evaluated by hand."""

    def __init__(self, asset: dg.AssetsDefinition, resources: dict[str, Any], instance: dg.DagsterInstance) -> None:
        self.sensor = build_daily_sensor(asset, DAILY)
        self.definitions = dg.Definitions(assets=[asset], sensors=[self.sensor], resources=resources)
        self.instance, self.queue = instance, resources["sqlqueue"]
        self.cursor: str | None = None

    def __call__(self) -> Any:
        given: dict[str, Any] = {
            "instance": self.instance,
            "resources": {"sqlqueue": self.queue},
            "cursor": self.cursor,
        }
        with dg.build_sensor_context(**given) as context:
            answer = self.sensor(context)
            self.cursor = context.cursor
        return answer


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


def test_a_year_of_due_days_is_asked_for_in_runs_of_a_month(
    queue: SqlQueue, output: Path, resources: dict[str, Any], instance: dg.DagsterInstance
) -> None:
    year = dg.DailyPartitionsDefinition(start_date="2013-01-01", end_date="2014-01-01")
    tick = Tick(daily_asset(queue, output, partitions_def=year), resources, instance)
    days = year.get_partition_keys()
    prepare(queue, days, [f"account {number}" for number in range(sized(2, 275))])
    asked: list[str] = []
    runs = 0
    while isinstance(request := tick(), dg.RunRequest):
        chosen = year.get_partition_keys_in_range(
            dg.PartitionKeyRange(*(request.tags[f"dagster/asset_partition_range_{end}"] for end in ("start", "end")))
        )
        rows(queue, "DELETE FROM {s}.job WHERE queue = 'daily' AND payload ->> 'day' = ANY(%s)", chosen)
        assert 0 < len(chosen) <= 31
        asked, runs = asked + list(chosen), runs + 1
    assert (asked, runs) == (days, 12)


def test_the_sensor_says_when_the_next_is_due(queue: SqlQueue, tick: Tick) -> None:
    queue.create_queue(DAILY)
    assert tick().skip_message == "daily: nothing due"
    payload = DailyAccount(account="ATL", day=DAYS[0], zone="UTC")  # type: ignore[arg-type]
    queue.enqueue(DAILY, NewJob(payload, run_at=datetime.now(UTC) + timedelta(seconds=600)))
    message = tick().skip_message
    assert message.startswith("daily: nothing due, next in ")
    assert 600 - PATIENCE <= int(message.split()[-2]) <= 600


def open_event(queue: SqlQueue, day: str, account: str) -> None:
    rows(
        queue,
        "INSERT INTO {s}.job (id, queue, bucket, priority, available_at, run_at, max_attempts, payload) VALUES"
        " (gen_random_uuid(), 'work', 0, 5, now() + interval '1 hour', now(), 3,"
        " jsonb_build_object('day', CAST(%s AS text), 'account', CAST(%s AS text)))",
        day,
        account,
    )


def test_the_sensor_waits_for_accounts_whose_day_is_still_open(queue: SqlQueue, tick: Tick) -> None:
    prepare(queue, DAYS[:2], ["ATL"])
    open_event(queue, DAYS[0], "ATL")
    open_event(queue, DAYS[1], "ATL")
    open_event(queue, DAYS[2], "ATL")
    assert tick().skip_message == f"daily: 2 jobs due for {DAYS[0]} to {DAYS[1]}; waiting for work to finish them"
    rows(queue, "DELETE FROM {s}.job WHERE queue = 'work' AND payload->>'day' = %s", DAYS[1])
    assert set(tick().tags.values()) == {DAYS[1]}


def test_days_whose_runs_fail_rest_and_do_not_keep_the_others_waiting(
    queue: SqlQueue, asset: dg.AssetsDefinition, tick: Tick
) -> None:
    prepare(queue)
    for _ in range(2):
        batch = batches.seal(queue, "daily", f"sizes/{DAYS[1]}", owner="run/1", filter={"day": DAYS[1]})
        batches.abandon(queue, batch, "the café is closed\nand why")
    assert set(tick().tags.values()) == {DAYS[0]}
    rows(queue, "DELETE FROM {s}.job WHERE queue = 'daily' AND payload ->> 'day' = %s", DAYS[0])
    assert set(tick().tags.values()) == {DAYS[2]}
    rows(queue, "DELETE FROM {s}.job WHERE queue = 'daily' AND payload ->> 'day' = %s", DAYS[2])
    message = tick().skip_message
    assert message.startswith(
        f"daily: the run of {DAYS[1]} failed 2 times in a row (the last time: the café is closed); it is asked for again in "
    )
    assert 60 - PATIENCE <= int(message.split()[-2]) <= 60
    rows(queue, "UPDATE {s}.batch SET lease_until = now() - interval '61 s'")
    assert set(tick().tags.values()) == {DAYS[1]}


def test_a_day_that_a_killed_run_left_behind_is_asked_for_when_its_lease_is_over(queue: SqlQueue, tick: Tick) -> None:
    prepare(queue, DAYS[:1])
    batches.seal(queue, "daily", f"sizes/{DAYS[0]}", owner="run/1", filter={"day": DAYS[0]}, lease_seconds=900)
    assert tick().skip_message == f"daily: {DAYS[0]} is held by 'run/1'"
    rows(queue, "UPDATE {s}.batch SET lease_until = now() - interval '31 s'")
    assert set(tick().tags.values()) == {DAYS[0]}


@pytest.mark.prove
def test_a_day_whose_files_were_not_moved_is_asked_for_and_they_are_moved(
    queue: SqlQueue, spark: SparkSession, output: Path, tick: Tick, monkeypatch: pytest.MonkeyPatch,
    asset: dg.AssetsDefinition, resources: dict[str, Any], instance: dg.DagsterInstance,
) -> None:  # fmt: skip
    prepare(queue, DAYS[:2])

    def killed(*arguments: object) -> None:
        raise KeyboardInterrupt

    run = Run(asset, resources, instance)
    assert run(DAYS[0]).success
    archive(queue, [Done({"day": DAYS[0], "account": "ATL", "size": 7})])
    with monkeypatch.context() as patched:
        patched.setattr(sinks, "move_into_place", killed)
        with pytest.raises(KeyboardInterrupt):
            consume(queue, spark, output, DAYS[:2], name="sizes")
    assert endings(queue) == once(DAYS[:2])
    request = tick()
    assert set(request.tags.values()) == {DAYS[0], DAYS[1]}
    assert in_files(output) != in_table(queue)
    assert run(DAYS[0], DAYS[1]).success
    assert in_files(output) == in_table(queue)
    assert "nothing due" in tick().skip_message


def test_runs_that_fail_before_they_seal_anything_are_asked_for_less_and_less_often(
    queue: SqlQueue, tick: Tick
) -> None:
    prepare(queue)
    job = tick.definitions.resolve_job_def("materialize_sizes")
    for _ in range(3):
        run = tick.instance.create_run_for_job(job, status=dg.DagsterRunStatus.STARTED)
        tick.instance.report_run_failed(run)
    message = tick().skip_message
    assert message.startswith("daily: the last 3 runs failed before they began; the next is asked for in ")
    assert 120 - PATIENCE <= int(message.split()[-2]) <= 120


def test_an_event_that_ends_late_makes_its_day_red_and_has_it_computed_again(
    queue: SqlQueue, session: SparkSession, output: Path, asset: dg.AssetsDefinition, tick: Tick,
    resources: dict[str, Any], instance: dg.DagsterInstance,
) -> None:  # fmt: skip
    prepare(queue, DAYS[:2])
    run = Run(asset, resources, instance)
    assert run(DAYS[0], DAYS[1]).success
    assert "nothing due" in tick().skip_message
    versions = data_versions(instance, DAYS[:2])
    # Of a day that is computed; of one that is not; of an account that is not among them.
    late = {"day": DAYS[0], "account": "ATL", "size": 7}
    archive(queue, [Done(late), Done({**late, "day": DAYS[2]}), Done({**late, "day": DAYS[1], "account": "nobody's"})])
    assert set(tick().tags.values()) == {DAYS[0]}
    check = dg.AssetCheckKey(asset.key, "no_event_late")
    (record,) = instance.event_log_storage.get_asset_check_execution_history(check, limit=1)
    evaluation: Any = record.event.dagster_event.event_specific_data  # type: ignore[union-attr]
    assert (evaluation.passed, evaluation.description) == (False, f"1 events of {DAYS[0]} ended after it was computed")
    # It is asked for until it was computed.
    assert set(tick().tags.values()) == {DAYS[0]}
    before = in_table(queue)
    again = run(DAYS[0])
    assert checks(again)["no_event_late"][0]
    assert in_table(queue) == in_files(output) != before
    assert "nothing due" in tick().skip_message
    now = data_versions(instance, DAYS[:2])
    assert now[DAYS[0]] != versions[DAYS[0]]
    assert now[DAYS[1]] == versions[DAYS[1]]
    assert checks(run(DAYS[0], DAYS[1]))["no_event_late"][0]
    assert data_versions(instance, DAYS[:1]) == {DAYS[0]: now[DAYS[0]]}


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
    tick.instance.report_run_canceled(run)
    assert isinstance(tick(), dg.RunRequest)


@pytest.mark.parametrize("status", [dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.STARTED])
def test_a_run_that_dagster_has_forgotten_does_not_stop_the_sensor(
    queue: SqlQueue, tick: Tick, status: dg.DagsterRunStatus
) -> None:
    prepare(queue, DAYS[:2])
    job = tick.definitions.resolve_job_def("materialize_sizes")
    run = tick.instance.create_run_for_job(job, status=status)
    batches.seal(
        queue,
        "daily",
        f"sizes/{DAYS[0]}",
        owner=f"run/{run.run_id}",
        filter={"day": DAYS[0]},
        lease_seconds=86_400,
    )
    assert tick().skip_message == "daily: a run is consuming already"
    with tick.instance.run_storage.connect() as connection:  # type: ignore[attr-defined]
        long_ago = datetime.now(UTC).replace(tzinfo=None) - timedelta(hours=6.1)
        connection.execute(RunsTable.update().values(create_timestamp=long_ago))
    # Not what the other one holds, should it go on after all.
    assert set(tick().tags.values()) == {DAYS[1]}


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
        build_daily_sensor(plain, DAILY)
