"""Return the jobs of batches that are not published any more to the queue: given up, taken over, or left behind."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from dagster_sqlqueue.db.executors import Executor, Transaction
from dagster_sqlqueue.db.isolation import check_sees_others

GRACE_SECONDS: Final = 600.0
"""For how long after its lease a batch is left to the next run under its key, which goes on with it."""


@dataclass(frozen=True, slots=True)
class Swept:
    """What a sweep did.

    Attributes:
        batches: how many batches it closed.
        returned: how many of their jobs are due again, or held, as was reported of them.
        ended: how many of their jobs ended: as was reported of them.
    """

    batches: int = 0
    returned: int = 0
    ended: int = 0


def give_back(
    executor: Executor, batch_id: UUID, queue: str, *, keep: bool = False, error: str | None = None
) -> tuple[int, int]:
    """Do with the jobs of a batch what was reported of them; the others are due at once, and have spent no attempt.

    Args:
        executor: a transaction that has the batch's row.
        batch_id: of the batch.
        queue: whose jobs they are.
        keep: whether the others stay in the batch.
        error: what they are given as their error; None: they keep the one that they have.

    Returns:
        How many ended, and how many are out of the batch without having ended.
    """
    parameters = {"batch_id": batch_id, "rest": "running" if keep else "queued", "error": error}
    ended, returned, lines = executor.run("batch_settle", parameters)[0]
    let_in(executor, queue, lines)
    return ended, returned


def let_in(executor: Executor, queue: str, lines: Sequence[str] | None) -> None:
    """Let in the next of keys whose jobs were a batch's: in a queue that was given turns since it was sealed.

    Args:
        executor: the transaction that ends the jobs, or gives them back.
        queue: whose jobs they are.
        lines: the keys, as the statement said; None: there are none.

    Raises:
        InvalidInput: there are some, and the transaction does not see what others commit; nothing of it may stay.
    """
    if lines:
        check_sees_others(executor, queue)
        executor.run("key_wait", {"queue": queue, "keys": lines})
        executor.run("key_promote", {"queue": queue, "keys": lines})


def sweep(at: Transaction, queue: str | None = None, *, grace_seconds: float = GRACE_SECONDS) -> Swept:
    """Close the batches whose lease ended long ago, each in a transaction of its own, and give their jobs back, without an
    attempt spent. What is over for longer than the queue keeps its jobs is forgotten.

    Args:
        at: a connection in autocommit.
        queue: of this queue alone; None: of all.
        grace_seconds: how long ago.
    """
    swept = Swept()
    while True:
        batch_id, ended, returned = at.run("batch_sweep", {"queue": queue, "grace_seconds": grace_seconds})[0]
        if batch_id is None:
            at.run("batch_forget", {"queue": queue})
            return swept
        swept = Swept(swept.batches + 1, swept.returned + returned, swept.ended + ended)
