"""Rows that Spark's tasks write to a table of their own, and that one statement then moves into the target.

Each attempt of a task copies its rows in a transaction of its own, marked with its number. Spark accepts one attempt of each
task; only those rows are ever taken. What a retried or speculative copy of a task left is dropped with the table.

Statements about tables and columns that the user named cannot be files: what is bound to a statement are values. They are
composed of quoted identifiers by `psycopg.sql`, here, in `results` and in `published`.
"""

import contextlib
import hashlib
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg
import pyarrow as pa
from psycopg import sql
from pyspark import TaskContext
from pyspark.sql import DataFrame

from dagster_sqlqueue.db import driver_errors, statements
from dagster_sqlqueue.db.database import Database
from dagster_sqlqueue.db.execution import execute
from dagster_sqlqueue.errors import BatchLost
from dagster_sqlqueue.queue import SqlQueue
from dagster_sqlqueue.spark import sinks
from dagster_sqlqueue.spark.result_values import copy_rows
from dagster_sqlqueue.spark.target_table import Target
from dagster_sqlqueue.spark.task_errors import task_errors_restored
from dagster_sqlqueue.spark.urls import libpq

logger = logging.getLogger("dagster_sqlqueue")

_PREFIX = "sqlqueue_stage"
_WAIT_MILLISECONDS = 5_000
"""How long a stage that is to be dropped is waited for: longer than a task that Spark has killed takes to end."""
_TASK, _ATTEMPT = "task", "attempt"
"""Columns of a stage. Those of the results are numbered in it, `c0` and so on, whatever they are called in the target."""


@dataclass(frozen=True)
class Staged:
    """Rows in a stage table.

    Attributes:
        stage: the table's quoted name.
        schema: the columns of the rows.
        attempts: of each task, the attempt that Spark accepted.
        count: of the accepted rows.
        url: of the database.
    """

    stage: sql.Identifier
    schema: pa.Schema
    attempts: tuple[tuple[int, int], ...]
    count: int
    url: str = field(repr=False)

    def move(self, connection: "psycopg.Connection[Any]", target: sql.Identifier) -> None:
        """Insert the accepted rows into the target, and drop the stage, inside the caller's transaction.

        Raises:
            BatchLost: the stage does not hold what was staged: a run that took the batch over has dropped it, or a
                crash of the server has emptied it.
        """
        names = sql.SQL(", ").join(map(sql.Identifier, self.schema.names))
        try:
            # A transactional batch's own transaction began before the tasks wrote, and does not see their rows.
            ((level,),) = execute(connection, statements.load("isolation"), {})
            if level == "repeatable read":
                moved = self._copy_over(connection, target, names)
            else:
                # As a COPY, which writes what comes to a column GENERATED ALWAYS AS IDENTITY as well.
                insert = sql.SQL("INSERT INTO {} ({}) OVERRIDING SYSTEM VALUE {}")
                moved = connection.execute(insert.format(target, names, self._accepted())).rowcount
        except psycopg.errors.UndefinedTable as error:
            raise BatchLost(f"the stage of the batch was removed: {error}. Run it again") from error
        if moved != self.count:
            raise BatchLost(
                f"the stage holds {moved:,} of the {self.count:,} rows that were staged: the server crashed meanwhile, or"
                " another process changed it. Run it again"
            )
        self.drop(connection)

    def _accepted(self) -> sql.Composed:
        return sql.SQL(
            "SELECT {} FROM {} AS stage JOIN unnest(CAST({} AS bigint[]), CAST({} AS bigint[])) AS accepted (task, attempt)"
            " ON accepted.task = stage.{} AND accepted.attempt = stage.{}"
        ).format(
            sql.SQL(", ").join(sql.Identifier("stage", name) for name in _numbered(self.schema)),
            self.stage,
            sql.Literal([task for task, _ in self.attempts]),
            sql.Literal([attempt for _, attempt in self.attempts]),
            sql.Identifier(_TASK),
            sql.Identifier(_ATTEMPT),
        )

    def _copy_over(self, connection: "psycopg.Connection[Any]", target: sql.Identifier, names: sql.Composable) -> int:
        with connected(self.url) as source:
            # As the connection that takes them: the target's column may have no zone where the stage's has one.
            source.execute("SET TIME ZONE 'UTC'")
            source.execute("SET datestyle = 'ISO, MDY'")
            with (
                source.cursor() as out,
                out.copy(sql.SQL("COPY ({}) TO STDOUT").format(self._accepted())) as rows,
                connection.cursor() as into,
            ):
                with into.copy(sql.SQL("COPY {} ({}) FROM STDIN").format(target, names)) as copy:
                    for block in rows:
                        copy.write(block)
                return into.rowcount

    def drop(self, connection: "psycopg.Connection[Any]") -> None:
        """Remove the stage, or leave it to the next run of the key: see `_drop`."""
        _drop(connection, self.stage)


@contextlib.contextmanager
def connected(url: str, *, autocommit: bool = False) -> Iterator["psycopg.Connection[Any]"]:
    """Yield a connection of its own for the block, which is committed at its end.

    Raises:
        DatabaseUnavailable: there is no connection, or it was lost in the block.
    """
    try:
        with psycopg.connect(libpq(url), autocommit=autocommit) as connection:
            yield connection
    except (psycopg.OperationalError, psycopg.errors.IdleInTransactionSessionTimeout) as error:
        if not driver_errors.is_unavailable(error):
            raise
        raise driver_errors.unavailable(Database(url).where, str(error), error.sqlstate) from None


