"""Consume a queue as a whole: seal its due jobs into a batch, read the batch, publish in one transaction.

Reading (by Spark, as a rule) never changes the queue: a plan is run as often as Spark likes. The driver seals the due
jobs; the results and the end of the jobs become visible in one transaction.

    batch = batches.seal(queue, "events", "daily/2013-07-04", owner="me")
    with batches.kept(queue, [batch]):
        …  # read the jobs: batch.condition, under batch.snapshot if it has one
        batches.report(queue, batch, [(bad_job_id, Reject("no such account"))])
        with batches.publication(queue, batch, output={"table": "daily"}) as transaction:
            …  # write the results through transaction.connection
"""

from dagster_sqlqueue.queue.unpublished_batches import Swept
from dagster_sqlqueue.spark.batches.batch_seal import BACKOFF, as_leased, seal, sweep_batches
from dagster_sqlqueue.spark.batches.days import seal_days
from dagster_sqlqueue.spark.batches.keeper import kept
from dagster_sqlqueue.spark.batches.model import Batch, cuts
from dagster_sqlqueue.spark.batches.outcomes import outcomes, report
from dagster_sqlqueue.spark.batches.publication import abandon, move, outputs, publication, publish, unmoved

__all__ = [
    "BACKOFF",
    "Batch",
    "Swept",
    "abandon",
    "as_leased",
    "cuts",
    "kept",
    "move",
    "outcomes",
    "outputs",
    "publication",
    "publish",
    "report",
    "seal",
    "seal_days",
    "sweep_batches",
    "unmoved",
]
