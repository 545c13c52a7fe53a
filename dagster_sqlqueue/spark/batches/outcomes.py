"""Outcomes of single jobs of a batch: reported by the task that handled them, and applied when the batch is published.

A report is a row beside the batch, never a change of the job, so that it may come twice, from a task that was tried again
or from two that ran the same work at once. The first report about a job stands, with one exception: `Done` takes the
place of any other, because an effect that exists must not be requested again.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from dagster_sqlqueue.consumer.handler import brief
from dagster_sqlqueue.db.execution import Row
from dagster_sqlqueue.db.executors import Executor
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.model.job import Mode
from dagster_sqlqueue.model.outcome import Cancel, Done, Hold, Outcome, Reject, Retry, Snooze
from dagster_sqlqueue.payload.serialization import result_text
from dagster_sqlqueue.queue import SqlQueue
from dagster_sqlqueue.spark.batches.loss import lost
from dagster_sqlqueue.spark.batches.model import Batch, held_by

_AT_ONCE = 10_000


def report(queue: SqlQueue, batch: Batch, outcomes: Iterable[tuple[UUID, Outcome]]) -> set[UUID]:
    """Report the outcomes of jobs of a sealed batch. They take effect when the batch is published, or when it is
    abandoned or taken over: a report is never lost. A job without a report succeeds with the batch.

    Args:
        queue: where the batch was sealed.
        batch: as `seal` returned it. A transactional one takes reports from the process alone that sealed it, and is
            published more slowly with any: its jobs are moved once more.
        outcomes: jobs by id, each with `Done`, `Retry`, `Snooze`, `Hold`, `Reject` or `Cancel`.

    Returns:
        The ids of those that are jobs of the batch, whether this report stands or an earlier one does.

    Raises:
        BatchLost: the batch was taken over, published or given up; or it is transactional, and another process sealed it.
        InvalidInput: an outcome is none, or its result cannot be stored as JSON; or the batch is transactional, and its
            publication has begun. Nothing was written.
    """
    by_id, parameters = _checked(outcomes)
    if batch.mode is Mode.TRANSACTIONAL:
        held = held_by(batch)
        held.check()
        with held.reporting:
            if held.publishing:
                raise InvalidInput(
                    f"batch {batch.key!r} is transactional and is being published: report before its publication begins"
                )
            members = held.members(list(by_id))
            for job_id in members:
                _keep(held.reported, job_id, by_id[job_id])
        return members
    return _written(queue.database, batch, parameters)


def report_all(executor: Executor, batches: Sequence[Batch], outcomes: Mapping[UUID, Outcome]) -> None:
    """The same for leased batches that are published together, in the transaction that publishes them.

    Raises:
        BatchLost: as for `report`.
        InvalidInput: a job is of none of the batches, or an outcome is none. Nothing may be committed.
    """
    _, parameters = _checked(outcomes.items())
    for batch in batches:
        # A report shares the lock on the row, and the publication excludes others from it: two that share it, each with
        # what the other waits for, would be a deadlock.
        if not executor.run("batch_lock", {"batch_id": batch.id, "token": batch.token}):
            raise lost(batch.key)
    known = [_written(executor, batch, parameters) for batch in batches]
    check_members(batches, outcomes, *known)


def check_members(batches: Sequence[Batch], outcomes: Mapping[UUID, Outcome], *known: set[UUID]) -> None:
    """Check that jobs with an outcome are of the batches.

    Raises:
        InvalidInput: one is not.
    """
    if strange := set(outcomes).difference(*known):
        raise InvalidInput(
            f"job {min(strange)} is not of the batch {batches[0].key!r}, and was failed or retried in it"
        )


def outcomes(queue: SqlQueue, batch: Batch) -> dict[UUID, Outcome]:
    """Return the outcomes reported for jobs of the batch so far, by the job's id. Empty after the batch has ended.

    Raises:
        BatchLost: the batch is transactional, and another process sealed it.
    """
    if batch.mode is Mode.TRANSACTIONAL:
        held = held_by(batch)
        with held.reporting:
            return dict(held.reported)
    return {row[0]: _outcome(row) for row in queue.database.run("batch_outcomes", {"batch_id": batch.id})}


def outcome_columns(reported: Iterable[tuple[UUID, Outcome]]) -> dict[str, list[Any]]:
    """Return outcomes as the columns that the statements take.

    Raises:
        InvalidInput: a result cannot be stored as JSON.
    """
    rows = [(job_id, *_columns(outcome)) for job_id, outcome in sorted(reported, key=lambda pair: pair[0])]
    names = ("ids", "states", "spent", "afters", "moments", "results", "errors")
    return dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)) if rows else {name: [] for name in names}


def _checked(outcomes: Iterable[tuple[UUID, Outcome]]) -> tuple[dict[UUID, Outcome], dict[str, list[Any]]]:
    """Return outcomes by the job's id, and as the columns that the statements take."""
    by_id: dict[UUID, Outcome] = {}
    for job_id, outcome in outcomes:
        _keep(by_id, job_id, outcome)
    return by_id, outcome_columns(by_id.items())


def _written(executor: Executor, batch: Batch, parameters: Mapping[str, list[Any]]) -> set[UUID]:
    """Write reports about jobs of a leased batch; return the ids of those that are its jobs."""
    accepted: set[UUID | None] = set()
    for start in range(0, max(len(parameters["ids"]), 1), _AT_ONCE):
        part = {name: column[start : start + _AT_ONCE] for name, column in parameters.items()}
        executor.run("unpack_jobs", {"batch_id": batch.id, "ids": part["ids"]})
        rows = executor.run("batch_report", {"batch_id": batch.id, "token": batch.token, **part})
        if not rows:
            raise lost(batch.key)
        accepted.update(row[0] for row in rows)
    return {job_id for job_id in accepted if job_id is not None}


def _keep(reported: dict[UUID, Outcome], job_id: UUID, outcome: Outcome) -> None:
    """The first outcome of a job stands; success alone takes the place of another."""
    if not isinstance(outcome, Outcome):
        raise InvalidInput(
            f"the outcome of job {job_id} is {outcome!r}; give Done, Retry, Snooze, Hold, Reject or Cancel"
        )
    if job_id not in reported or (isinstance(outcome, Done) and not isinstance(reported[job_id], Done)):
        reported[job_id] = outcome


def _columns(outcome: Outcome) -> tuple[Any, ...]:
    """state, spent, after, moment, result, error."""
    match outcome:
        case Done(result):
            return "succeeded", True, None, None, result_text(result), None
        case Reject(reason):
            return "failed", True, None, None, None, brief(reason)
        case Cancel(reason):
            return "cancelled", True, None, None, None, brief(reason)
        case Hold(reason):
            return "held", False, None, None, None, brief(reason)
        case Retry(error, after):
            return "queued", True, None if after is None else float(after), None, None, brief(error)
        case Snooze(until):
            if isinstance(until, datetime):
                return "queued", False, None, until.astimezone(UTC), None, None
            return "queued", False, float(until), None, None, None


def _outcome(row: Row) -> Outcome:
    _, state, spent, after, moment, result, error = row
    match state, spent:
        case "succeeded", _:
            return Done(None if result is None else json.loads(result))
        case "failed", _:
            return Reject(error)
        case "cancelled", _:
            return Cancel(error)
        case "held", _:
            return Hold(error)
        case _, True:
            return Retry(error, after)
        case _:
            return Snooze(moment if moment is not None else after)
