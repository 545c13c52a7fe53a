"""How claimed jobs end: one job as a caller says it, and many as the statement that ends them takes them."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from dagster_sqlqueue.db.execution import Step
from dagster_sqlqueue.db.uuid_arrays import UuidArray
from dagster_sqlqueue.model.job import ArchiveState, ClaimedJob
from dagster_sqlqueue.payload import serialization
from dagster_sqlqueue.payload.storable import storable_text


class Ending(NamedTuple):
    """How one claimed job is to end, for `SqlQueue.finish`."""

    job: ClaimedJob
    state: ArchiveState
    result: object = None
    error: str | None = None


@dataclass(slots=True)
class Endings:
    """Claimed jobs and how each is to end, column by column.

    Attributes:
        jobs: the jobs.
        states: the state of each.
        results: the result of each as JSON text; None: it has none.
        errors: why it did not succeed, as it is stored; None: no reason was given.
    """

    jobs: list[ClaimedJob] = field(default_factory=list)
    states: list[ArchiveState] = field(default_factory=list)
    results: list[str | None] = field(default_factory=list)
    errors: list[str | None] = field(default_factory=list)

    @classmethod
    def of(cls, endings: Iterable[Ending]) -> "Endings":
        """Return the columns of these.

        Raises:
            InvalidInput: a result cannot be stored as JSON.
        """
        made = cls()
        for job, state, result, error in endings:
            made.jobs.append(job)
            made.states.append(state)
            made.results.append(serialization.result_text(result))
            made.errors.append(error and storable_text(error))
        return made

    def among(self, ids: Collection[UUID]) -> "Endings":
        """Return those of the jobs with these ids."""
        rows = zip(self.jobs, self.states, self.results, self.errors, strict=True)
        columns = [list(column) for column in zip(*(row for row in rows if row[0].id in ids), strict=True)]
        return Endings(*columns)

    def step(self) -> Step:
        """Return the statement that ends these jobs, but for those that stand in their key's line, and its parameters."""
        jobs = self.jobs
        if self._plain and len({job.lease_no for job in jobs}) == 1:
            return "succeed_leased", {
                "ids": UuidArray(job.id for job in jobs),
                "lease_no": jobs[0].lease_no,
                "in_line": False,
            }
        return "end_leased", {**fences(jobs), **self._columns, "in_line": False}

    def locked_step(self, worker: str) -> Step:
        """Return the statement that ends these jobs, which the transaction has locked, and its parameters."""
        if any(job.alone for job in self.jobs):
            # Begun under a lease number of its own before it was locked.
            return self.step()
        parameters = {"ids": UuidArray(job.id for job in self.jobs), "worker": worker}
        return ("succeed_locked", parameters) if self._plain else ("end_locked", {**parameters, **self._columns})

    @property
    def _plain(self) -> bool:
        """Whether all of them succeeded and left no result."""
        return self._succeeded and _or_null(self.results) is None and _or_null(self.errors) is None

    @property
    def _succeeded(self) -> bool:
        return self.states.count(ArchiveState.SUCCEEDED) == len(self.states)

    @property
    def _columns(self) -> dict[str, object]:
        """How the jobs end; an array that would hold the same for each goes as null, which saves its making."""
        return {
            "states": None if self._succeeded else [state.value for state in self.states],
            "results": _or_null(self.results),
            "errors": _or_null(self.errors),
        }


def fences(jobs: Sequence[ClaimedJob]) -> dict[str, Sequence[object]]:
    """Return the parameters that name these jobs under exactly these leases."""
    return {"ids": UuidArray(job.id for job in jobs), "lease_nos": [job.lease_no for job in jobs]}


def _or_null(texts: list[str | None]) -> list[str | None] | None:
    return None if texts.count(None) == len(texts) else texts
