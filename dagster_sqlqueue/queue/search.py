"""Searches for jobs: one by its id, a list of those that fit, and, in bounded steps, all that fit."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from dagster_sqlqueue.db.executors import Executor
from dagster_sqlqueue.errors import InvalidInput, UnknownJob
from dagster_sqlqueue.model.job import ArchiveState
from dagster_sqlqueue.model.numbers import is_whole
from dagster_sqlqueue.model.queue import QueueSettings
from dagster_sqlqueue.queue.catalog import Catalog
from dagster_sqlqueue.queue.explain import Explanation, explain_ended, explain_live
from dagster_sqlqueue.queue.selection import (
    ARCHIVE_STATES,
    EVERYTHING,
    LIVE_STATES,
    JobRow,
    Selection,
    check_selection,
    job_id,
)

MAX_LIST = 10_000
_SCAN = 5_000
_SHORT_SCAN = 200
_NIL = UUID(int=0)
_HIGHEST_PRIORITY = 9
_BEGINNING, _END = "-infinity", "infinity"


@dataclass(frozen=True, slots=True)
class Ended:
    """Jobs of the archive that fit, and between which moments (as the database writes them) they ended."""

    ids: list[UUID]
    since: str = _BEGINNING
    until: str = _END


class Search:
    """How jobs are found.

    Args:
        catalog: the queues of the schema.
    """

    def __init__(self, catalog: Catalog) -> None:
        self.database = catalog.database
        self._catalog = catalog

    def jobs(
        self,
        queue: str,
        selection: Selection | None = None,
        *,
        limit: int = 50,
        archived: bool = False,
        executor: Executor | None = None,
    ) -> list[JobRow]:
        """Return the first jobs that fit: `SqlQueue.jobs`."""
        executor = executor or self.database
        if not is_whole(limit, 1, MAX_LIST):
            raise InvalidInput(f"limit is {limit!r}; a list has 1 to {MAX_LIST:,} jobs")
        selection = EVERYTHING if selection is None else selection
        check_selection(selection)
        settings = self._catalog.settings_within(executor, queue)
        if archived:
            return self._list_archived(queue, selection, limit, executor)
        return self._list_live(settings, selection, limit, executor)

    def job(self, id: UUID | str, *, executor: Executor | None = None) -> JobRow:
        """Everything about one job, live or ended: `SqlQueue.job`."""
        wanted = job_id(id)
        found = self._live_rows([wanted], executor) or self._archived_rows(Ended([wanted]), executor)
        if not found:
            raise UnknownJob(
                f"there is no job {wanted} in schema {self.database.schema!r} of {self.database.where}: it was never"
                " enqueued, its transaction was rolled back, or it ended and was trimmed since"
            )
        return found[0]

    def explain(self, id: UUID | str) -> Explanation:
        """Why a job is not claimed: `SqlQueue.explain`."""
        wanted = job_id(id)
        found = explain_live(self.database, wanted)
        if found is None:
            job = self.job(wanted)
            # It may have been enqueued, or brought back, in between.
            found = explain_ended(job) if job.archived else explain_live(self.database, wanted) or explain_ended(job)
        return found

    def _list_live(self, settings: QueueSettings, selection: Selection, limit: int, executor: Executor) -> list[JobRow]:
        queue = settings.name
        states = selection.states(LIVE_STATES, "a list of live jobs")
        if selection.ids:
            ids = selection.job_ids
        else:
            ids = [
                job
                for bucket in range(settings.claim_buckets)
                for job in self._fitting_in(executor, queue, bucket, selection, states, limit)
            ]
            ids += self._packed(executor, queue, selection, states, limit)
        rows = [
            row for at in range(0, len(ids), MAX_LIST) for row in self._live_rows(ids[at : at + MAX_LIST], executor)
        ]
        return sorted((row for row in rows if row.queue == queue), key=_claim_order)[:limit]

    def _list_archived(self, queue: str, selection: Selection, limit: int, executor: Executor) -> list[JobRow]:
        found: list[JobRow] = []
        for ended in self.ended(queue, selection, ARCHIVE_STATES, "a list of ended jobs", executor):
            left = limit - len(found)
            part = ended if selection.ids else Ended(ended.ids[:left], ended.since, ended.until)
            found += [row for row in self._archived_rows(part, executor) if row.queue == queue]
            if len(found) >= limit:
                break
        return found[:limit]

    def fitting(self, queue: str, selection: Selection, states: Sequence[str]) -> Iterator[list[UUID]]:
        """Yield the ids of the live jobs that fit, bucket by bucket, each as it was at one moment.

        A job never changes its bucket, and within it is met once, however it moves meanwhile: by a claim, or by the very
        verb that searches for it.
        """
        if selection.ids:
            yield selection.job_ids
            return
        for bucket in range(self._catalog.settings(queue).claim_buckets):

            def search(executor: Executor, bucket: int = bucket) -> list[UUID]:
                executor.run("snapshot", {})
                return self._fitting_in(executor, queue, bucket, selection, states)

            if found := self.database.transact(search):
                yield found
        if found := self._packed(self.database, queue, selection, states):
            yield found

    def _packed(
        self, executor: Executor, queue: str, selection: Selection, states: Sequence[str], limit: int | None = None
    ) -> list[UUID]:
        """Those in packs of large batches."""
        more = {"queue": queue, "states": list(states), "before": selection.before, "limit": limit}
        return [row[0] for row in executor.run("select_packed", {**_conditions(selection), **more})]

    def _fitting_in(
        self,
        executor: Executor,
        queue: str,
        bucket: int,
        selection: Selection,
        states: Sequence[str],
        limit: int | None = None,
    ) -> list[UUID]:
        found: list[UUID] = []
        after: tuple[Any, Any, Any] = (_HIGHEST_PRIORITY, _BEGINNING, _NIL)
        scan = _SCAN if limit is None else min(_SCAN, max(4 * limit, _SHORT_SCAN))
        parameters = {
            **_conditions(selection),
            "queue": queue,
            "bucket": bucket,
            "states": list(states),
            "before": selection.before,
            "scan": scan,
        }
        while True:
            place = {"after_priority": after[0], "after_at": after[1], "after_id": after[2]}
            ids, scanned, *last = executor.run("select_live", {**parameters, **place})[0]
            found += ids
            if scanned < scan or (limit is not None and len(found) >= limit):
                return found[:limit]
            after = (last[0], last[1], last[2])

    def ended(
        self,
        queue: str,
        selection: Selection,
        possible: Sequence[str],
        verb: str,
        executor: Executor | None = None,
    ) -> Iterator[Ended]:
        """Yield the ids of the ended jobs that fit, the latest first, a bounded step at a time."""
        states = selection.states(possible, verb)
        if selection.ids:
            yield Ended(selection.job_ids)
            return
        after_at, after_id = selection.before.isoformat() if selection.before else _END, _NIL
        parameters = {**_conditions(selection), "queue": queue, "scan": _SCAN}
        statement = "select_dead"
        if states != [ArchiveState.FAILED]:
            statement = "select_archived"
            parameters["states"] = states
        while True:
            place = {"after_at": after_at, "after_id": after_id}
            ids, scanned, first_at, *last = (executor or self.database).run(statement, {**parameters, **place})[0]
            if ids:
                yield Ended(ids, since=last[0], until=first_at)
            if scanned < _SCAN:
                return
            after_at, after_id = last

    def _live_rows(self, ids: list[UUID], executor: Executor | None = None) -> list[JobRow]:
        return [JobRow(*row) for row in (executor or self.database).run("live_rows", {"ids": ids})]

    def _archived_rows(self, ended: Ended, executor: Executor | None = None) -> list[JobRow]:
        parameters = {"ids": ended.ids, "since": ended.since, "until": ended.until}
        return [JobRow(*row) for row in (executor or self.database).run("archived_rows", parameters)]


def _conditions(selection: Selection) -> dict[str, Any]:
    return {
        "tags": list(selection.tags),
        "payload": selection.payload,
        "ordering_key": selection.ordering_key,
        "error_contains": selection.error_contains,
        "since": selection.since,
    }


def _claim_order(row: JobRow) -> tuple[Any, ...]:
    held = row.available_at is None
    return held, 0 if held else -row.priority, row.run_at if held else row.available_at, row.id
