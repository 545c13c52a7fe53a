"""Queues as assets."""

import contextlib
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import dagster as dg

from dagster_sqlqueue.settings import QueueSpec


@contextlib.contextmanager
def single_run_backfills() -> Iterator[None]:
    """Around an asset whose ranges of partitions are one run: Dagster calls that argument of `asset` beta."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dg.BetaWarning)
        yield


def queue_asset_key(queue: str) -> dg.AssetKey:
    """The asset key of a queue: `queues/<name>`."""
    return dg.AssetKey(["queues", queue])


def build_sqlqueue_asset_spec(
    spec: QueueSpec[Any],
    *,
    description: str | None = None,
    group_name: str = "queues",
    owners: Sequence[str] | None = None,
    deps: Sequence[Any] = (),
    schema: str = "sqlqueue",
) -> dg.AssetSpec:
    """A queue as an external asset: drawn in the lineage, with its depth observed by the sensor.

    Args:
        spec: the queue.
        description: for the asset's page; None: made from the queue's settings.
        group_name: the asset's group.
        owners: e-mail addresses or `team:name`.
        deps: the assets it comes from.
        schema: where its tables are, for the table's name on the page.
    """
    return dg.AssetSpec(
        queue_asset_key(spec.name),
        description=description
        or f"The job queue `{spec.name}`: payload `{spec.payload.__name__}`, {spec.bucket_count} buckets, leases of"
        f" {spec.lease_seconds:g} s, {spec.max_attempts} attempts.",
        group_name=group_name,
        kinds={"postgres", "sqlqueue"},
        owners=owners,
        deps=deps,
        metadata={"dagster/table_name": f"{schema}.job"},
    )
