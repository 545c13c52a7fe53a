"""The table that takes results, as the database knows it before they are computed."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from psycopg import sql

from dagster_sqlqueue.errors import OutputNotWritable
from dagster_sqlqueue.queue import SqlQueue
from dagster_sqlqueue.spark import sinks


@dataclass(frozen=True, slots=True)
class Target:
    """A table that takes results.

    Attributes:
        name: `table` or `schema.table`, as it was given.
        schema: in which it is, or would be made.
        columns: by name, in their order, as the statement `spark_output_table` returns them; None: it is not there.
    """

    name: str
    schema: str | None
    columns: Mapping[str, Mapping[str, Any]] | None

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


def find(queue: SqlQueue, table: str) -> Target:
    """Return a table of the queue's database that results can be written to, or that can be made.

    Raises:
        InvalidInput: its name is not usable.
        OutputNotWritable: the user may not write to it, or may not make it.
    """
    name = sinks.table_identifier(table)
    *schema, _ = table.split(".")
    quoted = sql.Identifier(schema[0]).as_string(None) if schema else None
    ((there, may_write, found_in, may_make, columns),) = queue.database.run(
        "spark_output_table", {"table_name": name.as_string(None), "schema_name": quoted}
    )
    if schema and found_in is None:
        raise OutputNotWritable(
            f"results cannot be written to table {table!r}: there is no schema {schema[0]!r}. Make it"
        )
    if not may_write:
        raise OutputNotWritable(
            f"results cannot be written to table {table!r}: the database's user may not write to it. Grant INSERT"
            " and DELETE on it"
        )
    if not there and not may_make:
        raise OutputNotWritable(
            f"results cannot be written to table {table!r}: it is not there, and the database's user may not make it in"
            f" schema {found_in!r}. Make the table, or grant CREATE on the schema"
        )
    return Target(table, found_in, {column["name"]: column for column in columns} if there else None)
