"""The daily asset with days of a time zone of their own: the results are those of the payloads' days, the hours those of the
zone's clocks.
"""

from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from pyspark.sql import SparkSession

from dagster_sqlqueue import SqlQueue
from tests.spark.asset_support import NOBODYS, Run, daily_asset, not_passed, shown
from tests.spark.daily_support import DAYS, add, endings, expected, in_files, in_table, once, prepare

SHARES_A_SCHEMA = True


# The events ran at noon in UTC: 07:00, 02:00 of the next day, and 17:30.
@pytest.mark.parametrize(
    ("zone", "hour"),
    [
        ("America/New_York", 7),
        pytest.param("Pacific/Kiritimati", 2, marks=pytest.mark.prove),
        pytest.param("Asia/Kolkata", 17, marks=pytest.mark.prove),
    ],
)
def test_days_of_another_zone(
    queue: SqlQueue,
    session: SparkSession,
    output: Path,
    resources: dict[str, Any],
    instance: dg.DagsterInstance,
    zone: str,
    hour: int,
) -> None:
    days = dg.DailyPartitionsDefinition(start_date=DAYS[0], end_date="2013-01-10", timezone=zone)
    run = Run(daily_asset(queue, output, partitions_def=days), resources, instance)
    prepare(queue, DAYS[:1])
    done = run(DAYS[0])
    assert not_passed(done) == NOBODYS
    assert in_table(queue) == in_files(output) == expected(DAYS[:1])
    busy = [line for line in shown(done)[DAYS[0]]["per_hour"].splitlines() if "█" in line]
    assert [line[:5] for line in busy] == [f"{hour:02}:00"]
    add(queue, DAYS[1:], ["ATL", "BOS", "O'Hare"])
    assert not_passed(run(DAYS[0], DAYS[2])) == NOBODYS
    assert in_table(queue) == in_files(output) == expected(DAYS)
    assert endings(queue) == once()
    again = shown(run.without_spark()(DAYS[0], DAYS[2]))
    assert {day: one["unchanged"] for day, one in again.items()} == dict.fromkeys(DAYS, True)
