"""Write what handlers report of their progress, not more often than a reader can follow."""

import logging
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from uuid import UUID

from dagster_sqlqueue.db.driver_errors import TIMED_OUT
from dagster_sqlqueue.errors import DatabaseUnavailable, LeaseLost
from dagster_sqlqueue.model.job import ClaimedJob
from dagster_sqlqueue.queue.complete import lost
from dagster_sqlqueue.queue.leases import Leases
from dagster_sqlqueue.queue.odd_jobs import first_line

logger = logging.getLogger("dagster_sqlqueue")

WRITE_SECONDS = 0.5
"""A write is a commit, 0.9 ms where one that is only kept costs 2 µs: so it takes a five hundredth of the handler's time."""


@dataclass(slots=True)
class _Said:
    """What the handler of one job said."""

    job: ClaimedJob
    kept: tuple[float, str | None] | None = None
    written_at: float = 0.0
    lost: bool = False


class Reporter:
    """Writes what the handlers of one consumer say of their progress, for each job twice a second at most.

    What comes sooner than that is kept, and written by the next call that comes later, or with the next heartbeat; what a
    job says last before it ends may never be written.

    Args:
        leases: where the jobs were claimed.

    Attributes:
        said: by job id what its handler said; empty, unless handlers report their progress.
    """

    def __init__(self, leases: Leases) -> None:
        self._leases = leases
        self._lock = threading.Lock()
        self.said: dict[UUID, _Said] = {}

    def report(self, job: ClaimedJob, percent: float, message: str | None) -> None:
        """Note how far a job is. May be called from any thread.

        Raises:
            LeaseLost: the lease has passed on. A database that is away, or a timeout, is no reason to raise anything.
        """
        with self._lock:
            said = self.said.get(job.id)
            if said is None or said.job.lease_no != job.lease_no:
                said = self.said[job.id] = _Said(job)
            if said.lost:
                raise lost(job)
            said.kept = percent, message
            if time.monotonic() - said.written_at >= WRITE_SECONDS:
                self._write(said)

    def flush(self) -> None:
        """Write what was kept, unless another thread is writing: for the heartbeat, while handlers are silent."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            for said in self.said.values():
                try:
                    self._write(said)
                except LeaseLost:
                    logger.debug("a progress was refused; its handler is refused when it reports again")
        finally:
            self._lock.release()

    def forget(self, settled: Iterable[tuple[ClaimedJob, object]]) -> None:
        """Drop what was kept of these jobs, whose handlers have returned.

        Args:
            settled: the jobs, each with its outcome.
        """
        with self._lock:
            for job, _ in settled:
                self.said.pop(job.id, None)

    def _write(self, said: _Said) -> None:
        if said.kept is None:
            return
        said.written_at = time.monotonic()
        try:
            self._leases.note_progress(said.job, *said.kept)
            said.kept = None
        except LeaseLost:
            said.lost, said.kept = True, None
            raise
        except (DatabaseUnavailable, *TIMED_OUT) as error:
            logger.warning("%s: a progress could not be written: %s", said.job.queue, first_line(error))
