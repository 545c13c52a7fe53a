"""An asset of days as Dagster has it: its partitions, kinds and checks, and the configuration of its launches."""

from collections.abc import Iterator, Sequence
from typing import Any

import dagster as dg
from pydantic import Field

from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.orchestration.assets import single_run_backfills
from dagster_sqlqueue.orchestration.descriptions import description_of
from dagster_sqlqueue.orchestration.fanout import check_daily
from dagster_sqlqueue.orchestration.resource import SqlQueueResource, under_key
from dagster_sqlqueue.orchestration.run_errors import library_errors_as_failures
from dagster_sqlqueue.spark.closed_days import check_zone
from dagster_sqlqueue.spark.daily import ArchiveRead
from dagster_sqlqueue.spark.day_work import DayWork
from dagster_sqlqueue.spark.resource import SparkResource
from dagster_sqlqueue.spark.task_errors import task_errors_restored

_ISO_DATE = "%Y-%m-%d"


class DayConfig(dg.Config):
    """How a launch computes its days."""

    recompute: bool = Field(
        default=False, description="Compute every day of the run again, also those of which nothing changed."
    )


def check_days(partitions_def: dg.DailyPartitionsDefinition) -> None:
    """Check that partitions are days as the database and the results know them: from midnight on, by ISO dates.

    Raises:
        InvalidInput: they are no days, begin at another time, have other keys, or are of a time zone that is not known.
    """
    check_daily(partitions_def)
    for name in ("hour_offset", "minute_offset"):
        if offset := getattr(partitions_def, name):
            raise InvalidInput(
                f"partitions_def has {name}={offset}, and a day of this asset begins at midnight: leave it out. Where days"
                " begin at another time, give timezone= a zone in which that is midnight, or put each job's day in a field"
                " `day` of its payload"
            )
    if partitions_def.fmt != _ISO_DATE:
        raise InvalidInput(
            f"partitions_def has fmt={partitions_def.fmt!r}, and the days of this asset are ISO dates, as 2013-01-31: leave"
            " it out"
        )
    check_zone(partitions_def.timezone)


def check_reads(reads: ArchiveRead, needed: Sequence[str]) -> None:
    """Check that the columns are read that an asset needs.

    Args:
        reads: what an asset reads.
        needed: the columns without which it cannot.

    Raises:
        InvalidInput: one is missing.
    """
    if missing := [name for name in needed if name not in reads.columns]:
        example = {missing[0]: {"path": f"payload.{missing[0]}", "type": "date" if missing[0] == "day" else "string"}}
        raise InvalidInput(
            f"reads has the columns {sorted(reads.columns)}, and not {missing[0]!r}, which says to which {missing[0]} an"
            f" event belongs; add one to ArchiveRead(columns=…), as {example}"
        )


def declared(
    work: DayWork,
    *,
    partitions_def: dg.DailyPartitionsDefinition,
    group_name: str,
    deps: Sequence[Any],
    pool: str | None,
    resource_key: str,
) -> dg.AssetsDefinition:
    """Return the asset whose runs do some work.

    Args:
        work: what a run does.
        partitions_def: the days.
        group_name: the asset's group.
        deps: assets it comes from.
        pool: the concurrency pool.
        resource_key: of the `SqlQueueResource`.
    """
    with single_run_backfills():

        @dg.asset(
            key=work.asset_key,
            partitions_def=partitions_def,
            backfill_policy=dg.BackfillPolicy.single_run(),
            group_name=group_name,
            kinds=work.kinds,
            deps=deps,
            description=description_of(work.compute),
            metadata=work.metadata,
            check_specs=work.check_specs(),
            code_version=work.code_version,
            pool=pool,
        )
        @under_key(resource_key)
        def days(
            context: dg.AssetExecutionContext, config: DayConfig, sqlqueue: SqlQueueResource, spark: SparkResource
        ) -> Iterator[dg.MaterializeResult[Any]]:
            with library_errors_as_failures(), task_errors_restored():
                result = work.run(context, sqlqueue, spark, recompute=config.recompute)
            yield result
            for event in work.versioned(context):
                context.log_event(event)

    return days
