"""Consumptions that are refused, overtaken or cut off: nothing of them is published, and no password is shown."""

import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from sqlalchemy.engine import make_url

from dagster_sqlqueue import Done, Mode, Reject, SqlQueue
from dagster_sqlqueue.errors import (
    BatchLost,
    DatabaseUnavailable,
    InvalidInput,
    OutputNotWritable,
    QueuePaused,
    UnknownQueue,
)
from dagster_sqlqueue.model.outcome import Outcome
from dagster_sqlqueue.spark import batches, stage_table
from dagster_sqlqueue.spark.batches import leased_seal
from dagster_sqlqueue.spark.batches.batch_opener import check_key
from dagster_sqlqueue.spark.batches.outcomes import report_all
from dagster_sqlqueue.spark.consume_verbs import consume
from dagster_sqlqueue.spark.target_table import Target
from tests.spark.consuming_support import (
    DAYS,
    NO_HEARTBEAT,
    SALES,
    bad_ids,
    endings,
    expected,
    in_files,
    in_table,
    left_behind,
    prepare,
    sales,
    waiting,
)
from tests.spark.totals import run, table, totals
from tests.support import make_due, rows, until, value

SHARES_A_SCHEMA = True


def test_a_run_that_was_overtaken_writes_nothing(queue: SqlQueue, spark: SparkSession, output: Path) -> None:
    prepare(queue)
    with (  # noqa: PT012
        pytest.raises(BatchLost, match="'totals/all'"),
        consume(queue, spark, SALES, key="totals/all", lease_seconds=NO_HEARTBEAT) as work,
    ):
        work.write_sql(totals(work.jobs()), table(queue), by_tasks=True)
        work.write_parquet(totals(work.jobs()), output)
        make_due(queue)
        batches.seal(queue, "sales", "totals/all", owner="another")
    assert in_table(queue) == in_files(output) == endings(queue) == left_behind(queue, output) == []
    assert {state for state, _, _ in waiting(queue)} == {"running"}
    make_due(queue)
    assert run(queue, spark, output) == 30
    assert in_table(queue) == in_files(output) == expected(sales())


