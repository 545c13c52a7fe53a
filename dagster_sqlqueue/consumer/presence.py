"""Register a consumer in transactional mode: the row stays behind when it dies over one of its jobs."""

from collections.abc import Sequence
from dataclasses import dataclass

from dagster_sqlqueue.consumer.lease_length import LeaseLength
from dagster_sqlqueue.db.database import Database
from dagster_sqlqueue.queue.odd_jobs import despite_odd_jobs


@dataclass(slots=True)
class Presence:
    """One consumer's sign in the database. Its jobs are held by row locks alone, which go with it.

    Attributes:
        database: where the queue is.
        name: the queue's.
        worker: the consumer.
        buckets: where it takes jobs from; None for all.
        batch_size: how many it takes at once.
        lease: for how long it is believed to live, where its connection cannot be seen, without another word.
    """

    database: Database
    name: str
    worker: str
    buckets: Sequence[int] | None
    batch_size: int
    lease: LeaseLength

    def note(self) -> None:
        """Say that the consumer is at work."""
        self.database.run("transactional_note", self._sign)

    def note_and_find_suspects(self) -> int:
        """Say so, and find consumers of the queue that died: jobs that they may have had are claimed one by one from now on.
        Returns the number of these jobs.
        """
        others = {"queue": self.name, "worker": self.worker}
        steps = ("transactional_note", self._sign), ("transactional_suspects", others)
        *_, found = despite_odd_jobs(self.database, self.name, lambda: self.database.run_together(*steps))
        return int(found[0][0])

    def leave(self) -> None:
        """Take the sign away: the consumer ends by itself."""
        self.database.run("transactional_leave", {"queue": self.name, "worker": self.worker})

    @property
    def _sign(self) -> dict[str, object]:
        return {
            "worker": self.worker,
            "queue": self.name,
            "buckets": None if self.buckets is None else list(self.buckets),
            "batch_size": self.batch_size,
            "seconds": self.lease.seconds,
            "own": not self.database.shared,
        }
