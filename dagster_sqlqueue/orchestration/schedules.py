"""A sensor that ticks the queues' schedules, instead of scheduler processes or beside them."""

import time
from collections import Counter, defaultdict
from collections.abc import Mapping

import dagster as dg

from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.model.numbers import is_seconds
from dagster_sqlqueue.orchestration.assets import asset_key_among
from dagster_sqlqueue.orchestration.given import check_mappings
from dagster_sqlqueue.orchestration.queue_sensor import queue_sensor
from dagster_sqlqueue.orchestration.resource import RESOURCE_KEY, SqlQueueResource, under_key
from dagster_sqlqueue.schedules import Schedules
from dagster_sqlqueue.schema import migrations

_NAMED = 10


def build_sqlqueue_schedules_sensor(
    *,
    name: str = "sqlqueue_schedules",
    minimum_interval_seconds: int = 10,
    budget_seconds: float = 20.0,
    default_status: dg.DefaultSensorStatus = dg.DefaultSensorStatus.STOPPED,
    asset_keys: Mapping[str, dg.AssetKey] | None = None,
    resource_key: str = RESOURCE_KEY,
) -> dg.SensorDefinition:
    """Build a sensor that enqueues the due jobs of all queues' schedules, by the database's clock.

    Scheduler processes may run beside it, and so may the same sensor in another deployment: each tick is enqueued once. It
    starts no runs; the consumers of the queues work the jobs off. It observes the enqueued jobs on the assets of the
    queues, and names them in the tick.

    An error of the database fails the tick, so that users see it. Nothing else does: the sensor pauses a schedule that it
    cannot use, and the tick and its log say why.

    Args:
        name: of the sensor.
        minimum_interval_seconds: how late a job may be. Schedules that tick more often and catch up with `one` lose ticks.
        budget_seconds: after it the rest is left to the next tick; Dagster ends a sensor's evaluation after 60 seconds.
        default_status: whether it starts with the code location, or when a user switches it on.
        asset_keys: of the queues whose assets are not `queues/<name>`, by queue; see `asset_key_of`.
        resource_key: of the `SqlQueueResource`.

    Raises:
        InvalidInput: a number is out of range, or the asset keys are none.
    """
    check_mappings(asset_keys=asset_keys)
    if not is_seconds(budget_seconds):
        raise InvalidInput(
            f"budget_seconds is {budget_seconds!r}; it must be a number of seconds above 0, at most a hundred years"
        )

    @dg.sensor(
        name=name,
        minimum_interval_seconds=minimum_interval_seconds,
        default_status=default_status,
        description="Enqueues the jobs of the queues' schedules, each tick once however many schedulers run.",
    )
    @under_key(resource_key)
    def schedules_tick(context: dg.SensorEvaluationContext, sqlqueue: SqlQueueResource) -> dg.SensorResult:
        migrations.check(sqlqueue.queue.database)
        schedules = Schedules(sqlqueue.queue)
        began = time.monotonic()
        enqueued: Counter[tuple[str, str]] = Counter()
        failed: dict[tuple[str, str], str] = {}
        more = True
        while more and time.monotonic() - began < budget_seconds:
            done = schedules.tick()
            enqueued.update(done.enqueued)
            failed |= done.failed
            more = done.more
        for (queue, schedule), reason in failed.items():
            context.log.error("schedule %r of queue %r is paused: %s", schedule, queue, reason)
        status = _status(enqueued, failed, None if more else schedules.seconds_to_wait(), more)
        context.log.info("%s", status)
        return dg.SensorResult(skip_reason=status, asset_events=_observed(enqueued, asset_keys))

    return queue_sensor(schedules_tick)


def _status(
    enqueued: Counter[tuple[str, str]], failed: dict[tuple[str, str], str], wait: float | None, more: bool
) -> str:
    parts = []
    if enqueued:
        named = [f"{queue}/{name} {ticks}" for (queue, name), ticks in enqueued.most_common(_NAMED)]
        others = f", and {len(enqueued) - _NAMED} schedules more" if len(enqueued) > _NAMED else ""
        parts.append(f"enqueued {enqueued.total()}: {', '.join(named)}{others}")
    parts += [f"paused {queue}/{name}: {reason}" for (queue, name), reason in list(failed.items())[:_NAMED]]
    if more:
        parts.append("more is due, left to the next tick")
    elif wait is None:
        parts.append("no schedule ticks")
    else:
        parts.append(f"next due in {max(wait, 0):.0f} s")
    return "; ".join(parts)


def _observed(
    enqueued: Counter[tuple[str, str]], asset_keys: Mapping[str, dg.AssetKey] | None
) -> list[dg.AssetObservation]:
    by_queue: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for (queue, name), ticks in enqueued.items():
        by_queue[queue][name] = ticks
    return [
        dg.AssetObservation(
            asset_key_among(asset_keys, queue),
            metadata={"scheduled": sum(ticks.values()), "scheduled_by": dg.MetadataValue.json(ticks)},
        )
        for queue, ticks in by_queue.items()
    ]
