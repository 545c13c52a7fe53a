"""The lifecycle of a job: its states, the events that move it between them, and the actors that cause them. No I/O.

The database does the moving: each event is one statement under `sql/`, whose WHERE clause asks for the state on the left.
The diagram and the table of `docs/lifecycle.md` are compared with this table by a test, and so are the states that the
tables' CHECK constraints allow.
"""

import enum
from dataclasses import dataclass
from typing import TypeAlias

from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.model.job import ArchiveState


class LiveState(enum.StrEnum):
    """Where a job is that did not end yet."""

    QUEUED = "queued"
    """Waits: for its time, for the end of a backoff, for its turn, or for a consumer."""
    RUNNING = "running"
    """Under a lease. One whose lease ran out is claimed like a queued one."""
    HELD = "held"
    """Not claimable until an operator decides."""


State: TypeAlias = LiveState | ArchiveState | None
"""None: outside of the tables, before its enqueue or after it was trimmed or deleted."""


class Actor(enum.StrEnum):
    """Who may cause a transition."""

    PRODUCER = "producer"
    CLAIM = "claim"
    """A claim, on behalf of the queue: it settles the jobs that it meets before it returns any."""
    CONSUMER = "consumer"
    """The consumer that has the lease."""
    OPERATOR = "operator"
    MAINTENANCE = "maintenance"


class Attempt(enum.StrEnum):
    """What a transition does to the number of attempts."""

    SAME = "same"
    """For an outcome this means: the attempt that the claim counted is spent."""
    COUNTED = "counted"
    """One more, at the moment of the claim. A crash has spent it only if the job was claimed by itself."""
    COUNTED_IF_ALONE = "counted if alone"
    """One more, if the lease that ran out was the only one of its claim; else the same again: nobody knows which jobs of
    that claim had begun."""
    GIVEN_BACK = "given back"
    """One less: the claim's count is taken back."""
    KEPT_IF_ALONE = "kept if alone"
    """The same, if the lease that ran out was the only one of its claim; else one less."""
    RESET = "reset"
    """Zero: all the attempts of a new job."""


class Event(enum.StrEnum):
    """What can happen to a job."""

    ENQUEUE = "enqueue"
    REPLACE = "replace"
    """An enqueue with the same unique key gave it another content."""
    CLAIM = "claim"
    PARK = "park"
    """A claim met it out of its key's turn."""
    PROMOTE = "promote"
    """A job of its key ended or left the turn."""
    BURY = "bury"
    """A claim met it without an attempt left: its last lease, the only one of its claim, ran out."""
    BURY_AND_STOP = "bury and stop"
    """The same, in an ordered queue that stops at poisoned jobs."""
    DROP = "drop"
    """A claim met it with a request to cancel it."""
    HEARTBEAT = "heartbeat"
    DONE = "done"
    RETRY = "retry"
    SNOOZE = "snooze"
    RELEASE = "release"
    """A consumer's, of a job that was claimed and not begun; or an operator's `release_held`."""
    HOLD = "hold"
    """The handler's outcome; or an operator's `hold_queued`."""
    REJECT = "reject"
    """Also a retry after the last attempt."""
    REJECT_AND_STOP = "reject and stop"
    """The same, in an ordered queue that stops at poisoned jobs."""
    CANCEL = "cancel"
    """The handler's outcome; or an operator's `cancel` of a job that is not running."""
    REQUEST_CANCEL = "request cancel"
    """An operator's `cancel` of a running job: its next heartbeat reports the request."""
    COMPLETE = "complete"
    """An operator's `complete_held`."""
    RESCHEDULE = "reschedule"
    REPRIORITISE = "reprioritise"
    REPLACE_PAYLOAD = "replace payload"
    """An operator's; of a job that ended it is a redrive, and of a held one that it releases a release too."""
    REDRIVE = "redrive"
    DELETE = "delete"
    TRIM = "trim"


@dataclass(frozen=True, slots=True)
class Transition:
    """One row of the table.

    Attributes:
        before: the state that the database demands.
        event: what happens.
        after: the state then.
        actor: who may cause it.
        attempt: what becomes of the number of attempts.
        fenced: whether the write names the lease number, and is refused under any other.
        new_lease: whether the lease number grows; it never does anything else.
    """

    before: State
    event: Event
    after: State
    actor: Actor
    attempt: Attempt = Attempt.SAME
    fenced: bool = False
    new_lease: bool = False


