"""One schema for many small tests, emptied between them: making one takes longer than most of them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

from psycopg import sql

from dagster_sqlqueue import QueueSpec, SqlQueue
from tests.support import Work, drop, rows

_TABLES = """
    SELECT c.relname FROM pg_class AS c
    WHERE c.relnamespace = to_regnamespace(quote_ident(%s)) AND c.relkind IN ('r', 'p') AND NOT c.relispartition
      AND c.relname NOT IN ('schema_version', 'function_set')
    ORDER BY array_position('{{job_group,queue}}', CAST(c.relname AS text)) NULLS FIRST, c.relname
"""
"""Those that others refer to come last."""

_own: dict[str, set[str]] = {}
"""The tables of each schema when it was first emptied: what a test has made beside them goes with its rows."""


def cleared(queue: SqlQueue, spec: QueueSpec[Work]) -> SqlQueue:
    """The same queues with nothing in them but the queue of `spec`, as it was made."""
    names = [row[0] for row in rows(queue, _TABLES, queue.database.schema)]
    schema = sql.Identifier(queue.database.schema)
    own = _own.setdefault(queue.database.schema, set(names))
    statements = [
        # TRUNCATE makes new files for every table and index, which takes thirty times as long.
        sql.SQL("DELETE FROM {}.{}" if name in own else "DROP TABLE {}.{}").format(schema, sql.Identifier(name))
        for name in names
    ]
    with queue.database.connection() as connection:
        connection.execute(sql.SQL("; ").join(statements))
    queue.create_queue(spec)
    return queue


@contextmanager
def own_schema(url: str, prefix: str, **settings: Any) -> Iterator[SqlQueue]:
    """The queues of a schema that nothing used before, and that is gone afterwards."""
    with SqlQueue(url, schema=f"{prefix}_{uuid4().hex[:8]}", **settings) as queue:
        queue.migrate()
        try:
            yield queue
        finally:
            drop(queue)
