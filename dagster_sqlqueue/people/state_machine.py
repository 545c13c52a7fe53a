"""What each step makes of a task, which steps fit, and a history replayed to what is so now. No I/O."""

import json
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime

from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.people.model import ENDS, Action, JobEvent, Stage, TaskState, same_person

_OPENING = (Action.HAND_OVER, Action.ADOPT)
_AT_HAND = (Stage.OPEN, Stage.ASSIGNED)
_FITS: dict[Action, tuple[Stage, ...]] = {
    Action.TAKE: (Stage.OPEN,),
    Action.ASSIGN: _AT_HAND,
    Action.UNASSIGN: (Stage.ASSIGNED,),
    Action.HOLD: _AT_HAND,
    Action.RESUME: _AT_HAND,
    Action.RESCHEDULE: _AT_HAND,
    Action.SUBMIT: (Stage.ASSIGNED,),
    Action.APPROVE: (Stage.IN_REVIEW,),
    Action.REJECT: (Stage.IN_REVIEW,),
    Action.GIVE_BACK: _AT_HAND,
    Action.WITHDRAW: (*_AT_HAND, Stage.IN_REVIEW),
}
"""In which stages a task may take a step."""


def replay(events: Iterable[JobEvent]) -> TaskState | None:
    """What a job's history comes to; None for an empty one.

    Args:
        events: all of one job, from the first, in their order.

    Raises:
        InvalidInput: it is no history: an event is missing or does not follow from those before it.
    """
    state: TaskState | None = None
    for event in events:
        state = after(state, event)
    return state


def after(state: TaskState | None, event: JobEvent) -> TaskState:
    """What an event makes of a task.

    Raises:
        InvalidInput: it cannot follow.
    """
    expected = 1 if state is None else state.revision + 1
    if event.no != expected:
        raise InvalidInput(f"event {event.no} of job {event.job_id} comes where event {expected} is due")
    details = event.details
    if event.action in _OPENING:
        return TaskState(Stage.OPEN, details["review"], details["four_eyes"], False, event.at, event.no)
    if state is None or state.stage not in _FITS[event.action]:
        stage = "no task yet" if state is None else state.stage
        raise InvalidInput(
            f"event {event.no} of job {event.job_id} is {event.action}, which does not follow on {stage}"
        )
    state = replace(state, revision=event.no)
    match event.action:
        case Action.TAKE | Action.ASSIGN:
            return replace(state, stage=Stage.ASSIGNED, assignee=details["assignee"])
        case Action.UNASSIGN:
            return replace(state, stage=Stage.OPEN, assignee=None)
        case Action.HOLD | Action.RESUME:
            return replace(state, on_hold=event.action is Action.HOLD)
        case Action.RESCHEDULE:
            return replace(state, available_at=datetime.fromisoformat(details["until"]))
        case Action.SUBMIT:
            stage = Stage.IN_REVIEW if state.review else Stage.DONE
            return replace(state, stage=stage, done_by=event.actor, result=_text(details["result"]))
        case Action.APPROVE:
            return replace(state, stage=Stage.DONE)
        case Action.REJECT:
            # What was done is in the history; the next one who submits says anew what came of it.
            state = replace(state, stage=Stage.ASSIGNED, done_by=None, result=None)
            return replace(state, stage=Stage.OPEN, assignee=None) if details["reopened"] else state
        case Action.GIVE_BACK:
            return replace(state, stage=Stage.GIVEN_BACK)
    return replace(state, stage=Stage.WITHDRAWN)


def refusal(state: TaskState, action: Action, actor: str, *, assignee: str | None = None) -> str | None:
    """Return why this step is refused now, as a text; None if it is allowed.

    Args:
        state: of the task.
        action: the step.
        actor: who wants to take it.
        assignee: the operator to assign it to.
    """
    if state.stage not in _FITS[action]:
        return f"it is {_words(state)}, and {action} is for tasks that are {_or(_FITS[action])}"
    if action is Action.ASSIGN and state.assignee == assignee:
        return f"it is assigned to {assignee!r} already"
    if action is Action.RESUME and not state.on_hold:
        return "it is not on hold"
    if action is Action.HOLD and state.on_hold:
        return "it is on hold already"
    if action is Action.SUBMIT and state.assignee != actor:
        return f"it is assigned to {state.assignee!r}, not to {actor!r}; have it assigned first"
    if action is Action.SUBMIT and state.on_hold:
        return "it is on hold; resume it first"
    if action is Action.APPROVE and state.four_eyes and same_person(state.done_by, actor):
        return f"it needs four eyes, and {actor!r} did it; somebody else has to approve it"
    return None


def _words(state: TaskState) -> str:
    words = str(state.stage).replace("_", " ")
    return f"{words} to {state.assignee!r}" if state.stage is Stage.ASSIGNED else words


def _or(stages: Iterable[Stage]) -> str:
    return " or ".join(str(stage).replace("_", " ") for stage in stages)


def _text(result: object) -> str | None:
    return None if result is None else json.dumps(result, sort_keys=True)


def ended(state: TaskState) -> bool:
    """Whether nothing can happen to the task any more, before its job comes to people again."""
    return state.stage in ENDS
