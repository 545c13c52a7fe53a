"""Why a job is not claimed: what keeps it, in the words of its reader."""

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from dagster_sqlqueue.db.database import Database
from dagster_sqlqueue.display import count, duration
from dagster_sqlqueue.model.job import ArchiveState
from dagster_sqlqueue.model.lifecycle import LiveState
from dagster_sqlqueue.queue.selection import JobRow

CAP = 1_000
"""Where counting stops, of each priority."""


class Why(enum.StrEnum):
    """What can keep a job from being claimed."""

    ENDED = "ended"
    LEASED = "leased"
    BATCH = "batch"
    """It is leased to a batch that Spark works on."""
    LEASE_OVER = "lease over"
    """Its lease ran out: this does not keep it."""
    HELD = "held"
    CANCEL_REQUESTED = "cancel requested"
    """It was cancelled while it ran: the next claim ends it instead of giving it to a consumer."""
    PAUSED = "paused"
    """Its queue is paused."""
    SCHEDULED = "scheduled"
    """It is due later: its first run, a retry after its backoff, or a snooze."""
    TURN = "turn"
    """Its ordering key lets others go before it."""
    LIMIT = "limit"
    """As many jobs of its queue run as may."""
    KEY_LIMIT = "key limit"
    """As many jobs of its ordering key run as may."""
    RATE = "rate"
    """As many jobs of its queue were started within the interval as may be."""
    BEHIND = "behind"
    """Nothing but the jobs before it in its bucket."""


