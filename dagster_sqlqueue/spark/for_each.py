"""A handler for every job of a sealed batch, run by Spark's tasks.

A task never claims: it handles the jobs of some buckets of a batch, and reports the outcome of each under the batch's
token. Reports take effect when the batch is published, abandoned or taken over, so they outlive the driver; a task that
is tried again, and a run that takes the batch over, leave reported jobs out.
"""

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import pyarrow as pa

from dagster_sqlqueue.consumer.annotations import is_async
from dagster_sqlqueue.consumer.caller import handle
from dagster_sqlqueue.consumer.handler import Handler, check_batch
from dagster_sqlqueue.db.database import Database
from dagster_sqlqueue.errors import BatchLost, InvalidInput
from dagster_sqlqueue.model.job import ClaimedJob
from dagster_sqlqueue.model.numbers import is_whole
from dagster_sqlqueue.model.outcome import Cancel, Done, Hold, Outcome, Reject, Retry, Snooze
from dagster_sqlqueue.model.queue import QueueSpec
from dagster_sqlqueue.queue import SqlQueue
from dagster_sqlqueue.spark import batches
from dagster_sqlqueue.spark.batches import Batch
from dagster_sqlqueue.spark.consumption import Consumption
from dagster_sqlqueue.worker.handlers import check_handler

CHUNK = 500
"""Jobs that a task has read ahead of its handler."""


@dataclass(frozen=True, slots=True)
class ForEachSummary:
    """The outcomes of a batch's jobs that tasks reported.

    Attributes:
        jobs: of the batch.
        succeeded: `Done`.
        retried: `Retry`, also for an exception; those on their last attempt go to the dead letter.
        snoozed: `Snooze`.
        held: `Hold`, also for a payload of an unknown version.
        rejected: `Reject`, also for a payload that does not fit.
        cancelled: `Cancel`.
        outcomes: by the job's id.
    """

    jobs: int
    succeeded: int
    retried: int
    snoozed: int
    held: int
    rejected: int
    cancelled: int
    outcomes: dict[UUID, Outcome] = field(repr=False)


def for_each_job(
    work: Consumption,
    handler: Handler[Any],
    *,
    spec: QueueSpec[Any] | None = None,
    tasks: int | None = None,
    report_seconds: float = 1.0,
) -> ForEachSummary:
    """Run a handler for every job of the batch, in Spark's tasks.

    The handler may be run more than once for one job: by a task that is tried again after its executor died, within the
    last `report_seconds`, and by a speculative copy. One report counts. If its effect is outside of the database, pass
    `job.id` on as idempotency key: it is the same in every run.

    Args:
        work: from `consume`, leased, or without a mode and with nothing read yet.
        handler: gets the job, with its payload as the model, and returns its outcome as a consumer's handler does: None
            or `Done` for success; an exception is a `Retry` by the queue's backoff. It is pickled.
        spec: the queue's declaration; None: the one that `consume` was given.
        tasks: how many share the work; None: four for each core, at most one for each bucket.
        report_seconds: how long what is done may stay unreported.

    Returns:
        What was reported.

    Raises:
        BatchLost: the batch was taken over meanwhile.
        InvalidInput: the batch is transactional and was asked to be, or was read; there is no declaration; or the handler is
            no plain function of one job of the queue.
    """
    spec = spec or work.spec
    if spec is None:
        raise InvalidInput("for_each_job needs the payload's model; give consume() the QueueSpec, or spec=")
    _check(spec, handler)
    if tasks is not None and not is_whole(tasks, 1):
        raise InvalidInput(f"tasks is {tasks!r}; it is a whole number from 1")
    work.need_lease()
    for batch in work.batches:
        work.queue.database.run("unpack_jobs", {"batch_id": batch.id, "ids": None})
    claim_buckets = work.queue.settings(spec.name).claim_buckets
    count = max(1, min(claim_buckets, tasks or work.slices))
    if work.job_count:
        run = _Run(
            work.url,
            work.queue.database.schema,
            tuple(work.batches),
            spec,
            handler,
            claim_buckets,
            count,
            report_seconds,
        )
        work.session().range(0, count, 1, count).mapInArrow(run, "jobs bigint").collect()
    reported: dict[UUID, Outcome] = {}
    for batch in work.batches:
        reported |= batches.outcomes(work.queue, batch)
    kinds = Counter(type(outcome) for outcome in reported.values())
    summary = ForEachSummary(
        work.job_count,
        kinds[Done],
        kinds[Retry],
        kinds[Snooze],
        kinds[Hold],
        kinds[Reject],
        kinds[Cancel],
        reported,
    )
    if len(reported) < work.job_count:
        raise BatchLost(
            f"{work.job_count - len(reported):,} of the {work.job_count:,} jobs of batch {work.batch.key!r} were not there"
            " any more when their task read them; the batch was taken over, or they were cancelled. Run it again"
        )
    return summary


def _check(spec: QueueSpec[Any], handler: Any) -> None:
    check_handler(spec, handler)
    check_batch(spec, handler, batch=False)
    if is_async(handler):
        raise InvalidInput(
            f"the handler of {spec.label} is async, and Spark's tasks call it for one job after another: give a plain"
            " function, which may call asyncio.run"
        )


@dataclass(frozen=True)
class _Run:
    """What a task does."""

    url: str = field(repr=False)
    schema: str
    batches: tuple[Batch, ...]
    spec: QueueSpec[Any]
    handler: Handler[Any]
    claim_buckets: int
    tasks: int
    report_seconds: float

    def __call__(self, parts: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        done = 0
        database = Database(self.url, schema=self.schema, pool_size=1, application_name="dagster-sqlqueue/spark")
        with SqlQueue(database) as queue:
            for part in parts:
                for task in part.column(0).to_pylist():
                    for bucket in range(
                        self.claim_buckets * task // self.tasks, self.claim_buckets * (task + 1) // self.tasks
                    ):
                        done += sum(self._work(queue, batch, bucket) for batch in self.batches)
        yield pa.RecordBatch.from_pydict({"jobs": [done]})

    def _work(self, queue: SqlQueue, batch: Batch, bucket: int) -> int:
        after: UUID | None = None
        total = 0
        while True:
            where = {"batch_id": batch.id, "token": batch.token, "bucket": bucket, "after": after, "limit": CHUNK}
            found = [ClaimedJob(*row) for row in queue.database.run("batch_jobs", where)]
            if not found:
                return total
            after = found[-1].id
            total += len(found)
            self._handle(queue, batch, found)

    def _handle(self, queue: SqlQueue, batch: Batch, jobs: list[ClaimedJob]) -> None:
        outcomes: list[tuple[UUID, Outcome]] = []
        reported = time.monotonic()
        for job in jobs:
            outcomes.append((job.id, handle(self.spec, self.handler, job)))
            if time.monotonic() - reported >= self.report_seconds:
                batches.report(queue, batch, outcomes)
                outcomes, reported = [], time.monotonic()
        if outcomes:
            batches.report(queue, batch, outcomes)
