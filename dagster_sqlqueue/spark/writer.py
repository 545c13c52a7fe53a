"""`df.write.format("sqlqueue")`, and the same of a stream: rows become jobs of a queue, each once.

Options:
    queue: the queue (required).
    payloadColumns: the columns that make up the payload, with commas between, or `*`; else there is a column `payload`.
    writeName: makes a write happen once: under a name that was written before, nothing is enqueued.

Rows with an `id` that were enqueued before are left out, also those whose jobs have ended.

Where `register_source` was given the payload model of the queue, every row must fit it.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING
from uuid import NAMESPACE_OID, UUID, uuid5

import psycopg
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType
from uuid_utils.compat import uuid7

from dagster_sqlqueue.errors import DatabaseUnavailable, InvalidInput
from dagster_sqlqueue.queue import SqlQueue
from dagster_sqlqueue.spark import staged_jobs
from dagster_sqlqueue.spark.job_rows import JobRows
from dagster_sqlqueue.spark.options import FORMAT, required
from dagster_sqlqueue.spark.payload_models import PayloadModels
from dagster_sqlqueue.spark.python import keep_imports
from dagster_sqlqueue.spark.urls import queue_at

if TYPE_CHECKING:
    from pyarrow import RecordBatch

logger = logging.getLogger("dagster_sqlqueue")

OPTIONS = ("queue", "payloadcolumns", "writename")
_OF_SPARK = ("checkpointlocation", "queryname", "path")
"""What Spark's own stream writer adds to the options."""


@dataclass
class Accepted(WriterCommitMessage):
    """The message of a task to the driver: what it staged, for which query if it is a stream's."""

    staged: staged_jobs.Staged
    query: str = ""


class _Writing:
    """The common part of batch and stream: the options, the columns, and where to."""

    def __init__(
        self,
        where: tuple[str, str],
        options: Mapping[str, str],
        schema: StructType,
        overwrite: bool,
        models: PayloadModels,
        streaming: bool,
    ) -> None:
        given = {name.lower(): value for name, value in options.items()}
        known = OPTIONS if not streaming else (*OPTIONS[:-1], *_OF_SPARK)
        if unknown := [name for name in options if name.lower() not in known]:
            raise InvalidInput(
                f"the option {unknown[0]!r} is not known to a {'stream that is written' if streaming else 'write'} to"
                f" the format {FORMAT!r}; it has queue, payloadColumns" + ("" if streaming else ", writeName")
            )
        if overwrite:
            raise InvalidInput(
                "a queue cannot be overwritten: its jobs are consumers' to end. Use "
                + ('outputMode("append")' if streaming else 'mode("append")')
            )
        self._where = where
        self._queue = required(given, "queue")
        self._name = staged_jobs.check_name(given.get("writename"))
        self._rows = JobRows(self._queue, schema, given.get("payloadcolumns"), models.of(self._queue))

    def _connected(self) -> SqlQueue:
        return queue_at(*self._where)

    def _stage(self, write_id: UUID, batches: "Iterator[RecordBatch]", partition: int) -> staged_jobs.Staged:
        jobs = self._rows.jobs(batches, partition)
        first = next(jobs, None)
        if first is None:
            return staged_jobs.Staged(write_id, uuid7(), 0)
        with self._connected() as queue:
            try:
                staged = staged_jobs.stage(queue, write_id, chain([first], jobs))
            except psycopg.errors.ReadOnlySqlTransaction:
                raise _read_only(queue) from None
        keep_imports()
        return staged

    def _drop(self, write_ids: Iterable[UUID]) -> None:
        try:
            with self._connected() as queue:
                for write_id in write_ids:
                    staged_jobs.drop(queue, write_id)
        except DatabaseUnavailable as error:
            # Raised here, it would hide the error of the write, which probably is the same.
            logger.warning("what a failed write staged is left to maintenance, which removes it after a day: %s", error)


