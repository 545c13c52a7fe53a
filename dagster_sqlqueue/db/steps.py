"""Run the requests of an operation on a blocking or an asynchronous connection.

Such an operation is a generator that yields requests and is sent the rows of each. Written once, without I/O, it
serves both.
"""

from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol, TypeAlias, TypeVar

from dagster_sqlqueue.db.execution import Row
from dagster_sqlqueue.db.executors import AsyncTransaction, Executor, Send

T = TypeVar("T")


class Statement(NamedTuple):
    """Request to run the SQL file `name`; the result is its rows."""

    name: str
    parameters: Mapping[str, object]


class CopyIn(NamedTuple):
    """Request to send rows in binary format to the COPY of the SQL file `name`; the result is empty.

    Only inside a transaction.
    """

    name: str
    blocks: Iterable[bytes]


Request: TypeAlias = Statement | CopyIn
Steps: TypeAlias = Generator[Request, Sequence[Row], T]


class CopyExecutor(Executor, Protocol):
    """Executor inside a transaction."""

    @property
    def copies(self) -> bool:
        """Whether `copying` can be used."""
        ...

    def copying(self, name: str) -> AbstractContextManager[Send]:
        """Run the COPY of the SQL file `name`, and provide a function that sends it rows in binary format, in the block."""
        ...


def drive(steps: Steps[T], executor: Executor | CopyExecutor) -> T:
    """Run requests on a blocking connection.

    Args:
        steps: generator of the requests.
        executor: runs them; must be inside a transaction if any of them is a `CopyIn`.

    Returns:
        The return value of the generator.
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
    """Run requests on an asynchronous connection; return the return value of the generator."""
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
