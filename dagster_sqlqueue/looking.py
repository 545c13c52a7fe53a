"""Looking at a queue without changing it: heads, depth, what comes next, what ended."""

from dagster_sqlqueue.model import DeadLetter, Depth, Head, WaitingJob
from dagster_sqlqueue.settings import check_queue_name
from dagster_sqlqueue.verbs import Verbs


class LookingVerbs(Verbs):
    """What can be read of a queue."""

    def peek_heads(self, queue: str) -> list[Head]:
        """The first job of each bucket and priority.

        Raises:
            UnknownQueue: there is no such queue.
        """
        rows = self.database.run("heads", {"queue": check_queue_name(queue)})
        if not rows:
            self.check_exists(queue)
        return [Head(*row) for row in rows]

    def peek(self, queue: str, limit: int = 20) -> list[WaitingJob]:
        """The jobs that would be claimed next, without claiming them.

        Raises:
            UnknownQueue: there is no such queue.
        """
        rows = self.database.run("peek", {"queue": check_queue_name(queue), "limit": limit})
        if not rows:
            self.check_exists(queue)
        return [WaitingJob(*row) for row in rows]

    def depth(self, queue: str, *, cap: int = 10_000) -> Depth:
        """How many jobs the queue holds: those that are due counted up to `cap`, and the others together up to `cap`.

        Raises:
            UnknownQueue: there is no such queue.
        """
        ready, running, scheduled, held = self.database.run("depth", {"queue": check_queue_name(queue), "cap": cap})[0]
        depth = Depth(ready, running, scheduled, held, cap)
        if not depth.live:
            self.check_exists(queue)
        return depth

    def dead_letters(self, queue: str, limit: int = 20) -> list[DeadLetter]:
        """The jobs that ended as failed, the latest first."""
        rows = self.database.run("dead_letters", {"queue": check_queue_name(queue), "limit": limit})
        return [DeadLetter(*row) for row in rows]

    def archived(self, queue: str, *, since_seconds: float, cap: int = 100_000) -> dict[str, int]:
        """How many jobs ended within the last seconds, by archive state, counted up to `cap` together."""
        parameters = {"queue": check_queue_name(queue), "since_seconds": since_seconds, "cap": cap}
        return dict(self.database.run("archive_counts", parameters))
