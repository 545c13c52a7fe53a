"""The state and the steps of one wait for the ends of jobs; its caller sleeps between the checks."""

import contextlib
import math
import random
import threading
import time
from collections.abc import Callable, Sequence
from uuid import UUID

import psycopg
from uuid_utils.compat import uuid7

from dagster_sqlqueue.db.database import Database
from dagster_sqlqueue.errors import AccessRefused, DatabaseUnavailable, WaitTimedOut
from dagster_sqlqueue.model.job import ArchiveState
from dagster_sqlqueue.queue.validation import check_timeout
from dagster_sqlqueue.results.model import JobOutcome

_AT_ONCE = 1_000
_EVERY_END = f"{{{','.join(ArchiveState)}}}"
_FIRST_POLL_SECONDS = 0.05
_LAST_POLL_SECONDS = 1.0
_FIRST_LISTENING_SECONDS = 1.0
_LAST_LISTENING_SECONDS = 5.0
_PATIENCE_SECONDS = 60.0
_REGISTERED_SECONDS = 3_600.0


class Wait:
    """One wait: for which jobs, until when, and what was found so far.

    Args:
        outcomes: how jobs are, by their ids.
        database: where they are.
        ids: the jobs.
        timeout_seconds: how long to wait; None for as long as it takes.
        notified: whether the database notifies the ends.

    Raises:
        InvalidInput: the timeout is not usable.

    Attributes:
        open: the jobs that had not ended at the last check.
        outcomes: by id, what was found; in the order of the ids once all have ended.
    """

    def __init__(
        self,
        outcomes: Callable[[Sequence[UUID]], dict[UUID, JobOutcome]],
        database: Database,
        ids: Sequence[UUID],
        *,
        timeout_seconds: float | None,
        notified: bool,
    ) -> None:
        check_timeout(timeout_seconds)
        self.open = list(ids)
        self.outcomes: dict[UUID, JobOutcome] = {}
        self._ids = ids
        self._poll = outcomes
        self._database = database
        self._follows = notified
        self._lock = threading.Lock()
        self._followers: list[UUID] = []
        # Those that later ones replace, until they are unregistered.
        self._replaced: list[UUID] = []
        self._followed_at = -math.inf
        self._timeout = timeout_seconds
        self._deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        self._away_since: float | None = None
        self._pause = 0.0

    def poll(self) -> bool:
        """Whether all have ended.

        Raises:
            UnknownJob, WaitTimedOut, DatabaseUnavailable: as for `wait`.
        """
        try:
            if self.outcomes:
                # An end before this is found by the check, one after it is notified.
                self._follow()
            found = self._poll(self.open)
        except DatabaseUnavailable:
            now = time.monotonic()
            self._away_since = self._away_since or now
            if not self.outcomes or self._over(now) or now - self._away_since > _PATIENCE_SECONDS:
                raise
            return False
        self._away_since = None
        self.outcomes.update(found)
        self.open = [id for id in self.open if not found[id].ended]
        if not self.open:
            self.outcomes = {id: self.outcomes[id] for id in self._ids}
            return True
        if self._over(time.monotonic()):
            raise self._timed_out()
        return False

    def unfollow(self) -> None:
        """Unregister the wait, also for a check that is still running in another thread."""
        with self._lock:
            self._follows = False
            self._replaced += self._followers
            self._followers = []
            self._unfollow_replaced()

    def _follow(self) -> None:
        """Have the database notify the ends from now on, and renew that once an hour."""
        with self._lock:
            if not self._follows or self._database.shared:
                return
            if time.monotonic() - self._followed_at < _REGISTERED_SECONDS:
                self._unfollow_replaced()
                return
            # Due until it is done: it may fail half-way.
            self._followed_at = -math.inf
            self._replaced += self._followers
            self._followers = []
            for at in range(0, len(self.open), _AT_ONCE):
                jobs = self.open[at : at + _AT_ONCE]
                followers: list[UUID] = [uuid7() for _ in jobs]
                # Noted first: an interrupt may come when they are there and the answer is not.
                self._followers += followers
                try:
                    self._database.run("follow", _notified_of_every_end(followers, jobs))
                except (AccessRefused, psycopg.errors.ReadOnlySqlTransaction):
                    # A user who may read outcomes but not register a wait goes on polling.
                    del self._followers[-len(followers) :]
                    self._follows = False
                    return
            self._followed_at = time.monotonic()
            self._unfollow_replaced()

    def _unfollow_replaced(self) -> None:
        """Unregister what was replaced. If the database is away, it is left for the next call."""
        with contextlib.suppress(DatabaseUnavailable):
            while self._replaced:
                self._database.run("unfollow", {"ids": self._replaced[:_AT_ONCE]})
                del self._replaced[:_AT_ONCE]

    def pause(self, *, listening: bool) -> float:
        """Return the seconds until the next check, if no notification comes before."""
        first, last = (
            (_FIRST_LISTENING_SECONDS, _LAST_LISTENING_SECONDS)
            if listening and self._follows
            else (_FIRST_POLL_SECONDS, _LAST_POLL_SECONDS)
        )
        self._pause = min(max(2 * self._pause, first), last)
        # Waits that began together do not poll together for ever.
        pause = self._pause * random.uniform(0.8, 1.0)
        return pause if self._deadline is None else max(min(pause, self._deadline - time.monotonic()), 0.0)

    def _over(self, now: float) -> bool:
        return self._deadline is not None and now >= self._deadline

    def _timed_out(self) -> WaitTimedOut:
        first = self.outcomes[self.open[0]]
        whole = "" if len(self._ids) == 1 else f"{len(self.open)} of {len(self._ids)} jobs have not ended: "
        progress = first.progress and f", {first.progress.percent:g} % done"
        return WaitTimedOut(
            f"{whole}job {first.id} of queue {first.queue!r} has not ended within {self._timeout:g} seconds: it is"
            f" {first.state}{progress or ''}",
            {id: self.outcomes[id] for id in self._ids},
        )


def _notified_of_every_end(followers: Sequence[UUID], jobs: Sequence[UUID]) -> dict[str, object]:
    return {
        "ids": list(followers),
        "job_ids": list(jobs),
        "states": [_EVERY_END] * len(jobs),
        "queues": None,
        "priorities": [0] * len(jobs),
        "ordering_keys": None,
        "contexts": None,
        "group_ids": None,
        "notifies": [True] * len(jobs),
    }
