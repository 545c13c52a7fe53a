"""Read the first jobs of a queue's buckets, and note before which moment the next read need not begin."""

from dagster_sqlqueue.model.job import Head
from dagster_sqlqueue.model.queue import check_queue_name
from dagster_sqlqueue.queue.catalog import Catalog


class Heads:
    """The heads of the queues of one schema.

    Args:
        catalog: the queues.
    """

    def __init__(self, catalog: Catalog) -> None:
        self.database = catalog.database
        self._catalog = catalog

    def peek(self, queue: str) -> list[Head]:
        """Return the first job of each bucket and priority: `SqlQueue.peek_heads`."""
        rows = self.database.run("heads", {"queue": check_queue_name(queue)})
        if not rows:
            self._catalog.check_exists(queue)
        return [Head(*row) for row in rows]

    def note_sweep(self, queue: str) -> int:
        """Search the first job of each bucket from the very beginning, and note where it is: the head hint.

        Until five seconds later `peek` begins there, and does not step over the dead rows before it. To be called every
        few seconds by what reads the heads; a bucket that was swept less than four seconds ago, or that another
        process is sweeping, is left alone.

        Returns:
            How many buckets were swept.

        Raises:
            UnknownQueue: there is no such queue, and there was none since this process began.
        """
        rows = self.database.run("note_sweep", {"queue": check_queue_name(queue)})
        if not rows:
            # Nothing to sweep, as a rule; a queue that this process has seen needs no second statement.
            self._catalog.last_seen(queue)
        return len(rows)

    def hints(self, queue: str) -> dict[int, str]:
        """For each bucket that was swept in the last seconds, the moment below which nothing was claimable, as the database
        writes it: where a new consumer's claims may begin.
        """
        return dict(self.database.run("head_hints", {"queue": check_queue_name(queue)}))
