"""Keep batches while their jobs are processed."""

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator

from dagster_sqlqueue.errors import QueueError
from dagster_sqlqueue.model.job import Mode
from dagster_sqlqueue.queue import SqlQueue
from dagster_sqlqueue.spark.batches.loss import lost
from dagster_sqlqueue.spark.batches.model import Batch, held_by
from dagster_sqlqueue.spark.batches.publication import abandon

logger = logging.getLogger("dagster_sqlqueue")


@contextlib.contextmanager
def kept(queue: SqlQueue, batches: list[Batch], *, lease_seconds: float = 60.0) -> Iterator[Callable[[], None]]:
    """Keep the batches from a thread while the block runs; an error in the block abandons what is unpublished.

    Of a leased batch the lease is extended: one row, however many jobs it holds. Of a transactional one the connection is
    kept alive, and its loss noticed.

    Args:
        queue: where the batches were sealed.
        batches: may grow while the block runs.
        lease_seconds: how long a leased batch holds from each time on; a transactional one has the lease that it was sealed
            with. They are kept four times as often.

    Yields:
        A check to call before publishing; it raises `BatchLost` when a batch could not be kept.
    """
    stopping = threading.Event()
    overtaken: list[str] = []

    def keep(batch: Batch) -> None:
        if batch.mode is Mode.TRANSACTIONAL:
            held_by(batch).beat()
            return
        parameters = {"batch_id": batch.id, "token": batch.token, "lease_seconds": lease_seconds}
        if not queue.database.run("batch_extend", parameters) and not stopping.is_set():
            overtaken.append(batch.key)

    def keep_all() -> None:
        while not stopping.wait(lease_seconds / 4):
            for batch in list(batches):
                try:
                    keep(batch)
                except QueueError as error:
                    logger.warning("a batch's lease could not be extended, it is tried again: %s", error)
                except Exception:
                    logger.exception("a batch's lease could not be extended, it is tried again")

    def check() -> None:
        if overtaken:
            raise lost(overtaken[0])
        for batch in batches:
            if batch.mode is Mode.TRANSACTIONAL:
                held_by(batch).check()

    thread = threading.Thread(target=keep_all, name="sqlqueue-batch-heartbeat", daemon=True)
    thread.start()
    try:
        yield check
    except BaseException as error:
        stopping.set()
        for batch in batches:
            with contextlib.suppress(QueueError):
                abandon(queue, batch, f"the batch's run failed: {type(error).__name__}: {error}")
        raise
    finally:
        stopping.set()
        thread.join()
