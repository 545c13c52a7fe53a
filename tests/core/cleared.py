"""One schema for a module of many small tests, emptied between them: making one takes longer than most of them."""

from collections.abc import Iterator
from contextlib import contextmanager

from dagster_sqlqueue import QueueSpec, SqlQueue
from tests.core.support import Work, rows


@contextmanager
def module_queue(url: str, schema: str) -> Iterator[SqlQueue]:
    """The queues of a schema that the tests of one module share."""
    with SqlQueue(url, schema=schema) as queue:
        queue.init()
        yield queue


def cleared(queue: SqlQueue, spec: QueueSpec[Work]) -> SqlQueue:
    """The same queues with nothing in them but the queue of `spec`, as it was made."""
    rows(queue, "TRUNCATE {s}.queue, {s}.job, {s}.job_archive, {s}.job_replaced CASCADE")
    queue.create_queue(spec)
    return queue
