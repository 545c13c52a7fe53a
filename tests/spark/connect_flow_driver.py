"""A client of Spark Connect that consumes, works jobs off one by one, streams and writes."""

import json
import sys

from dagster_sqlqueue import Job, Reject, SqlQueue
from dagster_sqlqueue.model.outcome import Outcome
from dagster_sqlqueue.spark.consume_verbs import consume
from dagster_sqlqueue.spark.for_each import for_each_job
from dagster_sqlqueue.spark.options import FORMAT
from dagster_sqlqueue.spark.session import SparkSettings, open_spark
from dagster_sqlqueue.spark.source import register_source
from tests.spark.consuming_support import SALES, Sale


def reject_nothing(job: Job[Sale]) -> Outcome | None:
    return Reject("a sale of nothing") if job.payload.amount <= 0 else None


def main(remote: str, url: str, schema: str, checkpoint: str) -> None:
    settings = SparkSettings(app_name="tests", remote=remote, shuffle_partitions=2)
    with open_spark(settings) as spark, SqlQueue(url, schema=schema) as queue:
        register_source(spark, url, schema)
        with (
            consume(queue, spark, SALES, key="first", filter={"day": "2013-01-01"}) as first,
            consume(queue, spark, SALES, key="second", filter={"day": "2013-01-02"}) as second,
        ):
            # Connect plans a frame anew for each action: all of them are made before the first one is read.
            frames = [first.jobs(), second.jobs(), first.jobs({"big": {"path": "payload.amount", "type": "double"}})]
            sys.stdout.write(f"days {[sorted({str(row.day) for row in frame.collect()}) for frame in frames[:2]]}\n")
            sys.stdout.write(f"columns {frames[2].columns} {frames[2].count()}\n")
            done = first.write_sql(frames[0].select("account", "amount"), f"{schema}.sold", by_tasks=True)
            summary = for_each_job(second, reject_nothing)
            sys.stdout.write(f"written {done} succeeded {summary.succeeded} rejected {summary.rejected}\n")
        columns = json.dumps({"amount": {"path": "payload.amount", "type": "bigint"}})
        ended = spark.readStream.format(FORMAT).options(queue="sales", columns=columns, states="failed").load()
        writer = ended.select("amount").writeStream.format(FORMAT)
        writer = writer.options(queue="copied", payloadColumns="amount", checkpointLocation=checkpoint)
        writer.trigger(availableNow=True).start().awaitTermination()
        rows = spark.range(100, 110).withColumnRenamed("id", "amount")
        rows.write.format(FORMAT).mode("append").options(queue="copied", payloadColumns="amount").save()


if __name__ == "__main__":
    main(*sys.argv[1:])
