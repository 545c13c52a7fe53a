"""Queues as external assets; a translator sets their key, group, kinds and owners."""

import contextlib
import inspect
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import dagster as dg

from dagster_sqlqueue.db.schema_name import default_schema
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.model.backoff import Backoff
from dagster_sqlqueue.model.queue import QueueSpec, check_queue_name, check_spec
from dagster_sqlqueue.orchestration import markdown
from dagster_sqlqueue.orchestration.columns import payload_columns
from dagster_sqlqueue.orchestration.given import check_lists, check_mappings


@contextlib.contextmanager
def single_run_backfills() -> Iterator[None]:
    """Silence the beta warning about an asset whose ranges of partitions are one run each (`backfill_policy`)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dg.BetaWarning)
        yield


def queue_asset_key(queue: str) -> dg.AssetKey:
    """The asset key of a queue, unless a translator sets another: `queues/<name>`.

    Raises:
        InvalidInput: no queue can have this name.
    """
    return dg.AssetKey(["queues", check_queue_name(queue)])


def asset_key_or_usual(spec: QueueSpec[Any], asset_key: dg.AssetKey | None) -> dg.AssetKey:
    """The asset key that was given for a queue, else `queues/<name>`.

    Raises:
        InvalidInput: the queue, or the asset key, is none.
    """
    check_spec(spec)
    check_asset_key(asset_key)
    return asset_key or queue_asset_key(spec.name)


def check_asset_key(asset_key: object) -> None:
    """Raise an error if what was given as an asset's key is none, such as its path.

    Raises:
        InvalidInput: it is none; None is the usual key.
    """
    if asset_key is not None and not isinstance(asset_key, dg.AssetKey):
        raise InvalidInput(
            f"asset_key is {asset_key!r:.100}; give a dagster.AssetKey, such as AssetKey(['payments', 'emails'])"
        )


def asset_key_among(asset_keys: Mapping[str, dg.AssetKey] | None, queue: str) -> dg.AssetKey:
    """The asset key that the mapping has for a queue, else `queues/<name>`."""
    return (asset_keys or {}).get(queue) or queue_asset_key(queue)


def name_of_asset(key: dg.AssetKey, queue: str) -> str:
    """The name of a queue's asset in names of checks and jobs: the queue's, or, for another asset key, the key."""
    return queue if key == queue_asset_key(queue) else re.sub(r"\W", "_", "_".join(key.path))


@dataclass(frozen=True, slots=True)
class QueueAssetData:
    """What a translator is given about a queue.

    Args:
        spec: the queue.
        schema: where its tables are; default: `SQLQUEUE_SCHEMA` of the environment, else `sqlqueue`.

    Raises:
        InvalidInput: the queue is none.
    """

    spec: QueueSpec[Any]
    schema: str = field(default_factory=default_schema)

    def __post_init__(self) -> None:
        check_spec(self.spec)


class SqlQueueTranslator:
    """Translates a queue into an asset. Subclass it to change keys, groups, kinds or owners of all queues in one place.

    Sensor and runs report under the key that it returns: depth, progress and checks.

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
        """The queue as an external asset: its table is the table of jobs, its columns are the payload's fields."""
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
    schema: str | None = None,
    translator: SqlQueueTranslator | None = None,
) -> dg.AssetSpec:
    """Build a queue's external asset: the lineage draws it, and the sensor observes its depth.

    The translator sets what is not given here.

    Args:
        spec: the queue.
        description: for the asset's page, in Markdown; None: the queue's settings, as a table.
        group_name: the asset's group; None: `queues`.
        owners: e-mail addresses or `team:name`.
        kinds: at most three, instead of `postgres` and `sqlqueue`.
        tags: added to the translator's.
        metadata: added to the translator's.
        deps: the upstream assets.
        freshness_policy: how old the last materialisation may be: a run ended jobs, or nothing was due. The sensor
            materialises an idle queue once an hour, so give more than that to a queue that may be idle.
        schema: where its tables are, for the table's name on the page; None: `SQLQUEUE_SCHEMA` of the environment, else
            `sqlqueue`.
        translator: sets what is not given here; None: `SqlQueueTranslator`.

    Raises:
        InvalidInput: the queue, the translator, a list or a mapping is none, or the translator returned something else than
            an `AssetSpec`.
    """
    check_mappings(tags=tags, metadata=metadata)
    check_lists(deps=deps, kinds=() if kinds is None else kinds)
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
    spec: QueueSpec[Any], translator: SqlQueueTranslator | None = None, *, schema: str | None = None
) -> dg.AssetKey:
    """The asset key under which sensor and runs report a queue.

    Args:
        spec: the queue.
        translator: None: `queues/<name>`.
        schema: where its tables are, for the translator; None: as above.

    Raises:
        InvalidInput: the queue or the translator is none, or that returned something else than an `AssetSpec`.
    """
    return asset_key_or_usual(spec, None) if translator is None else _translated(spec, translator, schema).key


def describe(spec: QueueSpec[Any]) -> str:
    """Describe a queue and its settings in Markdown, for its asset's page."""
    lines = [f"The job queue `{spec.name}`. Its sensor starts runs that process the jobs."]
    about = inspect.cleandoc(spec.payload.__dict__.get("__doc__") or "").partition("\n\n")[0]
    lines.append(f"A job's payload is a `{spec.payload.__name__}`{': ' + about if about else '.'}")
    lines.append(markdown.table(("setting", ""), _rows(spec)))
    lines.append(
        "These are the settings that the code declares. `sqlqueue queues"
        f" {spec.name}` shows those in the database, `sqlqueue stats {spec.name}` the state of the queue."
    )
    return "\n\n".join(lines)


def _translated(spec: QueueSpec[Any], translator: SqlQueueTranslator | None, schema: str | None) -> dg.AssetSpec:
    if translator is not None and not isinstance(translator, SqlQueueTranslator):
        raise InvalidInput(
            f"translator is {translator!r:.100}; give an instance of SqlQueueTranslator or of a subclass, such as Ours()"
        )
    data = QueueAssetData(spec) if schema is None else QueueAssetData(spec, schema)
    made = (translator or SqlQueueTranslator()).get_asset_spec(data)
    if not isinstance(made, dg.AssetSpec):
        raise InvalidInput(
            f"get_asset_spec of {type(translator).__name__} returned a {type(made).__name__} for queue {spec.name!r}; it"
            " must return a dagster.AssetSpec"
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
    """The settings to filter assets by, as metadata."""
    return {
        "sqlqueue/buckets": spec.bucket_count,
        "sqlqueue/strategy": str(spec.strategy),
        "sqlqueue/ordered": spec.ordered,
        "sqlqueue/lease_seconds": float(spec.lease_seconds),
        "sqlqueue/max_attempts": spec.max_attempts,
        "sqlqueue/payload": f"{spec.payload.__module__}.{spec.payload.__qualname__}",
    }