_QUEUED, _RUNNING, _HELD = LiveState.QUEUED, LiveState.RUNNING, LiveState.HELD
_SUCCEEDED, _FAILED, _CANCELLED = ArchiveState.SUCCEEDED, ArchiveState.FAILED, ArchiveState.CANCELLED


def _by_claim(
    event: Event,
    after: State,
    attempt: Attempt = Attempt.SAME,
    over: Attempt | None = None,
    *,
    lease: bool,
) -> list[Transition]:
    """What a claim does to a job that waited, and to one whose lease ran out (`over`: its attempt, if that differs)."""
    return [
        Transition(_QUEUED, event, after, Actor.CLAIM, attempt, new_lease=lease),
        Transition(_RUNNING, event, after, Actor.CLAIM, attempt if over is None else over, new_lease=lease),
    ]


def _outcome(event: Event, after: State, attempt: Attempt = Attempt.SAME) -> Transition:
    return Transition(_RUNNING, event, after, Actor.CONSUMER, attempt, fenced=True)


def _decided(event: Event, *steps: tuple[State, State], attempt: Attempt = Attempt.SAME) -> list[Transition]:
    return [Transition(before, event, after, Actor.OPERATOR, attempt) for before, after in steps]


TRANSITIONS: tuple[Transition, ...] = (
    Transition(None, Event.ENQUEUE, _QUEUED, Actor.PRODUCER),
    Transition(_QUEUED, Event.REPLACE, _QUEUED, Actor.PRODUCER, Attempt.RESET),
    *_by_claim(Event.CLAIM, _RUNNING, Attempt.COUNTED, Attempt.COUNTED_IF_ALONE, lease=True),
    *_by_claim(Event.PARK, _QUEUED, Attempt.SAME, Attempt.KEPT_IF_ALONE, lease=False),
    Transition(_QUEUED, Event.PROMOTE, _QUEUED, Actor.CONSUMER),
    *_by_claim(Event.BURY, _FAILED, lease=True),
    *_by_claim(Event.BURY_AND_STOP, _HELD, Attempt.GIVEN_BACK, lease=True),
    *_by_claim(Event.DROP, _CANCELLED, Attempt.COUNTED, Attempt.COUNTED_IF_ALONE, lease=True),
    _outcome(Event.HEARTBEAT, _RUNNING),
    _outcome(Event.DONE, _SUCCEEDED),
    _outcome(Event.RETRY, _QUEUED),
    _outcome(Event.SNOOZE, _QUEUED, Attempt.GIVEN_BACK),
    _outcome(Event.RELEASE, _QUEUED, Attempt.GIVEN_BACK),
    _outcome(Event.HOLD, _HELD, Attempt.GIVEN_BACK),
    _outcome(Event.REJECT, _FAILED),
    _outcome(Event.REJECT_AND_STOP, _HELD, Attempt.GIVEN_BACK),
    _outcome(Event.CANCEL, _CANCELLED),
    *_decided(Event.CANCEL, (_QUEUED, _CANCELLED), (_HELD, _CANCELLED)),
    *_decided(Event.REQUEST_CANCEL, (_RUNNING, _RUNNING)),
    *_decided(Event.HOLD, (_QUEUED, _HELD)),
    *_decided(Event.RELEASE, (_HELD, _QUEUED)),
    *_decided(Event.COMPLETE, (_HELD, _SUCCEEDED)),
    *_decided(Event.RESCHEDULE, (_QUEUED, _QUEUED)),
    *_decided(Event.REPRIORITISE, *((state, state) for state in LiveState)),
    *_decided(Event.REPLACE_PAYLOAD, (_QUEUED, _QUEUED), (_HELD, _HELD)),
    *_decided(Event.REDRIVE, (_FAILED, _QUEUED), (_CANCELLED, _QUEUED), attempt=Attempt.RESET),
    *_decided(Event.DELETE, (_QUEUED, None), (_HELD, None), *((state, None) for state in ArchiveState)),
    *(Transition(state, Event.TRIM, None, Actor.MAINTENANCE) for state in ArchiveState),
)

_BY_CAUSE = {(transition.before, transition.event): transition for transition in TRANSITIONS}


def after(state: State, event: Event) -> Transition:
    """What an event does to a job in that state.

    Raises:
        InvalidInput: it cannot happen there; the message names what can.
    """
    if found := _BY_CAUSE.get((state, event)):
        return found
    possible = ", ".join(cause for before, cause in _BY_CAUSE if before == state)
    raise InvalidInput(f"{event} cannot happen to a job that is {state or 'not there'}; there can: {possible}")
