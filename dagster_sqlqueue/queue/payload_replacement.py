"""Replacement of the payload of a job that is not running: live, or ended without success."""

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from dagster_sqlqueue.db import permissions
from dagster_sqlqueue.db.executors import CallerConnection
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.model.lifecycle import LiveState
from dagster_sqlqueue.model.queue import Payload, QueueSpec, check_spec
from dagster_sqlqueue.payload.serialization import payload_text, without_row
from dagster_sqlqueue.queue.decision import Decision, Decisions
from dagster_sqlqueue.queue.redriving import Redriving
from dagster_sqlqueue.queue.search import Ended
from dagster_sqlqueue.queue.selection import REDRIVABLE_STATES, Decided, Selection

_ROUNDS = 5
_VERB = "replace_payload"
_RUNNING = f"it is {LiveState.RUNNING}"
_FENCED = (
    f"{_RUNNING}: its consumer has the payload that it had; replace it when the job is back in its queue, or has ended"
)
_MOVING = "others end it and bring it back all the time; try again"


class PayloadReplacement:
    """How the payload of a job is replaced: of a live one where it is, of an ended one as it is brought back.

    Args:
        decisions: carries out what is decided about live jobs.
        redriving: brings ended jobs back.
    """

    def __init__(self, decisions: Decisions, redriving: Redriving) -> None:
        self._decisions = decisions
        self._redriving = redriving

    def replace(
        self,
        spec: QueueSpec[Payload],
        id: UUID | str,
        payload: "Payload | Mapping[str, Any]",
        *,
        release: bool,
        connection: CallerConnection | None,
    ) -> Decided:
        """Replace the payload of a job: `SqlQueue.replace_payload`."""
        check_spec(spec)
        if not isinstance(release, bool):
            raise InvalidInput(f"release is {release!r:.100}; give True to release the job if it is held, or False")
        selection = Selection(ids=[id])
        (job,) = selection.job_ids
        try:
            text = payload_text(spec, payload, 0)
        except InvalidInput as error:
            raise type(error)(without_row(error)) from None
        within = self._decisions.within(connection, selection)
        statements = {str(LiveState.QUEUED): _VERB, str(LiveState.HELD): _VERB}
        decision = Decision(_VERB, statements, {"payload": text, "release": release}, within=within)
        with permissions.needing("redrive"):
            for _ in range(_ROUNDS):
                decided = self._decisions.decide(spec.name, selection, decision)
                if decided.changed or self._decisions.ended_as(spec.name, job, within) not in REDRIVABLE_STATES:
                    break
                # If somebody else brings it back first, it is looked for among the live ones again.
                decided = Decided()
                self._redriving.bring_back(
                    spec.name, Ended([job]), REDRIVABLE_STATES, decided, payload=text, within=within
                )
                if decided.changed or decided.skipped:
                    self._decisions.wake(spec.name, decided, within)
                    break
            else:
                decided.skipped[job] = _MOVING
        if decided.skipped.get(job) == _RUNNING:
            decided.skipped[job] = _FENCED
        return decided
