"""Where the verbs of followers run: in a transaction of ours or inside the caller's own, and what their errors say."""

import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import psycopg
import sqlalchemy as sa

from dagster_sqlqueue.db.executors import AsyncTransaction, CallerConnection, Executor
from dagster_sqlqueue.db.retries import RereadableInput, beginning_again
from dagster_sqlqueue.db.steps import Steps, adrive, drive
from dagster_sqlqueue.queue import insert
from dagster_sqlqueue.queue.intake import NewRow
from dagster_sqlqueue.queue.service_verbs import ServiceVerbs
from dagster_sqlqueue.schema import migrations

T = TypeVar("T")


class FollowerVerbs(ServiceVerbs):
    """The base of the verbs of followers and groups, which are siblings."""

    def _within(
        self, work: Callable[[Executor], T], connection: CallerConnection | None, queues: Iterable[str] = ()
    ) -> T:
        """Run work in one transaction, a savepoint in the caller's; ours is begun again after a deadlock."""
        with migrations.explaining(self.database), self._explained(queues):
            if connection is None:
                return self.database.transact(work)
            with self.database.joined(connection).atomic() as joined:  # type: ignore[union-attr]
                return work(joined)

    def _block(
        self,
        work: Callable[[Executor], T],
        connection: CallerConnection | None,
        queues: Iterable[str],
        read: RereadableInput[Any],
    ) -> T:
        """The same for work that takes its time, and begins again only if what it enqueues can be read again."""

        def transact() -> T:
            with self.database.transaction() as transaction:
                return work(transaction)

        with migrations.explaining(self.database), self._explained(queues):
            if connection is None:
                return beginning_again(transact, read)
            with self.database.joined(connection).atomic() as joined:  # type: ignore[union-attr]
                return work(joined)

    @contextlib.asynccontextmanager
    async def _ablock(self, transaction: AsyncTransaction, queues: Iterable[str]) -> AsyncIterator[None]:
        """The same on a connection that is awaited."""
        async with migrations.aexplaining(self.database):
            with self._explained(queues):
                async with transaction.atomic():
                    yield

    def _steps(self, steps: Steps[T], executor: Executor, queue: str, rows: Sequence[NewRow] = ()) -> T:
        """Run the steps of an enqueue to a queue, and say in plain words why the database refuses it; `rows`: the jobs."""
        try:
            return drive(steps, executor)
        except insert.NoQueue as error:
            raise self.queue.catalog.not_among(queue, error.names) from None
        except (psycopg.IntegrityError, sa.exc.IntegrityError) as error:
            raise insert.refusal(error, queue, insert.only_region(rows)) from None

    async def _asteps(
        self, steps: Steps[T], transaction: AsyncTransaction, queue: str, rows: Sequence[NewRow] = ()
    ) -> T:
        """The same on a connection that is awaited."""
        try:
            return await adrive(steps, transaction)
        except insert.NoQueue as error:
            raise self.queue.catalog.not_among(queue, error.names) from None
        except psycopg.IntegrityError as error:
            raise insert.refusal(error, queue, insert.only_region(rows)) from None

    @contextlib.contextmanager
    def _explained(self, queues: Iterable[str]) -> Iterator[None]:
        """Say to which queue a callback cannot be enqueued; by the time of the error, nothing of the block is left."""
        try:
            yield
        except (psycopg.errors.ForeignKeyViolation, sa.exc.IntegrityError):
            for queue in sorted(set(queues)):
                self.queue.catalog.check_exists(queue)
            raise
