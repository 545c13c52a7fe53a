"""One schema for a module of many small tests, emptied between them: making one takes longer than most of them."""

from dagster_sqlqueue import QueueSpec, SqlQueue
from tests.core.support import Work, rows


def cleared(queue: SqlQueue, spec: QueueSpec[Work]) -> SqlQueue:
    """The same queues with nothing in them but the queue of `spec`, as it was made."""
    rows(queue, "TRUNCATE {s}.queue, {s}.job, {s}.job_archive, {s}.job_replaced CASCADE")
    queue.create_queue(spec)
    return queue
