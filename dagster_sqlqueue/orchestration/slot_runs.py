"""The slots of a sensor compared with the runs in Dagster: which are kept, and which have ended with their run."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import dagster as dg

from dagster_sqlqueue.orchestration import slots
from dagster_sqlqueue.orchestration.slots import Holding
from dagster_sqlqueue.queue import SqlQueue

TOKEN_TAG = "sqlqueue/slot_token"
"""The tag of a run, its retries and re-executions, with the token of the slot that is reserved for it."""

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
    start_seconds: float,
    starting_seconds: float,
) -> Capacity:
    """Read which slots are taken, and update them by their runs.

    It releases a slot whose runs have ended. It extends that of a run which waits in Dagster's own queue, and that of one
    which is starting, for as long as a start may take. Any other slot is taken until it expires.

    Args:
        queue: where the slots are.
        instance: Dagster's, with the runs.
        name: the queue's.
        sensor: the name of the sensor that reserved the slots.
        start_seconds: by how much to extend a slot each time.
        starting_seconds: how long a start may take, after the run has left Dagster's queue.
    """
    holdings = slots.holdings(queue, name, sensor=sensor)
    runs = _runs(instance, [str(holding.slot.token) for holding in holdings])
    kept, said, at_work, freed = {}, {}, {}, []
    for holding in holdings:
        slot, record = holding.slot, runs.get(str(holding.slot.token))
        if record is not None and record.dagster_run.is_finished:
            if slots.release(queue, slot):
                freed.append(f"run {short(record.dagster_run.run_id)} {_NAMES[record.dagster_run.status]}")
            continue
        live = holding.seconds > 0
        if record is not None and _may_come(record, starting_seconds):
            known = holding.run_id is not None and holding.seconds > start_seconds / 2
            run_id = record.dagster_run.run_id
            live = known or slots.extend(queue, slot, seconds=start_seconds, run_id=run_id) is not None
        if live:
            kept[slot.number] = slot
            said[slot.number] = _holder(holding, record)
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


def _may_come(record: dg.RunRecord, starting_seconds: float) -> bool:
    status = record.dagster_run.status
    if status not in _WAITING:
        return False
    # A run whose launcher died keeps this status for good unless Dagster's run monitoring is on.
    since = time.time() - record.update_timestamp.timestamp()
    return status is dg.DagsterRunStatus.QUEUED or since < starting_seconds


def _holder(holding: Holding, record: dg.RunRecord | None) -> str:
    if record is not None:
        return f"run {short(record.dagster_run.run_id)} ({_NAMES[record.dagster_run.status]})"
    return "a run on its way" if holding.run_id is None else f"run {short(holding.run_id)}"
