"""The sensor that reads the bucket heads and requests drain runs."""

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

import dagster as dg

from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.model.job import Head
from dagster_sqlqueue.model.queue import QueueSettings
from dagster_sqlqueue.orchestration import slots
from dagster_sqlqueue.orchestration.checks import CheckThresholds
from dagster_sqlqueue.orchestration.drain import DrainConfig, DrainJob, DrainMode
from dagster_sqlqueue.orchestration.failed_runs import last_failure
from dagster_sqlqueue.orchestration.given import check_consumer
from dagster_sqlqueue.orchestration.page_links import QUEUE_TAG, SENSOR_TAG, links_at_tick
from dagster_sqlqueue.orchestration.queue_page import QueueState
from dagster_sqlqueue.orchestration.queue_sensor import queue_sensor
from dagster_sqlqueue.orchestration.resource import SqlQueueResource, under_key
from dagster_sqlqueue.orchestration.run_plan import Plan, drains, left_by_runs, standing
from dagster_sqlqueue.orchestration.run_rate import MEASURED_SECONDS, RunRate, jobs_in, measured
from dagster_sqlqueue.orchestration.sensor_cursor import Memory
from dagster_sqlqueue.orchestration.sensor_settings import SensorSettings
from dagster_sqlqueue.orchestration.slot_runs import TOKEN_TAG, capacity, instance_id
from dagster_sqlqueue.orchestration.tick_events import report
from dagster_sqlqueue.orchestration.tick_status import COUNTED, ranges, tick_status
from dagster_sqlqueue.queue import SqlQueue
from dagster_sqlqueue.queue.claim_filter import ClaimFilter
from dagster_sqlqueue.schema import migrations

BUCKETS_TAG = "sqlqueue/buckets"

_SHORTEST_START_SECONDS = 30.0
_OTHER_RUNS_SECONDS = 60.0
_RUN_UPDATE_SECONDS = 10.0
"""How long the record of a run may be behind its events, the difference of clocks included."""


def build_sqlqueue_sensor(
    consumer: DrainJob[Any],
    *,
    name: str | None = None,
    settings: SensorSettings | None = None,
    thresholds: CheckThresholds | None = None,
    minimum_interval_seconds: int = 1,
    default_status: dg.DefaultSensorStatus = dg.DefaultSensorStatus.STOPPED,
    observe_job: dg.JobDefinition | None = None,
) -> dg.SensorDefinition:
    """Build a sensor that requests runs of the consumer's job for the buckets that have work.

    A tick reads one index entry for each bucket and priority, reserves slots, and requests a run for each. It leaves the
    buckets of live runs to them, and frees those of runs that have ended; the slot of a run that died unnoticed by Dagster
    frees them when it expires. Requests have no run key: Dagster remembers run keys for ever, and one made of a job would
    block that job for good if its run died before the claim. A bucket whose runs die before they claim a job gets its runs
    apart from the others, and less and less often. The tick of a paused queue requests nothing, and says so.

    A tick reports on the queue's asset, without a run, when something changed, or once a minute while jobs wait: eight
    numbers, a table of the buckets, and the checks of `build_sqlqueue_checks`.

    An error of the database fails the tick, so that users see it. The consumer's job must be in the `Definitions` too.

    Args:
        consumer: the consumer of the queue.
        name: the sensor's, and that of its slots; None: `<queue>_sensor`.
        settings: how the sensor turns a backlog into runs.
        thresholds: of the checks; None: the defaults.
        minimum_interval_seconds: between two ticks. Dagster's daemon evaluates sensors every five seconds; with an interval
            of five seconds it may skip every other time.
        default_status: whether it starts with the code location, or when a user switches it on.
        observe_job: of `build_observe_job`, one for all sensors of the queue: the page of the queue's asset then names the
            sensor under *Automation*. None: it does not.

    Raises:
        InvalidInput: the consumer, the settings or the thresholds are something else, or the interval is negative.
    """
    check_consumer("build_sqlqueue_sensor", consumer, DrainJob)
    _check_options(consumer, settings=(settings, SensorSettings), thresholds=(thresholds, CheckThresholds))
    chosen = settings or SensorSettings()
    queue_name = consumer.spec.name
    sensor_name = name or f"{queue_name}_sensor"
    limits = thresholds or CheckThresholds()

    @dg.sensor(
        name=sensor_name,
        job_name=consumer.job.name if observe_job is None else None,
        jobs=None if observe_job is None else [consumer.job, observe_job],
        minimum_interval_seconds=minimum_interval_seconds,
        default_status=default_status,
        description=f"Requests runs of {consumer.job.name} for due jobs of the queue {queue_name!r}; reports on its asset.",
    )
    @under_key(consumer.resource_key)
    def bucket_heads(context: dg.SensorEvaluationContext, sqlqueue: SqlQueueResource) -> dg.SensorResult:
        queue = sqlqueue.queue
        migrations.check(queue.database)
        memory = Memory.of(context.cursor)
        ended = _last_run(context.instance, consumer, memory)
        tick = _Tick(queue, queue.settings(queue_name), consumer, chosen, sensor_name)
        state = tick.read(context.instance, memory, run_ended=ended > memory.run_ended_at)
        stood = memory.stood(state.heads)
        planned = tick.plan(state, memory.still_left(tick.left(state)))
        links = partial(links_at_tick, context, queue_name, drain=consumer.job.name, sensor=sensor_name)
        events = list(
            report(queue, state, consumer.asset_key, memory, limits, stood=stood, links=links, run_ended_at=ended)
        )
        failure = last_failure(context.instance, consumer.job.name, sensor_name, state)
        # Last of all: no run comes for what a tick has reserved before it fails.
        widened, reserved = tick.widen(planned, state), tick.reserve(planned, state, context.instance)
        requests = [tick.request(slot, state.heads) for slot in reserved]
        status = tick_status(state, planned, reserved, widened, tick.known, tick.learned_rate(memory), failure)
        # Of the cursor a page may show twenty characters, beside the sensor's name.
        memory.status = status.removeprefix(f"{queue_name}: ")
        context.log.info("%s", status)
        if requests:
            return dg.SensorResult(run_requests=requests, asset_events=events, cursor=memory.cursor())
        return dg.SensorResult(skip_reason=status, asset_events=events, cursor=memory.cursor())

    return queue_sensor(bucket_heads)


