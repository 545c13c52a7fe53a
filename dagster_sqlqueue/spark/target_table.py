"""The table that takes results, as the database knows it before they are computed."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import psycopg
import pyarrow as pa
from psycopg import sql

from dagster_sqlqueue.errors import InvalidInput, OutputNotWritable
from dagster_sqlqueue.queue import SqlQueue
from dagster_sqlqueue.spark import sinks


@dataclass(frozen=True, slots=True)
class Target:
    """A table that takes results.

    Attributes:
        name: `table` or `schema.table`, as it was given.
        schema: in which it is, or would be made.
        columns: by name, in their order, as the statement `spark_output_table` returns them; None: it is not there.
        may_delete: whether the user may delete its rows.
        stage_schema: in which tasks can stage rows for it: the same, or else that of the queues; None: the user may create
            tables in neither.
    """

    name: str
    schema: str | None
    columns: Mapping[str, Mapping[str, Any]] | None
    may_delete: bool
    stage_schema: str | None

    @property
    def place(self) -> tuple[str | None, str]:
        """What is the same for all names of the table: its schema, and its name in it."""
        return self.schema, self.name.split(".")[-1]

    def type_of(self, column: str, results: pa.Schema) -> str:
        """Return the SQL type of a column: the table's, or the one it is made with.

        Raises:
            InvalidInput: it is made, and the type of the results has no SQL counterpart.
        """
        if self.columns is None:
            return sinks.sql_type(results.field(column))
        found: str = self.columns[column]["type"]
        return found

    def check_replaceable(self, column: str) -> None:
        """Check that the user may replace rows by a column.

        Raises:
            OutputNotWritable: the user may not delete rows, or not read the column.
        """
        if self.columns is None or (self.may_delete and self.columns[column]["readable"]):
            return
        missing = "SELECT" if self.may_delete else "DELETE and SELECT"
        raise OutputNotWritable(
            f"rows of table {self.name!r} cannot be replaced by {column!r}: the database's user may not find and delete"
            f" them. Grant {missing} on it"
        )

    def stage_identifier(self, name: str) -> sql.Identifier:
        """Return the quoted name of a table in which tasks stage rows.

        Raises:
            OutputNotWritable: the user may create none.
        """
        if self.stage_schema is None:
            raise OutputNotWritable(
                f"Spark's tasks cannot stage rows for table {self.name!r}: the database's user may not create tables in"
                f" schema {self.schema!r}. Grant CREATE on it, or let the driver write at most {sinks.MAX_ROWS:,} rows"
            )
        return sql.Identifier(self.stage_schema, name)


def find(queue: SqlQueue, table: str) -> Target:
    """Return a table of the queue's database that results can be written to, or that can be made.

    Raises:
        InvalidInput: its name is not usable.
        OutputNotWritable: the user may not write to it, or may not make it.
    """
    name = sinks.table_identifier(table)
    *schema, _ = table.split(".")
    quoted = sql.Identifier(schema[0]).as_string(None) if schema else None
    ((there, may_insert, may_delete, found_in, may_use, may_make, stage_schema, _, columns),) = queue.database.run(
        "spark_output_table", {"table_name": name.as_string(None), "schema_name": quoted}
    )
    refused = f"results cannot be written to table {table!r}:"
    if found_in is None:
        cure = (
            f"there is no schema {schema[0]!r}. Make it"
            if schema
            else "no schema of the search path is there. Name one"
        )
        raise OutputNotWritable(f"{refused} {cure}")
    if not may_use:
        raise OutputNotWritable(f"{refused} the database's user may not use schema {found_in!r}. Grant USAGE on it")
    if not may_insert:
        raise OutputNotWritable(
            f"{refused} the database's user may not write to it. Grant INSERT on it, and to replace rows DELETE and SELECT"
        )
    if not there and not may_make:
        raise OutputNotWritable(
            f"{refused} it is not there, and the database's user may not make it in schema {found_in!r}. Make the table, or"
            " grant CREATE on the schema"
        )
    of_table = {column["name"]: column for column in columns} if there else None
    return Target(table, found_in, of_table, may_delete, stage_schema)


def check_values(queue: SqlQueue, target: Target, results: pa.Schema, replace: sinks.Replaced | None) -> None:
    """Check that the values whose rows are replaced can be compared with those of their column.

    Args:
        queue: in whose database the table is.
        target: the table.
        results: its columns, if it is made.
        replace: the column and the values, None for NULL; None: nothing is replaced.

    Raises:
        InvalidInput: they cannot, as the database says.
    """
    if replace is None:
        return
    column, values = replace
    kind = target.type_of(column, results)
    of: sql.Composable = sinks.table_identifier(target.name)
    if target.columns is None:
        of = sql.SQL("(SELECT CAST(NULL AS {}) AS {}) AS made").format(sql.SQL(kind), sql.Identifier(column))
    condition, known = sinks.having(column, values)
    with queue.database.connection() as connection:
        try:
            connection.execute(sql.SQL("SELECT FROM {} WHERE {} LIMIT 0").format(of, condition), (known,))
        except (psycopg.ProgrammingError, psycopg.DataError) as error:
            raise InvalidInput(
                f"rows of table {target.name!r} cannot be replaced by {column!r}, which is {kind}, with the values"
                f" {list(values)!r:.100}: {error.diag.message_primary or error}. Give values of the column's type"
            ) from error
