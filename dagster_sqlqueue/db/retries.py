"""Putting many in, in a transaction of ours that begins again when another one was in its way."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar

import psycopg

from dagster_sqlqueue.db import driver_errors
from dagster_sqlqueue.errors import TransactionLost

S = TypeVar("S")
T = TypeVar("T")


class RereadableInput(Generic[T]):
    """What is to be put in, to be read from its beginning as often as `beginning_again` needs it.

    What is an iterator, as a generator is, can be read once: it is kept until its first chunk is in, and not longer, for it
    may be longer than memory.

    Args:
        given: what the caller handed in.
    """

    def __init__(self, given: Iterable[T]) -> None:
        self._given = given
        self._once = isinstance(given, Iterator)
        self._kept: list[T] = []
        self._spent = False

    @property
    def spent(self) -> bool:
        """Whether its beginning is gone."""
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
        """Say that a chunk was put in: more of them may follow, and none is kept."""
        self._spent = self._once
        self._kept.clear()


class _Mapped(Iterable[T], Generic[S, T]):
    def __init__(self, given: Iterable[S], change: Callable[[S], T]) -> None:
        self._given = given
        self._change = change

    def __iter__(self) -> Iterator[T]:
        return map(self._change, self._given)


def mapped(given: Iterable[S], change: Callable[[S], T]) -> Iterable[T]:
    """Each of them changed; what can be read again can be so still."""
    return map(change, given) if isinstance(given, Iterator) else _Mapped(given, change)


def beginning_again(work: Callable[[], T], read: RereadableInput[Any]) -> T:
    """What `work` gives; after a serialization failure or a deadlock it is called again, up to nine times in all.

    Args:
        work: one transaction, from its beginning to its commit.
        read: what it puts in.

    Raises:
        TransactionLost: it happened each time, or what is put in cannot be read again.
        Exception: whatever `work` raises otherwise.
    """

    def once() -> T:
        try:
            return work()
        except psycopg.Error as error:
            if read.spent and driver_errors.lost_a_race(error):
                raise TransactionLost(
                    f"others put in the same ids or unique keys in another order ({_first_line(error)}), and a generator"
                    " cannot be read again: nothing was put in. Call this again, with a list, or sort by unique key"
                ) from None
            raise

    try:
        return driver_errors.retried(once)
    except psycopg.Error as error:
        if driver_errors.lost_a_race(error):
            raise TransactionLost(
                f"others were in the way each time ({_first_line(error)}): nothing was put in. Call this again"
            ) from None
        raise


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