def _check_options(consumer: DrainJob[Any], **options: tuple[object, type]) -> None:
    for name, (given, kind) in options.items():
        if given is not None and not isinstance(given, kind):
            raise InvalidInput(
                f"{name} of the sensor of {consumer.spec.label} is {given!r:.100}; give a {kind.__name__}(…)"
            )


@dataclass(frozen=True, slots=True)
class _Tick:
    """One tick of a sensor: it reads the queue, plans runs, reserves slots and requests runs."""

    queue: SqlQueue
    known: QueueSettings
    consumer: DrainJob[Any]
    settings: SensorSettings
    sensor: str

    def read(self, instance: dg.DagsterInstance, memory: Memory, *, run_ended: bool) -> QueueState:
        name, settings = self.known.name, self.settings
        found = capacity(
            self.queue,
            instance,
            name,
            sensor=self.sensor,
            start_seconds=self._start_seconds,
            starting_seconds=settings.starting_seconds,
        )
        heads = self.queue.peek_heads(name)
        if run_ended or found.kept or any(head.due_seconds >= 0 for head in heads):
            self._measure(memory)
        per_run = settings.jobs_per_run or jobs_in(memory.rate, settings.run_seconds)
        # Counting is most of a tick's cost: where no run can be added it decides nothing.
        room = len(found.kept) < settings.max_runs
        cap = (settings.max_runs - 1) * per_run + 1 if room else COUNTED
        depth = self.queue.depth(name, cap=max(cap, COUNTED), others_cap=COUNTED)
        paused = self.known.paused_at is not None
        return QueueState(name, paused, heads, depth, found, slots.asked(self.queue, name), per_run)

    def left(self, state: QueueState) -> set[int]:
        """The buckets whose due jobs live runs leave, where a further run could claim them."""
        # None could claim jobs either that a limit, the turn of a key, or their tags hold back; and of jobs that wait, those
        # that a run has locked cannot be told from the others.
        held_back = self.known.limited or self.known.keyed or self.settings.tags or self.consumer.transactional
        if state.paused or held_back:
            return set()
        return left_by_runs(
            state.heads,
            covered=state.covered,
            at_work=state.capacity.at_work,
            asked=state.asked,
            start_seconds=self._start_seconds,
        )

    def plan(self, state: QueueState, still: Collection[int]) -> Plan:
        if state.paused:
            return Plan({}, {})
        buckets = self._buckets()
        if self.consumer.mode is DrainMode.STANDING:
            return standing(buckets, runs=self.settings.max_runs, covered=state.covered, asked=state.asked)
        if self.settings.tags and state.depth.ready and not self._any_fits():
            return Plan({}, {})
        its = set(buckets)
        return drains(
            [head for head in state.heads if head.bucket in its],
            buckets=buckets,
            covered=state.covered,
            asked=state.asked,
            runs=self.settings.max_runs,
            ready=state.depth.ready,
            jobs_per_run=state.jobs_per_run,
            share=self.settings.share,
            still=still,
        )

    def widen(self, planned: Plan, state: QueueState) -> list[slots.Slot]:
        """Give live runs the further buckets of the plan. Returns these buckets alone, as slots."""
        more = []
        for number, buckets in planned.widened.items():
            slot = state.capacity.kept[number]
            if slots.widen(self.queue, slot, buckets, shared=planned.shared):
                slots.served(self.queue, slot.queue, buckets)
                more.append(replace(slot, buckets=buckets))
        return more

    def reserve(self, planned: Plan, state: QueueState, instance: dg.DagsterInstance) -> list[slots.Slot]:
        """Reserve slots for the plan's groups, except those that another tick has reserved meanwhile."""
        mine = instance_id(instance) if planned.groups else None
        standing = self.consumer.mode is DrainMode.STANDING
        due = {head.bucket for head in state.heads if head.due_seconds >= 0}
        wanted = [
            slots.acquire(
                self.queue,
                state.queue,
                number,
                buckets,
                seconds=self._start_seconds,
                sensor=self.sensor,
                due=None if standing else [bucket for bucket in buckets if bucket in due],
                shared=planned.shared,
                instance=mine,
            )
            for number, buckets in planned.groups.items()
        ]
        return [slot for slot in wanted if slot is not None]

    def request(self, slot: slots.Slot, heads: Sequence[Head]) -> dg.RunRequest:
        settings = self.settings
        due = [head.priority for head in heads if head.bucket in slot.buckets and head.due_seconds >= 0]
        config = {
            "buckets": list(slot.buckets),
            "slot": slot.number,
            "token": str(slot.token),
            "sensor": slot.sensor,
            "batch_size": settings.batch_size,
            "tags": list(settings.tags),
            "budget_seconds": settings.budget_seconds,
            "linger_seconds": settings.linger_seconds,
            "hand_over_seconds": settings.hand_over_seconds,
        }
        said = {name: value for name, value in config.items() if value is not None}
        return dg.RunRequest(
            job_name=self.consumer.job.name,
            run_config={"ops": {self.consumer.op.name: {"config": said}}},
            tags={
                QUEUE_TAG: slot.queue,
                SENSOR_TAG: slot.sensor,
                TOKEN_TAG: str(slot.token),
                BUCKETS_TAG: ranges(slot.buckets),
                "dagster/priority": str(max(due, default=0)),
            },
        )

    def learned_rate(self, memory: Memory) -> RunRate | None:
        """The measured rate, if the number of runs depends on it."""
        return memory.rate if self._learns else None

    @property
    def _start_seconds(self) -> float:
        lease = self.consumer.lease_seconds or self.known.lease_seconds
        return self.settings.start_seconds or max(lease, _SHORTEST_START_SECONDS)

    @property
    def _learns(self) -> bool:
        return self.settings.jobs_per_run is None and self.consumer.mode is not DrainMode.STANDING

    def _measure(self, memory: Memory) -> None:
        now = time.time()
        if self._learns and now - memory.measured_at >= MEASURED_SECONDS:
            # The last measurement holds until there is a newer one: a queue may have work at night only.
            memory.rate = measured(self.queue, self.known.name, batch_size=self.settings.batch_size) or memory.rate
            memory.measured_at = now

    def _buckets(self) -> list[int]:
        region = self.settings.region
        if region is None:
            return list(range(self.known.claim_buckets))
        buckets = [bucket for bucket, its in enumerate(self.known.regions) if its == region]
        if not buckets:
            there = ", ".join(map(repr, sorted(set(self.known.regions))))
            raise InvalidInput(
                f"the sensor is set to the buckets of region {region!r}, and queue {self.known.name!r} has none there;"
                f" its regions are {there}"
            )
        return buckets

    def _any_fits(self) -> bool:
        fitting = ClaimFilter(tags=self.settings.tags)
        return fitting.finds(self.queue.database, self.known, self._buckets())


