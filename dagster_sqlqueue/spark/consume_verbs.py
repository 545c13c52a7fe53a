"""Consume a queue with Spark, exactly once: seal, read, publish.

The driver seals the due jobs into a batch. Spark reads the batch as often as it likes, and what it computes is staged
where no reader sees it. At the end of the block one transaction writes the rows, gives the bad jobs their outcomes and
ends the rest; files are moved into place right after it, by the next run if this one is killed before. A run that is
killed at any point leaves its jobs to the next one, and a run whose batch was taken over is refused.
"""

import contextlib
import logging
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from pyspark.sql import SparkSession

from dagster_sqlqueue.model.backoff import Backoff
from dagster_sqlqueue.model.job import Mode
from dagster_sqlqueue.model.queue import QueueSpec
from dagster_sqlqueue.queue import SqlQueue
from dagster_sqlqueue.schema import migrations
from dagster_sqlqueue.spark import batches, outputs, remote, result_columns, stage_table
from dagster_sqlqueue.spark.consumption import Consumption
from dagster_sqlqueue.spark.result_columns import Columns
from dagster_sqlqueue.spark.task_errors import task_errors_restored

Writes: TypeAlias = "Sequence[str | Path] | Mapping[str | Path, Columns | None]"
"""Tables (text) and directories (`Path`, or a URL); a mapping has the columns of each table's results."""

logger = logging.getLogger("dagster_sqlqueue")


@contextlib.contextmanager
def consume(
    queue: SqlQueue,
    spark: SparkSession | None,
    name: "str | QueueSpec[Any]",
    *,
    key: str,
    filter: Mapping[str, Any] | None = None,
    owner: str | None = None,
    mode: Mode | None = None,
    overlap: bool = False,
    writes: Writes = (),
    lease_seconds: float = 60.0,
    patience_seconds: float | None = None,
    backoff: Backoff = batches.BACKOFF,
) -> Iterator[Consumption]:
    """Consume the due jobs of a queue: the block reads and stages, its end publishes everything in one transaction.

    An exception in the block releases the jobs with the error, and drops what was staged. It is an attempt of the
    batch, and none of its jobs'.

    Args:
        queue: where the queue is.
        spark: the session; None for a driver that needs none.
        name: the queue, or its declaration: then the payload's fields are typed columns.
        key: what is consumed: asset and partition, say. One consumption of a key at a time.
        filter: consume only the jobs whose payload contains this.
        owner: who consumes, for people to read; None: this process.
        mode: `Mode.LEASED`: the batch is a lease, which another process takes over when this one has died.
            `Mode.TRANSACTIONAL`: the jobs are consumed by one transaction of this process, from the seal to the end of
            the block: without the writes of a lease, and a process that died leaves nothing behind.
            None: by a transaction with `overlap`, if 10,000 jobs or more are due, none of them followed or with a unique
            key, and no other consumer seems to work on the queue; else by a lease.
        overlap: in transactional mode: seal while Spark reads already. Faster; if another transaction changes one of
            the jobs meanwhile, the end of the block raises `BatchLost`.
        writes: tables (text) and directories (`Path`, or a URL) that the block will write to, checked before a batch is
            sealed. With a mapping, also whether the table takes these columns: a schema in Spark's notation, or Spark's, or
            Arrow's; None: only whether it can be written to.
        lease_seconds: how long the batch holds when this process has died.
        patience_seconds: how long to wait for another owner's lease on the key; None: slightly longer than a lease.
        backoff: how long schedulers should wait before they consume the key again after a run that failed or died.

    Yields:
        What reads the jobs and takes the results.

    Raises:
        UnknownQueue, QueuePaused, InvalidInput, OutputNotWritable: nothing was sealed.
        BatchLost: another owner consumes the key, or took it over. Nothing was published.
        QueueError: of a task: `InvalidInput` where a payload does not fit its column, `DatabaseUnavailable` if its
            connection was lost. Nothing was published. Outside the block, tasks fail with Spark's errors.
    """
    settings = {
        "mode": mode,
        "overlap": overlap,
        "writes": writes,
        "lease_seconds": lease_seconds,
        "patience_seconds": patience_seconds,
        "backoff": backoff,
    }
    with consume_all(queue, spark, name, {key: filter or {}}, owner=owner, **settings) as work:  # type: ignore[arg-type]
        yield work


