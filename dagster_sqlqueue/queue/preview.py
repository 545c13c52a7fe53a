"""Which jobs a verb would decide about, before it does: for dry runs, and for whatever has to name its jobs first."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING
from uuid import UUID

from dagster_sqlqueue.queue.selection import ARCHIVE_STATES, LIVE_STATES, JobRow, Selection

if TYPE_CHECKING:
    from dagster_sqlqueue.queue import SqlQueue


@dataclass(frozen=True, slots=True)
class Preview:
    """What a verb would find.

    Attributes:
        jobs: those that it would decide about: live ones in the order in which they are due, ended ones the latest first.
        skipped: of jobs that were named by their ids, those that it would leave, each with the reason.
        unknown: those of `skipped` that the queue has not got.
    """

    jobs: list[JobRow]
    skipped: dict[UUID, str] = field(default_factory=dict)
    unknown: tuple[UUID, ...] = ()


def find(source: "SqlQueue", queue: str, selection: Selection, states: Sequence[str], *, limit: int) -> Preview:
    """Return the jobs that a verb would decide about.

    Args:
        source: the queues of the schema.
        queue: the queue's name.
        selection: which jobs.
        states: those of the jobs that the verb is about.
        limit: the most jobs, 1 to 10,000; of jobs that are named by their ids, all are read.

    Raises:
        InvalidInput: an argument is not usable.
        UnknownQueue: there is no such queue.
    """
    if not selection.ids:
        found: list[JobRow] = []
        for archived, some in _listings(selection, states):
            if found and len(found) >= limit:
                break
            found += source.jobs(queue, some, limit=limit - len(found), archived=archived)
        return Preview(found)
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
    left = [job for job in now.values() if job.id not in skipped]
    return Preview(left, skipped, tuple(id_ for id_ in ids if id_ not in now))


def _listings(selection: Selection, states: Sequence[str]) -> Iterator[tuple[bool, Selection]]:
    """What to list, in the archive or not: all live jobs together, as they are due; else one state after another."""
    if set(states) == set(LIVE_STATES):
        yield False, selection
        return
    for state in selection.states(states, "the verb"):
        yield state in ARCHIVE_STATES, replace(selection, all=False, state=state)
