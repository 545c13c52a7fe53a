"""How far a running job is: written under its fence."""

from dagster_sqlqueue.errors import LeaseLost
from dagster_sqlqueue.model.job import ClaimedJob
from dagster_sqlqueue.queue.complete import EndingVerbs


class ProgressVerbs(EndingVerbs):
    """What may be said of a job under its lease while it runs."""

    def note_progress(self, job: ClaimedJob, percent: float, message: str | None = None) -> None:
        """Write how far a claimed job is. Visible at once, until the job ends or goes back to its queue.

        Args:
            job: as claimed.
            percent: 0 to 100.
            message: what to show beside it.

        Raises:
            LeaseLost: the write was refused, and counted.
        """
        parameters = {"id": job.id, "lease_no": job.lease_no, "percent": float(percent), "message": message}
        if not self.database.run("progress", parameters):
            self._count_stale([job], set())
            raise lost(job)


def lost(job: ClaimedJob) -> LeaseLost:
    """What a handler is told whose job others have by now."""
    return LeaseLost(
        f"the lease of job {job.id} is not current any more: it was claimed by somebody else, ended or cancelled; drop the"
        " work"
    )
