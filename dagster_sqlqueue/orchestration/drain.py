"""The op of a drain run: it works buckets of a queue off until they are empty or its time is up."""

import contextlib
import enum
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Generic
from uuid import UUID

import dagster as dg
from pydantic import Field

from dagster_sqlqueue.consumer import Consumer
from dagster_sqlqueue.consumer.handler import check_concurrency, check_times
from dagster_sqlqueue.consumer.settlement import DrainSummary
from dagster_sqlqueue.errors import DatabaseUnavailable, InvalidInput, QueueError, WrongHandler
from dagster_sqlqueue.model.interrupts import add_interrupt
from dagster_sqlqueue.model.job import ClaimedJob, Mode
from dagster_sqlqueue.model.queue import Payload, QueueSpec, check_spec
from dagster_sqlqueue.orchestration import slots
from dagster_sqlqueue.orchestration.assets import check_asset_key
from dagster_sqlqueue.orchestration.chosen_buckets import check_chosen
from dagster_sqlqueue.orchestration.create_job import create_job_name
from dagster_sqlqueue.orchestration.descriptions import description_of
from dagster_sqlqueue.orchestration.handlers import shape_of_handler
from dagster_sqlqueue.orchestration.page_links import links_in_run
from dagster_sqlqueue.orchestration.queue_page import current_page_metadata, now_link
from dagster_sqlqueue.orchestration.resource import RESOURCE_KEY, check_resource_key
from dagster_sqlqueue.orchestration.run_claims import run_worker
from dagster_sqlqueue.orchestration.summary import buried_warning, summary_line, summary_metadata
from dagster_sqlqueue.queue import MAX_BATCH, SqlQueue
from dagster_sqlqueue.queue.claim_filter import ClaimFilter
from dagster_sqlqueue.schema import migrations

_PROGRESS_SECONDS = 10.0
"""A log line is an event, and each event a commit in Dagster's storage."""

# What Dagster raises in the middle of a step of a run that is terminated.
add_interrupt(dg.DagsterExecutionInterruptedError)


class DrainMode(enum.StrEnum):
    """When a drain run ends."""

    BATCH = "batch"
    """When its buckets are empty: nothing runs while the queue is idle; a job waits for a tick and a run's start."""
    LINGER = "linger"
    """Some seconds later, listening meanwhile: it claims the later jobs of a burst within milliseconds."""
    STANDING = "standing"
    """When its time is up; the sensor starts its successor before that: every job is claimed within milliseconds."""


def mode_of(given: str) -> DrainMode:
    """Return when a run ends, as a mode.

    Raises:
        InvalidInput: there is no such mode.
    """
    try:
        return DrainMode(given)
    except ValueError:
        raise InvalidInput(
            f"mode is {given!r:.100}; it must be one of {', '.join(map(repr, map(str, DrainMode)))}"
        ) from None


@dataclass(frozen=True, slots=True)
class Pace:
    """The durations of a drain run, see `DrainConfig`."""

    budget_seconds: float
    linger_seconds: float
    hand_over_seconds: float


PACES = {
    DrainMode.BATCH: Pace(300.0, 0.0, 0.0),
    # With less, jobs that come just after the end of each run would have more than one run a minute.
    DrainMode.LINGER: Pace(300.0, 60.0, 0.0),
    DrainMode.STANDING: Pace(1_800.0, 1_800.0, 30.0),
}