@pytest.mark.prove
def test_what_a_killed_run_staged_is_removed_by_the_next(queue: SqlQueue, spark: SparkSession, output: Path) -> None:
    prepare(queue)
    held = consume(queue, spark, SALES, key="totals/all", lease_seconds=NO_HEARTBEAT)
    work = held.__enter__()
    work.write_sql(totals(work.jobs()), table(queue), by_tasks=True)
    work.write_parquet(totals(work.jobs()), output)
    assert len(left_behind(queue, output)) == 2
    make_due(queue)
    assert run(queue, spark, output) == 30
    assert left_behind(queue, output) == []
    with pytest.raises(BatchLost):
        held.__exit__(None, None, None)
    assert in_table(queue) == in_files(output) == expected(sales())
    assert endings(queue) == [("failed", 3, 3), ("succeeded", 27, 27)]


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("", "'', must be a text of 1 to 1,000 characters; give asset and partition, say"),
        ("x" * 1_001, f"'{'x' * 99}, must be a text of 1 to 1,000 characters; give asset and partition, say"),
        ("a\0b", r"'a\x00b', holds a NUL character, which the database cannot store; remove it"),
        ("日" * 900, f"'{'日' * 99}, has 2,700 bytes, the limit is 2,500; use a digest of it"),
    ],
    ids=["empty", "characters", "nul", "bytes"],
)
def test_a_key_that_is_none_is_refused_with_one_advice(key: str, said: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        check_key(key)
    assert str(refused.value) == f"the key of what is consumed, {said}"


def test_what_is_wrong_from_the_start_seals_nothing(
    queue: SqlQueue, spark: SparkSession, output: Path, url: str
) -> None:
    prepare(queue)
    output.write_text("a file")
    for settings, error, said in (
        ({"name": "nope"}, UnknownQueue, "there is no queue 'nope'"),
        ({"writes": [output]}, OutputNotWritable, r"cannot be written to .*the output"),
        ({"writes": ["nowhere.totals"]}, OutputNotWritable, "there is no schema 'nowhere'"),
        ({"writes": ["a.b.c"]}, InvalidInput, "table 'a.b.c' is not usable"),
        ({"mode": "foo"}, InvalidInput, "mode is 'foo'; it must be 'leased' or 'transactional'"),
    ):
        with pytest.raises(error, match=said), consume(queue, spark, **{"name": SALES, "key": "k", **settings}):  # type: ignore[arg-type]
            raise AssertionError
    queue.pause("sales")
    with pytest.raises(QueuePaused, match="sqlqueue resume sales"), consume(queue, spark, SALES, key="k"):
        raise AssertionError
    queue.resume("sales")
    output.unlink()
    assert {(state, attempt) for state, attempt, _ in waiting(queue)} == {("queued", 0)}
    assert run(queue, spark, output, writes=[output, table(queue)]) == 30
    assert in_table(queue) == in_files(output) == expected(sales())


def test_what_does_not_fit_is_named_and_the_next_run_is_right(
    queue: SqlQueue, spark: SparkSession, output: Path
) -> None:
    prepare(queue)
    ((odd,),) = rows(
        queue,
        'UPDATE {s}.job SET payload = payload || \'{{"amount": "much"}}\' WHERE id = %s RETURNING id',
        bad_ids(queue)[0],
    )
    with pytest.raises(InvalidInput, match=rf"^job {odd}: the field 'payload.amount' is 'much'"):
        run(queue, spark, output)
    ((reason,),) = {(error,) for _, _, error in waiting(queue)}
    assert reason.startswith(f"the batch's run failed: InvalidInput: job {odd}: the field")
    assert "\n" not in reason
    strange: Any
    for strange, said in (
        (lambda work: work.fail(["42"], "no"), "'42', which is no job's id"),
        (lambda work: work.fail(["0190163d-8694-739b-aea5-966c26f8ad91"], "no"), "is not of the batch 'totals/all'"),
        (
            lambda work: work.write_sql(work.arrow(), table(queue), replace={}),
            "rows are replaced by one column, not by 0",
        ),
        (lambda work: work.write_sql(pa.table({"l": [[1]]}), table(queue)), "which has no SQL counterpart"),
        (
            lambda work: work.write_sql(work.arrow(), table(queue), replace=["day"]),
            r"replace is \['day'\]; map one column to a list",
        ),
        (
            lambda work: work.write_sql(work.arrow(), table(queue), replace={"day": "2013-01-01"}),
            r"values of 'day', which are '2013-01-01'; give a list: \{'day': \[value\]\}",
        ),
        (
            lambda work: work.write_sql(work.arrow(), table(queue), replace={"day": DAYS[0]}),
            r"values of 'day', which are datetime.date\(.*; give a list",
        ),
        (lambda work: work.write_sql(work.arrow(), table(queue), key="id"), r"key is 'id'; .*: \['id'\]"),
        (lambda work: work.write_sql(work.arrow().select([]), table(queue)), "the result has no columns"),
        (
            lambda work: work.write_sql(work.arrow().to_pandas(), table(queue)),
            r"is a pandas\..*DataFrame; give a data frame of Spark, or a table of Arrow: pyarrow.Table.from_pandas",
        ),
        (lambda work: work.write_parquet([{"n": 1}], output), "is a builtins.list; give a data frame of Spark"),
        (lambda work: work.jobs({"id": {"path": "payload.id"}}), "'id' has the name of a column"),
    ):
        with pytest.raises(InvalidInput, match=said), consume(queue, None, "sales", key="totals/all") as work:
            strange(work)
    with consume(queue, spark, "sales", key="totals/all") as work:
        columns = {name: {"path": f"payload.{name}"} for name in ("day", "account", "amount")}
        jobs = work.jobs(columns)
        fit = jobs.selectExpr("id", "CAST(day AS date)", "account", "try_cast(amount AS bigint) AS amount")
        work.fail(fit.where("amount IS NULL OR amount < 0"), "no amount")
        work.write_sql(totals(fit), table(queue), replace={"day": DAYS})
    assert in_table(queue) == expected(sales())
    assert endings(queue) == [("failed", 3, 3), ("succeeded", 27, 27)]
    assert value(queue, "SELECT state FROM {s}.job_archive WHERE id = %s", odd) == "failed"


@pytest.mark.parametrize("packed_from", [1, 1_000])
def test_failed_and_retried_jobs_are_as_they_were_when_nothing_is_published(
    queue: SqlQueue, monkeypatch: pytest.MonkeyPatch, packed_from: int
) -> None:
    monkeypatch.setattr(leased_seal, "PACKED_FROM", packed_from)
    prepare(queue)
    bad = bad_ids(queue)
    rows(queue, "CREATE TABLE {s}.totals (amount bigint CHECK (amount < 0))")
    strange: Any
    for strange, said in (
        (lambda work: work.write_sql(work.arrow().select(["amount"]), table(queue)), "totals_amount_check"),
        (lambda work: work.fail([UUID(int=7)], "whose?"), "is not of the batch 'k', and was failed"),
    ):
        with (  # noqa: PT012
            pytest.raises(InvalidInput, match=said),
            consume(queue, None, SALES, key="k", mode=Mode.LEASED) as work,
        ):
            strange(work)
            work.fail(bad[:1], "never")
            work.retry(bad[1:], "not yet")
        assert endings(queue) == []
        assert [(state, spent) for state, spent, _ in waiting(queue)] == [("queued", 0)] * 30
        assert value(queue, "SELECT count(*) FROM {s}.batch_outcome") == 0
    with consume(queue, None, SALES, key="k", mode=Mode.LEASED) as work:
        work.fail(bad[:1], "never")
        work.retry(bad[1:], "not yet")
    assert endings(queue) == [("failed", 1, 1), ("succeeded", 27, 27)]
    assert waiting(queue) == [("queued", 1, "not yet")] * 2


def test_a_task_that_reports_during_a_publication_is_late(queue: SqlQueue) -> None:
    """And holds no lock that the publication would wait for, while it waits for that one's."""
    prepare(queue)
    bad = bad_ids(queue)
    batch = batches.seal(queue, "sales", "k", owner="me", mode=Mode.LEASED)
    outcomes: dict[UUID, Outcome] = {bad[0]: Reject("never")}
    with ThreadPoolExecutor(1) as task:
        with queue.database.transaction() as transaction:
            report_all(transaction, [batch], outcomes)
            late = task.submit(batches.report, queue, batch, [(bad[0], Done())])
            blocked = "SELECT count(*) FROM pg_stat_activity WHERE %s = ANY (pg_blocking_pids(pid))"
            until(lambda: value(queue, blocked, transaction.connection.info.backend_pid), "the report that waits")
            batches.publish(queue, batch, transaction, output={})
        with pytest.raises(BatchLost):
            late.result()
    assert endings(queue) == [("failed", 1, 1), ("succeeded", 29, 29)]


def test_a_table_of_another_shape_is_named(queue: SqlQueue, spark: SparkSession, output: Path) -> None:
    prepare(queue)
    rows(queue, "CREATE TABLE {s}.totals (day date, account text)")
    for by_tasks in (False, True):
        with (
            pytest.raises(
                InvalidInput, match=r"does not take the results: it has no column 'sales'; it has day, account"
            ),
            consume(queue, spark, SALES, key="k") as work,
        ):
            work.write_sql(totals(work.jobs()), table(queue), by_tasks=by_tasks)
        assert left_behind(queue, output) == endings(queue) == []
    assert {state for state, _, _ in waiting(queue)} == {"queued"}


def test_connections_that_are_cut_while_tasks_stage_are_named_without_the_password(
    queue: SqlQueue, spark: SparkSession, url: str, output: Path
) -> None:
    """The task's in the middle of its COPY, and the driver's, which waits for the tasks."""
    prepare(queue)
    # The embedded server trusts loopback: any password will do, and can be searched for.
    secret = make_url(url).set(password="hunter2").render_as_string(hide_password=False)
    staging = (
        "FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
        f' AND strpos(query, \'"{queue.database.schema}"."sqlqueue_stage\') > 0'
    )

    def cutting(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        # Nothing orders this task's rows after the beginning of the COPY that they are for.
        with psycopg.connect(url, autocommit=True) as connection:
            copying = f"SELECT 1 {staging} AND query ILIKE 'copy%'"
            until(lambda: connection.execute(copying).fetchone(), "the COPY to cut")
            connection.execute(f"SELECT pg_terminate_backend(pid) {staging}")
        yield pa.RecordBatch.from_pydict({"amount": list(range(100_000))})

    with (  # noqa: PT012
        pytest.raises(
            DatabaseUnavailable, match=r"cannot use the database .*(terminat|closed the connection)"
        ) as caught,
        SqlQueue(secret, schema=queue.database.schema) as there,
        consume(there, spark, SALES, key="k") as work,
    ):
        spoilt = work.jobs().select("amount").coalesce(1).mapInArrow(cutting, "amount bigint")
        work.write_sql(spoilt, table(queue, "cut"), by_tasks=True)
    assert "hunter2" not in "".join(traceback.format_exception(caught.value))
    assert {(state, attempt) for state, attempt, _ in waiting(queue)} == {("queued", 0)}
    assert run(queue, spark, output) == 30
    gone = "postgresql://me:hunter2@127.0.0.1:1/jobs"
    with pytest.raises(DatabaseUnavailable, match=r"cannot use the database 127\.0\.0\.1:1/jobs: .*refused") as caught:
        stage_table.stage(spark.range(1), gone, Target(table(queue, "cut"), "s", None, True, "s"), "k", "token")
    assert "hunter2" not in str(caught.value)


def test_what_tasks_are_given_shows_no_password() -> None:
    assert "hunter2" not in repr(stage_table._Copy("postgresql://me:hunter2@localhost/jobs", "COPY", "totals"))


def test_no_password_is_shown(queue: SqlQueue, spark: SparkSession, url: str) -> None:
    prepare(queue)
    with consume(queue, spark, SALES, key="k") as work:
        plan = work.jobs()._jdf.queryExecution().toString()
        assert url not in plan + repr(work)
        assert psycopg.conninfo.conninfo_to_dict(url)["host"] not in plan + repr(work)
