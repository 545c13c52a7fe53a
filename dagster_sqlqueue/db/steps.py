"""Run what a verb has to say to the database on a connection that blocks, or on one that is awaited.

Such a verb is a generator of requests that is sent the rows of each: written once, without I/O, it serves both.
"""

from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol, TypeAlias, TypeVar

from dagster_sqlqueue.db.executors import AsyncTransaction, Executor, Row, Send

T = TypeVar("T")


class Statement(NamedTuple):
    """Run the SQL file `name`; its rows are the answer."""

    name: str
    parameters: Mapping[str, object]


class CopyIn(NamedTuple):
    """Send rows of the binary format to the COPY of the SQL file `name`; the answer is empty. Only inside of a
    transaction.
    """

    name: str
    blocks: Iterable[bytes]


Request: TypeAlias = Statement | CopyIn
Steps: TypeAlias = Generator[Request, Sequence[Row], T]


class CopyExecutor(Executor, Protocol):
    """An executor inside of a transaction."""

    def copying(self, name: str) -> AbstractContextManager[Send]:
        """The COPY of the SQL file `name`, which takes rows of the binary format as long as the block runs."""
        ...


def drive(steps: Steps[T], executor: Executor | CopyExecutor) -> T:
    """Do what steps ask for on a connection that blocks; gives what they come to.

    Args:
        steps: the requests.
        executor: where they run; one inside of a transaction if any of them is a `CopyIn`.
    """
    try:
        request = next(steps)
        while True:
            match request:
                case Statement(name, parameters):
                    request = steps.send(executor.run(name, parameters))
                case CopyIn(name, blocks):
                    with executor.copying(name) as send:  # type: ignore[union-attr]
                        for block in blocks:
                            send(block)
                    request = steps.send([])
    except StopIteration as done:
        result: T = done.value
        return result


async def adrive(steps: Steps[T], transaction: AsyncTransaction) -> T:
    """Do what steps ask for on a connection that is awaited; gives what they come to."""
    try:
        request = next(steps)
        while True:
            match request:
                case Statement(name, parameters):
                    request = steps.send(await transaction.run(name, parameters))
                case CopyIn(name, blocks):
                    await transaction.copy(name, blocks)
                    request = steps.send([])
    except StopIteration as done:
        result: T = done.value
        return result
