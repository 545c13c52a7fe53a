"""The daily asset, in Dagster."""

import shutil
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from pyspark.sql import DataFrame, SparkSession

from dagster_sqlqueue import NewJob, Selection, SqlQueue
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.orchestration import queue_asset_key
from dagster_sqlqueue.orchestration.fanout import DailyAccount
from dagster_sqlqueue.spark.assets import sqlqueue_daily_asset
from tests.spark.asset_support import (
    NOBODYS,
    PARTITIONS,
    Run,
    checks,
    daily_asset,
    data_versions,
    not_passed,
    shown,
    versions,
)
from tests.spark.daily_support import (
    DAILY,
    DAYS,
    READS,
    add,
    compute,
    endings,
    expected,
    in_files,
    in_table,
    once,
    prepare,
    table,
)
from tests.spark.support import Done, archive
from tests.support import rows

SHARES_A_SCHEMA = True


def test_it_comes_from_its_queues_under_the_keys_that_their_assets_have(tmp_path: Path) -> None:
    ours = dg.AssetKey(["ours", READS.queue])
    build = sqlqueue_daily_asset(
        DAILY,
        reads=READS,
        partitions_def=PARTITIONS,
        table="t",
        output=lambda: tmp_path,
        name="sizes",
        asset_keys={READS.queue: ours},
    )
    assert set(build(compute).asset_deps[dg.AssetKey("sizes")]) == {ours, queue_asset_key(DAILY.name)}


@pytest.fixture
def asset(queue: SqlQueue, output: Path) -> dg.AssetsDefinition:
    return daily_asset(queue, output)


@pytest.mark.prove
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


@pytest.mark.prove
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


@pytest.fixture
def run(asset: dg.AssetsDefinition, resources: dict[str, Any], instance: dg.DagsterInstance) -> Run:
    return Run(asset, resources, instance)


@pytest.fixture
def without_spark(run: Run) -> Run:
    return run.without_spark()


def test_a_day_shows_its_columns_waits_and_hours_and_is_checked(
    queue: SqlQueue, session: SparkSession, run: Run
) -> None:
    prepare(queue)
    done = run(DAYS[0])
    day = shown(done)[DAYS[0]]
    assert list(day)[:4] == ["events", "accounts", "jobs_consumed", "dagster/partition_row_count"]
    # All of them, with those of nobody's account: 1 + 2 + 3 + 4, run an hour after, for a minute, at noon.
    assert (day["jobs_read"], day["jobs_failed"], day["attempts"], day["accounts"]) == (10, 0, 10, 3)
    assert (day["wait_p50_seconds"], day["wait_p99_seconds"]) == (3540.0, 3540.0)
    assert (day["run_p50_seconds"], day["run_p95_seconds"]) == (60.0, 60.0)
    assert f"12:00 {'█' * 30}        10" in day["per_hour"]
    assert f"11:00 {' ' * 30}         0" in day["per_hour"]
    columns = {one.name: (one.type, one.description) for one in day["dagster/column_schema"].columns}
    assert columns == {
        "day": ("date", None),
        "account": ("text", None),
        "events": ("bigint", None),
        "size": ("bigint", "In bytes."),
    }
    assert versions(done) == [day["sqlqueue/contents"]]
    assert checks(done) == {
        "rows_in_rows_out": (True, "6 archived jobs of 1 days are in the results."),
        "no_account_missing": (
            False,
            f"1 wrong; the first: {DAYS[0]}: nobody's has 4 archived jobs of it and no daily job, and is not in the"
            " results.",
        ),
        "nothing_queued_past_deadline": (True, "0 jobs are on the queue, none past its deadline."),
        "no_event_late": (True, "1 days are computed from what is archived."),
        "no_event_open": (True, "0 events are open, none of an account that is done with its day or due."),
    }


def test_a_day_of_which_nothing_changed_is_a_no_op_and_starts_no_spark(
    queue: SqlQueue, session: SparkSession, output: Path, run: Run, without_spark: Run, instance: dg.DagsterInstance
) -> None:
    prepare(queue)
    first = run(DAYS[0], DAYS[2])
    assert first.success
    again = without_spark(DAYS[0], DAYS[2])
    assert again.success
    assert {day: one["unchanged"] for day, one in shown(first).items()} == dict.fromkeys(DAYS, False)
    assert {day: one["unchanged"] for day, one in shown(again).items()} == dict.fromkeys(DAYS, True)
    for day in DAYS:
        assert {**shown(again)[day], "unchanged": False, "days_computed": "3 of 3"} == shown(first)[day]
    assert not_passed(again) == NOBODYS
    # Each day has its own data version, of what it is made of, alone or in a range.
    before = data_versions(instance)
    assert before == {day: one["sqlqueue/contents"] for day, one in shown(first).items()}
    assert len(set(before.values())) > 1
    assert versions(without_spark(DAYS[0])) == [before[DAYS[0]]]
    assert data_versions(instance) == before
    # What changes a day: an event more, a job more, an output that is gone, or somebody who asks for it.
    assert not without_spark(DAYS[0], recompute=True).success
    archive(queue, [Done({"day": DAYS[1], "account": "ATL", "size": 7})])
    assert not without_spark(DAYS[1]).success
    assert without_spark(DAYS[0]).success
    mixed = run(DAYS[0], DAYS[2])
    assert {day: one["unchanged"] for day, one in shown(mixed).items()} == {
        DAYS[0]: True,
        DAYS[1]: False,
        DAYS[2]: True,
    }
    assert shown(mixed)[DAYS[1]]["dagster/partition_row_count"] == 2
    after = data_versions(instance)
    assert [day for day in DAYS if after[day] != before[day]] == [DAYS[1]]
    assert in_table(queue) == in_files(output) != expected(DAYS)
    shutil.rmtree(output / f"day={DAYS[0]}")
    assert not without_spark(DAYS[0]).success
    assert run(DAYS[0]).success
    assert in_files(output) == in_table(queue)


