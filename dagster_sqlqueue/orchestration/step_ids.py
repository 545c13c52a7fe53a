"""Ids of jobs that stay the same when a step is repeated, so that they are enqueued once."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import chain
from typing import Any
from uuid import UUID, uuid4

import dagster as dg
from pydantic import BaseModel

from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.model.ids import stable_id
from dagster_sqlqueue.model.job import NewJob
from dagster_sqlqueue.model.queue import QueueSpec
from dagster_sqlqueue.payload.serialization import AnyObject

ROOT_TAG = "sqlqueue/root_run"
"""The tag of a run that has enqueued: the id of its root run, and when that was created."""


@dataclass(frozen=True, slots=True)
class StepIds:
    """The ids of one step's jobs and groups. They are the same in each attempt of the step, in a retry of its run, and in a
    re-execution of it: all of these have the same root run.

    Attributes:
        moment: when the root run was created; ids begin with it, and so sort by it.
        text: identifies the step's work in the deployment.
    """

    moment: datetime
    text: str

    def id(self, thing: object) -> UUID:
        """Make the id of one job or group of the step."""
        return stable_id(self.moment, f"{self.text} {thing}")

    def jobs(self, jobs: Iterable[Any]) -> Iterator[NewJob[Any]]:
        """Make jobs of payloads or `NewJob`s, each with an id by its position unless it has one of its own."""
        for position, job in enumerate(jobs):
            new = job if isinstance(job, NewJob) else NewJob(job)
            yield replace(new, id=self.id(position)) if new.id is None else new


def ids_of(context: dg.OpExecutionContext | dg.AssetExecutionContext, *parts: object) -> StepIds:
    """Make the ids of an op's or asset's jobs. Those of one that is called directly, as in a unit test, are new each time.

    Args:
        context: of the op or asset.
        parts: distinguish this work of the step from its other work.
    """
    try:
        step = context.get_step_execution_context()
    except dg.DagsterError:
        return StepIds(datetime.now(UTC), " ".join(map(str, (uuid4(), *parts))))
    return step_ids(step, *parts)


def step_ids(step: Any, *parts: object) -> StepIds:
    """Make the ids for a step's own context, such as an output's `context.step_context`."""
    run = step.dagster_run
    root = run.root_run_id or run.run_id
    return StepIds(_moment(step.instance, run.run_id, root), " ".join(map(str, (root, step.step.key, *parts))))


def _moment(instance: dg.DagsterInstance, run_id: str, root: str) -> datetime:
    """When the root run was created. It may be deleted: each run that enqueues has the moment in a tag, which Dagster copies
    to re-executions that the UI or a run retry starts; those that Python starts find it at the run they repeat.
    """
    record = instance.get_run_record_by_id(run_id)
    if record is None:
        return datetime.fromtimestamp(0, UTC)
    if (noted := _noted(record.dagster_run, root)) is not None:
        return noted
    of_root = record if root == run_id else instance.get_run_record_by_id(root)
    moment = of_root.create_timestamp if of_root else _noted_before(instance, record.dagster_run, root)
    instance.add_run_tags(run_id, {ROOT_TAG: f"{root} {(moment or record.create_timestamp).isoformat()}"})
    return moment or record.create_timestamp


def _noted_before(instance: dg.DagsterInstance, run: dg.DagsterRun, root: str) -> datetime | None:
    """The moment in the tags of the nearest run that this one repeats."""
    repeated: dg.DagsterRun | None = run
    while repeated is not None and repeated.parent_run_id is not None:
        repeated = instance.get_run_by_id(repeated.parent_run_id)
        if repeated is not None and (noted := _noted(repeated, root)) is not None:
            return noted
    return None


def _noted(run: dg.DagsterRun, root: str) -> datetime | None:
    # A launch with the tags of another run has another root.
    of, _, moment = run.tags.get(ROOT_TAG, "").partition(" ")
    if of != root:
        return None
    try:
        noted = datetime.fromisoformat(moment)
    except ValueError:
        return None
    return noted if noted.tzinfo is not None else None


def each_job(jobs: object) -> Iterable[Any]:
    """Iterate over the jobs of an output: an iterable, the rows of a table or data frame, or one job.

    Raises:
        InvalidInput: it is none of these.
    """
    if isinstance(jobs, BaseModel | NewJob | Mapping):
        return (jobs,)
    if hasattr(jobs, "to_batches"):
        return _rows(jobs.to_batches())
    if hasattr(jobs, "to_pylist"):
        return _rows((jobs,))
    if hasattr(jobs, "iloc") and hasattr(jobs, "to_dict"):
        return _frame_rows(jobs)
    if isinstance(jobs, str | bytes) or not isinstance(jobs, Iterable):
        raise InvalidInput(
            f"jobs were expected, not a {type(jobs).__name__}: give payloads or NewJobs in a list or a generator (as"
            " dg.Output(generator)), or a table of pyarrow or pandas whose rows are payloads"
        )
    return _flat(jobs)


def spec_for(queue: str, jobs: Iterable[Any]) -> tuple[QueueSpec[Any], Iterable[Any]]:
    """Make the spec of a queue from its name and the model of the first job; returns also all of the jobs."""
    left = iter(jobs)
    first = next(left, None)
    if first is None:
        return QueueSpec(queue, AnyObject), ()
    payload = first.payload if isinstance(first, NewJob) else first
    model = type(payload) if isinstance(payload, BaseModel) else AnyObject
    return QueueSpec(queue, model), chain((first,), left)


def _flat(jobs: Iterable[Any]) -> Iterator[Any]:
    for job in jobs:
        # A reader of pyarrow yields batches.
        yield from job.to_pylist() if hasattr(job, "to_pylist") else (job,)


def _rows(batches: Iterable[Any]) -> Iterator[Any]:
    for batch in batches:
        yield from batch.to_pylist()


def _frame_rows(frame: Any) -> Iterator[Any]:
    for at in range(0, len(frame), 10_000):
        yield from frame.iloc[at : at + 10_000].to_dict(orient="records")
