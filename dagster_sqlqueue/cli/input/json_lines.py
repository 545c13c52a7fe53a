"""JSON objects from the command line: one as an argument, or many on standard input, one per line."""

import sys
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import pydantic
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from dagster_sqlqueue import display
from dagster_sqlqueue.cli.output import render
from dagster_sqlqueue.errors import InvalidInput, InvalidPayload
from dagster_sqlqueue.payload.serialization import MAX_PAYLOAD_BYTES, AnyObject

if TYPE_CHECKING:
    from dagster_sqlqueue.queue.intake import OnBadRow, Rejected

Item = TypeVar("Item")

_PROGRESS_EVERY = 1_000
_SHOWN = 20
_LONGEST_LINE = 8 * MAX_PAYLOAD_BYTES


class Lines(Generic[Item]):
    """The lines of standard input, each converted for the library; remembers which line each row is.

    Args:
        make: converts the object of a line.
        nothing: the end of each message: that nothing was written.
        advance: called now and then with the number of rows read.
        skip_bad: leave out invalid lines, instead of refusing all.
        only: the message that an option allows only one line; None: no such option was given.
    """

    def __init__(
        self,
        make: Callable[[AnyObject], Item],
        nothing: str,
        advance: Callable[[int], None],
        *,
        skip_bad: bool,
        only: str | None,
    ) -> None:
        self._make = make
        self._nothing = nothing
        self._advance = advance
        self._skip_bad = skip_bad
        self._only = only
        self._left_out: list[int] = []
        self._rejected: list[Rejected] = []
        self.on_bad_row: OnBadRow = "skip" if skip_bad else "raise"

    def __iter__(self) -> Iterator[Item]:
        from dagster_sqlqueue.queue.intake import Rejected

        row = 0
        for number, line in enumerate(iter(lambda: sys.stdin.buffer.readline(_LONGEST_LINE), b""), 1):
            if len(line) == _LONGEST_LINE:
                raise InvalidInput(f"line {number} has more than {_LONGEST_LINE:,} bytes{self._nothing}")
            text = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
            if not text.strip():
                self._left_out.append(row)
                continue
            if row and self._only:
                raise InvalidInput(f"{self._only}, and line {number} of standard input is a second one{self._nothing}")
            try:
                found = parsed(text, f"line {number}", self._nothing)
            except InvalidInput as error:
                if not self._skip_bad:
                    raise
                message = str(error).removeprefix(f"line {number} ").removesuffix(self._nothing)
                self._rejected.append(Rejected(number, message))
                self._left_out.append(row)
                continue
            yield self._make(found)
            row += 1
            if row % _PROGRESS_EVERY == 0:
                self._advance(row)

    def with_lines(self, rejected: "Sequence[Rejected]") -> "list[Rejected]":
        """Return the rejected rows, and the lines that were left out here, by their line numbers."""
        from dagster_sqlqueue.queue.intake import Rejected

        found = [Rejected(self._line(bad.row), bad.error) for bad in rejected]
        return sorted([*self._rejected, *found], key=lambda bad: bad.row)

    def with_line(self, message: str) -> str:
        """Return a message about a row as a message about its line."""
        head, colon, rest = message.partition(": ")
        word, _, row = head.partition(" ")
        if word != "row" or not colon or not row.isdigit():
            return message
        return f"line {self._line(int(row))}: {rest}{self._nothing}"

    def _line(self, row: int) -> int:
        return row + 1 + bisect_right(self._left_out, row)


def parsed(text: str | bytes, where: str, nothing: str) -> AnyObject:
    """Return a JSON object.

    Raises:
        InvalidPayload: it is not one; the message says where it was, and that nothing was written.
    """
    try:
        return AnyObject.model_validate_json(text)
    except pydantic.ValidationError as error:
        problem = error.errors(include_url=False, include_input=False, include_context=False)[0]["msg"]
    except UnicodeEncodeError:
        problem = "it is not UTF-8"
    raise InvalidPayload(f"{where} is not a JSON object: {problem.removeprefix('Value error, ')}{nothing}")


def say_rejected(rejected: "Sequence[Rejected]") -> None:
    """Print the first of the rejected lines to standard output."""
    for bad in rejected[:_SHOWN]:
        render.say(display.printable(f"line {bad.row}: {bad.error}"))
    if len(rejected) > _SHOWN:
        render.say(f"(the first {_SHOWN} of {len(rejected):,})")


@contextmanager
def progress(things: str) -> Iterator[Callable[[int], None]]:
    """Show in a terminal how many rows were read."""
    console = Console(file=sys.stderr)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as shown:
        task = shown.add_task("reading standard input")
        yield lambda rows: shown.update(task, description=f"{rows:,} {things}, {_rate(shown, task, rows)} a second")


def _rate(shown: Progress, task: Any, rows: int) -> str:
    elapsed = shown.tasks[task].elapsed or 0.0
    return f"{rows / elapsed:,.0f}" if elapsed else "–"