def _last_run(instance: dg.DagsterInstance, consumer: DrainJob[Any], memory: Memory) -> float:
    """When a run last materialised the asset; 0: none did, or the sensor was the last.

    Reads the asset's events only after a run of the consumer's job has changed, and once a minute for runs of other jobs.
    """
    now = time.time()
    since = datetime.fromtimestamp(max(memory.events_read_at - _RUN_UPDATE_SECONDS, 0.0), UTC)
    changed = dg.RunsFilter(job_name=consumer.job.name, updated_after=since)
    if now - memory.events_read_at < _OTHER_RUNS_SECONDS and not instance.get_runs(changed, limit=1):
        return memory.run_ended_at
    memory.events_read_at = round(now, 1)
    # A quarter of the cost of `get_latest_materialization_event`, which reads the asset's whole record.
    latest = instance.fetch_materializations(consumer.asset_key, limit=1).records
    return latest[0].timestamp if latest and latest[0].run_id else 0.0


def slot_of(run: dg.DagsterRun, op: str) -> slots.Slot | None:
    """The slot that the sensor reserved for a drain run; None: it reserved none."""
    run_config: Any = run.run_config
    try:
        config = run_config["ops"][op]["config"]
        return DrainConfig(**config).reserved(run.tags[QUEUE_TAG])
    except (KeyError, TypeError, ValueError):
        return None
