"""Checks of the isolation level: transactions that decide about turns or ids must see what others have committed since."""

from typing import Final

from dagster_sqlqueue.db.executors import Executor
from dagster_sqlqueue.errors import InvalidInput

_OLD_SNAPSHOT: Final = ("repeatable read", "serializable")


def check_sees_others(executor: Executor, queue: str) -> None:
    """Raise `InvalidInput` if a transaction reads from the snapshot of its start (see `_OLD_SNAPSHOT`).

    It would not see jobs that began to wait since, and would leave them waiting: no other transaction lets them in.

    Args:
        executor: the transaction.
        queue: name of a queue whose keys take turns.

    Raises:
        InvalidInput: the message names the queue and the isolation level.
    """
    check_level(executor.run("isolation", {})[0][0], queue)


def check_level(level: str, queue: str) -> None:
    """Check an isolation level as the statement `isolation` returns it, see `check_sees_others`.

    Raises:
        InvalidInput: as `check_sees_others`.
    """
    if level in _OLD_SNAPSHOT:
        raise InvalidInput(
            f"queue {queue!r} has keys that take turns, and this transaction is {level.upper()}: it does not see which jobs"
            " began to wait since it began; begin it with ISOLATION LEVEL READ COMMITTED"
        )


def check_sees_ends(level: str, what: str) -> None:
    """Raise `InvalidInput` if a transaction may not see that a job has ended, and so might enqueue it a second time.

    Args:
        level: isolation level of the transaction, as `isolation.sql` returns it.
        what: what requires the check, as the beginning of the message.

    Raises:
        InvalidInput: the transaction reads from one snapshot, taken at its first statement.
    """
    if level in _OLD_SNAPSHOT:
        raise InvalidInput(
            f"{what}, and the transaction is {level.upper()}: it does not see what ended after it began, and would put it on"
            " its queue a second time. Use a transaction that is READ COMMITTED, or give no connection"
        )
