"""Verbs of producers: enqueue jobs with the callbacks of their ends, and merge equal jobs."""

from collections import Counter
from collections.abc import AsyncIterable, Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias
from uuid import UUID

import psycopg

from dagster_sqlqueue.db.executors import CallerConnection, Executor, check_connection
from dagster_sqlqueue.db.retries import RereadableInput
from dagster_sqlqueue.followers.base import FollowerVerbs
from dagster_sqlqueue.followers.insert import OnConflict, Submitted, SubmittedMany, queues_of, submit, wishes_of
from dagster_sqlqueue.followers.model import Callback
from dagster_sqlqueue.model.job import NewJob
from dagster_sqlqueue.model.queue import Payload, QueueSpec
from dagster_sqlqueue.queue import insert
from dagster_sqlqueue.queue.intake import JobChunks, OnBadRow, Rejected, each

OnSubmitted: TypeAlias = Callable[[Submitted], object]

_AWAITED = "aenqueue or aenqueue_many"


class SubmissionVerbs(FollowerVerbs):
    """How jobs are enqueued with their followers."""

    def enqueue(
        self,
        spec: QueueSpec[Payload],
        job: "Payload | NewJob[Payload] | Mapping[str, Any]",
        *,
        callbacks: Iterable[Callback] | Callback = (),
        group: UUID | None = None,
        on_conflict: OnConflict = "merge",
        connection: CallerConnection | None = None,
    ) -> Submitted:
        """Enqueue one job together with the callbacks of its end, in one transaction.

        A job with an id of its producer's that is sent again lands once, and its callbacks are enqueued once.

        Args:
            spec: the queue.
            job: its payload, or a `NewJob` with more to say.
            callbacks: what is enqueued to other queues when the job has ended.
            group: the group of which the job becomes a member.
            on_conflict: what becomes of a job whose unique key a live job has. `merge`: that one does its work, waiting or
                running, and every submitter's callbacks are enqueued. `ignore`: the new job and its callbacks are left out.
            connection: as for `SqlQueue.enqueue`. Until that transaction ends, a job that was merged into cannot be
                claimed, and one that runs cannot end: be short.

        Raises:
            InvalidPayload, InvalidInput: nothing was enqueued.
            UnknownQueue: the queue, or that of a callback, does not exist; nothing was enqueued.
            UnknownGroup, GroupClosed: nothing was enqueued.
        """
        insert.check_choice("on_conflict", on_conflict, OnConflict)
        wishes = wishes_of(callbacks, group)
        check_connection(connection, _AWAITED)

        def work(executor: Any) -> Submitted:
            taken = JobChunks(spec, self._steps(insert.terms(spec.name), executor, spec.name), "raise")
            rows = taken.take(job) or taken.rest()
            return self._steps(submit(spec.name, rows, on_conflict, wishes), executor, spec.name, rows)[0]

        return self._within(work, connection, queues_of(wishes))

    def enqueue_many(
        self,
        spec: QueueSpec[Payload],
        jobs: "Iterable[Payload | NewJob[Payload] | Mapping[str, Any]]",
        *,
        callbacks: Iterable[Callback] | Callback = (),
        group: UUID | None = None,
        on_conflict: OnConflict = "merge",
        on_bad_row: OnBadRow = "raise",
        on_submitted: OnSubmitted | None = None,
        connection: CallerConnection | None = None,
    ) -> SubmittedMany:
        """Enqueue many jobs in one transaction: all of them or, if it fails, none.

        Args:
            spec: the queue.
            jobs: payloads or `NewJob`s; a generator is read in constant memory.
            callbacks: as for `enqueue`, for each of them.
            group: as for `enqueue`.
            on_conflict: as for `enqueue`.
            on_bad_row: as for `SqlQueue.enqueue_many`.
            on_submitted: called with what became of each job, in their order, before the transaction ends; again from the
                first one if the transaction has to begin again.
            connection: as for `enqueue`.

        Raises:
            InvalidPayload, InvalidInput, UnknownQueue, UnknownGroup, GroupClosed: as for `enqueue`.
            TransactionLost: as for `SqlQueue.enqueue_many`.
        """
        insert.check_choice("on_conflict", on_conflict, OnConflict)
        insert.check_choice("on_bad_row", on_bad_row, OnBadRow)
        wishes = wishes_of(callbacks, group)
        check_connection(connection, _AWAITED)
        read = RereadableInput(jobs)

        def put_all(executor: Executor) -> SubmittedMany:
            tally = _Tally(on_submitted)
            taken = JobChunks(spec, self._steps(insert.terms(spec.name), executor, spec.name), on_bad_row)

            def put(rows: Any) -> None:
                tally.add(self._steps(submit(spec.name, rows, on_conflict, wishes), executor, spec.name, rows))

            for job in read:
                if chunk := taken.take(job):
                    put(chunk)
                    read.chunk_is_in()
            if chunk := taken.rest():
                put(chunk)
            return tally.total(taken.rejected)

        return self._block(put_all, connection, queues_of(wishes), read)

    async def aenqueue(
        self,
        spec: QueueSpec[Payload],
        job: "Payload | NewJob[Payload] | Mapping[str, Any]",
        *,
        callbacks: Iterable[Callback] | Callback = (),
        group: UUID | None = None,
        on_conflict: OnConflict = "merge",
        connection: "psycopg.AsyncConnection[Any]",
    ) -> Submitted:
        """`enqueue` in the transaction of an asynchronous psycopg connection: rolled back means never enqueued.

        Args:
            spec: as for `enqueue`.
            job: as for `enqueue`.
            callbacks: as for `enqueue`.
            group: as for `enqueue`.
            on_conflict: as for `enqueue`.
            connection: the caller's. In autocommit and outside of a block the job is committed on return.

        Raises:
            InvalidPayload, InvalidInput, UnknownQueue, UnknownGroup, GroupClosed: as for `enqueue`.
        """
        insert.check_choice("on_conflict", on_conflict, OnConflict)
        wishes = wishes_of(callbacks, group)
        transaction = self.database.awaited(connection)
        async with self._ablock(transaction, queues_of(wishes)):
            taken = JobChunks(spec, await self._asteps(insert.terms(spec.name), transaction, spec.name), "raise")
            rows = taken.take(job) or taken.rest()
            (done,) = await self._asteps(submit(spec.name, rows, on_conflict, wishes), transaction, spec.name, rows)
        return done

    async def aenqueue_many(
        self,
        spec: QueueSpec[Payload],
        jobs: "Iterable[Payload | NewJob[Payload] | Mapping[str, Any]] | AsyncIterable[Any]",
        *,
        callbacks: Iterable[Callback] | Callback = (),
        group: UUID | None = None,
        on_conflict: OnConflict = "merge",
        on_bad_row: OnBadRow = "raise",
        on_submitted: OnSubmitted | None = None,
        connection: "psycopg.AsyncConnection[Any]",
    ) -> SubmittedMany:
        """`enqueue_many` in the transaction of an asynchronous psycopg connection.

        Args:
            spec: as for `enqueue`.
            jobs: payloads or `NewJob`s; a generator, asynchronous or not, is read in constant memory.
            callbacks: as for `enqueue`.
            group: as for `enqueue`.
            on_conflict: as for `enqueue`.
            on_bad_row: as for `enqueue_many`.
            on_submitted: as for `enqueue_many`.
            connection: the caller's. In autocommit and outside of a block the jobs are committed on return.

        Raises:
            InvalidPayload, InvalidInput, UnknownQueue, UnknownGroup, GroupClosed: as for `enqueue`.
        """
        insert.check_choice("on_conflict", on_conflict, OnConflict)
        insert.check_choice("on_bad_row", on_bad_row, OnBadRow)
        wishes = wishes_of(callbacks, group)
        transaction = self.database.awaited(connection)
        tally = _Tally(on_submitted)
        async with self._ablock(transaction, queues_of(wishes)):
            taken = JobChunks(spec, await self._asteps(insert.terms(spec.name), transaction, spec.name), on_bad_row)

            async def put(rows: Any) -> None:
                steps = submit(spec.name, rows, on_conflict, wishes)
                tally.add(await self._asteps(steps, transaction, spec.name, rows))

            async for job in each(jobs):
                if chunk := taken.take(job):
                    await put(chunk)
            if chunk := taken.rest():
                await put(chunk)
        return tally.total(taken.rejected)


class _Tally:
    """The sums over the jobs of one call."""

    def __init__(self, on_submitted: OnSubmitted | None) -> None:
        self._on_submitted = on_submitted
        self._counts: Counter[str] = Counter()

    def add(self, submitted: Sequence[Submitted]) -> None:
        """Count the jobs of a chunk."""
        for one in submitted:
            self._counts["inserted" if one.inserted else "merged" if one.merged else "duplicates"] += 1
            if self._on_submitted:
                self._on_submitted(one)

    def total(self, rejected: list[Rejected]) -> SubmittedMany:
        """The sums."""
        counts = self._counts
        return SubmittedMany(counts["inserted"], counts["merged"], counts["duplicates"], rejected)