@contextlib.contextmanager
def consume_all(
    queue: SqlQueue,
    spark: SparkSession | None,
    name: "str | QueueSpec[Any]",
    keys: Mapping[str, Mapping[str, Any]],
    *,
    owner: str | None = None,
    mode: Mode | None = None,
    overlap: bool = False,
    writes: Writes = (),
    lease_seconds: float = 60.0,
    patience_seconds: float | None = None,
    backoff: Backoff = batches.BACKOFF,
    closed: Mapping[str, Any] | None = None,
) -> Iterator[Consumption]:
    """The same for several keys, each with its filter, published together in one transaction.

    Always give them in one order: two runs that share some then wait for each other without a deadlock. Several are
    leased, where no mode is given. `closed` is as for `batches.seal_days`, and each filter is then a `day`.
    """
    spec = None if isinstance(name, str) else name
    queue_name = name if isinstance(name, str) else name.name
    migrations.check(queue.database)
    if spec is not None:
        for key, filter in keys.items():
            result_columns.check_payload(spec.payload, filter, f"filter of {key!r}")
    _check_writes(queue, writes)
    owner = owner or f"{socket.gethostname()}/{os.getpid()}"
    chosen = mode is None and len(keys) == 1
    held: list[batches.Batch] = []
    settings = {
        "owner": owner,
        "lease_seconds": lease_seconds,
        "patience_seconds": patience_seconds,
        "backoff": backoff,
    }
    with batches.kept(queue, held, lease_seconds=lease_seconds) as still_ours:
        if closed is not None or (len(keys) > 1 and mode in (None, Mode.LEASED) and _of_days(keys)):
            days = {key: filter["day"] for key, filter in keys.items()}
            batches.seal_days(queue, queue_name, days, held=held, closed=closed, **settings)  # type: ignore[arg-type]
        else:
            chosen_mode = Mode.LEASED if mode is None and not chosen else mode
            for key, filter in keys.items():
                batch = batches.seal(
                    queue,
                    queue_name,
                    key,
                    filter=filter,
                    mode=chosen_mode,
                    overlap=overlap,
                    **settings,  # type: ignore[arg-type]
                )
                held.append(batch)
        finish_earlier(queue, *keys)
        stage_table.sweep(queue, list(keys))

        def lease_instead() -> batches.Batch:
            held[0] = batches.as_leased(queue, held[0], owner=owner, lease_seconds=lease_seconds)
            return held[0]

        work = Consumption(queue, spark, spec, tuple(held), url_of(queue), lease_instead if chosen else None)
        try:
            with task_errors_restored():
                yield work
            still_ours()
        except BaseException:
            work.drop()
            raise
        try:
            work.publish()
        except BaseException as error:
            # The connection may have been lost in the commit: only the database knows. If it is unavailable, the next run
            # finds what is staged, and moves or drops it.
            published = work.published()
            if published is False:
                work.drop()
            if not published or not isinstance(error, Exception):
                raise
    work.finish()


def finish_earlier(queue: SqlQueue, *keys: str) -> None:
    """Move the files of runs that were killed between their transaction and the move.

    Any process with access to the directory may move them, also while another owner consumes the key: that one has
    moved them before it publishes anything newer. Without access to the directory they are left, and stay recorded as
    unmoved.
    """
    for key, place in batches.unmoved(queue, *keys):
        unseen: list[str] = []

        def move(files: Sequence[outputs.Moved] = outputs.files_of(place), unseen: list[str] = unseen) -> bool:
            unseen += [str(one.staged) for one in files if not one.finish_if_seen()]
            return not unseen

        if batches.move(queue, place["owner"], move):
            logger.info("the files of %s are in their place, where an earlier run may have left them staged", key)
        else:
            logger.warning("the files of %s are not moved yet: %s is not to be seen here", key, unseen[0])


def _of_days(keys: Mapping[str, Mapping[str, Any]]) -> bool:
    """Return whether each key is for the jobs of a day of its own."""
    days = [filter.get("day") for filter in keys.values() if len(filter) == 1]
    return len(days) == len(keys) == len(set(map(repr, days))) and all(isinstance(day, str) for day in days)


def _check_writes(queue: SqlQueue, writes: Writes) -> None:
    columns = writes if isinstance(writes, Mapping) else dict.fromkeys(writes)
    for target, asked in columns.items():
        if isinstance(target, Path) or remote.is_url(target):
            remote.writable(target)
        elif asked is None:
            result_columns.check_writable(queue, target)
        else:
            result_columns.check_sql(queue, target, result_columns.schema_of(asked))


def url_of(queue: SqlQueue) -> str:
    """Return the URL of a queue's database, with its password: for tasks, and nothing that is shown."""
    return queue.database.url