@pytest.mark.prove
def test_a_day_that_a_run_left_open_is_computed_again(queue: SqlQueue, session: SparkSession, run: Run) -> None:
    prepare(queue, days=DAYS[:1], accounts=["ATL"])
    first = run(DAYS[0])
    add(queue, DAYS[:1], ["BOS"])
    again = run(DAYS[0])
    assert [shown(done)[DAYS[0]]["dagster/partition_row_count"] for done in (first, again)] == [1, 2]
    assert versions(first) != versions(again)
    assert not shown(again)[DAYS[0]]["unchanged"]


def test_a_check_names_what_was_lost(
    queue: SqlQueue, session: SparkSession, output: Path, run: Run, without_spark: Run
) -> None:
    prepare(queue)
    assert run(DAYS[0]).success
    rows(queue, "DELETE FROM {s}.results WHERE account = 'BOS'")
    assert checks(without_spark(DAYS[0])) == {
        "rows_in_rows_out": (
            False,
            f"2 wrong; the first: {DAYS[0]}: 3 rows were computed; there are 2 in the table, 3 in the Parquet files.",
        ),
        "no_account_missing": (False, f"2 wrong; the first: {DAYS[0]}: BOS is not in the table."),
        "nothing_queued_past_deadline": (True, "0 jobs are on the queue, none past its deadline."),
        "no_event_late": (True, "1 days are computed from what is archived."),
        "no_event_open": (True, "0 events are open, none of an account that is done with its day or due."),
    }


def test_a_job_that_stays_on_the_queue_past_its_deadline_is_named(
    queue: SqlQueue, session: SparkSession, run: Run
) -> None:
    prepare(queue, days=DAYS[:1], accounts=["ATL"])
    # Not due for a long time, though its day's deadline was 2013-01-02 08:00 in Chicago.
    late = DailyAccount(account="ORD", day=date.fromisoformat(DAYS[0]), zone="America/Chicago")
    queue.enqueue_many(DAILY, [NewJob(late, run_at=datetime.now(UTC) + timedelta(days=1))])
    done = run(DAYS[0])
    assert done.success
    assert checks(done)["nothing_queued_past_deadline"] == (
        False,
        f"1 wrong; the first: {DAYS[0]}: ORD was to be done by 2013-01-02 14:00:00Z.",
    )


def test_an_account_whose_day_is_open_is_left_and_named(queue: SqlQueue, session: SparkSession, run: Run) -> None:
    prepare(queue, days=DAYS[:2])
    # One at work, one that is to come again, one of another day: each by the fields that the asset reads.
    for day, account, state in ((DAYS[0], "ATL", "running"), (DAYS[0], "BOS", "held"), (DAYS[1], "ATL", "queued")):
        rows(
            queue,
            "INSERT INTO {s}.job (id, queue, bucket, priority, state, available_at, run_at, max_attempts, payload) VALUES"
            " (gen_random_uuid(), 'work', 1, 5, %s, '9000-01-01', now(), 3,"
            " jsonb_build_object('day', CAST(%s AS text), 'account', CAST(%s AS text)))",
            state,
            f"{day}T12:00:00Z" if state == "held" else day,
            account,
        )
    done = run(DAYS[0])
    assert done.success
    assert in_table(queue) == expected(DAYS[:1], ["O'Hare"])
    assert checks(done)["no_event_open"] == (
        False,
        f"2 wrong; the first: {DAYS[0]}: the job of ATL is left on the queue: 1 events of it are open.",
    )
    rows(queue, "DELETE FROM {s}.job WHERE queue = 'work' AND payload ->> 'day' <> %s", DAYS[1])
    done = run(DAYS[0])
    assert in_table(queue) == expected(DAYS[:1])
    assert not_passed(done) == NOBODYS


