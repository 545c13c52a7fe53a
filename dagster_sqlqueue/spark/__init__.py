"""The queue in Spark: session, data source, consumption, assets."""

from typing import TYPE_CHECKING

from dagster_sqlqueue._faces import lazy

if TYPE_CHECKING:
    from dagster_sqlqueue.spark.archive_asset import sqlqueue_archive_asset as sqlqueue_archive_asset
    from dagster_sqlqueue.spark.assets import sqlqueue_daily_asset as sqlqueue_daily_asset
    from dagster_sqlqueue.spark.batch_asset import sqlqueue_batch_asset as sqlqueue_batch_asset
    from dagster_sqlqueue.spark.consume_verbs import consume as consume
    from dagster_sqlqueue.spark.consume_verbs import consume_all as consume_all
    from dagster_sqlqueue.spark.consumption import Consumption as Consumption
    from dagster_sqlqueue.spark.daily import ArchiveRead as ArchiveRead
    from dagster_sqlqueue.spark.daily_sensor import build_daily_sensor as build_daily_sensor
    from dagster_sqlqueue.spark.for_each import ForEachSummary as ForEachSummary
    from dagster_sqlqueue.spark.for_each import for_each_job as for_each_job
    from dagster_sqlqueue.spark.master_check import check_reachable as check_reachable
    from dagster_sqlqueue.spark.resource import SparkResource as SparkResource
    from dagster_sqlqueue.spark.session import SparkSettings as SparkSettings
    from dagster_sqlqueue.spark.session import open_spark as open_spark
    from dagster_sqlqueue.spark.source import payload_schema as payload_schema
    from dagster_sqlqueue.spark.source import register_source as register_source
    from dagster_sqlqueue.spark.staged_jobs import written as written
else:
    # What a task of Spark's needs does not load Dagster.
    __getattr__, __dir__ = lazy(
        __name__,
        {
            "archive_asset": ["sqlqueue_archive_asset"],
            "assets": ["sqlqueue_daily_asset"],
            "batch_asset": ["sqlqueue_batch_asset"],
            "consume_verbs": ["consume", "consume_all"],
            "consumption": ["Consumption"],
            "daily": ["ArchiveRead"],
            "daily_sensor": ["build_daily_sensor"],
            "for_each": ["ForEachSummary", "for_each_job"],
            "master_check": ["check_reachable"],
            "resource": ["SparkResource"],
            "session": ["SparkSettings", "open_spark"],
            "source": ["payload_schema", "register_source"],
            "staged_jobs": ["written"],
        },
        ("spark", "pyspark", "pyarrow"),
    )

__all__ = [
    "ArchiveRead",
    "Consumption",
    "ForEachSummary",
    "SparkResource",
    "SparkSettings",
    "build_daily_sensor",
    "check_reachable",
    "consume",
    "consume_all",
    "for_each_job",
    "open_spark",
    "payload_schema",
    "register_source",
    "sqlqueue_archive_asset",
    "sqlqueue_batch_asset",
    "sqlqueue_daily_asset",
    "written",
]
