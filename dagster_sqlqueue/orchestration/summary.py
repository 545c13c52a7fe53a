"""Counts of a drain run, as metadata and as a line of text: from the run itself, or from the database after its death."""

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import dagster as dg
from dagster._core.events import EngineEventData

from dagster_sqlqueue.consumer.settlement import DrainSummary
from dagster_sqlqueue.errors import QueueError
from dagster_sqlqueue.orchestration.run_claims import run_worker
from dagster_sqlqueue.queue import SqlQueue

_COUNTED = 200_000
"""The most endings of the queue to read, from the run's end backwards."""
_CLOCKS_SECONDS = 60.0
"""By how many seconds the clocks of Dagster and of the database may differ."""


def summary_metadata(summary: DrainSummary) -> dict[str, Any]:
    """The counts of a drain as metadata, without those that are 0."""
    counted = {**asdict(summary), "seconds": round(summary.seconds, 3)}
    shown = {name: one for name, one in counted.items() if one or name in ("claimed", "succeeded")}
    return {**shown, "jobs_per_second": round(summary.jobs_per_second, 1)}


def summary_line(summary: DrainSummary) -> str:
    """The counts of a drain as a line: `20 claimed, 19 succeeded, 1 failed; 2 batches, 0.3 s`."""
    counted = {name: value for name, value in asdict(summary).items() if value and name not in ("seconds", "batches")}
    said = ", ".join(f"{value:,} {name}" for name, value in counted.items()) or "nothing to do"
    return f"{said}; {summary.batches:,} batches, {summary.seconds:.1f} s"


def buried_warning(summary: DrainSummary) -> str:
    """Warn of jobs that went to the dead letter, or are held, without a call of the handler."""
    return (
        f"{summary.buried:,} jobs had killed the process that worked on them, or hung, on their last attempt, and were not"
        " retried: they are in the dead letter, or held where their key stops"
    )


def counts_of(run: dg.ExecuteInProcessResult, op: str) -> dict[str, Any]:
    """All counts of a run's drain op; empty, if it did not reach its end."""
    shown = output_metadata(run, op)
    return {field.name: shown.get(field.name, 0) for field in fields(DrainSummary)} if shown else {}


def output_metadata(run: dg.ExecuteInProcessResult, op: str) -> dict[str, Any]:
    """The values of an op's output metadata by name, in which the library's jobs report; empty, if it did not reach its end.

    Args:
        run: the result of a run that has ended.
        op: the op's name.
    """
    for event in run.events_for_node(op):
        if event.is_successful_output:
            return {name: one.value for name, one in event.step_output_data.metadata.items()}
    return {}


@dataclass(frozen=True, slots=True)
class EndedRun:
    """The counts of an ended run from the database.

    Attributes:
        succeeded, failed, cancelled: how many jobs it ended so.
        whole: whether all endings of its time were read; else there may be more of its jobs.
    """

    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0
    whole: bool = True

    def __str__(self) -> str:
        counted = {name: one for name, one in asdict(self).items() if name != "whole" and one}
        said = ", ".join(f"{value:,} {name}" for name, value in counted.items()) or "no job was ended"
        return said if self.whole else f"at least {said}"


def ended_run(queue: SqlQueue, name: str, run_id: str, *, seconds: float) -> EndedRun:
    """Count the jobs that a run has ended, by its id, without those that it gave back.

    Args:
        queue: where the queue is.
        name: the queue's.
        run_id: of the run.
        seconds: how long ago it began.
    """
    wanted = {"queue": name, "worker": run_worker(run_id), "seconds": seconds + _CLOCKS_SECONDS, "limit": _COUNTED}
    ((succeeded, failed, cancelled, read),) = queue.database.run("run_endings", wanted)
    return EndedRun(succeeded, failed, cancelled, read < _COUNTED)


def report_ended_run(
    instance: dg.DagsterInstance, run: dg.DagsterRun, queue: SqlQueue, given_back: Mapping[str, int], name: str
) -> None:
    """Report on the page of a run that was killed, cancelled or failed what it did: one event, with the counts as metadata.
    If the database does not answer, or refuses access, it reports nothing.

    Args:
        instance: Dagster's, with the run.
        run: the ended run.
        queue: where the queue is.
        given_back: how many jobs of each queue it still held.
        name: of the queue that it drained.
    """
    record = instance.get_run_record_by_id(run.run_id)
    if record is None:
        return
    began = record.start_time or record.create_timestamp.timestamp()
    try:
        found = ended_run(queue, name, run.run_id, seconds=time.time() - began)
    except QueueError:
        return
    held = given_back.get(name, 0)
    metadata = {"succeeded": found.succeeded, "failed": found.failed, "cancelled": found.cancelled, "given_back": held}
    instance.report_engine_event(f"{name}: {found}; {held:,} given back", run, EngineEventData(metadata))