class DrainConfig(dg.Config):
    """What a run processes, and for how long. Without any of it, a run processes the whole queue."""

    buckets: list[int] = Field(default=[], description="The buckets to work off; empty: all.")
    tags: list[str] = Field(default=[], description="Claim only jobs that have all of these tags.")
    batch_size: int | None = Field(
        default=None, ge=1, le=MAX_BATCH, description="Jobs for each claim; unset: by the handler's measured time."
    )
    budget_seconds: float | None = Field(
        default=None, gt=0, description="Claim no new batch after that time; unset: by the consumer's mode."
    )
    linger_seconds: float | None = Field(
        default=None, ge=0, description="How long to wait for jobs when none is due; unset: by the consumer's mode."
    )
    hand_over_seconds: float | None = Field(
        default=None,
        ge=0,
        description="How long before the end of its time the run lets a successor start, at most half of it; unset: by the"
        " consumer's mode.",
    )
    slot: int | None = Field(default=None, description="Set by the sensor: the slot that it reserved for the run.")
    token: str | None = Field(default=None, description="Set by the sensor: the token of that slot.")
    sensor: str | None = Field(default=None, description="Set by the sensor: its name.")

    def pace(self, mode: DrainMode) -> Pace:
        """The durations of the config, and the mode's for those that it leaves out."""
        usual = asdict(PACES[mode])
        said = {name: getattr(self, name) for name in usual}
        pace = Pace(**{name: usual[name] if value is None else value for name, value in said.items()})
        # A run that released its slot at once would get a successor at every tick.
        return replace(pace, hand_over_seconds=min(pace.hand_over_seconds, pace.budget_seconds / 2))

    def reserved(self, queue: str) -> slots.Slot | None:
        """The slot that the sensor reserved for the run; None: there is none.

        Raises:
            InvalidInput: the token is none of a sensor's.
        """
        if self.slot is None or self.token is None:
            return None
        try:
            token = UUID(self.token)
        except ValueError:
            raise InvalidInput(
                f"the config's token is {self.token!r:.100}, which no sensor makes: it is a UUID; leave slot, token and"
                " sensor out, which only the runs have that a sensor requests"
            ) from None
        return slots.Slot(queue, self.slot, tuple(self.buckets), token, self.sensor or "")


@dataclass(frozen=True)
class DrainJob(Generic[Payload]):
    """A job that drains a queue, for the sensors that start and watch its runs.

    Attributes:
        spec: the queue.
        op: drains the queue, for your own graphs.
        job: the op by itself, in the in-process executor.
        mode: when a run ends.
        asset_key: the asset on which sensor and runs report the queue's depth, progress and checks.
        lease_seconds: of its claims; None: the queue's.
        job_timeout_seconds: see `Consumer`.
        resource_key: of its `SqlQueueResource`.
        maintain: whether its runs maintain the schema when that is due.
        transactional: whether its runs claim, handle and complete each batch in one transaction.
    """

    spec: QueueSpec[Payload]
    op: dg.OpDefinition
    job: dg.JobDefinition
    mode: DrainMode
    asset_key: dg.AssetKey
    lease_seconds: float | None
    job_timeout_seconds: float | None
    resource_key: str = field(default=RESOURCE_KEY, kw_only=True)
    maintain: bool = field(default=True, kw_only=True)
    transactional: bool = field(default=False, kw_only=True)


