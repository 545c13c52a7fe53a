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

from dagster_sqlqueue.queue.unpublished_batches import Swept as Swept
from dagster_sqlqueue.spark.batches.days import seal_days as seal_days
from dagster_sqlqueue.spark.batches.keeper import kept as kept
from dagster_sqlqueue.spark.batches.model import Batch as Batch
from dagster_sqlqueue.spark.batches.model import cuts as cuts
from dagster_sqlqueue.spark.batches.outcomes import outcomes as outcomes
from dagster_sqlqueue.spark.batches.outcomes import report as report
from dagster_sqlqueue.spark.batches.publication import abandon as abandon
from dagster_sqlqueue.spark.batches.publication import move as move
from dagster_sqlqueue.spark.batches.publication import outputs as outputs
from dagster_sqlqueue.spark.batches.publication import publication as publication
from dagster_sqlqueue.spark.batches.publication import publish as publish
from dagster_sqlqueue.spark.batches.publication import unmoved as unmoved
from dagster_sqlqueue.spark.batches.sealing import BACKOFF as BACKOFF
from dagster_sqlqueue.spark.batches.sealing import as_leased as as_leased
from dagster_sqlqueue.spark.batches.sealing import seal as seal
from dagster_sqlqueue.spark.batches.sealing import sweep_batches as sweep_batches
