"""Verbs of publishers: publish messages to topics, in a transaction of the library or of the caller."""

from collections.abc import AsyncIterable, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeAlias
from uuid import UUID

import psycopg

from dagster_sqlqueue.db.executors import CallerConnection, Executor
from dagster_sqlqueue.db.executors import check_connection as check_blocking
from dagster_sqlqueue.db.retries import RereadableInput, beginning_again, mapped
from dagster_sqlqueue.db.steps import adrive, drive
from dagster_sqlqueue.model.queue import Payload
from dagster_sqlqueue.queue import insert
from dagster_sqlqueue.queue.hooks import around_enqueue
from dagster_sqlqueue.queue.intake import OnBadRow, each
from dagster_sqlqueue.queue.service_verbs import ServiceVerbs
from dagster_sqlqueue.schema import migrations
from dagster_sqlqueue.topics import publication
from dagster_sqlqueue.topics.model import Message, Published, PublishedMany, TopicSpec, topic_of

OnPublished: TypeAlias = Callable[[Published], object]

_AWAITED = "apublish or apublish_many"


class PublishingVerbs(ServiceVerbs):
    """What producers do with topics."""

    def publish(
        self,
        topic: TopicSpec[Payload] | str,
        payload: Payload | Mapping[str, Any],
        *,
        connection: CallerConnection | None = None,
        id: UUID | None = None,
        tags: Sequence[str] = (),
        run_at: datetime | None = None,
        priority: int = 0,
        ordering_key: str | None = None,
    ) -> Published:
        """Publish one message, in one statement.

        Args:
            topic: as declared, or its name: then any JSON object is taken.
            payload: the model's instance, or a mapping that fits it.
            connection: a psycopg or SQLAlchemy connection or an ORM session whose transaction the jobs join: rolled back
                means never published. None: a transaction of its own, committed on return.
            id: the message's id, to be able to send it again: each receiver gets one job of it, also if that has ended
                meanwhile. Costs a second statement, which searches the archive for each job. Made if None.
            tags: words to filter by; the jobs have them too.
            run_at: the moment the jobs become due, with a time zone; None for at once.
            priority: of the jobs, 0 to 9, higher first.
            ordering_key: of the jobs.

        Returns:
            The message's id, and the job that it became for each subscription that it fits.

        Raises:
            InvalidPayload, InvalidInput: nothing was published.
        """
        message = Message(payload, id, tags, run_at, priority, ordering_key)
        with migrations.explaining(self.database):
            if not self.queue._hooks:
                return self._publish(topic, message, connection)
            with around_enqueue(self.queue._hooks, topic_of(topic).name, "publish") as call:
                return call.done(self._publish(topic, call.changed(message), connection))

    def _publish(
        self, topic: "TopicSpec[Any] | str", message: Message[Any], connection: CallerConnection | None
    ) -> Published:
        name = topic_of(topic).name
        rows = [publication.new_row(topic, message)]
        check_blocking(connection, _AWAITED)
        executor = self.database.joined(connection)
        if message.id is None:
            (done,) = drive(publication.publish(name, rows), executor)
        elif connection is None:
            (done,) = self.database.transact(lambda ours: drive(publication.publish(name, rows), ours))
        else:
            with executor.atomic() as joined:  # type: ignore[union-attr]
                (done,) = drive(publication.publish(name, rows), joined)
        return done

    def publish_many(
        self,
        topic: TopicSpec[Payload] | str,
        messages: Iterable[Payload | Message[Payload] | Mapping[str, Any]],
        *,
        connection: CallerConnection | None = None,
        on_bad_row: OnBadRow = "raise",
        on_published: OnPublished | None = None,
    ) -> PublishedMany:
        """Publish many messages in one transaction, one statement for each batch of them: all or, if it fails, none.

        Args:
            topic: as for `publish`.
            messages: payloads or `Message`s; a generator is read in constant memory.
            connection: as for `publish`.
            on_bad_row: what becomes of a message that is not usable. `raise`: nothing is published. `skip`: it is left out
                and reported in `rejected`, and all others are published.
            on_published: called with what became of each message, in their order, before the transaction ends; again
                from the first one if the transaction has to begin again.

        Raises:
            InvalidPayload, InvalidInput: the message names the row, counted from 0; nothing was published.
            TransactionLost: as for `SqlQueue.enqueue_many`.
        """
        with migrations.explaining(self.database):
            if not self.queue._hooks:
                return self._publish_many(topic, messages, connection, on_bad_row, on_published)
            with around_enqueue(self.queue._hooks, topic_of(topic).name, "publish") as call:
                changed = mapped(messages, call.changed)
                return call.done(self._publish_many(topic, changed, connection, on_bad_row, on_published))

    def _publish_many(
        self,
        topic: "TopicSpec[Any] | str",
        messages: Iterable[Any],
        connection: CallerConnection | None,
        on_bad_row: OnBadRow,
        on_published: OnPublished | None,
    ) -> PublishedMany:
        insert.check_choice("on_bad_row", on_bad_row, OnBadRow)
        name = topic_of(topic).name
        check_blocking(connection, _AWAITED)
        read = RereadableInput(messages)

        def put_all(executor: Executor) -> PublishedMany:
            taken, tally = publication.MessageChunks(topic, on_bad_row), _Tally(on_published)
            for message in read:
                if chunk := taken.take(message):
                    tally.add(drive(publication.publish(name, chunk), executor))
                    read.chunk_is_in()
            if chunk := taken.rest():
                tally.add(drive(publication.publish(name, chunk), executor))
            return tally.total(taken)

        def transact() -> PublishedMany:
            with self.database.transaction() as transaction:
                return put_all(transaction)

        if connection is None:
            return beginning_again(transact, read)
        with self.database.joined(connection).atomic() as joined:  # type: ignore[union-attr]
            return put_all(joined)

    async def apublish(
        self,
        topic: TopicSpec[Payload] | str,
        payload: Payload | Mapping[str, Any],
        *,
        connection: "psycopg.AsyncConnection[Any]",
        id: UUID | None = None,
        tags: Sequence[str] = (),
        run_at: datetime | None = None,
        priority: int = 0,
        ordering_key: str | None = None,
    ) -> Published:
        """`publish` in the transaction of an asynchronous psycopg connection: rolled back means never published.

        Args:
            topic: as for `publish`.
            payload: as for `publish`.
            connection: the caller's. In autocommit and outside of a block the jobs are committed on return.
            id: as for `publish`.
            tags: as for `publish`.
            run_at: as for `publish`.
            priority: as for `publish`.
            ordering_key: as for `publish`.

        Raises:
            InvalidPayload, InvalidInput: nothing was published.
        """
        message = Message(payload, id, tags, run_at, priority, ordering_key)
        async with migrations.aexplaining(self.database):
            if not self.queue._hooks:
                return await self._apublish(topic, message, connection)
            with around_enqueue(self.queue._hooks, topic_of(topic).name, "publish") as call:
                return call.done(await self._apublish(topic, call.changed(message), connection))

    async def _apublish(
        self, topic: "TopicSpec[Any] | str", message: Message[Any], connection: "psycopg.AsyncConnection[Any]"
    ) -> Published:
        name = topic_of(topic).name
        rows = [publication.new_row(topic, message)]
        transaction = self.database.awaited(connection)
        if message.id is None:
            (done,) = await adrive(publication.publish(name, rows), transaction)
        else:
            async with transaction.atomic():
                (done,) = await adrive(publication.publish(name, rows), transaction)
        return done

    async def apublish_many(
        self,
        topic: TopicSpec[Payload] | str,
        messages: (
            Iterable[Payload | Message[Payload] | Mapping[str, Any]]
            | AsyncIterable[Payload | Message[Payload] | Mapping[str, Any]]
        ),
        *,
        connection: "psycopg.AsyncConnection[Any]",
        on_bad_row: OnBadRow = "raise",
        on_published: OnPublished | None = None,
    ) -> PublishedMany:
        """`publish_many` in the transaction of an asynchronous psycopg connection.

        Args:
            topic: as for `publish`.
            messages: payloads or `Message`s; a generator, asynchronous or not, is read in constant memory.
            connection: as for `apublish`.
            on_bad_row: as for `publish_many`.
            on_published: as for `publish_many`.

        Raises:
            InvalidPayload, InvalidInput: the message names the row, counted from 0; nothing was published.
        """
        async with migrations.aexplaining(self.database):
            if not self.queue._hooks:
                return await self._apublish_many(topic, messages, connection, on_bad_row, on_published)
            with around_enqueue(self.queue._hooks, topic_of(topic).name, "publish") as call:
                changed = each(messages, call.changed)
                return call.done(await self._apublish_many(topic, changed, connection, on_bad_row, on_published))

    async def _apublish_many(
        self,
        topic: "TopicSpec[Any] | str",
        messages: Any,
        connection: "psycopg.AsyncConnection[Any]",
        on_bad_row: OnBadRow,
        on_published: OnPublished | None,
    ) -> PublishedMany:
        insert.check_choice("on_bad_row", on_bad_row, OnBadRow)
        name = topic_of(topic).name
        transaction = self.database.awaited(connection)
        taken, tally = publication.MessageChunks(topic, on_bad_row), _Tally(on_published)
        async with transaction.atomic():
            async for message in each(messages):
                if chunk := taken.take(message):
                    tally.add(await adrive(publication.publish(name, chunk), transaction))
            if chunk := taken.rest():
                tally.add(await adrive(publication.publish(name, chunk), transaction))
        return tally.total(taken)


class _Tally:
    """The sums over the messages of one call."""

    def __init__(self, on_published: OnPublished | None) -> None:
        self._on_published = on_published
        self._messages = self._unmatched = self._inserted = self._jobs = 0

    def add(self, published: Sequence[Published]) -> None:
        """Count the messages of a batch."""
        for done in published:
            self._messages += 1
            self._unmatched += not done.matched
            self._jobs += len(done.jobs)
            self._inserted += sum(job.inserted for job in done.jobs)
            if self._on_published:
                self._on_published(done)

    def total(self, taken: publication.MessageChunks) -> PublishedMany:
        """The sums."""
        duplicates = self._jobs - self._inserted
        return PublishedMany(self._messages, self._unmatched, self._inserted, duplicates, taken.rejected)
