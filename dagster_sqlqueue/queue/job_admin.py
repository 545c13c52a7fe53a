"""Verbs that decide about jobs: cancel, redrive, hold, release, complete, reschedule, reprioritise, delete; those named,
those that fit, or all; and replace the payload of one.

Large selections are worked off in batches, each a short transaction of its own: a verb that is interrupted has decided
about some of the jobs, and can be given again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from dagster_sqlqueue.db.executors import CallerConnection
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.model.job import ArchiveState
from dagster_sqlqueue.model.lifecycle import LiveState
from dagster_sqlqueue.model.numbers import is_whole
from dagster_sqlqueue.model.outcome import Json, check_reason
from dagster_sqlqueue.model.queue import Payload, QueueSpec
from dagster_sqlqueue.payload.serialization import result_text
from dagster_sqlqueue.payload.storable import storable_text, unstorable_text
from dagster_sqlqueue.queue.base import Verbs
from dagster_sqlqueue.queue.decision import Also, Decision
from dagster_sqlqueue.queue.deletion import Deletion
from dagster_sqlqueue.queue.payload_replacement import PayloadReplacement
from dagster_sqlqueue.queue.redriving import Redriving
from dagster_sqlqueue.queue.selection import (
    DELETABLE_STATES,
    Decided,
    Selection,
    delay_or_moment,
)


@dataclass(frozen=True, slots=True)
class Completed:
    """A held job whose work was done by hand.

    Attributes:
        id: the job's.
        by: the person who did it; kept as the job's worker.
        result: JSON, kept in the archive.
    """

    id: UUID
    by: str
    result: Json = None


class JobAdminVerbs(Verbs):
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
        decision = Decision("cancel", _by_state(statements), {"reason": _reason(reason)}, turns=True)
        return self._decisions.decide(queue, selection, decision)

    def hold_queued(
        self,
        queue: str,
        selection: Selection,
        reason: str,
        *,
        also: Also | None = None,
        connection: CallerConnection | None = None,
    ) -> Decided:
        """Set queued jobs aside until they are released or cancelled. In an ordered queue the key stops there.

        Args:
            queue: its name.
            selection: which jobs; of those that fit, the queued ones.
            reason: kept as the job's error.
            also: what else to do in the same transactions.
            connection: the caller's, whose transaction it joins, for jobs that are named by their ids; None: transactions of
                its own. Where jobs of a key take turns it is READ COMMITTED, or the call is refused: one that does not see
                which jobs were parked since it began would leave them waiting.

        Raises:
            InvalidInput: an argument is not usable; nothing was changed.
            UnknownQueue: there is no such queue.
        """
        statements = _by_state({LiveState.QUEUED: "hold_queued"})
        within = self._decisions.within(connection, selection)
        decision = Decision(
            "hold_queued", statements, {"reason": _reason(reason)}, turns=True, also=also, within=within
        )
        return self._decisions.decide(queue, selection, decision)

    def release_held(
        self, queue: str, selection: Selection, *, also: Also | None = None, connection: CallerConnection | None = None
    ) -> Decided:
        """Let held jobs go: due now, with the attempts that they have left. In an ordered queue the key goes on.

        A request to cancel one, made while it ran, is void then.

        Args:
            queue: its name.
            selection: which jobs; of those that fit, the held ones.
            also: what else to do in the same transactions.
            connection: as for `hold_queued`.

        Raises:
            InvalidInput: an argument is not usable; nothing was changed.
            UnknownQueue: there is no such queue.
        """
        statements = _by_state({LiveState.HELD: "release_held"})
        within = self._decisions.within(connection, selection)
        return self._decisions.decide(
            queue, selection, Decision("release_held", statements, {}, also=also, within=within)
        )

    def complete_held(
        self,
        queue: str,
        completed: Sequence[Completed],
        *,
        also: Also | None = None,
        connection: CallerConnection | None = None,
    ) -> Decided:
        """End held jobs as succeeded: their work was done by hand. In an ordered queue the key goes on.

        Args:
            queue: its name.
            completed: which jobs, by whom and with what result.
            also: what else to do in the same transactions.
            connection: as for `hold_queued`.

        Raises:
            InvalidInput: an argument is not usable; nothing was changed.
            UnknownQueue: there is no such queue.
        """
        for one in completed:
            if not isinstance(one.by, str) or not one.by.strip() or unstorable_text(one.by):
                raise InvalidInput(f"by is {one.by!r}; give the name of the person who did the work")
        parameters: dict[str, Any] = {
            "named": [one.id for one in completed],
            "results": [result_text(one.result) for one in completed],
            "workers": [one.by for one in completed],
        }
        statements = _by_state({LiveState.HELD: "complete_held"})
        selection = Selection(ids=parameters["named"])
        within = self._decisions.within(connection, selection)
        decision = Decision("complete_held", statements, parameters, turns=True, also=also, within=within)
        return self._decisions.decide(queue, selection, decision)

    def reschedule(self, queue: str, selection: Selection, until: datetime | timedelta | float) -> Decided:
        """Have queued jobs become due at another moment, earlier or later than it was. In an ordered queue the others of
        their keys wait with them.

        Args:
            queue: its name.
            selection: which jobs; of those that fit, the queued ones.
            until: the moment, with a time zone; or a timedelta or seconds from now. What has passed means now.

        Raises:
            InvalidInput: an argument is not usable; nothing was changed.
            UnknownQueue: there is no such queue.
        """
        seconds, moment = delay_or_moment("until", until)
        parameters: dict[str, Any] = {"queue": queue, "seconds": seconds, "moment": moment}
        return self._decisions.decide(
            queue,
            selection,
            Decision("reschedule", _by_state({LiveState.QUEUED: "reschedule"}), parameters, turns=True),
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
        if not is_whole(priority, 0, 9):
            raise InvalidInput(f"priority is {priority!r}; it must be 0 to 9, higher runs first")
        statements = dict.fromkeys(LiveState, "reprioritise")
        return self._decisions.decide(
            queue, selection, Decision("reprioritise", _by_state(statements), {"priority": priority})
        )

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
        return Redriving(self.catalog, self._search, self._decisions).redrive(queue, selection, states, limit)

    def replace_payload(
        self,
        spec: QueueSpec[Payload],
        job_id: UUID | str,
        payload: "Payload | Mapping[str, Any]",
        *,
        release: bool = False,
        connection: CallerConnection | None = None,
    ) -> Decided:
        """Replace the payload of a job that does not run, checked and stored as by `enqueue`: for instance of a dead letter
        that failed over what it was given, or of a job that is held because its payload cannot be read.

        A queued or held job stays where it is, with its time, priority, keys, attempts and error. A job that ended as
        `failed` or `cancelled` is brought back as by `redrive`, in one statement: no consumer is given it with its earlier
        payload. A running job is left, because its consumer has the earlier one, and so is a job that succeeded. Keys and
        tags that were made of the earlier payload stay as they are. Hooks of enqueues are not called.

        Args:
            spec: the queue; its model checks the payload.
            job_id: the job's.
            payload: the model's instance, or a mapping that fits it.
            release: whether the job, if it is held, is released by it: due now. A queued job is due when it was.
            connection: as for `hold_queued`.

        Returns:
            The job, changed; or skipped, with the reason.

        Raises:
            InvalidPayload, InvalidInput: the payload or another argument is not usable; nothing was changed.
            UnknownQueue: there is no such queue.
        """
        redriving = Redriving(self.catalog, self._search, self._decisions)
        replacement = PayloadReplacement(self._decisions, redriving)
        return replacement.replace(spec, job_id, payload, release=release, connection=connection)

    def delete(self, queue: str, selection: Selection, *, states: Sequence[str] = DELETABLE_STATES) -> Decided:
        """Remove jobs for good: payload, result, error, the task and the history that people had with them. What runs stays.

        Followers of a live one are notified that it was cancelled, and in an ordered queue its key goes on. Its unique key
        is free then; its id is known for a week more, so that a producer who sends it again does not bring it back. Copies
        stay: what Spark has read and written, callbacks of the job's end, backups.

        Args:
            queue: its name.
            selection: which jobs; `since` and `before` are about when live ones were enqueued, and ended ones ended.
            states: of those that fit, only jobs in these: `queued`, `held`, `succeeded`, `failed`, `cancelled`. Of
                all jobs the first two empty a queue of what waits.

        Returns:
            What was deleted; and of jobs that were named by their ids, those that were not, with the reason.

        Raises:
            InvalidInput: an argument is not usable; nothing was changed.
            UnknownQueue: there is no such queue.
            AccessRefused: the user is neither an operator nor the owner of the schema.
        """
        return Deletion(self.catalog, self._search, self._decisions).delete(queue, selection, states)


def _by_state(statements: Mapping[LiveState, str]) -> dict[str, str]:
    return {str(state): statement for state, statement in statements.items()}


def _reason(reason: object) -> str:
    return storable_text(check_reason(reason))
