"""The functions on every server, called in plain SQL."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg import sql

from dagster_sqlqueue import Backoff, NewJob, QueueSpec, SqlQueue, Strategy
from dagster_sqlqueue.schema.functions import pinned_schema
from tests.support import Work
from tests.support.cleared import cleared, own_schema

SPEC = QueueSpec("work", Work, bucket_count=4, lease_seconds=300, max_attempts=3, backoff=Backoff(0, jitter=0))
OWN = UUID("0199a1b2-c3d4-7e5f-8a6b-7c8d9e0f1a2b")
"""The id of a job that its producer chose."""
LOCKING = [Strategy.ROUND_ROBIN, Strategy.FANOUT, Strategy.FIFO]


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

    def claim(
        self, limit: int = 100, buckets: Sequence[int] | None = None, more: str = ""
    ) -> list[tuple[UUID, int, int]]:
        """The jobs of a claim: id, lease and number."""
        return self.rows(
            "SELECT job_id, lease_no, CAST(payload ->> 'n' AS int)"
            f" FROM {{v1}}.claim('work', 'sql', %s, buckets => %s::integer[]{more and ', '}{more})",
            limit,
            None if buckets is None else list(buckets),
        )

    def refused(self, state: str, query: str, *parameters: object) -> str:
        """What a call is refused with."""
        with pytest.raises(psycopg.Error) as caught:
            self.rows(query, *parameters)
        assert caught.value.sqlstate == state, caught.value
        return str(caught.value.diag.message_primary)


def fill(line: SqlQueue, count: int = 10, **more: Any) -> None:
    """Put jobs on the queue `work`, numbered from 0."""
    line.enqueue_many(SPEC, [NewJob(Work(n=n), **more) for n in range(count)])


@pytest.fixture(scope="module")
def shared(any_server: str, request: pytest.FixtureRequest) -> Iterator[SqlQueue]:
    """The queues of a schema that the tests of one module share."""
    with own_schema(any_server, f"api_{request.path.stem.removeprefix('test_')}") as queue:
        yield queue


@pytest.fixture
def line(shared: SqlQueue) -> SqlQueue:
    """The queues as Python has them: `work`, and nothing in it."""
    return cleared(shared, SPEC)


@pytest.fixture
def sqlc(line: SqlQueue, any_server: str) -> Iterator[Caller]:
    """Somebody who calls the functions in autocommit, with a search_path that hides what they need."""
    with psycopg.connect(any_server, autocommit=True) as connection:
        connection.execute("SET search_path = ''")
        yield Caller(connection, line.database.schema)
