"""Deletion of jobs for good, with everything that is kept of them."""

from collections.abc import Sequence
from uuid import UUID

from dagster_sqlqueue.db import permissions
from dagster_sqlqueue.db.executors import Executor
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.model.job import ArchiveState
from dagster_sqlqueue.model.queue import check_queue_name
from dagster_sqlqueue.queue.catalog import Catalog
from dagster_sqlqueue.queue.decision import BATCH, Decision, Decisions
from dagster_sqlqueue.queue.search import Ended, Search
from dagster_sqlqueue.queue.selection import DELETABLE_STATES, WAITING_STATES, Decided, Selection, check_selection

_REASON = "deleted by an operator"


class Deletion:
    """How jobs are deleted: live ones that do not run by way of the archive, so that followers are notified that it was
    cancelled, its group is counted down and its key goes on; all in one transaction.

    Args:
        catalog: the queues of the schema.
        search: finds the jobs.
        decisions: carries out what is decided about live ones.
    """

    def __init__(self, catalog: Catalog, search: Search, decisions: Decisions) -> None:
        self._catalog = catalog
        self._search = search
        self._decisions = decisions

    def delete(self, queue: str, selection: Selection, states: Sequence[str]) -> Decided:
        """Delete the jobs that fit: `SqlQueue.delete`."""
        wanted = [str(state) for state in ([states] if isinstance(states, str) else states)]
        if not wanted or set(wanted) - set(DELETABLE_STATES):
            raise InvalidInput(
                f"states is {wanted}; what can be deleted is {' or '.join(DELETABLE_STATES)}: cancel jobs that run, and"
                " delete them when they have ended"
            )
        check_selection(selection)
        self._catalog.check_exists(check_queue_name(queue))
        wanted = selection.states(wanted, "delete")
        decided = Decided()
        if waiting := [state for state in wanted if state in WAITING_STATES]:
            statements = dict.fromkeys(waiting, "cancel_waiting")

            def also(executor: Executor, jobs: Sequence[UUID]) -> None:
                self._take_out(executor, queue, Ended(list(jobs), since="now"), [ArchiveState.CANCELLED])

            decision = Decision("delete", statements, {"reason": _REASON}, turns=True, also=also)
            decided = self._decisions.decide(queue, selection, decision)
        if over := [state for state in wanted if state not in WAITING_STATES]:
            with permissions.needing("delete_ended"):
                for ended in self._search.ended(queue, selection, over, "delete"):
                    for at in range(0, len(ended.ids), BATCH):
                        part = Ended(ended.ids[at : at + BATCH], ended.since, ended.until)
                        self._delete_ended(queue, part, over, decided)
        if selection.ids:
            self._decisions.explain(queue, selection.job_ids, decided)
        return decided

    def _delete_ended(self, queue: str, ended: Ended, states: Sequence[str], decided: Decided) -> None:
        gone = self._catalog.database.transact(lambda executor: self._take_out(executor, queue, ended, states))
        known = set(decided.changed)
        decided.changed.extend(job for job in gone if job not in known)
        for job in gone:
            decided.skipped.pop(job, None)

    def _take_out(self, executor: Executor, queue: str, ended: Ended, states: Sequence[str]) -> list[UUID]:
        parameters = {
            "queue": queue,
            "ids": ended.ids,
            "states": list(states),
            "since": ended.since,
            "until": ended.until,
        }
        gone = [row[0] for row in executor.run("delete_ended", parameters)]
        if gone:
            executor.run("delete_traces", {"ids": gone})
        return gone
