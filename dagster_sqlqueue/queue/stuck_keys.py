"""Find keys whose jobs wait for a turn that would not come, and let them go on."""

from collections import defaultdict
from collections.abc import Iterator
from functools import partial

from dagster_sqlqueue.db.database import Database
from dagster_sqlqueue.db.executors import Executor
from dagster_sqlqueue.queue.odd_jobs import despite_odd_jobs

_AT_ONCE = 1_000


def stuck_keys(database: Database) -> Iterator[dict[str, list[str]]]:
    """Read all keys of which jobs wait for their turn, page by page.

    Args:
        database: where the queues are.

    Yields:
        Yield, page by page, the keys whose next job would not be let in, by queue.
    """
    queue = key = ""
    while True:
        page = database.run("stuck_keys", {"after_queue": queue, "after_key": key, "limit": _AT_ONCE})
        stuck: defaultdict[str, list[str]] = defaultdict(list)
        for queue, key, alone in page:
            if alone:
                stuck[queue].append(key)
        yield dict(stuck)
        if len(page) < _AT_ONCE:
            return


def heal_keys(database: Database) -> int:
    """Promote the next job of each such key; keys that another transaction is deciding about at that moment are left for the
    next time.

    A key that went on since it was read has one more in line than it should, which does no harm: the claim that meets
    it parks it again.

    Args:
        database: where the queues are.

    Returns:
        How many keys go on.

    Raises:
        AccessRefused: the user may not let jobs in.
    """
    healed = 0
    for stuck in stuck_keys(database):
        for queue, keys in stuck.items():
            work = partial(database.transact, partial(_let_in, queue=queue, keys=keys))
            if let_in := despite_odd_jobs(database, queue, work):
                healed += let_in
                database.run("waiter_notify", {"queue": queue})
    return healed


def _let_in(executor: Executor, *, queue: str, keys: list[str]) -> int:
    # No lock is waited for: a caller that ends a job inside of its own transaction keeps the key for as long as it likes.
    won = [row[0] for row in executor.run("key_try", {"queue": queue, "keys": keys})]
    return len(executor.run("key_promote", {"queue": queue, "keys": won})) if won else 0
