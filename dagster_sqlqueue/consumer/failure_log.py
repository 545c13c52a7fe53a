"""Log jobs whose attempt failed, a line for each, to the logger `dagster_sqlqueue.failures`.

A retry, and an outcome that was refused because the lease had passed on, are a WARNING; a job that does not go on by itself
is an ERROR. What succeeded, and what a handler snoozed, held or cancelled on purpose, is not logged. The errors are as they
are stored, without the sensitive values of the payload; here each is one line, without its traceback, cut to 300 characters.
"""

import logging
import re
from collections.abc import Collection, Iterable, Sequence
from uuid import UUID

from dagster_sqlqueue.consumer.settlement import Settlement
from dagster_sqlqueue.display import printable, shortened
from dagster_sqlqueue.model.job import ArchiveState, ClaimedJob
from dagster_sqlqueue.model.outcome import Retry, Snooze
from dagster_sqlqueue.queue.endings import Endings

logger = logging.getLogger("dagster_sqlqueue.failures")

_LONGEST = 300
_TRACEBACK = re.compile(r"\n\s*(\+ )?(Exception Group )?Traceback \(most recent call last\):")
_PASSWORD = re.compile(r"://[^\s/@]*:[^\s/]*@")
_DIED = "its consumer died or hung on the last attempt"


def log_endings(endings: Endings) -> None:
    """Log jobs that were sent to the dead letter.

    Args:
        endings: how jobs ended; those that did not fail are left out.
    """
    for job, state, error in zip(endings.jobs, endings.states, endings.errors, strict=True):
        if state is ArchiveState.FAILED:
            _log(logging.ERROR, job, "dead letter", error)


def log_back(
    back: Sequence[tuple[ClaimedJob, Retry | Snooze]],
    delays: Sequence[float | None],
    accepted: Collection[UUID],
    cancel_requested: Collection[UUID] = (),
) -> None:
    """Log jobs that are tried again, or would be, had nobody requested their cancellation while they ran.

    Args:
        back: what went back to the queue.
        delays: in how many seconds each is due.
        accepted: of which of them it was written.
        cancel_requested: which of them are due at once instead, to be cancelled.
    """
    for (job, how), delay in zip(back, delays, strict=True):
        if isinstance(how, Retry) and job.id in accepted:
            becomes = "cancelled as requested" if job.id in cancel_requested else f"retried in {delay or 0.0:.1f} s"
            _log(logging.WARNING, job, becomes, how.error)


def log_aside(writes: Settlement, accepted: Collection[UUID]) -> None:
    """Log jobs that failed for good and stop their ordering key.

    Args:
        writes: what was to be written; those that a handler held on purpose are no failures.
        accepted: of which of them it was written.
    """
    for job, reason in writes.aside:
        if job.id in writes.stopped and job.id in accepted:
            _log(logging.ERROR, job, "held, its key stopped", reason)


def log_buried(dead: Iterable[ClaimedJob], held: Iterable[ClaimedJob]) -> None:
    """Log jobs that a claim met with their last attempt spent: dead letters, and those held with their keys stopped."""
    for job in dead:
        _log(logging.ERROR, job, "dead letter", _DIED)
    for job in held:
        _log(logging.ERROR, job, "held, its key stopped", _DIED)


def log_lost(jobs: Iterable[ClaimedJob], what: str = "what became of it was refused") -> None:
    """Log jobs whose lease had passed on, to another consumer or by an operator's decision."""
    for job in jobs:
        _log(logging.WARNING, job, "lease lost", what)


def _log(level: int, job: ClaimedJob, outcome: str, error: str | None) -> None:
    if logger.isEnabledFor(level):
        logger.log(
            level,
            "queue %s, job %s, attempt %d of %d: %s: %s",
            job.queue,
            job.id,
            # A claim that meets a job with its last attempt spent counts one more.
            min(job.attempt, job.max_attempts),
            job.max_attempts,
            outcome,
            one_line(error or "no reason was given"),
        )


def one_line(error: str) -> str:
    """An error as a line of a log: what it says, without its traceback, control characters and passwords of URLs."""
    said = _PASSWORD.sub("://***@", _TRACEBACK.split(error, maxsplit=1)[0])
    return shortened(printable(" ".join(said.split())), _LONGEST)
