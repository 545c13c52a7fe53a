"""Enqueue one or many jobs, optionally in the caller's transaction, on connections that block and on awaited ones."""

import contextlib
from collections import Counter
from collections.abc import AsyncIterable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar
from uuid import UUID

import psycopg
import sqlalchemy as sa

from dagster_sqlqueue.db.executors import AsyncTransaction, CallerConnection, Executor, Send, check_connection
from dagster_sqlqueue.db.retries import RereadableInput, beginning_again, mapped
from dagster_sqlqueue.db.steps import CopyExecutor, Steps, adrive, drive
from dagster_sqlqueue.model.job import NewJob
from dagster_sqlqueue.model.queue import Payload, QueueSpec, check_spec
from dagster_sqlqueue.queue import insert
from dagster_sqlqueue.queue.base import Verbs
from dagster_sqlqueue.queue.copy_rows import Packer
from dagster_sqlqueue.queue.hooks import around_enqueue
from dagster_sqlqueue.queue.insert import Enqueued, OnConflict
from dagster_sqlqueue.queue.intake import NewRow, OnBadRow, PlainJobChunks, PlainRow, Rejected, each, one_row
from dagster_sqlqueue.schema import migrations

__all__ = ["EnqueueVerbs", "Enqueued", "Rejected"]

T = TypeVar("T")


class _Stream:
    """One COPY for the chunks of a call that follow each other, for as long as it is open. Left, it has ended.

    Args:
        executor: a transaction.
        packer: of the queue; None where no COPY may wait for what comes next: where the connection takes none or is needed
            meanwhile, or a statement may take only so long.
    """

    def __init__(self, executor: CopyExecutor, packer: Packer | None) -> None:
        self._executor = executor
        self._packer = packer
        self._until_closed = contextlib.ExitStack()
        self._send: Send | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._until_closed.__exit__(kind, error, trace)

    @property
    def open(self) -> bool:
        """Whether it waits for more."""
        return self._send is not None

    def take(self, chunk: Sequence[NewRow | PlainRow]) -> bool:
        """Send a chunk, if it is one for a COPY; returns whether it is."""
        if self._packer is None or not insert.copyable(chunk, joining=self.open):
            return False
        if self._send is None:
            self._send = self._until_closed.enter_context(self._executor.copying(insert.COPY))
        for block in self._packer.blocks(chunk):
            self._send(block)
        return True

    def close(self) -> None:
        """End it, for other statements."""
        self._send = None
        self._until_closed.close()


