"""Apply a decision to live jobs: find and lock them batch by batch, each a short transaction of its own, and explain what
could not be decided.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias
from uuid import UUID

import tenacity

from dagster_sqlqueue.db import permissions
from dagster_sqlqueue.db.execution import Row
from dagster_sqlqueue.db.executors import CallerConnection, Executor, Transaction
from dagster_sqlqueue.db.isolation import check_sees_others
from dagster_sqlqueue.db.sqlalchemy_executor import SqlAlchemyExecutor
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.model.queue import check_queue_name
from dagster_sqlqueue.queue.catalog import Catalog
from dagster_sqlqueue.queue.odd_jobs import ROW_ERRORS, refused
from dagster_sqlqueue.queue.search import Search
from dagster_sqlqueue.queue.selection import LIVE_STATES, Decided, Selection, check_selection

BATCH = 1_000
_PATIENCE_SECONDS = 5.0
_REQUEST = "cancel_running"
_BUSY = "somebody else is at it: it is being claimed or ended, or worked on in a transaction; try again"

Also: TypeAlias = Callable[[Executor, Sequence[UUID]], object]
"""Called with each of a verb's transactions and the jobs that it decided about, before the commit. What it raises rolls that
transaction back."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What an operator's verb does to live jobs: a statement for each state.

    Attributes:
        name: the verb's, for messages.
        statements: by state; a job in any other is skipped.
        parameters: of the statements, beside the ids.
        turns: whether a job may leave its key's line, so that others of the key are to be let in.
        also: what else is done in the transaction of each batch, for the jobs that it decided about.
        within: the caller's transaction, if it is to happen there.
    """

    name: str
    statements: dict[str, str]
    parameters: dict[str, Any]
    turns: bool = False
    also: "Also | None" = None
    within: "Transaction | SqlAlchemyExecutor | None" = None


class Decisions:
    """How a decision about live jobs is carried out.

    Args:
        catalog: the queues of the schema.
        search: finds the jobs that it is about.
    """

    def __init__(self, catalog: Catalog, search: Search) -> None:
        self.database = catalog.database
        self._catalog = catalog
        self._search = search

    def within(
        self, connection: CallerConnection | None, selection: Selection
    ) -> "Transaction | SqlAlchemyExecutor | None":
        """Return where to decide about jobs inside of the caller's transaction; None if there is none.

        Raises:
            InvalidInput: it cannot be joined, or the jobs are not named: to search takes transactions of ours, which
                would not see what the caller has done in its own.
        """
        check_selection(selection)
        joined = self.database.within(connection)
        if joined is not None and not selection.ids:
            raise InvalidInput("inside of a transaction of the caller's, name the jobs: give the selection their ids")
        return joined

    def decide(self, queue: str, selection: Selection, decision: Decision) -> Decided:
        """Carry a decision out, for all live jobs that fit; those locked by another transaction are tried again for a while.

        Args:
            queue: its name.
            selection: which jobs.
            decision: what is done to them.

        Raises:
            InvalidInput: the selection asks for jobs in states that the decision is not about; nothing was changed.
            UnknownQueue: there is no such queue.
        """
        check_selection(selection)
        with permissions.needing("queue_steady", *decision.statements.values()):
            return self._decide(queue, selection, decision)

    def _decide(self, queue: str, selection: Selection, decision: Decision) -> Decided:
        self._catalog.check_exists(check_queue_name(queue), decision.within)
        states = selection.states(decision.statements, decision.name)
        decided = Decided()
        busy: list[UUID] = []
        for ids in self._search.fitting(queue, selection, states):
            busy += self._decide_all(queue, ids, states, decision, decided, explain=bool(selection.ids))

        def once_more() -> list[UUID]:
            nonlocal busy
            busy = self._decide_all(queue, busy, states, decision, decided, explain=bool(selection.ids))
            return busy

        if busy:
            tenacity.Retrying(
                retry=tenacity.retry_if_result(bool),
                wait=tenacity.wait_exponential(multiplier=0.01, max=0.2),
                stop=tenacity.stop_after_delay(_PATIENCE_SECONDS),
                retry_error_callback=lambda _: None,
            )(once_more)
        decided.skipped.update(dict.fromkeys(busy, _BUSY))
        self.wake(queue, decided, decision.within)
        return decided

    def _decide_all(
        self,
        queue: str,
        ids: Sequence[UUID],
        states: Sequence[str],
        decision: Decision,
        decided: Decided,
        *,
        explain: bool,
    ) -> list[UUID]:
        """Decide about these, batch by batch. Returns those that another transaction has locked."""
        busy: list[UUID] = []
        for at in range(0, len(ids), BATCH):
            batch = list(ids[at : at + BATCH])
            work: Callable[[Executor], _Batch] = partial(
                self._decide_batch, queue=queue, ids=batch, decision=decision, states=states
            )
            if decision.within is None:
                try:
                    met = self.database.transact(work)
                except ROW_ERRORS as error:
                    if len(batch) == 1:
                        decided.skipped[batch[0]] = refused(error)
                    for job in batch if len(batch) > 1 else []:
                        busy += self._decide_all(queue, [job], states, decision, decided, explain=explain)
                    continue
            else:
                with decision.within.atomic() as joined:
                    met = work(joined)
            decided.changed.extend(met.changed)
            decided.requested.extend(met.requested)
            if explain:
                decided.skipped.update({job: f"it is {state}" for job, state in met.others.items()})
            if missed := [job for job in batch if job not in met.seen]:
                there = self._whereabouts(missed, decision.within)
                live = {row[0] for row in there if row[1] == queue and row[2] in LIVE_STATES}
                busy += [job for job in missed if job in live]
                if explain:
                    self.explain(queue, [job for job in missed if job not in live], decided, decision.within)
        return busy

    def _decide_batch(
        self, executor: Executor, *, queue: str, ids: list[UUID], decision: Decision, states: Sequence[str]
    ) -> "_Batch":
        keyed = self.steady(executor, queue)
        if keyed and decision.within is not None:
            check_sees_others(executor, queue)
        in_line = keyed and decision.turns
        if in_line and (keys := [row[0] for row in executor.run("keys_in_line", {"queue": queue, "ids": ids})]):
            executor.run("key_wait", {"queue": queue, "keys": keys})
        locked = executor.run("lock_live", {"queue": queue, "ids": ids})
        missed = {*ids} - {row[0] for row in locked}
        if missed and executor.run("unpack_jobs", {"batch_id": None, "ids": [*missed]})[0][0]:
            locked = [*locked, *executor.run("lock_live", {"queue": queue, "ids": [*missed]})]
        met = _Batch({row[0] for row in locked})
        fitting: defaultdict[str, list[UUID]] = defaultdict(list)
        for job, state, _, _ in locked:
            if state in states:
                fitting[decision.statements[state]].append(job)
            else:
                met.others[job] = state
        for statement, jobs in fitting.items():
            accepted = [row[0] for row in executor.run(statement, {**decision.parameters, "ids": jobs})]
            (met.requested if statement == _REQUEST else met.changed).extend(accepted)
        if in_line:
            self._let_in(executor, queue, locked, set(met.changed))
        if decision.also and met.changed:
            decision.also(executor, met.changed)
        return met

    def steady(self, executor: Executor, queue: str) -> bool:
        """Keep the queue's settings as they are for this transaction; returns whether its jobs take turns."""
        rows = executor.run("queue_steady", {"queue": queue})
        if not rows:
            raise self._catalog.unknown(queue, executor)
        return bool(rows[0][0])

    def _let_in(self, executor: Executor, queue: str, locked: Sequence[Row], changed: set[UUID]) -> None:
        """Let in as many of each key as have left its line; those that only waited gave up no place."""
        places = Counter[str]()
        for job, _, line, waited in locked:
            if job in changed and line is not None:
                places[line] += not waited
        if places:
            keys = [key for key, count in sorted(places.items()) for _ in range(max(count, 1))]
            executor.run("key_promote", {"queue": queue, "keys": keys})

    def wake(self, queue: str, decided: Decided, executor: Executor | None = None) -> None:
        """Notify those that wait for jobs of the queue, if any job was changed."""
        if decided.changed:
            (executor or self.database).run("waiter_notify", {"queue": queue})

    def explain(self, queue: str, ids: Sequence[UUID], decided: Decided, executor: Executor | None = None) -> None:
        """Say of each of these jobs of which nothing was said yet what is the matter with it."""
        known = {*decided.changed, *decided.requested, *decided.skipped}
        silent = [job for job in ids if job not in known]
        for at in range(0, len(silent), BATCH):
            part = silent[at : at + BATCH]
            there = {job: (other, state) for job, other, state, _ in self._whereabouts(part, executor)}
            for job in part:
                other, state = there.get(job, (None, None))
                if other is None:
                    reason = "there is no such job: it was never enqueued, or it ended and was trimmed since"
                elif other != queue:
                    reason = f"it belongs to queue {other!r}"
                else:
                    reason = f"it is {state}" if state in LIVE_STATES else f"it ended as {state}"
                decided.skipped[job] = reason

    def ended_as(self, queue: str, job: UUID, executor: Executor | None = None) -> str | None:
        """Return how a job of the queue ended last; None if it is live, or is not there."""
        there = [row for row in self._whereabouts([job], executor) if row[1] == queue]
        return str(there[-1][2]) if there and there[-1][2] not in LIVE_STATES else None

    def _whereabouts(self, ids: list[UUID], executor: Executor | None = None) -> Sequence[Row]:
        return (executor or self.database).run("locate_jobs", {"ids": ids}) if ids else []


@dataclass(frozen=True, slots=True)
class _Batch:
    """What became of a batch: the jobs seen, those of them that were in no state for the verb, and the others."""

    seen: set[UUID]
    others: dict[UUID, str] = field(default_factory=dict)
    changed: list[UUID] = field(default_factory=list)
    requested: list[UUID] = field(default_factory=list)
