"""Tables that stay as they were made: what tests undo is cleared away, and autovacuum leaves statistics alone."""

import contextlib
from collections import Counter
from collections.abc import Iterator
from typing import Any

import psycopg
from psycopg import sql
from psycopg.pq import TransactionStatus

from dagster_sqlqueue import SqlQueue
from tests.support import rows

MANY = 100
"""So many dead rows of a table are cleared away at once. Fewer are within the slack of every bound (see explaining)."""

_TABLES = "SELECT c.relname FROM pg_class AS c WHERE c.relnamespace = CAST(%s AS regnamespace) AND c.relkind = 'r'"
_WRITTEN = """
    SELECT c.relname, pg_stat_get_xact_tuples_inserted(c.oid) + pg_stat_get_xact_tuples_updated(c.oid)
        + pg_stat_get_xact_tuples_deleted(c.oid)
    FROM pg_class AS c
    WHERE c.relnamespace = CAST(%s AS regnamespace) AND c.relkind = 'r'
"""

_dead: Counter[tuple[str, str]] = Counter()


def without_autovacuum(queue: SqlQueue) -> None:
    """Have the tables of the queue's schema counted and cleared by tests alone."""
    schema = queue.database.schema
    with queue.database.connection() as connection:
        for (table,) in connection.execute(_TABLES, [f'"{schema}"']).fetchall():
            name = sql.Identifier(schema, table)
            connection.execute(sql.SQL("ALTER TABLE {} SET (autovacuum_enabled = off)").format(name))


@contextlib.contextmanager
def undone(queue: SqlQueue, plans: str = "auto") -> "Iterator[psycopg.Connection[Any]]":
    """A transaction that is undone at the end, and what it leaves behind is cleared away.

    Args:
        queue: whose tables are worked on.
        plans: the mode of the server's cache of plans.
    """
    # A new connection has no plans, and knows nothing of the catalogue, whichever tests ran before.
    queue.database.close()
    with queue.database.connection() as connection, connection.transaction(force_rollback=True):
        connection.execute(f"SET LOCAL plan_cache_mode = {plans}".encode())
        yield connection
        if connection.info.transaction_status is not TransactionStatus.INERROR:
            _note(connection, queue.database.schema)
    _clear_away(queue)


def _note(connection: "psycopg.Connection[Any]", schema: str) -> None:
    for table, count in connection.execute(_WRITTEN.encode(), [f'"{schema}"']).fetchall():
        if count:
            _dead[schema, table] += count


def _clear_away(queue: SqlQueue) -> None:
    """Remove the dead rows of the tables that have many, with the entries that lead to them."""
    schema = queue.database.schema
    for table in [table for (of, table), count in _dead.items() if of == schema and count >= MANY]:
        rows(queue, f'VACUUM (INDEX_CLEANUP ON) {{s}}."{table}"')
        del _dead[schema, table]
