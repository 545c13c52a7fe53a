"""`sqlqueue enqueue`: one job from the command line, or many from standard input."""

import math
import sys
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, BinaryIO, Self

import pydantic
import typer
from pydantic import JsonValue, RootModel, model_validator
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from dagster_sqlqueue import payloads
from dagster_sqlqueue.cli import options, render
from dagster_sqlqueue.cli.session import Session, command
from dagster_sqlqueue.errors import InvalidInput, InvalidPayload
from dagster_sqlqueue.model import NewJob
from dagster_sqlqueue.queue import SqlQueue
from dagster_sqlqueue.settings import QueueSpec

_PROGRESS_EVERY = 1_000
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

    Examples: sqlqueue enqueue orders '{"order": 1}' --priority 9

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
    if payload not in (None, "-"):
        job = NewJob(_parsed(payload, "the payload"), **settings)
        with session.queue() as target:
            try:
                made = target.enqueue(spec, job)
            except InvalidInput as error:
                raise InvalidInput(f"{str(error).removeprefix('row 0: ')}; nothing was enqueued") from None
        _tell(session, queue, int(made is not None), int(made is None), str(made) if made else None)
        return
    with session.queue() as target, _progress() as advance:
        inserted, duplicates = _enqueue_lines(target, spec, sys.stdin.buffer, settings, advance)
    _tell(session, queue, inserted, duplicates, None)


def _enqueue_lines(
    queue: SqlQueue, spec: QueueSpec[AnyObject], lines: BinaryIO, settings: dict[str, Any], advance: Any
) -> tuple[int, int]:
    blanks: list[int] = []
    only = next((f"--{name.replace('_', '-')}" for name in ("id", "unique_key") if settings[name] is not None), None)

    def jobs() -> Iterator[NewJob[AnyObject]]:
        row = 0
        for number, line in enumerate(iter(lambda: lines.readline(_LONGEST_LINE), b""), 1):
            if len(line) == _LONGEST_LINE:
                raise InvalidInput(f"line {number} has more than {_LONGEST_LINE:,} bytes; nothing was enqueued")
            text = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
            if not text.strip():
                blanks.append(row)
                continue
            if row and only:
                raise InvalidInput(
                    f"{only} names one job, and line {number} of standard input is a second; nothing was enqueued"
                )
            yield NewJob(_parsed(text, f"line {number}"), **settings)
            row += 1
            if row % _PROGRESS_EVERY == 0:
                advance(row)

    try:
        done = queue.enqueue_many(spec, jobs())
    except InvalidInput as error:
        raise InvalidInput(_with_line(str(error), blanks)) from None
    if not done.inserted and not done.duplicates:
        raise InvalidInput("standard input held no payload: write one JSON object a line")
    return done.inserted, done.duplicates


def _with_line(message: str, blanks: list[int]) -> str:
    head, colon, rest = message.partition(": ")
    word, _, row = head.partition(" ")
    if word != "row" or not colon or not row.isdigit():
        return message
    return f"line {int(row) + 1 + bisect_right(blanks, int(row))}: {rest}; nothing was enqueued"


def _parsed(text: str | bytes, where: str) -> AnyObject:
    try:
        return AnyObject.model_validate_json(text)
    except pydantic.ValidationError as error:
        problem = error.errors(include_url=False, include_input=False, include_context=False)[0]["msg"]
    except UnicodeEncodeError:
        problem = "it is not UTF-8"
    raise InvalidPayload(f"{where} is not a JSON object: {problem.removeprefix('Value error, ')}; nothing was enqueued")


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


def _tell(session: Session, queue: str, inserted: int, duplicates: int, job_id: str | None) -> None:
    if session.as_json:
        found = {"queue": queue, "inserted": inserted, "duplicates": duplicates}
        render.emit_json({**found, "id": job_id} if job_id else found)
        return
    if job_id:
        render.say(f"enqueued {job_id} on {queue}")
        return
    left_out = f"; {duplicates:,} left out: a live job has the same unique key" if duplicates else ""
    render.say(f"enqueued {inserted:,} {'job' if inserted == 1 else 'jobs'} on {queue}{left_out}")


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
