"""A small daily analytics: events with a size, and for each account and day their number and sum."""

import functools
from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from dagster_sqlqueue import NewJob, QueueSpec, SqlQueue
from dagster_sqlqueue.model.backoff import Backoff
from dagster_sqlqueue.orchestration.fanout import DailyAccount
from dagster_sqlqueue.spark import remote
from dagster_sqlqueue.spark.daily import ArchiveRead, consume_days
from dagster_sqlqueue.spark.daily_run import Daily
from tests.gate.plugin import verdict
from tests.spark.support import Done, archive
from tests.support import rows

DAILY = QueueSpec("daily", DailyAccount, bucket_count=4, lease_seconds=300, max_attempts=5)
READS = ArchiveRead(
    "work",
    columns={
        "day": {"path": "payload.day", "type": "date"},
        "account": {"path": "payload.account", "type": "string"},
        "size": {"path": "payload.size", "type": "bigint"},
    },
)
DAYS = ("2013-01-01", "2013-01-02", "2013-01-03")
ACCOUNTS = ("ATL", "BOS", "O'Hare")
EVENTS = [
    {"day": day, "account": account, "size": 100 * d + 10 * a + n}
    for d, day in enumerate(DAYS)
    for a, account in enumerate((*ACCOUNTS, "nobody's"))
    for n in range(a + 1)
    if (day, account) != ("2013-01-02", "BOS")
]


def compute(events: DataFrame) -> DataFrame:
    return events.groupBy("day", "account").agg(sf.count("*").alias("events"), sf.sum("size").alias("size"))


def expected(days: Iterable[str], accounts: Iterable[str] = ACCOUNTS) -> list[tuple[Any, ...]]:
    """The same in plain Python."""
    sizes = defaultdict(list)
    for event in EVENTS:
        if event["day"] in days and event["account"] in accounts:
            sizes[(date.fromisoformat(str(event["day"])), str(event["account"]))].append(event["size"])
    return sorted((*key, len(found), sum(map(int, map(str, found)))) for key, found in sizes.items())


def prepare(queue: SqlQueue, days: Sequence[str] = DAYS, accounts: Sequence[str] = ACCOUNTS) -> None:
    """Archive the events, and put the days' jobs on the queue."""
    queue.create_queue(DAILY)
    if rows(queue, "SELECT FROM {s}.job_archive LIMIT 1") == []:
        archive(queue, [Done(event) for event in EVENTS])
    add(queue, days, accounts)


def add(queue: SqlQueue, days: Sequence[str], accounts: Sequence[str]) -> None:
    payloads = [{"account": account, "day": day, "zone": "UTC"} for day in days for account in accounts]
    queue.enqueue_many(DAILY, [NewJob(DailyAccount.model_validate(payload)) for payload in payloads])


def in_table(queue: SqlQueue) -> list[tuple[Any, ...]]:
    if rows(queue, "SELECT to_regclass(%s)", f'"{queue.database.schema}".results') == [(None,)]:
        return []
    return rows(queue, "SELECT day, account, events, size FROM {s}.results ORDER BY day, account")


def in_files(output: Path | str) -> list[tuple[Any, ...]]:
    found = []
    for file in remote.directory_of(output).glob("day=*/*.parquet"):
        day = date.fromisoformat(file.parent.name.removeprefix("day="))
        with file.open("rb") as opened:
            read = pq.ParquetFile(opened).read().to_pylist()
        found += [(day, *(row[name] for name in ("account", "events", "size"))) for row in read]
    return sorted(found)


def endings(queue: SqlQueue) -> list[tuple[str, int]]:
    """How often each daily job was archived as succeeded."""
    return rows(
        queue,
        "SELECT concat_ws('/', payload->>'day', payload->>'account'), count(*) FROM {s}.job_archive"
        " WHERE queue = 'daily' AND state = 'succeeded' GROUP BY 1 ORDER BY 1",
    )


def once(days: Iterable[str] = DAYS, accounts: Sequence[str] = ACCOUNTS) -> list[tuple[str, int]]:
    return sorted((f"{day}/{account}", 1) for day in days for account in accounts)


def waiting(queue: SqlQueue) -> list[tuple[str, int, str | None]]:
    """The live daily jobs: state, attempts spent, error."""
    return rows(queue, "SELECT state, attempt, error FROM {s}.job WHERE queue = 'daily' ORDER BY id")


@verdict
def wrong_in(queue: SqlQueue, output: Path | str, *, in_a_table: bool = True) -> list[str]:
    """Where what came of all days is not done, or not done once."""
    parts: list[tuple[str, list[Any], list[Any]]] = [
        ("endings", endings(queue), once()),
        ("rows of the table", in_table(queue), expected(DAYS) if in_a_table else []),
        ("rows of the files", in_files(output), expected(DAYS)),
        ("live jobs", waiting(queue), []),
        ("attempts", rows(queue, "SELECT DISTINCT attempt FROM {s}.job_archive WHERE queue = 'daily'"), [(1,)]),
        ("staged", [*remote.directory_of(output).glob(".staging/*")], []),
        ("publications whose files are not moved", rows(queue, "SELECT key FROM {s}.batch WHERE unmoved"), []),
    ]
    return [f"{name}: {here}, where {due} are due" for name, here, due in parts if here != due]


def table(queue: SqlQueue) -> str:
    return f"{queue.database.schema}.results"


def consume(
    queue: SqlQueue, spark: SparkSession, output: Path | None, days: Sequence[str] = DAYS, **changes: Any
) -> Any:
    """`consume_days` with the settings of these tests."""
    settings: dict[str, Any] = {
        "name": "test",
        "daily_queue": "daily",
        "read": READS,
        "days": days,
        "owner": "test",
        "table": table(queue),
        "output": output,
        **changes,
    }
    return functools.partial(consume_days, queue, spark, settings.pop("compute", compute))(**settings)


def asset_work(queue: SqlQueue, output: Path | str) -> Daily:
    """What an asset of these days does, without Dagster around it."""
    return Daily(
        asset_key=dg.AssetKey("test"),
        compute=compute,
        reads=READS,
        zone="UTC",
        table=table(queue),
        output=lambda: output,
        statistics=None,
        counted=None,
        columns=None,
        code_version=None,
        daily_queue="daily",
        backoff=Backoff(),
        lease_seconds=600.0,
    )


def as_arrow(found: Sequence[tuple[Any, ...]]) -> pa.Table:
    names = ("day", "account", "events", "size")
    return pa.table(dict(zip(names, map(list, zip(*found, strict=True)), strict=True)))


def nothing_was_done(queue: SqlQueue, output: Path) -> None:
    assert in_table(queue) == []
    assert in_files(output) == []
    assert endings(queue) == []
    assert list(output.glob(".staging/*")) == []


def broken(events: DataFrame) -> DataFrame:
    raise RuntimeError("the café is closed")
