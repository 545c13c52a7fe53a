"""Enqueue many jobs in a transaction of the library that is retried after a serialization failure or deadlock."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar

import psycopg

from dagster_sqlqueue.db import driver_errors
from dagster_sqlqueue.db.pool import retried
from dagster_sqlqueue.errors import TransactionLost

S = TypeVar("S")
T = TypeVar("T")


class RereadableInput(Generic[T]):
    """Input of a bulk insert that can be read from its beginning again, as often as `beginning_again` needs it.

    An iterator, such as a generator, can be read only once. Its items are kept until the first chunk is inserted, and no
    longer, because they may not fit into memory.

    Args:
        given: input of the caller.
    """

    def __init__(self, given: Iterable[T]) -> None:
        self._given = given
        self._once = isinstance(given, Iterator)
        self._kept: list[T] = []
        self._spent = False

    @property
    def spent(self) -> bool:
        """Whether the beginning of the input can no longer be read."""
        return self._spent

    def __iter__(self) -> Iterator[T]:
        if not self._once:
            yield from self._given
            return
        yield from list(self._kept)
        for one in self._given:
            if not self._spent:
                self._kept.append(one)
            yield one

    def chunk_is_in(self) -> None:
        """Record that a chunk was inserted. More chunks may follow; their items are not kept."""
        self._spent = self._once
        self._kept.clear()


class _Mapped(Iterable[T], Generic[S, T]):
    def __init__(self, given: Iterable[S], change: Callable[[S], T]) -> None:
        self._given = given
        self._change = change

    def __iter__(self) -> Iterator[T]:
        return map(self._change, self._given)


def mapped(given: Iterable[S], change: Callable[[S], T]) -> Iterable[T]:
    """Return the items changed by `change`; an input that can be read again stays so."""
    return map(change, given) if isinstance(given, Iterator) else _Mapped(given, change)


def beginning_again(work: Callable[[], T], read: RereadableInput[Any]) -> T:
    """Call `work`, again after a serialization failure or a deadlock, up to nine times in total.

    Args:
        work: one transaction, from its beginning to its commit.
        read: the input that it inserts.

    Returns:
        The result of `work`.

    Raises:
        TransactionLost: every call failed in this way, or the input cannot be read again; nothing was inserted.
        Exception: any other exception of `work`.
    """

    def once() -> T:
        try:
            return work()
        except psycopg.Error as error:
            if read.spent and driver_errors.lost_a_race(error):
                raise TransactionLost(
                    f"others enqueued the same ids or unique keys in another order ({_first_line(error)}), and a generator"
                    " cannot be read again: nothing was enqueued. Call this again, with a list, or sort by unique key"
                ) from None
            raise

    try:
        return retried(once)
    except psycopg.Error as error:
        if driver_errors.lost_a_race(error):
            raise TransactionLost(
                f"others were in the way each time ({_first_line(error)}): nothing was enqueued. Call this again"
            ) from None
        raise


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