def fingerprint(key: str) -> str:
    """What the names of everything that is staged for a batch's key begin with."""
    return hashlib.blake2b(key.encode(), digest_size=8).hexdigest()


def stage(rows: DataFrame, url: str, target: Target, key: str, token: str) -> Staged:
    """Write rows by Spark's tasks to a stage table in the schema of the target, or in the queue's where the user may not
    create tables in that.

    Its columns have the types of the target's: each value is read as a COPY to the target reads it.

    Args:
        rows: what to write.
        url: of the database.
        target: the table that they are for.
        key: of the batch.
        token: identifies this write among all of the key.

    Raises:
        InvalidInput: a column without a SQL counterpart, or a value that the target's column does not take.
        OutputNotWritable: the user may create a table in neither schema.
        BatchLost: a run that took the batch over has dropped the stage.
        DatabaseUnavailable: there is no connection, or one was lost, the driver's or a task's.
        PySparkException: another error of a task.
    """
    from pyspark.sql.pandas.types import to_arrow_schema

    fields = to_arrow_schema(rows.schema, timezone="UTC")
    identifier = target.stage_identifier(f"{_PREFIX}_{fingerprint(key)}_{token}")
    numbered = _numbered(fields)
    types = [target.type_of(field.name, fields) for field in fields]
    columns = [sql.SQL("{} {}").format(sql.Identifier(n), sql.SQL(t)) for n, t in zip(numbered, types, strict=True)]
    create = sql.SQL("CREATE UNLOGGED TABLE {} ({}, {} bigint, {} bigint)").format(
        identifier, sql.SQL(", ").join(columns), sql.Identifier(_TASK), sql.Identifier(_ATTEMPT)
    )
    with connected(url, autocommit=True) as connection:
        connection.execute(create)
        names = sql.SQL(", ").join(map(sql.Identifier, [*numbered, _TASK, _ATTEMPT]))
        text = sql.SQL("COPY {} ({}) FROM STDIN").format(identifier, names).as_string(connection)
        try:
            with task_errors_restored():
                copy = _Copy(url, text, target.name)
                accepted = rows.mapInArrow(copy, "task bigint, attempt bigint, count bigint").collect()
        except BaseException:
            # A lost connection does not hide the error; the next run of the key removes the table.
            with contextlib.suppress(psycopg.Error):
                _drop(connection, identifier)
            raise
    return Staged(
        identifier,
        fields,
        tuple((row["task"], row["attempt"]) for row in accepted),
        sum(row["count"] for row in accepted),
        url,
    )


def sweep(queue: SqlQueue, keys: Sequence[str]) -> None:
    """Remove what killed runs of these keys left staged. Call it while the keys are ours."""
    for key in keys:
        left = queue.database.run("spark_stage_tables", {"prefix": f"{_PREFIX}_{fingerprint(key)}_"})
        if not left:
            continue
        with queue.database.connection() as connection:
            for schema, name in left:
                _drop(connection, sql.Identifier(schema, name))


def _drop(connection: "psycopg.Connection[Any]", stage: sql.Identifier) -> None:
    """Drop a stage, unless another session goes on using it: a task that hangs in its COPY, whose attempt was not accepted,
    or a dump of the database. Neither keeps a publication, or the next run of the key, waiting for its end.
    """
    try:
        with connection.transaction():
            ((before,),) = connection.execute("SELECT current_setting('lock_timeout')")
            connection.execute(f"SET LOCAL lock_timeout = {_WAIT_MILLISECONDS}".encode())
            connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(stage))
            connection.execute("SELECT set_config('lock_timeout', %s, true)", [before])
    except psycopg.errors.LockNotAvailable:
        logger.warning("%s is in use by another session, the next run of its key drops it", stage.as_string(None))


def _numbered(schema: pa.Schema) -> list[str]:
    """Return the names that the columns of results have in a stage."""
    return [f"c{number}" for number, _ in enumerate(schema)]


@dataclass(frozen=True)
class _Copy:
    """Write the rows of a task: one COPY, committed as a whole.

    Attributes:
        url: of the database.
        statement: the COPY.
        table: the target's name.
    """

    url: str = field(repr=False)
    statement: str
    table: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        task, attempt, count = context.partitionId(), context.taskAttemptId(), 0
        with connected(self.url) as connection, self._taking():
            # As the driver's connections: a column with a zone may take moments that have none.
            connection.execute("SET TIME ZONE 'UTC'")
            with connection.cursor() as cursor, cursor.copy(self.statement.encode()) as copy:
                for batch in batches:
                    copy_rows(copy, batch, marks=(task, attempt), first=count, partition=task)
                    count += batch.num_rows
        yield pa.RecordBatch.from_pydict({"task": [task], "attempt": [attempt], "count": [count]})

    @contextlib.contextmanager
    def _taking(self) -> Iterator[None]:
        with sinks.taking(self.table):
            try:
                yield
            except psycopg.errors.UndefinedTable as error:
                said = error.diag.message_primary
                raise BatchLost(f"the stage of the batch was removed: {said}. Run it again") from error