def build_drain_op(
    spec: QueueSpec[Payload],
    handler: Callable[..., Any],
    *,
    name: str,
    mode: DrainMode | str = DrainMode.LINGER,
    batch: bool | None = None,
    transactional: bool = False,
    concurrency: int | None = None,
    lease_seconds: float | None = None,
    job_timeout_seconds: float | None = None,
    maintain: bool = True,
    asset_key: dg.AssetKey | None = None,
    resource_key: str = RESOURCE_KEY,
) -> dg.OpDefinition:
    """Build the op that drains the queue, for your own graphs. It needs a `SqlQueueResource`. Its input `start` only orders
    ops: `drain(start=upstream())`.

    A cancelled run gives its jobs back at once. However many jobs it works off, it logs at most one line of progress every
    ten seconds, and one summary.

    Args:
        spec: the queue.
        handler: of one job or of a batch, async or not, see `queue_consumer`. The op needs the resources that it takes.
        name: the op's.
        mode: when a run ends, unless its config has other durations.
        batch: whether the handler takes all jobs of a claim at once; None: by its annotation; without one it does not.
        transactional: claim, handle and complete each batch in one transaction, see `Mode`.
        concurrency: how many jobs a run handles at a time, see `Consumer`.
        lease_seconds: instead of the queue's.
        job_timeout_seconds: see `Consumer`.
        maintain: whether a run maintains the schema, beside its work, when that is due.
        asset_key: the asset that a run materialises when it ended jobs; None: none.
        resource_key: of the resource.

    Raises:
        InvalidInput: the queue, the mode or a key is none, the handler takes something that a run does not have, or a
            number is out of range.
    """
    check_spec(spec)
    check_asset_key(asset_key)
    check_resource_key(resource_key)
    usual = mode_of(mode)
    check_times(lease_seconds, job_timeout_seconds)
    if concurrency is not None:
        check_concurrency(concurrency)
    shape = shape_of_handler(handler, spec, batch=batch)

    @dg.op(
        name=name,
        description=description_of(handler) or f"Works off the queue {spec.name!r}.",
        ins={"start": dg.In(dg.Nothing)},
        out=dg.Out(dg.Nothing, description="Stores nothing; the run's counts are its metadata."),
        tags={"kind": "sqlqueue"},
        required_resource_keys={resource_key, *shape.resources},
    )
    def drain(context: dg.OpExecutionContext, config: DrainConfig) -> dg.Output[None]:
        queue: SqlQueue = getattr(context.resources, resource_key).queue
        migrations.check(queue.database)
        pace = config.pace(usual)
        settings = queue.settings(spec.name)
        lease = lease_seconds or settings.lease_seconds
        reserved = config.reserved(spec.name)
        if reserved is None:
            # Those of a sensor's run may have been taken from the queue since the tick.
            check_chosen(settings, config.buckets)
        # The slot of a killed run expires with its leases: the heartbeat extends both.
        slot = _RunSlot(queue, reserved, context.run_id, config.buckets, seconds=lease, pace=pace)
        if not slot.keep():
            # A start may take minutes. The jobs for which the sensor requested the run may be done by now, or not.
            pace = replace(pace, linger_seconds=0.0)
            context.log.info(
                "slot %s passed to another run before this one started: it shares its buckets, and ends when nothing is due",
                config.slot,
            )
        asked = slots.asked(queue, spec.name)
        claims = _Claims(queue, spec.name, config.buckets or None)
        consumer = Consumer(
            queue,
            spec,
            shape.bound(context),
            batch=shape.batch,
            mode=Mode.TRANSACTIONAL if transactional else Mode.LEASED,
            buckets=slot.buckets if config.buckets else None,
            batch_size=config.batch_size,
            concurrency=concurrency,
            lease_seconds=lease_seconds,
            job_timeout_seconds=job_timeout_seconds,
            maintain=maintain,
            filter=ClaimFilter(tags=config.tags) if config.tags else None,
            worker=run_worker(context.run_id),
            # A run that loses its slot goes on, and shares its buckets.
            beat=slot.keep,
            on_claim=claims,
            # Sensors create queues, if they are set to.
            create=False,
            warn=lambda line: context.log.warning(
                "%s, or launch the job %s", line, create_job_name(spec, resource_key)
            ),
        )
        try:
            with slot.held():
                summary = consumer.drain(
                    budget_seconds=pace.budget_seconds,
                    linger_seconds=pace.linger_seconds,
                    after_batch=_Progress(context, spec.name),
                )
        except BaseException as error:
            if isinstance(error, WrongHandler):
                # Else a run that fails like this one would be requested at every tick.
                its = [one for one in asked.values() if not slot.covered or one.bucket in slot.covered]
                with contextlib.suppress(QueueError):
                    slots.unserved(queue, spec.name, its)
            context.log.warning("%s: ended early: %s", spec.name, summary_line(consumer.summary))
            raise
        # All work is done, and a database that goes away now is no failure of the run.
        with contextlib.suppress(DatabaseUnavailable):
            slots.served(queue, spec.name, slot.covered or None)
        if summary.buried:
            context.log.warning("%s: %s", spec.name, buried_warning(summary))
        context.log.info("%s: %s", spec.name, summary_line(summary))
        if asset_key is not None and summary.succeeded + summary.failed + summary.cancelled:
            links, leased = links_in_run(context, spec.name), 0 if transactional else claims.most
            try:
                metadata = current_page_metadata(queue, spec.name, links, leased=leased)
            except DatabaseUnavailable as error:
                context.log.warning("%s: the queue's page is left to the next tick or run: %s", spec.name, error)
            else:
                context.log_event(dg.AssetMaterialization(asset_key, metadata=metadata | now_link(asset_key)))
        return dg.Output(None, metadata=summary_metadata(summary))

    return drain


