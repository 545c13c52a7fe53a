"""`sqlqueue enqueue`: one job from the command line, or many from standard input."""

import math
import sys
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Annotated, Any, BinaryIO, Self
from uuid import UUID

import pydantic
import typer
from pydantic import JsonValue, RootModel, model_validator
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from uuid_utils.compat import uuid7

from dagster_sqlqueue import payloads
from dagster_sqlqueue.cli import options, render
from dagster_sqlqueue.cli.codes import Code
from dagster_sqlqueue.cli.session import Session, command
from dagster_sqlqueue.errors import InvalidInput, InvalidPayload
from dagster_sqlqueue.model import NewJob
from dagster_sqlqueue.putting import Enqueued, OnConflict, Rejected
from dagster_sqlqueue.queue import SqlQueue
from dagster_sqlqueue.settings import QueueSpec

_PROGRESS_EVERY = 1_000
_SHOWN = 20
_NOTHING = "; nothing was enqueued"
_LONGEST_LINE = 8 * payloads.MAX_PAYLOAD_BYTES


class AnyObject(RootModel[dict[str, JsonValue]]):
    """The payload of a queue whose model is not at hand: any JSON object."""

    @model_validator(mode="after")
    def _finite(self) -> Self:
        if not _is_finite(self.root):
            raise ValueError("NaN, Infinity and numbers beyond the range of a double are not JSON")
        return self


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app, panel="Put in")(enqueue)


def enqueue(
    session: Session,
    queue: Annotated[str, typer.Argument(metavar="QUEUE", help="The queue's name.")],
    payload: Annotated[
        str | None,
        typer.Argument(
            metavar="JSON", show_default=False, help="One JSON object, or - for many on standard input, one a line."
        ),
    ] = None,
    priority: Annotated[int, typer.Option(metavar="0..9", help="Higher runs first.")] = 0,
    run_at: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", show_default=False, help="When it becomes due, as 2026-01-31T08:00:00Z or +02:00; else now."
        ),
    ] = None,
    unique_key: Annotated[
        str | None,
        typer.Option(
            metavar="KEY", show_default=False, help="At most one live job of the queue has it; a second is left out."
        ),
    ] = None,
    ordering_key: Annotated[
        str | None,
        typer.Option(
            metavar="KEY",
            show_default=False,
            help="Jobs with the same key share a bucket; in an ordered queue they run one after another.",
        ),
    ] = None,
    tag: Annotated[
        list[str] | None,
        typer.Option(metavar="WORD", show_default=False, help="A word to find the job by; may be given several times."),
    ] = None,
    region: Annotated[
        str | None,
        typer.Option(metavar="NAME", show_default=False, help="The region whose buckets take it; else any bucket."),
    ] = None,
    timeout: Annotated[
        str | None,
        typer.Option(
            metavar="SECONDS", show_default=False, help="How long it may run, instead of the queue's timeout."
        ),
    ] = None,
    max_attempts: Annotated[
        str | None,
        typer.Option(metavar="N", show_default=False, help="Runs it gets, instead of the queue's number."),
    ] = None,
    replace: Annotated[
        bool,
        typer.Option(
            "--replace",
            show_default=False,
            help="A waiting job with the same unique key takes the content of this one, instead of leaving this one out.",
        ),
    ] = False,
    skip_bad: Annotated[
        bool,
        typer.Option(
            "--skip-bad",
            show_default=False,
            help="Leave out the lines of standard input that are not usable, and name them (exit code 6); else one bad line"
            " refuses them all.",
        ),
    ] = False,
    job_id: Annotated[
        str | None,
        typer.Option(
            "--id", metavar="UUID", show_default=False, help="Its id, to be able to send it again: it lands once."
        ),
    ] = None,
) -> None:
    """Put one job on a queue, or many from standard input.

    Many are one transaction: all of them are enqueued, or none if one line is refused. The options hold for each of
    them.

    The payload is taken as it is; whether it fits the queue's own model shows when a consumer reads it.

    Examples: sqlqueue enqueue orders '{"order": 1}' --priority 9 --tag eu

    sqlqueue enqueue orders - < orders.jsonl
    """
    settings: dict[str, Any] = {
        "priority": priority,
        "run_at": None if run_at is None else options.moment("--run-at", run_at),
        "unique_key": unique_key,
        "ordering_key": ordering_key,
        "tags": tuple(tag or ()),
        "region": region,
        "timeout_seconds": None if timeout is None else options.seconds("--timeout", timeout),
        "max_attempts": None if max_attempts is None else options.whole("--max-attempts", max_attempts),
        "id": None if job_id is None else options.job_id("--id", job_id),
    }
    spec = QueueSpec(queue, AnyObject)
    if payload is None and sys.stdin.isatty():
        raise InvalidInput("no payload: give a JSON object, or - and the objects on standard input, one a line")
    on_conflict: OnConflict = "replace" if replace else "ignore"
    if payload not in (None, "-"):
        if skip_bad:
            raise InvalidInput("--skip-bad is about the lines of standard input, and a payload was given")
        own = settings["id"] or uuid7()
        job = NewJob(_parsed(payload, "the payload"), **{**settings, "id": own})
        with session.queue() as target:
            try:
                made = target.enqueue(spec, job, on_conflict=on_conflict)
            except InvalidInput as error:
                raise InvalidInput(f"{str(error).removeprefix('row 0: ')}; nothing was enqueued") from None
        _tell(session, queue, Enqueued(int(made == own), int(made is None), int(made not in (None, own))), made)
        return
    with session.queue() as target, _progress() as advance:
        done = _Lines(sys.stdin.buffer, settings, advance, skip_bad).enqueue(target, spec, on_conflict)
    _tell(session, queue, done)


