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
_BEGUN = (dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE)
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
_STARTS = 5
_SLOWER = 3.0


@dataclass(frozen=True, slots=True)
class Capacity:
    """The slots of a sensor at a tick.

    Attributes:
        kept: the slots that are taken, by their number.
        runs: the runs that hold them, in words, by the same number.
        at_work: for how many seconds their runs have run, by the same number; without runs that have not started.
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
    job: str,
    start_seconds: float,
    starting_seconds: float | None,
) -> Capacity:
    """Read which slots are taken, and update them by their runs.

    It releases a slot whose runs have ended, one whose run has been starting for too long, and one that an earlier tick
    reserved before it died, or failed, without a run. It extends that of a run which waits in Dagster's own queue, and that
    of one which is starting. Any other slot is taken until it expires.

    Args:
        queue: where the slots are.
        instance: Dagster's, with the runs.
        name: the queue's.
        sensor: the name of the sensor that reserved the slots.
        job: the name of the job of their runs.
        start_seconds: by how much to extend a slot each time.
        starting_seconds: how long a start may take, after the run has left Dagster's queue; None: `start_seconds`, or three
            times as long as the slowest of the job's latest starts.
    """
    holdings = slots.holdings(queue, name, sensor=sensor)
    runs = _runs(instance, [str(holding.slot.token) for holding in holdings])
    limit = _StartLimit(instance, job, start_seconds, starting_seconds)
    kept, said, at_work, freed = {}, {}, {}, []
    for holding in holdings:
        slot, record = holding.slot, runs.get(str(holding.slot.token))
        live = holding.seconds > 0
        if record is None:
            if _never_submitted(holding, instance):
                if slots.forget(queue, slot):
                    freed.append(f"no run was created for slot {slot.number}")
                continue
        elif over := _over(record, limit):
            if slots.release(queue, slot):
                freed.append(f"run {short(record.dagster_run.run_id)} {over}")
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


@dataclass(frozen=True, slots=True)
class _StartLimit:
    """How long a start may take."""

    instance: dg.DagsterInstance
    job: str
    usual_seconds: float
    given_seconds: float | None

    def passed(self, seconds: float) -> bool:
        """Whether a start takes too long by now."""
        if self.given_seconds is not None:
            return seconds >= self.given_seconds
        # Only a start that is slow by now is worth the reads.
        return seconds >= self.usual_seconds and seconds >= _SLOWER * self._slowest()

    def _slowest(self) -> float:
        """The slowest of the job's latest starts, in seconds; 0: none is known."""
        begun = dg.RunsFilter(job_name=self.job, statuses=list(_BEGUN))
        stats = [self.instance.get_run_stats(run.run_id) for run in self.instance.get_runs(begun, limit=_STARTS)]
        return max(
            (one.start_time - one.launch_time for one in stats if one.start_time and one.launch_time), default=0.0
        )


def _over(record: dg.RunRecord, limit: _StartLimit) -> str:
    """Why a run has its slot no more, in words; empty: it has."""
    status = record.dagster_run.status
    if record.dagster_run.is_finished:
        return _NAMES[status]
    # A run whose launcher died is starting for good unless Dagster's run monitoring is on.
    since = time.time() - record.update_timestamp.timestamp()
    starts = status in _WAITING and status is not dg.DagsterRunStatus.QUEUED
    return f"has not started for {since:.0f} s" if starts and limit.passed(since) else ""


def _occupant(holding: Holding, record: dg.RunRecord | None) -> str:
    if record is not None:
        return f"run {short(record.dagster_run.run_id)} ({_NAMES[record.dagster_run.status]})"
    return "a run on its way" if holding.run_id is None else f"run {short(holding.run_id)}"