class Writer(_Writing, DataSourceArrowWriter):
    """Writes a data frame.

    Args:
        where: URL and schema of the database.
        options: of the write.
        schema: of the data frame.
        overwrite: whether the mode is `overwrite`, which is refused.
        models: that the source was registered with.

    Raises:
        InvalidInput: an option or a column is not usable.
        UnknownQueue: there is no such queue.
    """

    def __init__(
        self,
        where: tuple[str, str],
        options: Mapping[str, str],
        schema: StructType,
        overwrite: bool,
        models: PayloadModels,
    ) -> None:
        _Writing.__init__(self, where, options, schema, overwrite, models, streaming=False)
        self._id: UUID = uuid7()
        with self._connected() as queue:
            queue.settings(self._queue)
            ((_, read_only),) = queue.database.run("spark_server", {})
            if read_only:
                raise _read_only(queue)
            self._done = self._name is not None and staged_jobs.written(queue, self._queue, self._name) is not None

    def write(self, iterator: "Iterator[RecordBatch]") -> WriterCommitMessage:
        """Stage the rows of a partition. Of a write that was done before nothing is."""
        if self._done:
            return Accepted(staged_jobs.Staged(self._id, self._id, 0))
        return Accepted(self._stage(self._id, iterator, _task().partitionId()))

    def commit(self, messages: "Sequence[WriterCommitMessage | None]") -> None:
        """Enqueue what the accepted attempts have staged, in one transaction."""
        staged = [message.staged for message in messages if isinstance(message, Accepted)]
        if self._done:
            # Should the name be deleted at this very moment, this is missing, and the write fails.
            staged = [staged_jobs.Staged(self._id, self._id, 1)]
        with self._connected() as queue:
            done = staged_jobs.commit(
                queue,
                self._queue,
                self._id,
                staged,
                name=self._name,
            )
        if done.repeated:
            logger.warning(
                "the write %r to queue %r was done at %s: nothing was enqueued now",
                self._name,
                self._queue,
                done.committed_at,
            )

    def abort(self, messages: "Sequence[WriterCommitMessage | None]") -> None:
        """Delete what was staged."""
        self._drop([self._id])


class StreamWriter(_Writing, DataSourceStreamArrowWriter):
    """Writes a stream: each micro-batch is one write, under the query's id and the number of the batch.

    Args:
        where: URL and schema of the database.
        options: of the write.
        schema: of the data frame.
        overwrite: whether the output mode is `complete`, which is refused.
        models: that the source was registered with.

    Raises:
        InvalidInput: an option or a column is not usable.
    """

    def __init__(
        self,
        where: tuple[str, str],
        options: Mapping[str, str],
        schema: StructType,
        overwrite: bool,
        models: PayloadModels,
    ) -> None:
        _Writing.__init__(self, where, options, schema, overwrite, models, streaming=True)

    def write(self, iterator: "Iterator[RecordBatch]") -> WriterCommitMessage:
        """Stage the rows of a partition of a micro-batch."""
        task = _task()
        query, batch = task.getLocalProperty("sql.streaming.queryId"), task.getLocalProperty("streaming.sql.batchId")
        assert query
        assert batch
        write_id = uuid5(NAMESPACE_OID, f"{query}/{batch}/{self._queue}")
        return Accepted(self._stage(write_id, iterator, task.partitionId()), query)

    def commit(self, messages: "Sequence[WriterCommitMessage | None]", batchId: int) -> None:  # noqa: N803
        """Enqueue a micro-batch, unless that was done before Spark noted it."""
        accepted = [message for message in messages if isinstance(message, Accepted)]
        if not accepted:
            return
        with self._connected() as queue:
            queue.settings(self._queue)
            staged_jobs.commit(
                queue,
                self._queue,
                accepted[0].staged.write_id,
                [message.staged for message in accepted],
                name=staged_jobs.STREAM + accepted[0].query,
                batch=batchId,
            )

    def abort(self, messages: "Sequence[WriterCommitMessage | None]", batchId: int) -> None:  # noqa: N803
        """Delete what was staged for a micro-batch."""
        self._drop({message.staged.write_id for message in messages if isinstance(message, Accepted)})


def _read_only(queue: SqlQueue) -> InvalidInput:
    return InvalidInput(
        f"the database {queue.database.where} is read-only, as a standby is; give the URL of the primary to write"
    )


def _task() -> TaskContext:
    task = TaskContext.get()
    assert task is not None
    return task
