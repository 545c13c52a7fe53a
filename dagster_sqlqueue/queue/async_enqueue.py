"""Putting in on a connection that is awaited: the same requests as `enqueueing`, inside the caller's transaction."""

import contextlib
from collections import Counter
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Mapping
from typing import Any, TypeVar
from uuid import UUID

import psycopg
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.rows import tuple_row

from dagster_sqlqueue.db import statements
from dagster_sqlqueue.db.database import Database
from dagster_sqlqueue.db.executors import Parameters, Row
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.model.job import NewJob
from dagster_sqlqueue.model.queue import Payload, QueueSpec
from dagster_sqlqueue.queue import insert
from dagster_sqlqueue.queue.base import Verbs
from dagster_sqlqueue.queue.insert import Enqueued, OnConflict
from dagster_sqlqueue.queue.intake import Intake, NewRow, OnBadRow, new_row

T = TypeVar("T")


class AsyncEnqueueingVerbs(Verbs):
    """How jobs are put on a queue by a program that uses `asyncio`."""

    async def aenqueue(
        self,
        spec: QueueSpec[Payload],
        job: "Payload | NewJob[Payload] | Mapping[str, Any]",
        *,
        connection: "psycopg.AsyncConnection[Any]",
        on_conflict: OnConflict = "ignore",
    ) -> UUID | None:
        """`enqueue` in the transaction of an asynchronous psycopg connection: rolled back means never enqueued.

        Args:
            spec: the queue.
            job: its payload, or a `NewJob` with more to say.
            connection: the caller's. In autocommit and outside of a block the job is committed on return.
            on_conflict: as for `enqueue`.

        Returns:
            The id of the job that holds the content; None for a duplicate.

        Raises:
            InvalidPayload, InvalidInput: nothing was enqueued.
            UnknownQueue: the queue does not exist.
        """
        insert.check_choice("on_conflict", on_conflict, OnConflict)
        row = new_row(spec, job)
        check_connection(connection)
        steps = insert.one(spec.name, row, on_conflict)
        if on_conflict == "ignore" and not row.named and row.columns["region"] is None:
            return await self._adrive(steps, connection, spec.name)
        async with atomic(connection):
            return await self._adrive(steps, connection, spec.name)

    async def aenqueue_many(
        self,
        spec: QueueSpec[Payload],
        jobs: "Iterable[Payload | NewJob[Payload] | Mapping[str, Any]] | AsyncIterable[Any]",
        *,
        connection: "psycopg.AsyncConnection[Any]",
        on_conflict: OnConflict = "ignore",
        on_bad_row: OnBadRow = "raise",
    ) -> Enqueued:
        """`enqueue_many` in the transaction of an asynchronous psycopg connection.

        Args:
            spec: the queue.
            jobs: payloads or `NewJob`s; a generator, asynchronous or not, is read in constant memory.
            connection: the caller's. In autocommit and outside of a block the jobs are committed on return.
            on_conflict: as for `enqueue_many`.
            on_bad_row: as for `enqueue_many`.

        Raises:
            InvalidPayload, InvalidInput: the message names the row, counted from 0; nothing was enqueued.
            UnknownQueue: the queue does not exist.
        """
        insert.check_choice("on_conflict", on_conflict, OnConflict)
        insert.check_choice("on_bad_row", on_bad_row, OnBadRow)
        check_connection(connection)
        copying = connection.pgconn.pipeline_status == PipelineStatus.OFF
        async with atomic(connection):
            terms = await self._adrive(insert.terms(spec.name), connection, spec.name)
            taken = Intake(spec, terms, on_bad_row)
            counts: Counter[str] = Counter()

            async def put(rows: list[NewRow]) -> None:
                steps = insert.many(spec.name, rows, terms, on_conflict=on_conflict, copying=copying)
                counts.update(await self._adrive(steps, connection, spec.name))

            async for job in each(jobs):
                if chunk := taken.take(job):
                    await put(chunk)
            if chunk := taken.rest():
                await put(chunk)
        return Enqueued(counts["inserted"], counts["duplicates"], counts["replaced"], taken.rejected)

    async def _adrive(self, steps: insert.Steps[T], connection: "psycopg.AsyncConnection[Any]", queue: str) -> T:
        try:
            return await drive(steps, connection, self.database)
        except insert.NoQueue as error:
            raise self._unknown(queue, _Known(error.names)) from None
        except psycopg.IntegrityError as error:
            raise insert.refusal(error, queue) from None


async def drive(steps: insert.Steps[T], connection: "psycopg.AsyncConnection[Any]", database: Database) -> T:
    """Do what steps ask for on a connection that is awaited; gives what they come to."""
    try:
        request = next(steps)
        while True:
            with database.naming_schema(request.name, connection=connection):
                rows = await _answer(connection, request, database.schema)
            request = steps.send(rows)
    except StopIteration as done:
        result: T = done.value
        return result


async def _answer(connection: "psycopg.AsyncConnection[Any]", request: insert.Request, schema: str) -> "list[Row]":
    sql = statements.load(request.name, schema).encode()
    # Not connection.cursor(): the caller's connection may make cursors that bind in another way.
    async with psycopg.AsyncCursor(connection, row_factory=tuple_row) as cursor:
        if isinstance(request, insert.Statement):
            await cursor.execute(sql, request.parameters)
            try:
                # Also for a statement without rows: inside of a pipeline, only fetching waits for the answer.
                return await cursor.fetchall()
            except psycopg.ProgrammingError:
                if cursor.pgresult is None:
                    raise
                return []
        async with cursor.copy(sql) as copy:
            copy.set_types(request.types)
            for record in request.records:
                await copy.write_row(record)
        return []


@contextlib.asynccontextmanager
async def atomic(connection: "psycopg.AsyncConnection[Any]") -> AsyncIterator[None]:
    """Make several statements one whole: a savepoint inside the caller's transaction."""
    if not connection.autocommit and connection.info.transaction_status is TransactionStatus.IDLE:
        # As in Transaction.atomic: the caller's transaction begins here, and is his to commit.
        await connection.execute("SELECT 1")
    async with connection.transaction():
        yield


async def each(jobs: Any) -> AsyncIterator[Any]:
    """The elements of an iterable, asynchronous or not."""
    if isinstance(jobs, AsyncIterable):
        async for job in jobs:
            yield job
    else:
        for job in jobs:
            yield job


def check_connection(connection: object) -> None:
    """Say so if a connection is none that can be awaited.

    Raises:
        InvalidInput: the message names its type.
    """
    if not isinstance(connection, psycopg.AsyncConnection):
        raise InvalidInput(
            f"connection is a {type(connection).__name__}; give a psycopg.AsyncConnection, or call the verb without the a"
        )


class _Known:
    """An executor that answers what is known already."""

    def __init__(self, rows: Any) -> None:
        self._rows = rows

    def run(self, name: str, parameters: Parameters) -> "list[Row]":
        """The rows."""
        return list(self._rows)
