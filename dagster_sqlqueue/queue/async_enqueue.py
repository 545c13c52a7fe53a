"""Putting in on a connection that is awaited: the same steps as `enqueue`, inside the caller's transaction."""

from collections import Counter
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Mapping
from typing import Any, TypeVar
from uuid import UUID

import psycopg

from dagster_sqlqueue.db.executors import AsyncTransaction
from dagster_sqlqueue.db.steps import Steps, adrive
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
        transaction = self.database.awaited(connection)
        steps = insert.one(spec.name, row, on_conflict)
        if on_conflict == "ignore" and not row.named and row.columns["region"] is None:
            return await self._adrive(steps, transaction, spec.name)
        async with transaction.atomic():
            return await self._adrive(steps, transaction, spec.name)

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
        transaction = self.database.awaited(connection)
        async with transaction.atomic():
            terms = await self._adrive(insert.terms(spec.name), transaction, spec.name)
            taken = Intake(spec, terms, on_bad_row)
            counts: Counter[str] = Counter()

            async def put(rows: list[NewRow]) -> None:
                steps = insert.many(spec.name, rows, terms, on_conflict=on_conflict, copying=transaction.copies)
                counts.update(await self._adrive(steps, transaction, spec.name))

            async for job in each(jobs):
                if chunk := taken.take(job):
                    await put(chunk)
            if chunk := taken.rest():
                await put(chunk)
        return Enqueued(counts["inserted"], counts["duplicates"], counts["replaced"], taken.rejected)

    async def _adrive(self, steps: Steps[T], transaction: AsyncTransaction, queue: str) -> T:
        try:
            return await adrive(steps, transaction)
        except insert.NoQueue as error:
            raise self.catalog.not_among(queue, error.names) from None
        except psycopg.IntegrityError as error:
            raise insert.refusal(error, queue) from None


async def each(jobs: Any) -> AsyncIterator[Any]:
    """The elements of an iterable, asynchronous or not."""
    if isinstance(jobs, AsyncIterable):
        async for job in jobs:
            yield job
    else:
        for job in jobs:
            yield job
