"""Jobs that a test writes into the table by SQL of its own, in a transaction of its own."""

from collections.abc import Sequence
from typing import Any, LiteralString, cast
from uuid import uuid4

import psycopg
from psycopg import sql

from dagster_sqlqueue import SqlQueue

_COLUMNS = "id, queue, bucket, priority, available_at, run_at, max_attempts, payload"
ROW = (
    f"INSERT INTO {{s}}.job ({_COLUMNS}) SELECT gen_random_uuid(), name, 0, %s, now(), now(), 1, '{{{{\"n\": 0}}}}'"
    " FROM unnest(CAST(%s AS text[])) AS name"
)


def in_schema(queue: SqlQueue, text: str) -> sql.Composed:
    """A statement with the schema's name for `{s}`."""
    return sql.SQL(cast(LiteralString, text)).format(s=sql.Identifier(queue.database.schema))


def insert(
    queue: SqlQueue, connection: "psycopg.Connection[Any]", names: Sequence[str] = ("work",), priority: int = 0
) -> None:
    """One due job of each queue named, by one INSERT."""
    connection.execute(in_schema(queue, ROW), [priority, list(names)])


def copy(queue: SqlQueue, connection: "psycopg.Connection[Any]", jobs: Sequence[tuple[str, int]]) -> None:
    """A due job for each queue and priority, by one COPY."""
    with connection.cursor().copy(in_schema(queue, f"COPY {{s}}.job ({_COLUMNS}) FROM STDIN")) as stream:
        for name, priority in jobs:
            stream.write_row((uuid4(), name, 0, priority, "now", "now", 1, '{"n": 0}'))
