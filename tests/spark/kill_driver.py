"""A driver that is killed: one consumption, whose every step is counted, and whose n-th one is its last.

A step is a statement of the database, a commit, a change of the file system, or a request to an object store. What Spark's
tasks would do is done by the driver, with the same code, so that no JVM is needed.
"""

import faulthandler
import importlib
import json
import os
import shutil
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.compute as pc

from dagster_sqlqueue import SqlQueue
from dagster_sqlqueue.consumer.consumer import Mode
from dagster_sqlqueue.db import executors, pool
from dagster_sqlqueue.db.database import Database
from dagster_sqlqueue.spark import contents, daily, day_results, remote, sealed_read, sinks
from dagster_sqlqueue.spark.batches import leased_seal
from dagster_sqlqueue.spark.consume_verbs import consume
from dagster_sqlqueue.spark.day_work import Found
from tests.gate.patience import PATIENCE
from tests.spark import daily_support
from tests.spark.consuming_support import SALES
from tests.spark.daily_support import ACCOUNTS, DAYS, as_arrow, expected

APPLICATION = "a driver to be killed"
DAILY = "daily"
"""In place of a mode: days of the daily asset."""
PARTS = "parts"
"""In place of a mode: days of the daily asset, each published by itself."""
PACKED = "packed"
"""In place of a mode: leased, with the jobs in packs however few they are."""
DRIVER_SECONDS = PATIENCE
"""How long a driver may take; alone it takes one."""


def totals(jobs: pa.Table) -> pa.Table:
    good = jobs.filter(pc.greater(jobs["amount"], 0))
    summed = good.group_by(["day", "account"]).aggregate([("amount", "count"), ("amount", "sum")])
    return pa.table(
        {
            "day": summed["day"],
            "account": summed["account"],
            "sales": summed["amount_count"],
            "amount": summed["amount_sum"],
        }
    )


def consume_once(url: str, schema: str, output: str, mode: str) -> int:
    """What is consumed is added to a table and to files: a thing done twice would show. Gives the number of jobs."""
    if mode == PACKED:
        leased_seal.PACKED_FROM = 1
        mode = Mode.LEASED
    with SqlQueue(Database(url, schema=schema, application_name=APPLICATION)) as queue:
        settings = {"key": "totals/all", "mode": Mode(mode), "lease_seconds": 600.0, "patience_seconds": PATIENCE}
        with consume(queue, None, SALES, writes=[Path(output)], **settings) as work:  # type: ignore[arg-type]
            jobs = work.arrow()
            work.write_sql(totals(jobs), f"{schema}.totals")
            work.write_parquet(totals(jobs), output)
            bad = jobs.filter(pc.less_equal(jobs["amount"], 0))
            work.fail(bad["id"].to_pylist(), "a sale of nothing")
        return work.job_count


def results(dates: Sequence[date]) -> pa.Table:
    """What Spark would compute."""
    return as_arrow(expected([day.isoformat() for day in dates]))


def consume_some_days(url: str, schema: str, output: str, days_at_once: int) -> int:
    """What a run of the daily asset does, of three days, so many to a transaction. Gives the number of jobs."""
    daily._accounts = daily._events = lambda *arguments: None  # type: ignore[assignment]
    daily.computed = lambda compute, jobs, key, dates, **options: day_results.of_rows(results(dates), dates)
    sinks.MAX_ROWS = days_at_once * len(ACCOUNTS)
    with SqlQueue(Database(url, schema=schema, application_name=APPLICATION)) as queue:
        directory = remote.named(output)
        work = daily_support.asset_work(queue, directory)
        about = work._about(DAYS)
        work.check(queue, about, DAYS)
        found = Found(about, DAYS, directory, contents.held(queue, about, DAYS), {})
        made = work.make(queue, None, found, DAYS, "killed")  # type: ignore[arg-type]
        return sum(day["jobs_consumed"] for day in made.shown.values())


def counted(output: str, last: int | None, log: str) -> list[str]:
    """Note each step from now on, and die by SIGKILL before step `last`, which is the last one written down."""
    steps: list[str] = []

    def step(name: str) -> None:
        steps.append(name)
        if len(steps) == last:
            Path(log).write_text("\n".join(steps))
            os.kill(os.getpid(), signal.SIGKILL)

    def stepping(place: Any, name: str) -> None:
        function: Callable[..., Any] = getattr(place, name)

        def both(*arguments: Any, **keywords: Any) -> Any:
            step(f"{getattr(place, '__name__', place)}.{name}")
            return function(*arguments, **keywords)

        setattr(place, name, both)

    store: list[tuple[Any, str]] = []
    if remote.is_url(output):
        import s3fs

        store.append((s3fs.S3FileSystem, "_call_s3"))
    for place, name in (
        *store,
        (pool, "execute"),
        (executors, "execute"),
        (executors, "execute_together"),
        (pool, "execute_together"),
        (psycopg.Connection, "execute"),
        (psycopg.Connection, "commit"),
        (psycopg.Cursor, "copy"),
        (sealed_read.SealedRead, "rows"),
        (Path, "mkdir"),
        (Path, "rename"),
        (shutil, "rmtree"),
    ):
        stepping(place, name)
    return steps


def run(url: str, schema: str, output: str, mode: str, last: int | None, log: str) -> None:
    """Consume, writing down each step; die by SIGKILL before step `last`, which is the last one written down."""
    steps = counted(output, last, log)
    if mode in (DAILY, PARTS):
        jobs = consume_some_days(url, schema, output, len(DAYS) if mode == DAILY else 1)
    else:
        jobs = consume_once(url, schema, output, mode)
    Path(log).write_text("\n".join([str(jobs), *steps]))


def serve(stacks: str, *modules: str) -> None:
    """Fork a driver for each line of arguments, and say how it ended: what a driver needs is loaded once.

    One that takes longer than `DRIVER_SECONDS` writes the stacks of its threads to a file, and ends.
    """
    for name in modules:
        importlib.import_module(name)
    threads = [(task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir()]
    if len(threads) > 1:
        raise RuntimeError(f"a fork takes one thread along and whatever the others had locked; there are {threads}")
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            try:
                with Path(stacks).open("w") as file:
                    # A thread of the child's own, which needs no lock of the interpreter's.
                    faulthandler.dump_traceback_later(DRIVER_SECONDS, exit=True, file=file)
                    run(*json.loads(line))
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    serve(*sys.argv[1:])
