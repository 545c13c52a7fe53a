"""The jobs of sealed batches as a DataFrame: the same rows however often, and by whichever task, they are read."""

import json
from collections.abc import Mapping, Sequence
from uuid import uuid4

import pyarrow as pa
from pydantic import BaseModel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructField, StructType

from dagster_sqlqueue.queue import SqlQueue
from dagster_sqlqueue.spark import batches as core
from dagster_sqlqueue.spark import fields, kinds
from dagster_sqlqueue.spark import options as parts
from dagster_sqlqueue.spark.batches import Batch, leased_seal
from dagster_sqlqueue.spark.fields import Column
from dagster_sqlqueue.spark.options import OnBadValue
from dagster_sqlqueue.spark.payload_columns import payload_schema
from dagster_sqlqueue.spark.sealed_read import SealedRead, SealedSource, tasks_of
from dagster_sqlqueue.spark.slice_reader import arrow_schema
from dagster_sqlqueue.spark.spark_types import spark_type
from dagster_sqlqueue.spark.urls import server

JOB_COLUMNS = ("id", "attempt", "created_at")
"""What every frame of jobs holds beside the payload."""

TAKEN = (*JOB_COLUMNS, "payload")


def read_of(
    queue: SqlQueue,
    url: str,
    batches: Sequence[Batch],
    columns: Mapping[str, Column],
    *,
    slices: int,
    on_bad_value: OnBadValue = "fail",
    max_connections: int | None = None,
) -> SealedRead:
    """What reads the jobs of batches.

    Args:
        queue: where they were sealed.
        url: of the same database, with its password.
        batches: all of one queue.
        columns: of the payload, by their names.
        slices: how many tasks share the read.
        on_bad_value: as the option of the data source.
        max_connections: as the option of the data source; None: by `slices`.

    Raises:
        InvalidInput: `on_bad_value` is neither fail nor null, or `max_connections` is less than 1.
        BatchLost: the batch is transactional, and its transaction is over.
    """
    name = batches[0].queue
    options = {"queue": name, "state": "live", "on_bad_value": on_bad_value}
    parts.check(options | parts.capped(max_connections))
    claim_buckets = queue.catalog.last_seen(name).claim_buckets
    jobs = sum(batch.job_count for batch in batches)
    count = tasks_of(jobs, slices)
    # A range of buckets would have a share in every pack.
    cuts = (
        core.cuts(queue, batches, -(-jobs // count)) if count > claim_buckets or jobs >= leased_seal.PACKED_FROM else []
    )
    return SealedRead(
        server(url, queue.database.schema),
        batches[0].key,
        jobs,
        tuple(batch.condition for batch in batches),
        batches[0].snapshot,
        options,
        {**fields.of_every_job(live=True), **columns},
        claim_buckets,
        count,
        tuple(map(str, cuts)),
        json.dumps({str(batch.id): batch.token for batch in batches}) if batches[0].snapshot is None else "",
        max_connections,
    )


def table(read: SealedRead, wanted: Sequence[str]) -> pa.Table:
    """Return the batches' jobs, read by this process."""
    schema = _schema(read, wanted)
    found = [rows for part in read.partitions() for rows in read.rows(part, schema)]
    return pa.Table.from_batches(found, arrow_schema(schema))


def frame(spark: SparkSession, read: SealedRead, wanted: Sequence[str]) -> DataFrame:
    """Return the batches' jobs, with these columns."""

    class Sealed(SealedSource):
        sealed = read
        format = f"sqlqueue_sealed_{uuid4().hex}"

    spark.dataSource.register(Sealed)
    return spark.read.format(Sealed.name()).schema(_schema(read, wanted)).load()


def _schema(read: SealedRead, wanted: Sequence[str]) -> StructType:
    return StructType([StructField(name, spark_type(read.columns[name].kind)) for name in wanted])


def columns_of(model: type[BaseModel]) -> dict[str, Column]:
    """Return the typed columns of a payload model, by their names: see `payload_schema`.

    A field whose name a column of the job has is called `payload_…`.

    Raises:
        InvalidInput: a field is of no one type.
    """
    stored = kinds.parse_ddl(payload_schema(model))
    taken = set(map(str.lower, stored))
    found: dict[str, Column] = {}
    for field, kind in stored.items():
        name = field
        while name.lower() in TAKEN or (name != field and name.lower() in taken):
            name = f"payload_{name}"
        found[name] = fields.in_payload(field, kind)
    return found