def test_an_event_of_a_day_that_is_done_makes_it_red(queue: SqlQueue, session: SparkSession, run: Run) -> None:
    prepare(queue, days=DAYS[:1])
    assert run(DAYS[0]).success
    rows(
        queue,
        "INSERT INTO {s}.job (id, queue, bucket, priority, available_at, run_at, max_attempts, payload) SELECT"
        " gen_random_uuid(), 'work', 0, 5, now(), now(), 3, payload FROM {s}.job_archive WHERE queue = 'work'"
        " AND payload ->> 'day' = %s AND payload ->> 'account' = 'ATL'",
        DAYS[0],
    )
    assert checks(run.without_spark()(DAYS[0]))["no_event_open"] == (
        False,
        f"1 wrong; the first: {DAYS[0]}: the job of ATL is done, and 1 events of it are open.",
    )


def test_a_day_with_a_dead_account_is_red(queue: SqlQueue, session: SparkSession, run: Run) -> None:
    prepare(queue, days=DAYS[:1])
    assert run(DAYS[0]).success
    rows(queue, "UPDATE {s}.job_archive SET state = 'failed' WHERE queue = 'daily'")
    done = run(DAYS[0])
    assert done.success
    assert shown(done)[DAYS[0]]["dagster/partition_row_count"] == 0
    assert not_passed(done)["no_account_missing"] == "ERROR"
    assert checks(done)["no_account_missing"] == (
        False,
        f"4 wrong; the first: {DAYS[0]}: the job of ATL is in the dead letter: see its error, and redrive it.",
    )
    queue.redrive("daily", Selection(all=True))
    again = run(DAYS[0])
    assert in_table(queue) == expected(DAYS[:1])
    assert not_passed(again) == NOBODYS


@pytest.mark.prove
@pytest.mark.parametrize("ticks", [5])
def test_a_computation_that_raises_again_and_again_costs_no_job_anything(
    queue: SqlQueue, session: SparkSession, output: Path, run: Run, resources: dict[str, Any],
    instance: dg.DagsterInstance, ticks: int,
) -> None:  # fmt: skip
    prepare(queue)

    def broken() -> None:
        raise RuntimeError("the café is closed")

    failing = Run(daily_asset(queue, output, broken), resources, instance)
    for _ in range(ticks):
        assert not failing(DAYS[0], DAYS[2]).success
    assert rows(queue, "SELECT state, attempt, count(*) FROM {s}.job WHERE queue = 'daily' GROUP BY 1, 2") == [
        ("queued", 0, 9)
    ]
    assert rows(queue, "SELECT max(attempt) FROM {s}.batch") == [(ticks,)]
    assert run(DAYS[0], DAYS[2]).success
    assert in_table(queue) == in_files(output) == expected(DAYS)
    assert endings(queue) == once()


def test_a_run_says_plainly_why_it_has_no_session(queue: SqlQueue, session: SparkSession, without_spark: Run) -> None:
    prepare(queue, days=DAYS[:1])
    done = without_spark(DAYS[0])
    (failure,) = [event.step_failure_data for event in done.get_step_failure_events()]
    assert "session_factory 'no.such:session'" in (failure.user_failure_data.description or "")
    assert in_table(queue) == []


def test_the_asset_says_what_it_comes_from(asset: dg.AssetsDefinition, queue: SqlQueue) -> None:
    spec = asset.get_asset_spec(dg.AssetKey("sizes"))
    assert {dep.asset_key.to_user_string() for dep in spec.deps} == {"queues/work", "queues/daily"}
    assert spec.description == "Each account's day."
    assert spec.metadata["dagster/table_name"] == table(queue)
    assert {"spark", "parquet", "postgres"} <= spec.kinds


def test_a_failed_computation_fails_the_run_and_says_why(
    queue: SqlQueue, session: SparkSession, output: Path, resources: dict[str, Any], instance: dg.DagsterInstance
) -> None:
    prepare(queue, DAYS[:1])
    long: list[Any] = []

    @sqlqueue_daily_asset(
        DAILY,
        reads=READS,
        partitions_def=PARTITIONS,
        table=table(queue),
        output=lambda: output,
        name="named",
        lease_seconds=900,
    )
    def closed(events: DataFrame) -> DataFrame:
        long.extend(rows(queue, "SELECT lease_until > now() + interval '10 minutes' FROM {s}.batch"))
        raise RuntimeError("the café is closed")

    with pytest.raises(InvalidInput, match="lease_seconds is 0; it must be positive"):
        daily_asset(queue, output, lease_seconds=0)
    assert closed.key == dg.AssetKey("named")
    done = dg.materialize([closed], partition_key=DAYS[0], resources=resources, instance=instance, raise_on_error=False)
    assert not done.success
    assert long == [(True,)]
    assert in_table(queue) == in_files(output) == []
    errors = rows(queue, "SELECT DISTINCT error FROM {s}.job WHERE queue = 'daily'")
    assert errors == [("the batch's run failed: RuntimeError: the café is closed",)]
