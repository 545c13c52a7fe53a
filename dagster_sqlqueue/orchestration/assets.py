"""Queues as assets: external ones, whose key, group, kinds and owners are a translator's to say."""

import contextlib
import inspect
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import dagster as dg

from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.model.backoff import Backoff
from dagster_sqlqueue.model.queue import QueueSpec
from dagster_sqlqueue.orchestration import markdown
from dagster_sqlqueue.orchestration.columns import payload_columns


@contextlib.contextmanager
def single_run_backfills() -> Iterator[None]:
    """Around an asset whose ranges of partitions are one run: Dagster calls that argument of `asset` beta."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dg.BetaWarning)
        yield


def queue_asset_key(queue: str) -> dg.AssetKey:
    """The asset key of a queue, unless a translator says otherwise: `queues/<name>`."""
    return dg.AssetKey(["queues", queue])


def asset_key_among(asset_keys: Mapping[str, dg.AssetKey] | None, queue: str) -> dg.AssetKey:
    """The asset key of a queue, where those of some queues are not `queues/<name>`."""
    return (asset_keys or {}).get(queue) or queue_asset_key(queue)


@dataclass(frozen=True, slots=True)
class QueueAssetData:
    """What a translator knows of a queue.

    Args:
        spec: the queue.
        schema: where its tables are.
    """

    spec: QueueSpec[Any]
    schema: str = "sqlqueue"


class SqlQueueTranslator:
    """Says what a queue is as an asset. Subclass it to change keys, groups, kinds or owners of all queues in one place.

    The key that it gives is the one under which everything about the queue is reported: depth, progress and checks.

    Example:
        ```python
        class Ours(SqlQueueTranslator):
            def get_asset_spec(self, data: QueueAssetData) -> dg.AssetSpec:
                return super().get_asset_spec(data).replace_attributes(
                    key=["payments", data.spec.name], owners=["team:payments"]
                )
        ```
    """

    def get_asset_spec(self, data: QueueAssetData) -> dg.AssetSpec:
        """The queue as an external asset, named after the table of its jobs, with its payload's fields as columns."""
        spec = data.spec
        columns = payload_columns(spec.payload)
        return dg.AssetSpec(
            queue_asset_key(spec.name),
            description=describe(spec),
            group_name="queues",
            kinds={"postgres", "sqlqueue"},
            tags={"sqlqueue/queue": spec.name},
            metadata={
                "dagster/table_name": f"{data.schema}.job",
                **({} if columns is None else {"dagster/column_schema": columns}),
                **_settings(spec),
            },
        )


def build_sqlqueue_asset_spec(
    spec: QueueSpec[Any],
    *,
    description: str | None = None,
    group_name: str | None = None,
    owners: Sequence[str] | None = None,
    kinds: Iterable[str] | None = None,
    tags: Mapping[str, str] | None = None,
    metadata: Mapping[str, Any] | None = None,
    deps: Sequence[Any] = (),
    freshness_policy: dg.FreshnessPolicy | None = None,
    schema: str = "sqlqueue",
    translator: SqlQueueTranslator | None = None,
) -> dg.AssetSpec:
    """A queue as an external asset: drawn in the lineage, with its depth observed by the sensor.

    What is not named here is as the translator says.

    Args:
        spec: the queue.
        description: for the asset's page, in Markdown; None: the queue's settings, as a table.
        group_name: the asset's group; None: `queues`.
        owners: e-mail addresses or `team:name`.
        kinds: at most three, instead of `postgres` and `sqlqueue`.
        tags: in addition.
        metadata: in addition.
        deps: the assets it comes from.
        freshness_policy: how old the last progress may be. Progress is a materialisation, which a drain run reports when
            it ended jobs: an idle queue is stale, so give it to queues that always have work.
        schema: where its tables are, for the table's name on the page.
        translator: says what is not named here.

    Raises:
        InvalidInput: the translator gave something else than an `AssetSpec`.
    """
    made = _translated(spec, translator, schema)
    replaced: dict[str, Any] = {
        "description": description,
        "group_name": group_name,
        "owners": owners,
        "kinds": None if kinds is None else set(kinds),
        "freshness_policy": freshness_policy,
    }
    made = made.replace_attributes(**{name: value for name, value in replaced.items() if value is not None})
    return made.merge_attributes(tags=dict(tags or {}), metadata=dict(metadata or {}), deps=list(deps))


