"""Deciding about single jobs: cancel, redrive, hold, release, complete, delay, reprioritise; those named, those that fit, or
all.

Large selections are worked off in batches, each a short transaction of its own: a verb that is interrupted has decided
about some of the jobs, and can be given again.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, TypeAlias
from uuid import UUID

import tenacity

from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.executors import Executor, Row
from dagster_sqlqueue.finding import Ended, FindingVerbs
from dagster_sqlqueue.lifecycle import LiveState
from dagster_sqlqueue.model import ArchiveState
from dagster_sqlqueue.outcomes import Json
from dagster_sqlqueue.payloads import result_text, storable_text, unstorable_text
from dagster_sqlqueue.selection import LIVE_STATES, Decided, Selection, moment_in_utc
from dagster_sqlqueue.settings import MAX_DELAY_SECONDS, check_queue_name

_BATCH = 1_000
_PATIENCE_SECONDS = 5.0
_REDRIVABLE = (str(ArchiveState.FAILED), str(ArchiveState.CANCELLED))
_REQUEST = "cancel_running"
_BUSY = "somebody else is at it: it is being claimed or ended, or worked on in a transaction; try again"

Also: TypeAlias = Callable[[Executor, Sequence[UUID]], object]
"""What a caller adds to a verb's transactions: it is given each one and the jobs that it decided about, before the commit.
What it raises takes that transaction back."""


@dataclass(frozen=True, slots=True)
class Completed:
    """A held job that somebody did by hand.

    Attributes:
        id: the job's.
        by: who did it; kept as the one who had claimed the job.
        result: JSON, kept in the archive.
    """

    id: UUID
    by: str
    result: Json = None


@dataclass(frozen=True, slots=True)
class _Verb:
    """What an operator's verb does to live jobs, as a table: for each state the statement, and what comes of it.

    Attributes:
        statements: by state; a job in any other is skipped.
        parameters: of the statements, beside the ids.
        turns: whether a job may leave its key's line, so that others of the key are to be let in.
        also: what else is done in the transaction of each batch, for the jobs that it decided about.
    """

    name: str
    statements: dict[str, str]
    parameters: dict[str, Any]
    turns: bool = False
    also: "Also | None" = None


class DecidingVerbs(FindingVerbs):
    """What operators decide about single jobs."""

    def cancel(self, queue: str, selection: Selection, *, reason: str = "cancelled by an operator") -> Decided:
        """Cancel jobs: at once those that do not run; a running one is asked to end.

        A running job's handler hears of it at its next heartbeat. If it does not end the job as cancelled itself, and the
        job comes back by a retry or because its lease ran out, the next claim cancels it.

        Args:
            queue: its name.
            selection: which jobs.
            reason: kept as the job's error.

        Raises:
            InvalidInput: an argument is not usable; nothing was changed.
            UnknownQueue: there is no such queue.
        """
        statements = {
            LiveState.QUEUED: "cancel_waiting",
            LiveState.HELD: "cancel_waiting",
            LiveState.RUNNING: "cancel_running",
        }
        verb = _Verb("cancel", _by_state(statements), {"reason": _reason(reason)}, turns=True)
        return self._decide(queue, selection, verb)

    def hold_queued(self, queue: str, selection: Selection, reason: str, *, also: Also | None = None) -> Decided:
        """Set queued jobs aside until somebody releases or cancels them. In an ordered queue the key stops there.

        Args:
            queue: its name.
            selection: which jobs; of those that fit, the queued ones.
            reason: kept as the job's error.
            also: what else to do in the same transactions.

        Raises:
            InvalidInput: an argument is not usable; nothing was changed.
            UnknownQueue: there is no such queue.
        """
        statements = _by_state({LiveState.QUEUED: "hold_queued"})
        verb = _Verb("hold_queued", statements, {"reason": _reason(reason)}, turns=True, also=also)
        return self._decide(queue, selection, verb)

    def release_held(self, queue: str, selection: Selection, *, also: Also | None = None) -> Decided:
        """Let held jobs go: due now, with the attempts that they have left. In an ordered queue the key goes on.

        A request to cancel one, made while it ran, is void then.

        Args:
            queue: its name.
            selection: which jobs; of those that fit, the held ones.
            also: what else to do in the same transactions.

        Raises:
            InvalidInput: an argument is not usable; nothing was changed.
            UnknownQueue: there is no such queue.
        """
        statements = _by_state({LiveState.HELD: "release_held"})
        return self._decide(queue, selection, _Verb("release_held", statements, {}, also=also))

    def complete_held(self, queue: str, completed: Sequence[Completed], *, also: Also | None = None) -> Decided:
        """End held jobs as succeeded: somebody did by hand what they ask for. In an ordered queue the key goes on.

        Args:
            queue: its name.
            completed: which jobs, by whom and with what result.
            also: what else to do in the same transactions.

        Raises:
            InvalidInput: an argument is not usable; nothing was changed.
            UnknownQueue: there is no such queue.
        """
        for one in completed:
            if not isinstance(one.by, str) or not one.by.strip() or unstorable_text(one.by):
                raise InvalidInput(f"by is {one.by!r}; give the name of whoever did the work")
        parameters: dict[str, Any] = {
            "named": [one.id for one in completed],
            "results": [result_text(one.result) for one in completed],
            "workers": [one.by for one in completed],
        }
        statements = _by_state({LiveState.HELD: "complete_held"})
        verb = _Verb("complete_held", statements, parameters, turns=True, also=also)
        return self._decide(queue, Selection(ids=parameters["named"]), verb)

    def delay(self, queue: str, selection: Selection, until: datetime | float) -> Decided:
        """Have queued jobs become due at another moment, earlier or later than it was. In an ordered queue the others of
        their keys wait with them.

        Args:
            queue: its name.
            selection: which jobs; of those that fit, the queued ones.
            until: the moment, with a time zone; or seconds from now. What has passed means now.

        Raises:
            InvalidInput: an argument is not usable; nothing was changed.
            UnknownQueue: there is no such queue.
        """
        parameters: dict[str, Any] = {"queue": queue, "seconds": None, "moment": None}
        if isinstance(until, datetime):
            parameters["moment"] = moment_in_utc("until", until)
        elif type(until) not in (int, float) or not 0 <= until <= MAX_DELAY_SECONDS:
            raise InvalidInput(
                f"until is {until!r}; give a datetime with a time zone, or seconds from now, not negative and at most a"
                " hundred years"
            )
        else:
            parameters["seconds"] = float(until)
        return self._decide(
            queue, selection, _Verb("delay", _by_state({LiveState.QUEUED: "delay"}), parameters, turns=True)
        )

    def reprioritise(self, queue: str, selection: Selection, priority: int) -> Decided:
        """Give live jobs another priority. For a running job it counts when it goes back; the order within an ordering key
        stays as it is.

        Args:
            queue: its name.
            selection: which jobs.
            priority: 0 to 9, higher first.

        Raises:
            InvalidInput: an argument is not usable; nothing was changed.
            UnknownQueue: there is no such queue.
        """
        if type(priority) is not int or not 0 <= priority <= 9:
            raise InvalidInput(f"priority is {priority!r}; it must be 0 to 9, higher runs first")
        statements = dict.fromkeys(LiveState, "reprioritise")
        return self._decide(queue, selection, _Verb("reprioritise", _by_state(statements), {"priority": priority}))

    def redrive(
        self,
        queue: str,
        selection: Selection,
        *,
        states: Sequence[str] = (ArchiveState.FAILED,),
        limit: int | None = None,
    ) -> Decided:
        """Bring ended jobs back, the latest first: the same jobs, with all their attempts, due now. In an ordered queue a
        job takes its old place, before those of its key that came after it.

        Args:
            queue: its name.
            selection: which jobs.
            states: how they ended: `failed`, the dead letter, or `cancelled`.
            limit: the most jobs; None for all that fit.

        Returns:
            What went back; and, skipped, what stays in the archive because a live job has the same id or unique key.

        Raises:
            InvalidInput: an argument is not usable; nothing was changed.
            UnknownQueue: there is no such queue.
        """
        if limit is not None and (type(limit) is not int or limit < 1):
            raise InvalidInput(f"limit is {limit!r}; it must be a whole number of at least 1, or None")
        wanted = [str(state) for state in ([states] if isinstance(states, str) else states)]
        if not wanted or set(wanted) - set(_REDRIVABLE):
            raise InvalidInput(f"states is {wanted}; what can be redriven is {' or '.join(_REDRIVABLE)}")
        self.check_exists(check_queue_name(queue))
        wanted = selection.states(wanted, "redrive")
        decided = Decided()
        for ended in self._ended(queue, selection, wanted, "redrive"):
            ids = ended.ids
            while ids:
                room = _BATCH if limit is None else min(_BATCH, limit - len(decided.changed))
                if room <= 0:
                    self._wake(queue, decided)
                    return decided
                self._redrive(queue, Ended(ids[:room], ended.since, ended.until), wanted, decided)
                ids = ids[room:]
            self._wake(queue, decided)
        if selection.ids:
            self._explain(queue, selection.job_ids, decided)
        return decided

    def _redrive(self, queue: str, ended: Ended, states: Sequence[str], decided: Decided) -> None:
        parameters = {"queue": queue, "states": states, "ids": ended.ids, "since": ended.since, "until": ended.until}

        def bring_back(executor: Executor) -> Sequence[Row]:
            if self._steady(executor, queue):
                keys = [row[0] for row in executor.run("keys_of_ended", parameters)]
                if keys:
                    executor.run("key_wait", {"queue": queue, "keys": keys})
            return executor.run("redrive", parameters)

        for job, went_back, unique_key in self.database.transact(bring_back):
            if went_back:
                decided.changed.append(job)
            else:
                also = "" if unique_key is None else f", or the unique key {unique_key!r}"
                decided.skipped[job] = f"a live job of the queue has the same id{also}"

    def _decide(self, queue: str, selection: Selection, verb: _Verb) -> Decided:
        self.check_exists(check_queue_name(queue))
        states = selection.states(verb.statements, verb.name)
        decided = Decided()
        busy: list[UUID] = []
        for ids in self._fitting(queue, selection, states):
            busy += self._decide_all(queue, ids, states, verb, decided, explain=bool(selection.ids))

        def once_more() -> list[UUID]:
            nonlocal busy
            busy = self._decide_all(queue, busy, states, verb, decided, explain=bool(selection.ids))
            return busy

        if busy:
            tenacity.Retrying(
                retry=tenacity.retry_if_result(bool),
                wait=tenacity.wait_exponential(multiplier=0.01, max=0.2),
                stop=tenacity.stop_after_delay(_PATIENCE_SECONDS),
                retry_error_callback=lambda _: None,
            )(once_more)
        decided.skipped.update(dict.fromkeys(busy, _BUSY))
        self._wake(queue, decided)
        return decided

    def _decide_all(
        self, queue: str, ids: Sequence[UUID], states: Sequence[str], verb: _Verb, decided: Decided, *, explain: bool
    ) -> list[UUID]:
        """Decide about these, batch by batch; gives those that somebody else is at."""
        busy: list[UUID] = []
        for at in range(0, len(ids), _BATCH):
            batch = list(ids[at : at + _BATCH])
            work: Callable[[Executor], _Batch] = partial(
                self._decide_batch, queue=queue, ids=batch, verb=verb, states=states
            )
            met = self.database.transact(work)
            decided.changed.extend(met.changed)
            decided.requested.extend(met.requested)
            if explain:
                decided.skipped.update({job: f"it is {state}" for job, state in met.others.items()})
            if missed := [job for job in batch if job not in met.seen]:
                live = {row[0] for row in self._whereabouts(missed) if row[1] == queue and row[2] in LIVE_STATES}
                busy += [job for job in missed if job in live]
                if explain:
                    self._explain(queue, [job for job in missed if job not in live], decided)
        return busy

    def _decide_batch(
        self, executor: Executor, *, queue: str, ids: list[UUID], verb: _Verb, states: Sequence[str]
    ) -> "_Batch":
        in_line = self._steady(executor, queue) and verb.turns
        if in_line and (keys := [row[0] for row in executor.run("keys_in_line", {"queue": queue, "ids": ids})]):
            executor.run("key_wait", {"queue": queue, "keys": keys})
        locked = executor.run("lock_live", {"queue": queue, "ids": ids})
        met = _Batch({row[0] for row in locked})
        fitting: defaultdict[str, list[UUID]] = defaultdict(list)
        for job, state, _, _ in locked:
            if state in states:
                fitting[verb.statements[state]].append(job)
            else:
                met.others[job] = state
        for statement, jobs in fitting.items():
            accepted = [row[0] for row in executor.run(statement, {**verb.parameters, "ids": jobs})]
            (met.requested if statement == _REQUEST else met.changed).extend(accepted)
        if in_line:
            self._let_in(executor, queue, locked, set(met.changed))
        if verb.also and met.changed:
            verb.also(executor, met.changed)
        return met

    def _steady(self, executor: Executor, queue: str) -> bool:
        """Keep the queue's settings as they are for this transaction; gives whether its jobs take turns."""
        rows = executor.run("queue_steady", {"queue": queue})
        if not rows:
            raise self._unknown(queue, executor)
        return bool(rows[0][0])

    def _let_in(self, executor: Executor, queue: str, locked: Sequence[Row], changed: set[UUID]) -> None:
        """Let in as many of each key as have made room; those that only waited themselves made none."""
        room = Counter[str]()
        for job, _, line, waited in locked:
            if job in changed and line is not None:
                room[line] += not waited
        if room:
            keys = [key for key, places in sorted(room.items()) for _ in range(max(places, 1))]
            executor.run("key_promote", {"queue": queue, "keys": keys})

    def _wake(self, queue: str, decided: Decided) -> None:
        if decided.changed:
            self.database.run("waiter_notify", {"queue": queue})

    def _explain(self, queue: str, ids: Sequence[UUID], decided: Decided) -> None:
        """Say of each of these jobs of which nothing was said yet what is the matter with it."""
        known = {*decided.changed, *decided.requested, *decided.skipped}
        silent = [job for job in ids if job not in known]
        for at in range(0, len(silent), _BATCH):
            part = silent[at : at + _BATCH]
            there = {job: (other, state) for job, other, state, _ in self._whereabouts(part)}
            for job in part:
                other, state = there.get(job, (None, None))
                if other is None:
                    reason = "there is no such job: it was never enqueued, or it ended and was trimmed since"
                elif other != queue:
                    reason = f"it belongs to queue {other!r}"
                else:
                    reason = f"it is {state}" if state in LIVE_STATES else f"it ended as {state}"
                decided.skipped[job] = reason

    def _whereabouts(self, ids: list[UUID]) -> Sequence[Row]:
        return self.database.run("whereabouts", {"ids": ids}) if ids else []


@dataclass(frozen=True, slots=True)
class _Batch:
    """What became of a batch: the jobs seen, those of them that were in no state for the verb, and the others."""

    seen: set[UUID]
    others: dict[UUID, str] = field(default_factory=dict)
    changed: list[UUID] = field(default_factory=list)
    requested: list[UUID] = field(default_factory=list)


def _by_state(statements: Mapping[LiveState, str]) -> dict[str, str]:
    return {str(state): statement for state, statement in statements.items()}


def _reason(reason: object) -> str:
    if not isinstance(reason, str) or not reason.strip():
        raise InvalidInput(f"the reason is {reason!r}; give a text that says why, for whoever looks at the job later")
    return storable_text(reason)
