"""All Dagster definitions of consumers' queues: jobs, sensors, assets, checks and the resource."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import dagster as dg

from dagster_sqlqueue.db.schema_name import default_schema
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.orchestration.assets import (
    SqlQueueTranslator,
    asset_key_of,
    build_sqlqueue_asset_spec,
    name_of_asset,
    queue_asset_key,
)
from dagster_sqlqueue.orchestration.checks import CheckThresholds, build_sqlqueue_checks
from dagster_sqlqueue.orchestration.cleanup import build_cleanup_sensors, joined_names
from dagster_sqlqueue.orchestration.consumer import QueueConsumer
from dagster_sqlqueue.orchestration.create_job import build_create_job, helping
from dagster_sqlqueue.orchestration.given import check_consumer, check_lists, listed
from dagster_sqlqueue.orchestration.launchpad import USUAL_VERBS, build_sqlqueue_launchpad_jobs
from dagster_sqlqueue.orchestration.observe_job import build_observe_job
from dagster_sqlqueue.orchestration.resource import RESOURCE_KEY, SqlQueueResource, check_resource


def build_sqlqueue_definitions(
    consumers: QueueConsumer[Any] | Sequence[QueueConsumer[Any]],
    *,
    resource: SqlQueueResource | None = None,
    fan_outs: Sequence[dg.AssetsDefinition] = (),
    translator: SqlQueueTranslator | None = None,
    thresholds: CheckThresholds | None = None,
    freshness_policy: dg.FreshnessPolicy | None = None,
    create: bool = True,
    launchpad: Sequence[str] = USUAL_VERBS,
    default_status: dg.DefaultSensorStatus = dg.DefaultSensorStatus.RUNNING,
) -> dg.Definitions:
    """Build all definitions of these queues: of each the asset with its checks, the job that works it off, the job that
    creates it or updates its settings, the job that observes it, launchpad jobs, by default to show jobs and to redrive dead
    letters, and the sensor; and the sensors that release what killed runs held.

    The first tick of its sensor creates a missing queue with the settings in the code. From then on those in the database
    hold; where the code has others, each run warns of them by name.

    Args:
        consumers: of `queue_consumer`, all with the same resource key. For a second database, call this again and merge.
        resource: their database; None: other definitions have the resource.
        fan_outs: assets of `build_fanout_asset` for some of these queues; they are the queues' assets, and part of the
            definitions.
        translator: makes the assets of queues. Jobs, sensors and checks report on the keys that it returns; a consumer that
            has an `asset_key` of its own keeps that.
        thresholds: of the checks; None: the defaults.
        freshness_policy: of the queues' assets, see `build_sqlqueue_asset_spec`.
        create: whether sensors create missing queues; `sqlqueue migrate` or the job creates the tables.
        launchpad: the verbs of `build_sqlqueue_launchpad_jobs` for which each queue gets a job, `<queue>_<verb>`.
        default_status: of the sensors that do not set it themselves.

    Raises:
        InvalidInput: there is no consumer, something is none, they have several resource keys or two of them one name for
            their jobs or sensors, or an asset of `fan_outs` is of no queue of theirs.

    Example:
        ```python
        defs = build_sqlqueue_definitions(send_email, resource=SqlQueueResource(url=dg.EnvVar("SQLQUEUE_URL")))
        ```
    """
    check_resource(resource)
    check_lists(fan_outs=fan_outs, launchpad=launchpad)
    for fan_out in fan_outs:
        if not isinstance(fan_out, dg.AssetsDefinition):
            raise InvalidInput(f"fan_outs holds {fan_out!r:.100}; give what build_fanout_asset returns")
    each = _consumers_of(consumers)
    keys = {consumer.resource_key for consumer in each}
    if len(keys) != 1:
        raise InvalidInput(
            f"build_sqlqueue_definitions was given {len(each)} consumers of the resources {sorted(keys)}; give it those of"
            " one resource, and merge the definitions of others: dagster.Definitions.merge"
        )
    (key,) = keys
    schema = (
        resource.schema_name
        if resource is not None and not isinstance(resource.schema_name, dg.EnvVar)
        else default_schema()
    )
    each = [_translated(consumer, translator, schema) for consumer in each]
    specs = {
        consumer.asset_key: build_sqlqueue_asset_spec(
            consumer.spec, translator=translator, schema=schema, freshness_policy=freshness_policy
        ).replace_attributes(key=consumer.asset_key)
        for consumer in each
    }
    fanned_out = {asset for fan_out in fan_outs for asset in fan_out.keys}
    if strange := fanned_out - specs.keys():
        raise InvalidInput(
            f"fan_outs has the assets {_keys(strange)}, and the consumers report on {_keys(specs)}; give the fan-outs of the"
            " consumers' queues, made with the same translator"
        )
    observers = dict(_observe_jobs(each, key))
    queues = {consumer.spec.name: consumer.spec for consumer in each}
    sensors = [
        helping(
            consumer.sensor_with(
                default_status=default_status, thresholds=thresholds, observe_job=observers[consumer.asset_key]
            ),
            consumer.spec,
            create=create,
            resource_key=key,
        )
        for consumer in each
    ]
    _check_apart("sensor", [sensor.name for sensor in sensors], "queue_consumer(sensor={'name': …})")
    return dg.Definitions(
        assets=[*(spec for asset, spec in specs.items() if asset not in fanned_out), *fan_outs],
        asset_checks=[
            build_sqlqueue_checks(consumer.spec, thresholds, asset_key=consumer.asset_key, resource_key=key)
            for consumer in {consumer.asset_key: consumer for consumer in each}.values()
        ],
        jobs=[
            *(consumer.job for consumer in each),
            *(build_create_job(spec, resource_key=key) for spec in queues.values()),
            *observers.values(),
            *_launchpad_jobs(each, launchpad, key),
        ],
        sensors=[
            *sensors,
            *build_cleanup_sensors(
                each,
                prefix=f"{key}_{joined_names(queues)}",
                resource_key=key,
                default_status=default_status,
            ),
        ],
        resources={key: resource} if resource is not None else None,
    )


def _consumers_of(given: QueueConsumer[Any] | Sequence[QueueConsumer[Any]]) -> list[QueueConsumer[Any]]:
    each = listed(given)
    for one in each:
        check_consumer("build_sqlqueue_definitions", one, QueueConsumer)
    _check_apart("job", [consumer.job.name for consumer in each], "queue_consumer(name=…)")
    return each


def _check_apart(what: str, names: Sequence[str], cure: str) -> None:
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise InvalidInput(
            f"build_sqlqueue_definitions was given several consumers with the {what} {twice[0]!r}; give each of them a"
            f" {what} of its own name: {cure}"
        )


def _keys(keys: Iterable[dg.AssetKey]) -> str:
    return ", ".join(sorted(key.to_user_string() for key in keys))


def _translated(consumer: QueueConsumer[Any], translator: SqlQueueTranslator | None, schema: str) -> QueueConsumer[Any]:
    """The consumer on the asset key of the translator, unless it has one of its own."""
    if consumer.asset_key != queue_asset_key(consumer.spec.name):
        return consumer
    return consumer.on_asset(asset_key_of(consumer.spec, translator, schema=schema))


def _observe_jobs(
    consumers: Sequence[QueueConsumer[Any]], resource_key: str
) -> Iterator[tuple[dg.AssetKey, dg.JobDefinition]]:
    by_key = {consumer.asset_key: consumer.spec for consumer in consumers}
    assets = Counter(spec.name for spec in by_key.values())
    for key, spec in by_key.items():
        name = f"observe_{name_of_asset(key, spec.name)}" if assets[spec.name] > 1 else None
        yield key, build_observe_job(spec, name=name, asset_key=key, resource_key=resource_key)


def _launchpad_jobs(
    consumers: Sequence[QueueConsumer[Any]], verbs: Sequence[str], resource_key: str
) -> Iterator[dg.JobDefinition]:
    for consumer in {consumer.spec.name: consumer for consumer in consumers}.values():
        name = consumer.spec.name
        yield from build_sqlqueue_launchpad_jobs(
            consumer.spec,
            name_prefix=name if resource_key == RESOURCE_KEY else f"{resource_key}_{name}",
            verbs=verbs,
            asset_keys={name: consumer.asset_key},
            resource_key=resource_key,
        )