class EnqueueVerbs(Verbs):
    """The verbs that enqueue jobs."""

    def enqueue(
        self,
        spec: QueueSpec[Payload],
        job: "Payload | NewJob[Payload] | Mapping[str, Any]",
        *,
        connection: CallerConnection | None = None,
        on_conflict: OnConflict = "ignore",
    ) -> UUID | None:
        """Enqueue one job.

        A job with an id of its producer's (`NewJob(id=…)`) that is sent again lands once, also if it has ended meanwhile,
        for as long as the archive keeps it. `redrive` brings an ended job back.

        Args:
            spec: the queue.
            job: its payload, or a `NewJob` with more to say.
            connection: a psycopg or SQLAlchemy connection or an ORM session whose transaction the job joins: rolled back
                means never enqueued. None: a transaction of its own, committed on return. For a job with an id of its own
                it has to be READ COMMITTED: a stricter one does not see that the job ended after it began.
            on_conflict: what becomes of a job whose unique key another one holds. `ignore`: it is left out. `replace`: if
                that one still waits, it takes the payload, moment, priority, tags and limits of the new one and begins
                anew with its attempts; its id, its bucket, its place within its ordering key and until when it holds its
                unique key stay. A job that runs or is held stays as it is.

        Returns:
            The id of the job that holds the content; None for a duplicate: a live job that was left as it is holds
            its unique key or has its id, or a job of its id was enqueued before and has ended.

        Raises:
            InvalidPayload, InvalidInput: nothing was enqueued.
            UnknownQueue: the queue does not exist.
            SchemaTooOld, SchemaTooNew: see the classes.
        """
        check_spec(spec)
        with migrations.explaining(self.database):
            if not self._hooks:
                return self._enqueue(spec, job, connection, on_conflict)
            with around_enqueue(self._hooks, spec.name, "send") as call:
                return call.done(self._enqueue(spec, call.changed(job), connection, on_conflict))

    def _enqueue(
        self,
        spec: QueueSpec[Payload],
        job: "Payload | NewJob[Payload] | Mapping[str, Any]",
        connection: CallerConnection | None,
        on_conflict: OnConflict,
    ) -> UUID | None:
        insert.check_choice("on_conflict", on_conflict, OnConflict)
        row = one_row(spec, job)
        check_connection(connection, "aenqueue or aenqueue_many")
        executor = self.database.joined(connection)
        if insert.in_one_statement(row, on_conflict, joining=connection is not None):
            return self._drive(insert.one(spec.name, row, on_conflict), executor, spec.name, row.region)
        if connection is None:
            return self.database.transact(
                lambda transaction: self._drive(
                    insert.one(spec.name, row, on_conflict), transaction, spec.name, row.region
                )
            )
        with executor.atomic() as joined:  # type: ignore[union-attr]
            return self._drive(insert.one(spec.name, row, on_conflict), joined, spec.name, row.region)

    def enqueue_many(
        self,
        spec: QueueSpec[Payload],
        jobs: "Iterable[Payload | NewJob[Payload] | Mapping[str, Any]]",
        *,
        connection: CallerConnection | None = None,
        on_conflict: OnConflict = "ignore",
        on_bad_row: OnBadRow = "raise",
    ) -> Enqueued:
        """Enqueue many jobs, in one transaction: all of them or, if it fails, none.

        Many plain jobs go in by COPY, one for all that follow each other, unless the client_encoding of the connection is
        not UTF8; those that have an id of the producer's, a unique
        key or an ordering key go in by arrays, which can leave duplicates out and number the jobs of a key. Those with an
        id of the producer's that were enqueued before are left out, also if they have ended: that is a read of the archive
        for each.

        Args:
            spec: the queue.
            jobs: payloads or `NewJob`s; a generator is read in constant memory.
            connection: as for `enqueue`. A deadlock, as with others that enqueue the same unique keys in another order,
                ends the caller's transaction; one of our own begins again from the first job.
            on_conflict: as for `enqueue`. Of jobs with the same unique key in one call, `ignore` takes the first,
                `replace` the last.
            on_bad_row: what becomes of a job that is not usable. `raise`: nothing is enqueued. `skip`: it is left out and
                reported in `rejected`, and all others are enqueued.

        Raises:
            InvalidPayload, InvalidInput: the message names the row, counted from 0; nothing was enqueued.
            UnknownQueue: the queue does not exist.
            SchemaTooOld, SchemaTooNew: see the classes.
            TransactionLost: others were in the way again and again, or of a generator whose first chunk was in; nothing
                was enqueued.
        """
        check_spec(spec)
        with migrations.explaining(self.database):
            if not self._hooks:
                return self._enqueue_many(spec, jobs, connection, on_conflict, on_bad_row)
            with around_enqueue(self._hooks, spec.name, "send") as call:
                changed = mapped(jobs, call.changed)
                return call.done(self._enqueue_many(spec, changed, connection, on_conflict, on_bad_row))

    def _enqueue_many(
        self,
        spec: QueueSpec[Payload],
        jobs: Iterable[Any],
        connection: CallerConnection | None,
        on_conflict: OnConflict,
        on_bad_row: OnBadRow,
    ) -> Enqueued:
        insert.check_choice("on_conflict", on_conflict, OnConflict)
        insert.check_choice("on_bad_row", on_bad_row, OnBadRow)
        check_connection(connection, "aenqueue or aenqueue_many")
        read = RereadableInput(jobs)
        # What a generator does meanwhile may need the caller's connection.
        streaming = connection is None or type(jobs) in (list, tuple)

        def put_all(executor: CopyExecutor) -> Enqueued:
            terms = self._drive(insert.terms(spec.name), executor, spec.name)
            taken = PlainJobChunks(spec, terms, on_bad_row)
            counts: Counter[str] = Counter()
            packer = Packer(spec.name, terms) if executor.copies else None
            with (
                self._in_words(spec.name),
                _Stream(executor, packer if streaming and not terms.timed else None) as stream,
            ):

                def put(rows: list[NewRow | PlainRow]) -> None:
                    if stream.take(rows):
                        counts["inserted"] += len(rows)
                    else:
                        stream.close()
                        steps = insert.many(spec.name, rows, on_conflict=on_conflict, packer=packer)
                        counts.update(self._drive(steps, executor, spec.name, insert.only_region(rows)))
                    taken.streamed(stream.open)

                for job in read:
                    if chunk := taken.take(job):
                        put(chunk)
                        read.chunk_is_in()
                if chunk := taken.rest():
                    put(chunk)
            return Enqueued(counts["inserted"], counts["duplicates"], counts["replaced"], taken.rejected)

        def transact() -> Enqueued:
            with self.database.transaction() as transaction:
                return put_all(transaction)

        if connection is None:
            return beginning_again(transact, read)
        with self.database.joined(connection).atomic() as joined:  # type: ignore[union-attr]
            return put_all(joined)

    def _drive(self, steps: Steps[T], executor: Executor, queue: str, region: str | None = None) -> T:
        with self._in_words(queue, region):
            return drive(steps, executor)

    @contextlib.contextmanager
    def _in_words(self, queue: str, region: str | None = None) -> Iterator[None]:
        """Say in plain words what an enqueue can cause; `region`: the only one that the jobs name."""
        try:
            yield
        except insert.NoQueue as error:
            raise self.catalog.not_among(queue, error.names) from None
        except (psycopg.IntegrityError, sa.exc.IntegrityError) as error:
            raise insert.refusal(error, queue, region) from None

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
            SchemaTooOld, SchemaTooNew: see the classes.
        """
        check_spec(spec)
        async with migrations.aexplaining(self.database):
            if not self._hooks:
                return await self._aenqueue(spec, job, connection, on_conflict)
            with around_enqueue(self._hooks, spec.name, "send") as call:
                return call.done(await self._aenqueue(spec, call.changed(job), connection, on_conflict))

    async def _aenqueue(
        self,
        spec: QueueSpec[Payload],
        job: "Payload | NewJob[Payload] | Mapping[str, Any]",
        connection: "psycopg.AsyncConnection[Any]",
        on_conflict: OnConflict,
    ) -> UUID | None:
        insert.check_choice("on_conflict", on_conflict, OnConflict)
        row = one_row(spec, job)
        transaction = self.database.awaited(connection)
        steps = insert.one(spec.name, row, on_conflict)
        if insert.in_one_statement(row, on_conflict, joining=True):
            return await self._adrive(steps, transaction, spec.name, row.region)
        async with transaction.atomic():
            return await self._adrive(steps, transaction, spec.name, row.region)

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
            SchemaTooOld, SchemaTooNew: see the classes.
        """
        check_spec(spec)
        async with migrations.aexplaining(self.database):
            if not self._hooks:
                return await self._aenqueue_many(spec, jobs, connection, on_conflict, on_bad_row)
            with around_enqueue(self._hooks, spec.name, "send") as call:
                changed = each(jobs, call.changed)
                return call.done(await self._aenqueue_many(spec, changed, connection, on_conflict, on_bad_row))

    async def _aenqueue_many(
        self,
        spec: QueueSpec[Payload],
        jobs: "Iterable[Any] | AsyncIterable[Any]",
        connection: "psycopg.AsyncConnection[Any]",
        on_conflict: OnConflict,
        on_bad_row: OnBadRow,
    ) -> Enqueued:
        insert.check_choice("on_conflict", on_conflict, OnConflict)
        insert.check_choice("on_bad_row", on_bad_row, OnBadRow)
        transaction = self.database.awaited(connection)
        async with transaction.atomic():
            terms = await self._adrive(insert.terms(spec.name), transaction, spec.name)
            taken = PlainJobChunks(spec, terms, on_bad_row)
            counts: Counter[str] = Counter()
            packer = Packer(spec.name, terms) if transaction.copies else None

            async def put(rows: list[NewRow | PlainRow]) -> None:
                steps = insert.many(spec.name, rows, on_conflict=on_conflict, packer=packer)
                counts.update(await self._adrive(steps, transaction, spec.name, insert.only_region(rows)))

            async for job in each(jobs):
                if chunk := taken.take(job):
                    await put(chunk)
            if chunk := taken.rest():
                await put(chunk)
        return Enqueued(counts["inserted"], counts["duplicates"], counts["replaced"], taken.rejected)

    async def _adrive(self, steps: Steps[T], transaction: AsyncTransaction, queue: str, region: str | None = None) -> T:
        try:
            return await adrive(steps, transaction)
        except insert.NoQueue as error:
            raise self.catalog.not_among(queue, error.names) from None
        except psycopg.IntegrityError as error:
            raise insert.refusal(error, queue, region) from None
