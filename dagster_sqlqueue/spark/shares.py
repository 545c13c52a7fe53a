"""The parts of a read's plan that its tasks get."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from pyspark.sql.datasource import InputPartition

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Slice:
    """Some of the rows: those that fulfil a condition.

    Args:
        condition: as SQL.
        partitions: those of the archive, name and object id, that have some of the rows.
    """

    condition: str
    partitions: tuple[tuple[str, str], ...] = ()


@dataclass(eq=False)
class Share(InputPartition):
    """What one task reads: its slices one after another; none of them: nothing.

    Args:
        slices: what to read.
        server: the server's version.
        snapshot: of all tasks; None: each statement has its own.
        held: the batches that are read, as JSON: their tokens by their ids; null: whichever it is. Empty: none.
        tail: what follows the condition, as SQL.
    """

    slices: Sequence[Slice]
    server: int = 0
    snapshot: str | None = None
    held: str = ""
    tail: str = ""

    def __post_init__(self) -> None:
        super().__init__(None)


def grouped(parts: Sequence[T], most: int) -> list[Sequence[T]]:
    """Distribute parts over so many tasks at most, in their order."""
    count = min(most, len(parts))
    return [parts[len(parts) * n // count : len(parts) * (n + 1) // count] for n in range(count)]
