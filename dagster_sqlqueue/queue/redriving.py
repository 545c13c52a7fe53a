"""Ended jobs brought back to their queue: the same jobs, with all their attempts, and on request with another payload."""

from collections.abc import Sequence

from dagster_sqlqueue.db import permissions
from dagster_sqlqueue.db.execution import Row
from dagster_sqlqueue.db.executors import Executor, Transaction
from dagster_sqlqueue.db.sqlalchemy_executor import SqlAlchemyExecutor
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.model.numbers import is_whole
from dagster_sqlqueue.model.queue import check_queue_name
from dagster_sqlqueue.queue.catalog import Catalog
from dagster_sqlqueue.queue.decision import BATCH, Decisions
from dagster_sqlqueue.queue.odd_jobs import ROW_ERRORS, refused
from dagster_sqlqueue.queue.search import Ended, Search
from dagster_sqlqueue.queue.selection import REDRIVABLE_STATES, Decided, Selection, check_selection


class Redriving:
    """How ended jobs are brought back, in batches, each a transaction of its own.

    Args:
        catalog: the queues of the schema.
        search: finds the jobs.
        decisions: keeps the settings of their queue as they are meanwhile, and says what is the matter with the others.
    """

    def __init__(self, catalog: Catalog, search: Search, decisions: Decisions) -> None:
        self._catalog = catalog
        self._search = search
        self._decisions = decisions

    def redrive(self, queue: str, selection: Selection, states: Sequence[str], limit: int | None) -> Decided:
        """Bring back the jobs that fit: `SqlQueue.redrive`."""
        if limit is not None and not is_whole(limit, 1):
            raise InvalidInput(f"limit is {limit!r}; it must be a whole number of at least 1, or None")
        wanted = [str(state) for state in ([states] if isinstance(states, str) else states)]
        if not wanted or set(wanted) - set(REDRIVABLE_STATES):
            raise InvalidInput(f"states is {wanted}; what can be redriven is {' or '.join(REDRIVABLE_STATES)}")
        check_selection(selection)
        self._catalog.check_exists(check_queue_name(queue))
        wanted = selection.states(wanted, "redrive")
        with permissions.needing("redrive"):
            return self._redrive_all(queue, selection, wanted, limit)

    def _redrive_all(self, queue: str, selection: Selection, wanted: Sequence[str], limit: int | None) -> Decided:
        decided = Decided()
        for ended in self._search.ended(queue, selection, wanted, "redrive"):
            ids = ended.ids
            while ids:
                space = BATCH if limit is None else min(BATCH, limit - len(decided.changed))
                if space <= 0:
                    self._decisions.wake(queue, decided)
                    return decided
                self.bring_back(queue, Ended(ids[:space], ended.since, ended.until), wanted, decided)
                ids = ids[space:]
            self._decisions.wake(queue, decided)
        if selection.ids:
            self._decisions.explain(queue, selection.job_ids, decided)
        return decided

    def bring_back(
        self,
        queue: str,
        ended: Ended,
        states: Sequence[str],
        decided: Decided,
        *,
        payload: str | None = None,
        within: "Transaction | SqlAlchemyExecutor | None" = None,
    ) -> None:
        """Bring these jobs back, those of them that ended so. Wakes nobody.

        Args:
            queue: its name.
            ended: the jobs.
            states: how they ended.
            decided: takes the jobs that went back, and those that stay because of a live job or their own row.
            payload: JSON text, which they have from then on; None: that of each stays.
            within: the caller's transaction, if it is to happen there: READ COMMITTED where jobs of a key take turns.

        Raises:
            UnknownQueue: there is no such queue.
        """
        parameters = {
            "queue": queue,
            "states": list(states),
            "ids": ended.ids,
            "since": ended.since,
            "until": ended.until,
            "payload": payload,
        }

        def back(executor: Executor) -> Sequence[Row]:
            if self._decisions.steady(executor, queue):
                keys = [row[0] for row in executor.run("keys_of_ended", parameters)]
                if keys:
                    executor.run("key_wait", {"queue": queue, "keys": keys})
            return executor.run("redrive", parameters)

        if within is not None:
            with within.atomic() as joined:
                brought = back(joined)
        else:
            try:
                brought = self._catalog.database.transact(back)
            except ROW_ERRORS as error:
                if len(ended.ids) == 1:
                    decided.skipped[ended.ids[0]] = refused(error)
                else:
                    for job in ended.ids:
                        alone = Ended([job], ended.since, ended.until)
                        self.bring_back(queue, alone, states, decided, payload=payload)
                return
        for job, went_back, unique_key in brought:
            if went_back:
                decided.changed.append(job)
            else:
                also = "" if unique_key is None else f", or the unique key {unique_key!r}"
                decided.skipped[job] = f"a live job of the queue has the same id{also}"
