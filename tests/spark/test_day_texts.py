"""Which text is a day: the same one for what an asset reads, for what it counts, and for which days are open."""

from datetime import date, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from pyspark.sql import DataFrameReader, SparkSession

from dagster_sqlqueue import SqlQueue
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.spark import batches, contents, local_days
from dagster_sqlqueue.spark.closed_days import check_closed
from dagster_sqlqueue.spark.contents import Days
from tests.spark import asset_support
from tests.spark.archive_support import Run, checks, compute
from tests.spark.asset_support import daily_asset, shown
from tests.spark.daily_support import DAILY, READS, add, in_table
from tests.spark.support import Done, archive, listed
from tests.spark.test_daily_sensor import Tick
from tests.spark.test_local_days import put
from tests.support import rows

SHARES_A_SCHEMA = True

DAY, OTHER = "2013-03-09", "2013-03-10"
GOOD = [
    DAY,
    f"{DAY}T00:00:00",
    f"{DAY} 23:59",
    f"{DAY}T23:59:59.123456789Z",
    f"{DAY}T23:59:59-14:00",
    f"{DAY} 01:00 +0530",
]
"""Texts of the day, whatever time and offset are beside it."""
BAD = [
    "2013-3-9",
    f"{DAY} evening",
    f"{DAY}T24:00",
    f"{DAY}T10",
    f"{DAY}T10:00:00Z; SELECT 1",
    f"{DAY}T10:00\nT10:00",
    f" {DAY}",
    f"{DAY} ",
    f"{DAY}9",
    f"{DAY}0",
    "20130309",
    "3/9/2013",
    "9 March 2013",
    "2013-02-30",
    "soon",
    "",
    7,
    None,
    {"day": DAY},
]
"""What is no day, though the database casts some of it to one."""


def events(texts: list[Any], account: str = "ATL") -> list[dict[str, Any]]:
    return [{"day": text, "account": account, "size": 10**n} for n, text in enumerate(texts)]


ABOUT = Days("work", ("succeeded",), "UTC", day="payload.day", account="payload.account")
UPSTREAM = contents.Upstream("work", ["day"], ["account"])


def test_texts_of_a_day_are_its_jobs_for_every_count(queue: SqlQueue) -> None:
    archive(queue, [Done(one) for one in events([*GOOD, *BAD])])
    held = contents.held(queue, ABOUT, [DAY, OTHER])
    assert {day: one.jobs for day, one in held.items()} == {DAY: {"ATL": len(GOOD)}, OTHER: {}}
    assert {day: one.jobs for day, one in contents.stats(queue, ABOUT, [DAY, OTHER]).items()} == {DAY: len(GOOD)}
    ((found,),) = rows(
        queue,
        "SELECT array_agg(DISTINCT {s}.day_of(named)) FROM unnest(CAST(%s AS text[])) AS good (named)"
        " WHERE CAST(CAST(named AS date) AS text) = {s}.day_of(named)",
        GOOD,
    )
    assert found == [DAY]


@pytest.mark.parametrize("on_bad_value", ["fail", "null"])
def test_a_read_has_the_same_jobs(queue: SqlQueue, reader: DataFrameReader, on_bad_value: str) -> None:
    archive(queue, [Done(one) for one in events([*GOOD, *BAD])])
    read = reader.options(payload="day date, size string", on_bad_value=on_bad_value)
    read = read.schema("day date, size string").option("where", local_days.condition([DAY, OTHER]))
    assert listed(read.load()) == sorted(((date(2013, 3, 9), str(10**n)) for n in range(len(GOOD))), key=repr)


def test_open_events_keep_their_day_open_and_others_none(queue: SqlQueue) -> None:
    bad = [text for text in BAD if isinstance(text, str)]
    put(queue, [*events(GOOD[-1:], "good"), *events(bad, "bad")])
    queue.create_queue(DAILY)
    add(queue, [DAY], ["good", "bad"])
    assert contents.accounts(queue, "daily", [DAY], UPSTREAM)[DAY].open == {"good": 1}
    held: list[batches.Batch] = []
    sealed = {"owner": "t", "held": held, "closed": UPSTREAM.parameters()}
    batches.seal_days(queue, "daily", {f"t/{DAY}": DAY}, **sealed)  # type: ignore[arg-type]
    assert [batch.job_count for batch in held] == [1]
    batches.abandon(queue, held[0], "the test is over")
    ((now,),) = queue.database.run("clock", {})
    with pytest.raises(InvalidInput, match=f"{DAY} is not closed: 1 jobs of it"):
        check_closed(queue, ABOUT, [DAY], now)
    rows(queue, "DELETE FROM {s}.job WHERE payload ->> 'account' = 'good'")
    check_closed(queue, ABOUT, [DAY], now)


