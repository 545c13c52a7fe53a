"""A task that reads a whole archive as one slice, in a process of its own: what it held at most, and how much it read."""

import sys
from pathlib import Path

from pyspark.sql.types import StringType, StructField, StructType

from dagster_sqlqueue.spark import fields
from dagster_sqlqueue.spark.shares import Share, Slice
from dagster_sqlqueue.spark.slice_reader import Reading
from dagster_sqlqueue.spark.urls import server


def peak() -> int:
    """The most memory that this process has had, in bytes. What `getrusage` says begins with what its parent had."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def main(url: str, schema: str) -> None:
    options = {"queue": "work"}
    asked = StructType([StructField("id", StringType()), StructField("payload", StringType())])
    reading = Reading(server(url, schema), options, asked, fields.columns(options), [])
    # What it imports, and its connection, are there before it is measured.
    list(reading.read(Share([Slice("TRUE")], tail="LIMIT 1")))
    before = peak()
    read = sum(batch.nbytes for batch in reading.read(Share([Slice("TRUE")])))
    sys.stdout.write(f"{read} {peak() - before}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
