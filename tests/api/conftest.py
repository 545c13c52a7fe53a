"""The functions on every server, called in plain SQL."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg import sql

from dagster_sqlqueue import Backoff, QueueSpec, SqlQueue
from dagster_sqlqueue.functions import pinned_schema
from tests.core.support import Work, drop

SPEC = QueueSpec("work", Work, bucket_count=4, lease_seconds=30, max_attempts=3, backoff=Backoff(0, jitter=0))


@dataclass
class Caller:
    """Somebody who knows the functions and nothing of the library."""

    connection: "psycopg.Connection[Any]"
    schema: str

    def rows(self, query: str, *parameters: object) -> list[tuple[Any, ...]]:
        """The rows of a query, with `{v1}` for the schema of the functions and `{s}` for the queues' own."""
        text = sql.SQL(query).format(v1=sql.Identifier(pinned_schema(self.schema)), s=sql.Identifier(self.schema))  # type: ignore[arg-type]
        cursor = self.connection.execute(text, parameters or None)
        return cursor.fetchall() if cursor.description else []

    def value(self, query: str, *parameters: object) -> Any:
        """The first column of the only row."""
        ((found, *_),) = self.rows(query, *parameters)
        return found

    def enqueue(self, n: int, more: str = "", *parameters: object) -> UUID:
        """The id of a job with the payload `{"n": n}`."""
        call = "SELECT {v1}.enqueue('work', jsonb_build_object('n', %s::int)" + (f", {more}" if more else "") + ")"
        return self.value(call, n, *parameters)  # type: ignore[no-any-return]

    def claim(self, limit: int = 100) -> list[tuple[UUID, int, int]]:
        """The jobs of a claim: id, lease and number."""
        return self.rows(
            "SELECT job_id, lease_no, CAST(payload ->> 'n' AS int) FROM {v1}.claim('work', 'sql', %s)", limit
        )

    def refused(self, state: str, query: str, *parameters: object) -> str:
        """What a call is refused with."""
        with pytest.raises(psycopg.Error) as caught:
            self.rows(query, *parameters)
        assert caught.value.sqlstate == state, caught.value
        return str(caught.value.diag.message_primary)


@pytest.fixture
def line(any_server: str, schema: str) -> Iterator[SqlQueue]:
    """The queues of a fresh schema, as Python has them."""
    with SqlQueue(any_server, schema=schema) as queue:
        queue.init()
        queue.create_queue(SPEC)
        yield queue
        drop(queue)


@pytest.fixture
def sqlc(line: SqlQueue, any_server: str, schema: str) -> Iterator[Caller]:
    """Somebody who calls the functions in autocommit, with a search_path that hides what they need."""
    with psycopg.connect(any_server, autocommit=True) as connection:
        connection.execute("SET search_path = ''")
        yield Caller(connection, schema)