def test_an_archive_asset_leaves_out_what_is_no_day(queue: SqlQueue, session: SparkSession, run: Run) -> None:
    asset = run.asset(compute, reads=READS)
    archive(queue, [Done({"day": DAY, "account": "ATL", "size": 1})])
    assert checks(run(DAY, asset=asset))["rows_in_rows_out"]
    archive(queue, [Done({"day": text, "account": "ATL", "size": 10}) for text in BAD])
    again = run(DAY, asset=asset, spark=False)
    assert again.success
    assert shown(again)[DAY]["unchanged"]
    archive(queue, [Done({"day": text, "account": "ATL", "size": 100}) for text in GOOD])
    done = run(DAY, asset=asset)
    assert checks(done) == {"rows_in_rows_out": True, "no_account_missing": True}
    assert run.in_table() == [(date(2013, 3, 9), "ATL", 1 + len(GOOD), 1 + 100 * len(GOOD))]


def test_a_daily_asset_leaves_out_what_is_no_day(
    queue: SqlQueue, session: SparkSession, output: Path, resources: dict[str, Any], instance: dg.DagsterInstance
) -> None:
    first, second = asset_support.PARTITIONS.get_partition_keys()[:2]
    queue.create_queue(DAILY)
    add(queue, [first], ["ATL"])
    texts = [first, f"{first}T10:00:00", f"{first} evening", "2013-1-1"]
    archive(queue, [Done(one) for one in events(texts)])
    put(queue, events([f"{first} evening", "2013-1-1"]))
    run = asset_support.Run(daily_asset(queue, output, output=None), resources, instance)
    done = run(first)
    assert asset_support.not_passed(done) == {}
    assert in_table(queue) == [(date.fromisoformat(first), "ATL", 2, 11)]
    assert second == (date.fromisoformat(first) + timedelta(days=1)).isoformat()


def test_the_sensor_notes_no_late_event_of_what_is_no_day(
    queue: SqlQueue, output: Path, resources: dict[str, Any], instance: dg.DagsterInstance
) -> None:
    first = asset_support.PARTITIONS.get_partition_keys()[0]
    queue.create_queue(DAILY)
    add(queue, [first], ["ATL"])
    put(queue, events([f"{first} evening"]))
    tick = Tick(daily_asset(queue, output), resources, instance)
    assert tick().tags["dagster/asset_partition_range_start"] == first
    held: list[batches.Batch] = []
    with batches.kept(queue, held):
        batches.seal_days(queue, "daily", {f"sizes/{first}": first}, owner="t", held=held)
        with queue.database.transaction() as transaction:
            batches.publish(queue, held[0], transaction, output={})
    archive(queue, [Done(one) for one in events([f"{first} evening", "2013-1-1"])])
    assert not hasattr(tick(), "tags")
    archive(queue, [Done(one) for one in events([f"{first} 10:00"])])
    assert tick().tags["dagster/asset_partition_range_start"] == first


def test_the_sensor_asks_for_no_day_that_is_none(
    queue: SqlQueue, output: Path, resources: dict[str, Any], instance: dg.DagsterInstance
) -> None:
    first, second = asset_support.PARTITIONS.get_partition_keys()[:2]
    queue.create_queue(DAILY)
    add(queue, [first], ["ATL"])
    rows(
        queue, "UPDATE {s}.job SET payload = payload || jsonb_build_object('day', CAST(%s AS text))", f"{first} evening"
    )
    tick = Tick(daily_asset(queue, output), resources, instance)
    assert "no job is due for one of the asset's partitions" in str(tick().skip_message)
    add(queue, [second], ["ATL"])
    assert tick().tags["dagster/asset_partition_range_start"] == second
