"""Which jobs a verb would decide about, before it does: for dry runs, and for whatever has to name its jobs first."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from uuid import UUID

from dagster_sqlqueue.queue import SqlQueue
from dagster_sqlqueue.queue.selection import ARCHIVE_STATES, JobRow, Selection


@dataclass(frozen=True, slots=True)
class Foretold:
    """What a verb would find.

    Attributes:
        jobs: those that it would decide about: live ones in the order in which they are due, ended ones the latest first.
        skipped: of jobs that were named by their ids, those that it would leave, each with the reason.
        unknown: those of `skipped` that the queue has not got.
    """

    jobs: list[JobRow]
    skipped: dict[UUID, str] = field(default_factory=dict)
    unknown: tuple[UUID, ...] = ()


def foretell(source: SqlQueue, queue: str, selection: Selection, states: Sequence[str], *, limit: int) -> Foretold:
    """Look which jobs a verb would decide about.

    Args:
        source: the queues of the schema.
        queue: the queue's name.
        selection: which jobs.
        states: those of the jobs that the verb is about: all of live jobs, or all of ended ones.
        limit: the most jobs, 1 to 10,000; of jobs that are named by their ids, all are looked at.

    Raises:
        InvalidInput: an argument is not usable.
        UnknownQueue: there is no such queue.
    """
    archived = states[0] in ARCHIVE_STATES
    if not selection.ids:
        return Foretold(source.jobs(queue, _of(selection, states), limit=limit, archived=archived))
    ids = selection.job_ids
    now: dict[UUID, JobRow] = {}
    for ended in (False, True):
        for job in source.jobs(queue, selection, limit=len(ids), archived=ended):
            now.setdefault(job.id, job)
    skipped = {
        id_: f"it is {now[id_].state}" if id_ in now else f"queue {queue} has no such job"
        for id_ in ids
        if id_ not in now or now[id_].state not in states
    }
    found = [job for job in now.values() if job.id not in skipped]
    return Foretold(found, skipped, tuple(id_ for id_ in ids if id_ not in now))


def _of(selection: Selection, states: Sequence[str]) -> Selection:
    """The selection, of jobs in the one state that a verb is about."""
    return replace(selection, all=False, state=states[0]) if len(states) == 1 else selection
