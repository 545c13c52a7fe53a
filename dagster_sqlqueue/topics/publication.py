"""What publishing says to the database, and what it makes of the answers. No I/O."""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID

from dagster_sqlqueue.db.steps import Statement, Steps
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.model.job import NewJob
from dagster_sqlqueue.queue.insert import seeing_ends
from dagster_sqlqueue.queue.intake import Chunks, OnBadRow
from dagster_sqlqueue.queue.validation import as_columns, values
from dagster_sqlqueue.topics.model import Message, Published, PublishedJob, TopicSpec, topic_of

_CHUNK_MESSAGES = 500
_CHUNK_BYTES = 4_000_000
"""Of what is sent at once; a topic with a hundred subscriptions writes a hundred times as much."""

_ARRAYS = ("ids", "hashes", "priorities", "run_ats", "ordering_keys", "tags", "payloads")


class Row(NamedTuple):
    """A message that was found in order: its columns, and whether its id is the publisher's own."""

    columns: dict[str, Any]
    named: bool

    @property
    def id(self) -> UUID:
        """The message's id."""
        found: UUID = self.columns["id"]
        return found

    @property
    def payload(self) -> str:
        """The message's payload."""
        found: str = self.columns["payload"]
        return found


def new_row(topic: TopicSpec[Any] | str, message: Any, number: int = 0) -> Row:
    """A message, checked and ready to be sent.

    Raises:
        InvalidPayload, InvalidInput: the message names the row.
    """
    if isinstance(message, NewJob):
        raise InvalidInput(f"row {number}: a topic takes messages, and this is a NewJob; give a Message")
    new = message if isinstance(message, Message) else Message(message)
    job = NewJob(
        new.payload,
        id=new.id,
        tags=new.tags,
        run_at=new.run_at,
        priority=new.priority,
        ordering_key=new.ordering_key,
    )
    columns = values(topic_of(topic, new.payload), job, number)
    if new.ordering_key is None:
        columns["hash"] = None
    return Row(columns, new.id is not None)


class MessageChunks(Chunks[Row]):
    """The messages of one call, checked, in chunks that are ready to be sent.

    Args:
        topic: what they are published to.
        on_bad_row: see `Chunks`.
    """

    def __init__(self, topic: TopicSpec[Any] | str, on_bad_row: OnBadRow) -> None:
        super().__init__(partial(new_row, topic), on_bad_row, _CHUNK_MESSAGES, _CHUNK_BYTES)


def publish(topic: str, rows: Sequence[Row]) -> Steps[list[Published]]:
    """Publish messages; returns what became of each. It is one statement, which needs no transaction, if no id is theirs.

    Args:
        topic: its name.
        rows: the messages.

    Raises:
        InvalidInput: a message has an id of its own, and the transaction may not see which jobs have ended.
    """
    if own := next((row for row in rows if row.named), None):
        yield from seeing_ends(f"the message {own.id} has an id of its own")
    columns = as_columns([row.columns for row in rows])
    found = yield Statement("publish", {"topic": topic, **{name: columns[name] for name in _ARRAYS}})
    inserted = {job for _, _, _, job, new in found if new}
    if named := [job for no, _, _, job, new in found if new and rows[no - 1].named]:
        inserted -= {row[0] for row in (yield Statement("drop_already_finished", {"ids": named}))}
    jobs: list[list[PublishedJob]] = [[] for _ in rows]
    for no, subscription, queue, job, _ in found:
        jobs[no - 1].append(PublishedJob(subscription, queue, job, job in inserted))
        # A message that was given twice was inserted once.
        inserted.discard(job)
    return [Published(topic, row.id, tuple(became)) for row, became in zip(rows, jobs, strict=True)]
