"""Sort the outcomes of a batch by the write that they need, and count what was done."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from uuid import UUID

from dagster_sqlqueue.consumer.handler import brief
from dagster_sqlqueue.model.job import ArchiveState, ClaimedJob
from dagster_sqlqueue.model.outcome import Cancel, Done, Hold, Outcome, Reject, Retry, Snooze
from dagster_sqlqueue.payload import serialization
from dagster_sqlqueue.queue.endings import Endings

HANDLER_BOUNDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0)
"""The bounds of the histogram of handlers' times, in seconds."""


_SUCCEEDED = ArchiveState.SUCCEEDED
"""Read for each job, and members of an enum are looked up slowly."""


@dataclass(slots=True)
class DrainSummary:
    """What a consumer did, in all of its drains.

    Attributes:
        claimed: jobs taken.
        succeeded: jobs ended as succeeded.
        retried: jobs given back to be tried again.
        snoozed: jobs given back without spending the attempt.
        failed: jobs sent to the dead letter.
        buried: how many of those, or of those held, were met with their last attempt spent: a consumer had died or hung
            over them, and no handler was called any more.
        held: jobs held until an operator decides.
        cancelled: jobs ended as cancelled.
        stale: writes refused because the lease had passed on.
        released: jobs claimed and given back unbegun: the drain was stopped, or they waited for a job that took long.
        batches: claims that found something.
        seconds: how long they took.
    """

    claimed: int = 0
    succeeded: int = 0
    retried: int = 0
    snoozed: int = 0
    failed: int = 0
    buried: int = 0
    held: int = 0
    cancelled: int = 0
    stale: int = 0
    released: int = 0
    batches: int = 0
    seconds: float = 0.0

    @property
    def handled(self) -> int:
        """Jobs whose outcome was accepted: a handler's, or that of a last attempt which killed its consumer."""
        return self.succeeded + self.retried + self.snoozed + self.failed + self.held + self.cancelled

    @property
    def jobs_per_second(self) -> float:
        """Jobs ended or given back for each second."""
        return self.handled / self.seconds if self.seconds else 0.0


@dataclass(slots=True)
class Settlement:
    """What is to be written for a batch: jobs that end, that go back, and that are held.

    Attributes:
        stopped: the ids of those held that failed for good, and stop their ordering key.
    """

    endings: Endings = field(default_factory=Endings)
    back: list[tuple[ClaimedJob, Retry | Snooze]] = field(default_factory=list)
    aside: list[tuple[ClaimedJob, str]] = field(default_factory=list)
    stopped: set[UUID] = field(default_factory=set)


def settle(settled: Iterable[tuple[ClaimedJob, Outcome]], stops_key: Callable[[ClaimedJob], bool]) -> Settlement:
    """Sort outcomes by the write that they need.

    Args:
        settled: jobs with their outcomes.
        stops_key: whether a job that failed for good is held, and its key stopped, rather than archived.

    Raises:
        InvalidInput: a result cannot be stored as JSON.
    """
    made = Settlement()
    ends = made.endings
    for job, outcome in settled:
        result: str | None = None
        error: str | None = None
        match outcome:
            case Done():
                state = _SUCCEEDED
                if outcome.result is not None:
                    result = outcome.text or serialization.result_text(outcome.result)
            case Cancel(reason):
                state, error = ArchiveState.CANCELLED, brief(reason)
            case Hold(reason):
                made.aside.append((job, brief(reason)))
                continue
            case Snooze():
                made.back.append((job, outcome))
                continue
            case Retry(reason, after) if not job.last_attempt:
                made.back.append((job, Retry(brief(reason), after)))
                continue
            case Retry(reason, _) | Reject(reason) if stops_key(job):
                made.stopped.add(job.id)
                made.aside.append((job, brief(reason)))
                continue
            case Retry(reason, _) | Reject(reason):
                state, error = ArchiveState.FAILED, brief(reason)
        ends.jobs.append(job)
        ends.states.append(state)
        ends.results.append(result)
        ends.errors.append(error)
    return made
