"""The process of which Spark forks its Python workers, for sessions of the tests: it has imported what they need.

Spark's own has them import it one by one after the fork, since a user's libraries may start threads; these start none.
"""

import importlib
import sys

from pyspark.daemon import manager

MODULES = (
    "pyarrow",
    "pyspark.worker",
    "pyspark.sql.conversion",
    "dagster_sqlqueue.queue.base",
    "dagster_sqlqueue.spark.batch_reader",
    "dagster_sqlqueue.spark.source",
    "dagster_sqlqueue.spark.stream_reader",
    "dagster_sqlqueue.spark.writer",
    "tests.support",
)

if __name__ == "__main__":
    for module in (*MODULES, *sys.argv[1:]):
        importlib.import_module(module)
    manager()