def asset_key_of(
    spec: QueueSpec[Any], translator: SqlQueueTranslator | None = None, *, schema: str = "sqlqueue"
) -> dg.AssetKey:
    """The asset key under which everything about a queue is reported.

    Args:
        spec: the queue.
        translator: None: `queues/<name>`.
        schema: where its tables are, which a translator may look at.

    Raises:
        InvalidInput: the translator gave something else than an `AssetSpec`.
    """
    return queue_asset_key(spec.name) if translator is None else _translated(spec, translator, schema).key


def describe(spec: QueueSpec[Any]) -> str:
    """A queue and its settings in Markdown, for an asset's page."""
    lines = [f"The job queue `{spec.name}`, worked off by drain runs that its sensor starts."]
    about = inspect.cleandoc(spec.payload.__dict__.get("__doc__") or "").partition("\n\n")[0]
    lines.append(f"A job's payload is a `{spec.payload.__name__}`{': ' + about if about else '.'}")
    lines.append(markdown.table(("setting", ""), _rows(spec)))
    lines.append(
        "These are the settings that the code declares; what the database has is shown by"
        f" `sqlqueue queues {spec.name}`, and how the queue does by `sqlqueue stats {spec.name}`."
    )
    return "\n\n".join(lines)


def _translated(spec: QueueSpec[Any], translator: SqlQueueTranslator | None, schema: str) -> dg.AssetSpec:
    made = (translator or SqlQueueTranslator()).get_asset_spec(QueueAssetData(spec, schema))
    if not isinstance(made, dg.AssetSpec):
        raise InvalidInput(
            f"get_asset_spec of {type(translator).__name__} gave a {type(made).__name__} for queue {spec.name!r}; it must"
            " give a dagster.AssetSpec"
        )
    return made


def _rows(spec: QueueSpec[Any]) -> Iterator[tuple[str, str]]:
    yield "buckets", str(spec.bucket_count)
    yield "strategy", str(spec.strategy)
    if spec.ordered:
        yield "order", f"strict for each ordering key; after a job that failed for good: {spec.on_poison}"
    yield "lease", f"{spec.lease_seconds:g} s"
    if spec.timeout_seconds is not None:
        yield "timeout of a job", f"{spec.timeout_seconds:g} s"
    yield "attempts", f"{spec.max_attempts:,}"
    if isinstance(spec.backoff, Backoff):
        pause = spec.backoff
        yield "backoff", f"{pause.seconds:g} s × {pause.factor:g}, up to {pause.max_seconds:g} s"
    else:
        yield "backoff", "a function"
    if spec.max_running is not None:
        yield "running at a time", f"{spec.max_running:,}"
    if spec.max_running_per_key is not None:
        yield "running at a time, for each key", f"{spec.max_running_per_key:,}"
    if spec.rate is not None:
        yield "rate", f"{spec.rate.starts:,} starts in {spec.rate.seconds:g} s"
    yield "finished jobs", f"kept {spec.retention_days} days" if spec.retention_days else "kept for ever"


def _settings(spec: QueueSpec[Any]) -> dict[str, Any]:
    """The settings that one filters by, as metadata."""
    return {
        "sqlqueue/buckets": spec.bucket_count,
        "sqlqueue/strategy": str(spec.strategy),
        "sqlqueue/ordered": spec.ordered,
        "sqlqueue/lease_seconds": float(spec.lease_seconds),
        "sqlqueue/max_attempts": spec.max_attempts,
        "sqlqueue/payload": f"{spec.payload.__module__}.{spec.payload.__qualname__}",
    }