class _RunSlot:
    """Extends the run's slot while it drains, and releases it at the end, or in time for the successor's start."""

    def __init__(
        self,
        queue: SqlQueue,
        slot: slots.Slot | None,
        run_id: str,
        buckets: Sequence[int],
        *,
        seconds: float,
        pace: Pace,
    ) -> None:
        self._queue = queue
        self._slot = slot
        self._run_id = run_id
        self.covered = list(buckets)
        self._seconds = seconds
        self._hand_over = pace.budget_seconds - pace.hand_over_seconds if pace.hand_over_seconds else None
        self._lock = threading.Lock()

    def keep(self) -> bool:
        """Extend the slot; false: another run holds it."""
        with self._lock:
            if self._slot is None:
                return True
            covered = slots.extend(self._queue, self._slot, seconds=self._seconds, run_id=self._run_id)
            if covered is not None:
                self.covered = list(covered)
            return covered is not None

    def buckets(self) -> Sequence[int]:
        """The buckets that the run covers now: the sensor may add some."""
        self.keep()
        return self.covered

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Release the slot at the end of the block, or earlier if a successor is to start."""
        timer = None
        if self._slot is not None and self._hand_over is not None:
            timer = threading.Timer(max(self._hand_over, 0.0), self._release)
            timer.daemon = True
            timer.start()
        try:
            yield
        finally:
            if timer is not None:
                timer.cancel()
            self._release()

    def _release(self) -> None:
        with self._lock:
            slot, self._slot = self._slot, None
            if slot is not None:
                # It expires by itself if the database is unavailable.
                with contextlib.suppress(QueueError):
                    slots.release(self._queue, slot)


class _Claims:
    """Records, with the run's first claim, that it serves all of its buckets: one that it has not reached when it is killed
    must not become a suspect.

    Attributes:
        most: the most jobs of a claim.
    """

    def __init__(self, queue: SqlQueue, name: str, buckets: Sequence[int] | None) -> None:
        self._queue = queue
        self._name = name
        self._buckets = buckets
        self._noted = False
        self.most = 0

    def __call__(self, jobs: Sequence[ClaimedJob]) -> None:
        self.most = max(self.most, len(jobs))
        if jobs and not self._noted:
            self._noted = True
            # If this fails, the run records it at its end.
            with contextlib.suppress(QueueError):
                slots.served(self._queue, self._name, self._buckets)


class _Progress:
    """Logs a run's progress from time to time."""

    def __init__(self, context: dg.OpExecutionContext, name: str) -> None:
        self._say: Callable[..., None] = context.log.info
        self._name = name
        self._began = self._said_at = time.monotonic()

    def __call__(self, summary: DrainSummary) -> None:
        now = time.monotonic()
        if now - self._said_at >= _PROGRESS_SECONDS:
            self._said_at = now
            rate = summary.handled / (now - self._began)
            self._say("%s: %s jobs handled so far, %.0f a second", self._name, f"{summary.handled:,}", rate)
