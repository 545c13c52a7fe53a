"""The slots of a sensor compared with the runs in Dagster: which are kept, and which have ended with their run."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import dagster as dg

from dagster_sqlqueue.orchestration import slots
from dagster_sqlqueue.orchestration.slots import Holding
from dagster_sqlqueue.queue import SqlQueue

TOKEN_TAG = ".dagster/sqlqueue_slot_token"
"""The tag of a run, its retries and re-executions, with the token of the slot that is reserved for it. Dagster keeps tags
with this prefix off its pages; nobody has a use for a token there."""

_WAITING = (dg.DagsterRunStatus.QUEUED, dg.DagsterRunStatus.NOT_STARTED, dg.DagsterRunStatus.STARTING)
_NAMES = {
    dg.DagsterRunStatus.QUEUED: "queued",
    dg.DagsterRunStatus.NOT_STARTED: "made",
    dg.DagsterRunStatus.STARTING: "starting",
    dg.DagsterRunStatus.STARTED: "at work",
    dg.DagsterRunStatus.CANCELING: "being cancelled",
    dg.DagsterRunStatus.SUCCESS: "succeeded",
    dg.DagsterRunStatus.FAILURE: "failed",
    dg.DagsterRunStatus.CANCELED: "was cancelled",
}
_NAMED = 8
"""How many characters of a run's id Dagster's own pages show."""

SUBMIT_SECONDS = 4.0
"""After this time a slot without a run is free. Ticks of a sensor begin five seconds apart and do not overlap, except where
two daemons evaluate it: then it is the time that a tick has to create its runs."""
STARTING_SECONDS = 600.0
"""How long a start may take where nothing is set: on Kubernetes and Fargate minutes are usual."""
_LONG_SECONDS = 10.0
"""After this time a start's duration is said."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """The slots of a sensor at a tick.

    Attributes:
        kept: the slots that are taken, by their number.
        runs: the runs that hold them, in words, by the same number.
        at_work: for how many seconds their runs have run, by the same number; without runs that are on their way.
        freed: the ended runs whose slots were released, in words.
    """

    kept: Mapping[int, slots.Slot] = field(default_factory=dict)
    runs: Mapping[int, str] = field(default_factory=dict)
    at_work: Mapping[int, float] = field(default_factory=dict)
    freed: Sequence[str] = ()

    @property
    def covered(self) -> dict[int, tuple[int, ...]]:
        """The buckets of the slots that are taken."""
        return {number: slot.buckets for number, slot in self.kept.items()}


def capacity(
    queue: SqlQueue,
    instance: dg.DagsterInstance,
    name: str,
    *,
    sensor: str,
    start_seconds: float,
    starting_seconds: float | None,
) -> Capacity:
    """Read which slots are taken, and update them by their runs.

    It releases a slot whose runs have ended, one whose run has been starting for too long, and one that an earlier tick
    reserved before it died, or failed, without a run; the latter two as if no run had been requested, since none came to
    nothing. It extends that of a run which waits in Dagster's own queue, and that of one which is starting. Any other slot
    is taken until it expires.

    Args:
        queue: where the slots are.
        instance: Dagster's, with the runs.
        name: the queue's.
        sensor: the name of the sensor that reserved the slots.
        start_seconds: by how much to extend a slot each time.
        starting_seconds: how long a start may take, after the run has left Dagster's queue; None: `STARTING_SECONDS`, or
            the time after which Dagster's run monitoring ends it, if that is on and longer.
    """
    holdings = slots.holdings(queue, name, sensor=sensor)
    runs = _runs(instance, [str(holding.slot.token) for holding in holdings])
    limit = _longest_start(instance) if starting_seconds is None else starting_seconds
    kept, said, at_work, freed = {}, {}, {}, []
    for holding in holdings:
        slot, record = holding.slot, runs.get(str(holding.slot.token))
        live = holding.seconds > 0
        if record is None:
            if _never_submitted(holding, instance):
                if slots.forget(queue, slot):
                    freed.append(f"no run was created for slot {slot.number}")
                continue
        elif record.dagster_run.is_finished:
            if slots.release(queue, slot):
                freed.append(f"run {short(record.dagster_run.run_id)} {_NAMES[record.dagster_run.status]}")
            continue
        elif (since := _starting_for(record)) is not None and since >= limit:
            if slots.forget(queue, slot, run_id=holding.run_id):
                freed.append(f"run {short(record.dagster_run.run_id)} has not started for {since:.0f} s")
            continue
        elif record.dagster_run.status in _WAITING:
            known = holding.run_id is not None and holding.seconds > start_seconds / 2
            run_id = record.dagster_run.run_id
            live = known or slots.extend(queue, slot, seconds=start_seconds, run_id=run_id) is not None
        if live:
            kept[slot.number] = slot
            said[slot.number] = _occupant(holding, record)
            if record is not None and record.start_time is not None:
                at_work[slot.number] = time.time() - record.start_time
    return Capacity(kept, said, at_work, freed)


def short(run_id: str) -> str:
    """Shorten a run's id as Dagster's pages do."""
    return run_id[:_NAMED]


def _runs(instance: dg.DagsterInstance, tokens: Sequence[str]) -> dict[str, dg.RunRecord]:
    """The run of each token; of several, which are retries and re-executions, the latest that has not ended."""
    if not tokens:
        return {}
    found: dict[str, dg.RunRecord] = {}
    # The latest come first.
    for record in instance.get_run_records(dg.RunsFilter(tags={TOKEN_TAG: list(tokens)})):
        token = record.dagster_run.tags[TOKEN_TAG]
        known = found.get(token)
        if known is None or (known.dagster_run.is_finished and not record.dagster_run.is_finished):
            found[token] = record
    return found


def instance_id(instance: dg.DagsterInstance) -> str | None:
    """Return the id of a Dagster instance, the same in all of its processes; None: its storage has none."""
    # Dagster has no public function for it, and only its own SQL storages have one.
    found = getattr(instance.run_storage, "get_run_storage_id", None)
    return None if found is None else str(found())


def _never_submitted(holding: Holding, instance: dg.DagsterInstance) -> bool:
    """Whether the tick that reserved the slot is over: Dagster submits the runs that it had recorded before the next tick.

    The runs of another Dagster instance on the same queue are not known here.
    """
    return (
        holding.run_id is None
        and holding.instance is not None
        and holding.reserved_seconds >= SUBMIT_SECONDS
        and holding.instance == instance_id(instance)
    )


def _longest_start(instance: dg.DagsterInstance) -> float:
    if not instance.run_monitoring_enabled:
        return STARTING_SECONDS
    return max(STARTING_SECONDS, float(instance.run_monitoring_start_timeout_seconds))


def _starting_for(record: dg.RunRecord) -> float | None:
    """For how many seconds a run has been starting, after it has left Dagster's queue; None: it is not."""
    # A run whose launcher died is starting for good unless Dagster's run monitoring is on.
    starting = record.dagster_run.status in _WAITING and record.dagster_run.status is not dg.DagsterRunStatus.QUEUED
    return time.time() - record.update_timestamp.timestamp() if starting else None


def _occupant(holding: Holding, record: dg.RunRecord | None) -> str:
    if record is not None:
        since = _starting_for(record)
        long = "" if since is None or since < _LONG_SECONDS else f" for {since:.0f} s"
        return f"run {short(record.dagster_run.run_id)} ({_NAMES[record.dagster_run.status]}{long})"
    return "a run on its way" if holding.run_id is None else f"run {short(holding.run_id)}"
