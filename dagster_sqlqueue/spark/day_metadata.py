"""What a day's materialisation shows: statistics, a bar an hour, columns; and whether anything changed since the last."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

import dagster as dg
import pyarrow as pa
import pyarrow.compute as pc

from dagster_sqlqueue.spark.contents import PERCENTILES, DayStats
from dagster_sqlqueue.spark.sinks import sql_type

CONTENTS = "sqlqueue/contents"
"""The metadata that says what a day was made of: the same again, and there is nothing to do."""

FIRST_FINISHED = "first_finished"
"""The metadata that says when the first of a day's jobs finished: whether retention may have removed some since."""

UNCHANGED = "unchanged"

ROW_COUNT = "dagster/partition_row_count"

_VERSION_TAG = "dagster/data_version"
_GIVEN_TAG = "dagster/data_version_is_user_provided"

_BAR = 30

StatisticsOf = Callable[[pa.Table], Mapping[str, int | float]]


def version(watermark: str, *made_by: str | None) -> str:
    """What a day was made of and by: the archive's watermark, and a digest of what else the results depend on."""
    digest = hashlib.sha256("\x00".join(part or "" for part in made_by).encode()).hexdigest()[:8]
    return f"{watermark}/{digest}"


def last_materialization(instance: dg.DagsterInstance, key: dg.AssetKey, day: str) -> dg.AssetMaterialization | None:
    """Return the last time that a day was materialised."""
    wanted = dg.AssetRecordsFilter(asset_key=key, asset_partitions=[day])
    records = instance.fetch_materializations(wanted, limit=1).records
    return records[0].asset_materialization if records else None


def made_of(last: dg.AssetMaterialization | None) -> str | None:
    """What a day was made of when it was materialised."""
    found = last.metadata.get(CONTENTS) if last else None
    return None if found is None else str(found.value)


def unchanged(last: dg.AssetMaterialization) -> dict[str, Any]:
    """Return the metadata of a day to which nothing was done: those that it has."""
    return {**last.metadata, UNCHANGED: True}


def row_count(shown: Mapping[str, Any]) -> int:
    """Return how many rows a day had when it was computed, by its metadata."""
    found = shown[ROW_COUNT]
    return int(found.value if isinstance(found, dg.MetadataValue) else found)


def contents(shown: Mapping[str, Any]) -> str:
    """Return what a day was made of, by its metadata."""
    found = shown[CONTENTS]
    return str(found.value if isinstance(found, dg.MetadataValue) else found)


def versioned(last: dg.AssetMaterialization) -> dg.AssetMaterialization | None:
    """Return a materialisation with what its day was made of as its data version; None: it has that one, or says nothing."""
    made, tags = made_of(last), last.tags or {}
    if made is None or tags.get(_VERSION_TAG) == made:
        return None
    given = {**tags, _VERSION_TAG: made, _GIVEN_TAG: "true"}
    return dg.AssetMaterialization(last.asset_key, last.description, last.metadata, last.partition, tags=given)


def of_day(stats: DayStats | None, first_finished: datetime | None, contents: str, row_count: int) -> dict[str, Any]:
    """Return the metadata of a day that was computed.

    Args:
        stats: of its jobs; None: it has none.
        first_finished: when the first of its jobs finished; None: it has none.
        contents: what it was made of, see `version`.
        row_count: the rows of its results.
    """
    shown: dict[str, Any] = {ROW_COUNT: row_count, "jobs_read": stats.jobs if stats else 0}
    if stats is not None:
        shown |= {"jobs_failed": stats.failed, "attempts": stats.attempts}
        for name, values in (("wait", stats.waits), ("run", stats.runs)):
            shown |= {
                f"{name}_p{percent}_seconds": round(value, 3)
                for percent, value in zip(PERCENTILES, values, strict=False)
                if value is not None
            }
        shown["per_hour"] = dg.MetadataValue.md(hours(stats.hours))
    if first_finished is not None:
        shown[FIRST_FINISHED] = dg.MetadataValue.timestamp(first_finished)
    return {**shown, UNCHANGED: False, CONTENTS: contents}


def hours(counts: Sequence[int]) -> str:
    """Return how many jobs finished in each hour, as bars in Markdown."""
    most = max(counts, default=0)
    lines = [
        f"{hour:02}:00 {'█' * -(-count * _BAR // most) if most else '':<{_BAR}} {count:>9,}"
        for hour, count in enumerate(counts)
    ]
    return "```\n" + "\n".join(lines) + "\n```"


def of_rows(rows: pa.Table, day: str, statistics: StatisticsOf | None) -> dict[str, Any]:
    """What the asset's own function says of a day's rows."""
    if statistics is None:
        return {}
    mask = pc.equal(pc.cast(rows["day"], pa.string()), day)
    found = rows.filter(mask)
    return dict(statistics(found)) if found.num_rows else {}


def columns(schema: pa.Schema, about: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return the columns of the results, for the asset's page.

    Args:
        schema: of the results.
        about: what a column means, by its name.
    """
    table = dg.TableSchema(
        columns=[
            dg.TableColumn(field.name, sql_type(field), description=(about or {}).get(field.name)) for field in schema
        ]
    )
    return {"dagster/column_schema": table}