class _Lines:
    """The lines of standard input as jobs; remembers which line each row is.

    Args:
        lines: the input.
        settings: of every job.
        advance: is told now and then how many jobs were read.
        skip_bad: leave out lines that are not usable, instead of refusing them all.
    """

    def __init__(self, lines: BinaryIO, settings: dict[str, Any], advance: Any, skip_bad: bool) -> None:
        self._lines = lines
        self._settings = settings
        self._advance = advance
        self._skip_bad = skip_bad
        self._left_out: list[int] = []
        self._rejected: list[Rejected] = []
        names = ("id", "unique_key")
        self._only = next((f"--{name.replace('_', '-')}" for name in names if settings[name] is not None), None)

    def enqueue(self, queue: SqlQueue, spec: QueueSpec[AnyObject], on_conflict: OnConflict) -> Enqueued:
        """All of them in one transaction; the rows that were rejected come with the numbers of their lines."""
        try:
            done = queue.enqueue_many(
                spec, self._jobs(), on_conflict=on_conflict, on_bad_row="skip" if self._skip_bad else "raise"
            )
        except InvalidInput as error:
            raise InvalidInput(self._with_line(str(error))) from None
        refused = [Rejected(self._line(bad.row), bad.error) for bad in done.rejected]
        rejected = sorted([*self._rejected, *refused], key=lambda bad: bad.row)
        if not (done.inserted or done.duplicates or done.replaced or rejected):
            raise InvalidInput("standard input held no payload: write one JSON object a line")
        return Enqueued(done.inserted, done.duplicates, done.replaced, rejected)

    def _jobs(self) -> Iterator[NewJob[AnyObject]]:
        row = 0
        for number, line in enumerate(iter(lambda: self._lines.readline(_LONGEST_LINE), b""), 1):
            if len(line) == _LONGEST_LINE:
                raise InvalidInput(f"line {number} has more than {_LONGEST_LINE:,} bytes; nothing was enqueued")
            text = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
            if not text.strip():
                self._left_out.append(row)
                continue
            if row and self._only:
                raise InvalidInput(
                    f"{self._only} names one job, and line {number} of standard input is a second; nothing was enqueued"
                )
            try:
                job = NewJob(_parsed(text, f"line {number}"), **self._settings)
            except InvalidInput as error:
                if not self._skip_bad:
                    raise
                message = str(error).removeprefix(f"line {number} ").removesuffix(_NOTHING)
                self._rejected.append(Rejected(number, message))
                self._left_out.append(row)
                continue
            yield job
            row += 1
            if row % _PROGRESS_EVERY == 0:
                self._advance(row)

    def _line(self, row: int) -> int:
        return row + 1 + bisect_right(self._left_out, row)

    def _with_line(self, message: str) -> str:
        head, colon, rest = message.partition(": ")
        word, _, row = head.partition(" ")
        if word != "row" or not colon or not row.isdigit():
            return message
        return f"line {self._line(int(row))}: {rest}{_NOTHING}"


def _parsed(text: str | bytes, where: str) -> AnyObject:
    try:
        return AnyObject.model_validate_json(text)
    except pydantic.ValidationError as error:
        problem = error.errors(include_url=False, include_input=False, include_context=False)[0]["msg"]
    except UnicodeEncodeError:
        problem = "it is not UTF-8"
    raise InvalidPayload(f"{where} is not a JSON object: {problem.removeprefix('Value error, ')}{_NOTHING}")


def _is_finite(value: JsonValue) -> bool:
    match value:
        case float():
            return math.isfinite(value)
        case dict():
            return all(_is_finite(part) for part in value.values())
        case list():
            return all(_is_finite(part) for part in value)
        case _:
            return True


def _tell(session: Session, queue: str, done: Enqueued, job_id: UUID | None = None) -> None:
    if session.as_json:
        rejected = [{"line": bad.row, "error": bad.error} for bad in done.rejected]
        found = {"queue": queue, **asdict(done), "rejected": rejected}
        render.emit_json({**found, "id": job_id} if job_id else found)
    elif job_id:
        render.say(f"enqueued {job_id} on {queue}{', in place of what it was' if done.replaced else ''}")
    else:
        _say(queue, done)
    if done.rejected:
        raise typer.Exit(Code.PARTLY)


def _say(queue: str, done: Enqueued) -> None:
    replaced = f"; {done.replaced:,} replaced what waited under their unique keys" if done.replaced else ""
    left_out = f"; {done.duplicates:,} left out: a live job has the same unique key or id" if done.duplicates else ""
    refused = f"; {len(done.rejected):,} refused" if done.rejected else ""
    jobs = f"{done.inserted:,} {'job' if done.inserted == 1 else 'jobs'}"
    render.say(f"enqueued {jobs} on {queue}{replaced}{left_out}{refused}")
    for bad in done.rejected[:_SHOWN]:
        render.say(render.printable(f"line {bad.row}: {bad.error}"))
    if len(done.rejected) > _SHOWN:
        render.say(f"(the first {_SHOWN} of {len(done.rejected):,})")


@contextmanager
def _progress() -> Iterator[Any]:
    console = Console(file=sys.stderr)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("reading standard input")
        yield lambda rows: progress.update(task, description=f"{rows:,} jobs, {_rate(progress, task, rows)} a second")


def _rate(progress: Progress, task: Any, rows: int) -> str:
    elapsed = progress.tasks[task].elapsed or 0.0
    return f"{rows / elapsed:,.0f}" if elapsed else "–"
