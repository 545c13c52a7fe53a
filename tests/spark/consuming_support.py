"""Sales, consumed: their sum for each day and account, beside the same numbers in plain Python."""

from collections import defaultdict
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow.dataset as pads
from pydantic import BaseModel

from dagster_sqlqueue import Backoff, NewJob, QueueSpec, SqlQueue
from tests.gate.plugin import verdict
from tests.support import rows


class Sale(BaseModel):
    day: date
    account: str
    amount: int
    note: str | None = None


SALES = QueueSpec("sales", Sale, bucket_count=4, lease_seconds=300, max_attempts=100, backoff=Backoff(0, jitter=0))
DAYS = (date(2013, 1, 1), date(2013, 1, 2))
NO_HEARTBEAT = 3_600.0
"""A lease of who is to be overtaken: a heartbeat between the end of it and the other's seal would keep the batch."""


def sales(count: int = 30) -> list[Sale]:
    """Every tenth sale is bad: its amount is negative."""
    return [
        Sale(day=DAYS[n % 2], account=("ATL", "BOS", "O'Hare")[n % 3], amount=-1 if n % 10 == 9 else 1 + n * n)
        for n in range(count)
    ]


def prepare(queue: SqlQueue, count: int = 30) -> None:
    queue.create_queue(SALES)
    queue.enqueue_many(SALES, [NewJob(sale) for sale in sales(count)])


def expected(found: Sequence[Sale]) -> list[tuple[Any, ...]]:
    """Day, account, number and sum of the good sales."""
    amounts = defaultdict(list)
    for sale in found:
        if sale.amount > 0:
            amounts[(sale.day, sale.account)].append(sale.amount)
    return sorted((*key, len(values), sum(values)) for key, values in amounts.items())


def in_table(queue: SqlQueue, table: str = "totals") -> list[tuple[Any, ...]]:
    if rows(queue, "SELECT to_regclass(%s)", f'"{queue.database.schema}".{table}') == [(None,)]:
        return []
    return rows(
        queue,
        f"SELECT day, account, CAST(sum(sales) AS bigint), CAST(sum(amount) AS bigint) FROM {{s}}.{table}"
        " GROUP BY 1, 2 ORDER BY 1, 2",
    )


def in_files(output: Path) -> list[tuple[Any, ...]]:
    """What Parquet files hold, whatever directories they are in."""
    if not any(output.glob("*=*/*.parquet")):
        return []
    found = pads.dataset(output, format="parquet", partitioning="hive", exclude_invalid_files=True).to_table()
    sums: dict[tuple[Any, ...], list[int]] = defaultdict(lambda: [0, 0])
    for row in found.to_pylist():
        one = sums[(date.fromisoformat(str(row["day"])), row["account"])]
        one[0] += row["sales"]
        one[1] += row["amount"]
    return sorted((*key, *values) for key, values in sums.items())


def endings(queue: SqlQueue) -> list[tuple[str, int, int]]:
    """By state in the archive: how many entries, and how many different jobs."""
    return rows(
        queue,
        "SELECT state, count(*), count(DISTINCT id) FROM {s}.job_archive WHERE queue = 'sales' GROUP BY 1 ORDER BY 1",
    )


def waiting(queue: SqlQueue) -> list[tuple[str, int, str | None]]:
    """The live jobs: state, attempts spent, error."""
    return rows(queue, "SELECT state, attempt, error FROM {s}.job WHERE queue = 'sales' ORDER BY id")


def left_behind(queue: SqlQueue, output: Path) -> list[Any]:
    """What was staged and is still there."""
    stages = rows(
        queue, "SELECT tablename FROM pg_tables WHERE schemaname = %s AND tablename LIKE 'sqlqueue\\_stage%%'",
        queue.database.schema,
    )  # fmt: skip
    return [*stages, *output.glob(".staging/*")]


@verdict
def wrong_in(queue: SqlQueue, output: Path, found: Sequence[Sale], *, results: bool = True) -> list[str]:
    """Where what came of these sales is not done, or not done once.

    Args:
        queue: that they were put on.
        output: of the files.
        found: the sales.
        results: whether sums were written and bad sales failed; otherwise all of them succeeded.
    """
    bad = sum(sale.amount <= 0 for sale in found) if results else 0
    good = len(found) - bad
    sums = expected(found) if results else []
    parts: list[tuple[str, list[Any], list[Any]]] = [
        ("endings", endings(queue), [*([("failed", bad, bad)] if bad else []), ("succeeded", good, good)]),
        ("rows of the table", in_table(queue), sums),
        ("rows of the files", in_files(output), sums),
        ("live jobs", waiting(queue), []),
        ("attempts", rows(queue, "SELECT DISTINCT attempt FROM {s}.job_archive WHERE queue = 'sales'"), [(1,)]),
        ("staged", left_behind(queue, output), []),
        ("publications whose files are not moved", rows(queue, "SELECT key FROM {s}.batch WHERE unmoved"), []),
    ]
    return [f"{name}: {here}, where {due} are due" for name, here, due in parts if here != due]


def bad_ids(queue: SqlQueue) -> list[Any]:
    return [one for (one,) in rows(queue, "SELECT id FROM {s}.job WHERE payload->>'amount' = '-1'")]
