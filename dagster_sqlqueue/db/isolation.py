"""Which transactions see what others have committed until now: those that decide about turns and about ids must."""

from typing import Final

from dagster_sqlqueue.db.executors import Executor
from dagster_sqlqueue.errors import InvalidInput

_OLD_SNAPSHOT: Final = ("repeatable read", "serializable")


def check_sees_others(executor: Executor, queue: str) -> None:
    """Say so if a transaction goes on seeing the moment at which it began: it would leave those waiting who were set aside
    since, and nobody else would let them in.

    Args:
        executor: the transaction.
        queue: the name of a queue whose keys take turns.

    Raises:
        InvalidInput: the message names the queue and the isolation level.
    """
    check_level(executor.run("isolation", {})[0][0], queue)


def check_level(level: str, queue: str) -> None:
    """`check_sees_others` of what the statement `isolation` has said.

    Raises:
        InvalidInput: as `check_sees_others`.
    """
    if level in _OLD_SNAPSHOT:
        raise InvalidInput(
            f"queue {queue!r} has keys that take turns, and this transaction is {level.upper()}: it does not see which jobs"
            " were set aside since it began; begin it with ISOLATION LEVEL READ COMMITTED"
        )


def check_sees_ends(level: str, what: str) -> None:
    """Say so if a transaction may not see that something has ended, which must not be done twice.

    Args:
        level: of the transaction, as `isolation.sql` says it.
        what: in words, what has to see ends.

    Raises:
        InvalidInput: it goes on seeing the moment of its first statement.
    """
    if level in _OLD_SNAPSHOT:
        raise InvalidInput(
            f"{what}, and the transaction is {level.upper()}: it does not see what ended after it began, and would put it on"
            " its queue a second time. Use a transaction that is READ COMMITTED, or give no connection"
        )