class Reason(NamedTuple):
    """One thing that keeps a job, and a sentence about it for people."""

    why: Why
    text: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a job is not claimed.

    Attributes:
        id: the job.
        queue: its queue.
        state: `queued`, `running`, `held`, `succeeded`, `failed` or `cancelled`.
        reasons: what keeps it, the decisive ones first; empty: the next claim of its bucket takes it.
        error: of the last attempt that failed, or why it is held or was cancelled; not redacted.
    """

    id: UUID
    queue: str
    state: str
    reasons: tuple[Reason, ...]
    error: str | None = None

    @property
    def claimable(self) -> bool:
        """Whether a consumer of its queue takes it now, or as soon as those before it in its bucket are taken."""
        return all(reason.why in (Why.BEHIND, Why.LEASE_OVER) for reason in self.reasons)

    @property
    def text(self) -> str:
        """The reasons, as a sentence each."""
        if not self.reasons:
            return "Nothing keeps it: the next claim of its bucket takes it. Is a consumer at work?"
        return " ".join(reason.text for reason in self.reasons)


class _Facts(NamedTuple):
    """A row of `explain.sql`."""

    queue: str
    state: str
    bucket: int
    priority: int
    attempt: int
    attempts_spent: int
    max_attempts: int
    claimed_by: str | None
    ordering_key: str | None
    error: str | None
    due_seconds: float | None
    cancel_requested_seconds: float | None
    paused_seconds: float | None
    resumes_seconds: float | None
    ordered: bool
    max_running: int | None
    max_running_per_key: int | None
    rate_limit: int | None
    rate_seconds: float | None
    before: int
    leases: int | None
    starts: int | None
    key_leases: int | None
    first_id: UUID | None
    first_state: str | None
    first_claimed_by: str | None
    batch_key: str | None
    batch_owner: str | None
    batch_seconds: float | None

    @property
    def is_due(self) -> bool:
        """Whether it may be claimed by its time: now, or the end of its lease, has come."""
        return self.due_seconds is not None and self.due_seconds <= 0


def explain_live(database: Database, id: UUID) -> Explanation | None:
    """Why a live job is not claimed; None if it is not live."""
    rows = database.run("explain", {"id": id, "cap": CAP})
    if not rows:
        return None
    facts = _Facts(*rows[0])
    return Explanation(id, facts.queue, facts.state, tuple(_reasons(id, facts)), facts.error)


def _reasons(id: UUID, facts: _Facts) -> Iterator[Reason]:
    if facts.state == LiveState.HELD:
        asked = "" if facts.cancel_requested_seconds is None else "; it was asked to end while it ran"
        yield Reason(Why.HELD, f"It is held until it is released, completed or cancelled{asked}.")
        return
    if facts.batch_key is not None:
        until = f"its lease ends in {duration(facts.batch_seconds)}"
        if facts.batch_seconds is not None and facts.batch_seconds <= 0:
            until = (
                f"its lease ran out {duration(-facts.batch_seconds)} ago, and the next run or `maintain` takes it back"
            )
        yield Reason(Why.BATCH, f"It is in the batch {facts.batch_key!r} of {facts.batch_owner}; {until}.")
        return
    if facts.state == LiveState.RUNNING and not facts.is_due:
        yield Reason(Why.LEASED, _leased(facts))
        return
    if facts.state == LiveState.RUNNING and facts.due_seconds is not None:
        yield Reason(
            Why.LEASE_OVER,
            f"The lease of {facts.claimed_by or 'an unknown consumer'}, attempt {facts.attempt} of {facts.max_attempts},"
            f" ran out {duration(-facts.due_seconds)} ago: a claim takes it, by itself.",
        )
    if facts.cancel_requested_seconds is not None:
        yield Reason(
            Why.CANCEL_REQUESTED, "It was asked to end while it ran: the next claim of its bucket ends it as cancelled."
        )
    if facts.paused_seconds is not None:
        goes_on = f"it goes on in {duration(facts.resumes_seconds)}" if facts.resumes_seconds else "resume it"
        yield Reason(Why.PAUSED, f"Its queue has been paused for {duration(-facts.paused_seconds)}; {goes_on}.")
    if facts.due_seconds is None:
        yield Reason(Why.TURN, _turn(id, facts))
    elif not facts.is_due:
        after = f", after {facts.attempts_spent} of {facts.max_attempts} attempts" if facts.attempts_spent else ""
        yield Reason(Why.SCHEDULED, f"It is due in {duration(facts.due_seconds)}{after}.")
    yield from _limits(id, facts)
    if facts.before:
        yield Reason(
            Why.BEHIND,
            f"{count(facts.before, CAP)} jobs are before it in bucket {facts.bucket}, of its priority {facts.priority} or"
            " higher ones.",
        )


def _leased(facts: _Facts) -> str:
    asked = "" if facts.cancel_requested_seconds is None else "; it was asked to end"
    return (
        f"It is leased by {facts.claimed_by or 'an unknown consumer'} for another {duration(facts.due_seconds)}, attempt"
        f" {facts.attempt} of {facts.max_attempts}{asked}."
    )


def _turn(id: UUID, facts: _Facts) -> str:
    if facts.ordered and facts.first_id is not None and facts.first_id != id:
        by = (
            f" by {facts.first_claimed_by}" if facts.first_state == LiveState.RUNNING and facts.first_claimed_by else ""
        )
        return (
            f"It waits for its turn in the key {facts.ordering_key!r}, whose first job {facts.first_id} is"
            f" {facts.first_state}{by}."
        )
    return f"It waits for its turn in the key {facts.ordering_key!r}, of which {facts.key_leases} run."


def _limits(id: UUID, facts: _Facts) -> Iterator[Reason]:
    """Limits that are reached, for a job that is due or will be."""
    if facts.due_seconds is not None and facts.key_leases:
        if facts.ordered:
            yield Reason(Why.TURN, f"A job of its key {facts.ordering_key!r} runs, and they run one at a time.")
        elif facts.max_running_per_key is not None and facts.key_leases >= facts.max_running_per_key:
            yield Reason(
                Why.KEY_LIMIT, f"{facts.key_leases} jobs of its key {facts.ordering_key!r} run, as many as may."
            )
    elif facts.due_seconds is not None and facts.ordered and facts.first_id not in (None, id):
        yield Reason(Why.TURN, _turn(id, facts))
    if facts.max_running is not None and facts.leases is not None and facts.leases >= facts.max_running:
        yield Reason(Why.LIMIT, f"{facts.leases} jobs of its queue run, as many as may.")
    if facts.rate_limit is not None and facts.starts is not None and facts.starts >= facts.rate_limit:
        yield Reason(
            Why.RATE,
            f"{facts.starts} jobs of its queue were started in the last {duration(facts.rate_seconds)}, as many as may be.",
        )


def explain_ended(job: JobRow) -> Explanation:
    """That a job has ended."""
    how = f"It ended as {job.state}"
    back = "; redrive brings it back" if job.state in (ArchiveState.FAILED, ArchiveState.CANCELLED) else ""
    return Explanation(job.id, job.queue, job.state, (Reason(Why.ENDED, f"{how}{back}."),), job.error)
