"""The commands that write: `init`, `create`, `enqueue`."""

import math
import sys
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any, BinaryIO, Self, TypeVar

import pydantic
import typer
from pydantic import JsonValue, RootModel, model_validator
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from dagster_sqlqueue import migrations
from dagster_sqlqueue.cli import render
from dagster_sqlqueue.cli.session import Session, command
from dagster_sqlqueue.errors import InvalidInput, InvalidPayload
from dagster_sqlqueue.model import Backoff, NewJob, QueueSettings, QueueSpec, check_queue_name
from dagster_sqlqueue.queue import SqlQueue

_PROGRESS_EVERY = 1_000
_LARGEST = 2**31 - 1

Number = TypeVar("Number", int, float)


class AnyObject(RootModel[dict[str, JsonValue]]):
    """The payload of a queue whose model is not at hand: any JSON object."""

    @model_validator(mode="after")
    def _finite(self) -> Self:
        if not _is_finite(self.root):
            raise ValueError("NaN, Infinity and numbers beyond the range of a double are not JSON")
        return self


_NEW = QueueSpec("new", AnyObject)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    command(app)(init)
    command(app)(create)
    command(app)(enqueue)


def init(session: Session) -> None:
    """Make the tables, or bring them up to date. Safe to run again.

    Run it once before anything else, again after each upgrade of the package, and from time to time: it also makes the
    archive's partitions for the coming days.
    """
    with session.queue(checked=False) as queue:
        applied = queue.init()
        version = migrations.check(queue.database)
        schema = queue.database.schema
        if session.as_json:
            names = [{"version": m.version, "name": m.name} for m in applied]
            render.emit_json({"schema": schema, "version": version, "applied": names})
            return
        for migration in applied:
            render.say(f"applied {migration.version:04}_{migration.name}")
        done = "is ready" if applied else "was up to date"
        render.say(f"schema {schema} of {queue.database.where} {done}, at version {version}")


def create(
    session: Session,
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Lower-case letters, digits and _, beginning with a letter.")
    ],
    buckets: Annotated[
        int | None,
        typer.Option(
            show_default=False,
            help="Independent lanes, 1 to 1024: so many consumers work without meeting each other."
            f" Default: {_NEW.bucket_count}.",
        ),
    ] = None,
    lease: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            show_default=False,
            help=f"How long a claim holds when its consumer falls silent. Default: {_NEW.lease_seconds:g}.",
        ),
    ] = None,
    max_attempts: Annotated[
        int | None,
        typer.Option(
            show_default=False, help=f"Runs a job gets before it becomes a dead letter. Default: {_NEW.max_attempts}."
        ),
    ] = None,
    backoff: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            show_default=False,
            help=f"The wait after the first failed attempt. Default: {_NEW.backoff.seconds:g}.",
        ),
    ] = None,
    backoff_factor: Annotated[
        float | None,
        typer.Option(
            metavar="FACTOR",
            show_default=False,
            help=f"Each further wait is so many times longer; 1 for a fixed wait. Default: {_NEW.backoff.factor:g}.",
        ),
    ] = None,
    backoff_max: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS", show_default=False, help=f"The longest wait. Default: {_NEW.backoff.max_seconds:g}."
        ),
    ] = None,
) -> None:
    """Make a queue, or change the settings of one.

    Of a queue that exists, what is not named here stays, and so does its number of buckets in any case.

    Example: sqlqueue create orders --lease 30 --max-attempts 3
    """
    check_queue_name(name)
    with session.queue() as queue:
        before = next((known for known in queue.queues() if known.name == name), None)
        old: QueueSettings | QueueSpec[AnyObject] = before or _NEW
        spec = QueueSpec(
            name,
            AnyObject,
            bucket_count=_finite("--buckets", buckets, old.bucket_count),
            lease_seconds=_finite("--lease", lease, old.lease_seconds),
            max_attempts=_finite("--max-attempts", max_attempts, old.max_attempts),
            backoff=Backoff(
                _finite("--backoff", backoff, old.backoff.seconds),
                _finite("--backoff-factor", backoff_factor, old.backoff.factor),
                _finite("--backoff-max", backoff_max, old.backoff.max_seconds),
            ),
        )
        settings = queue.create_queue(spec)
    if session.as_json:
        render.emit_json(_flat(settings))
        return
    render.say(
        f"queue {settings.name} {'is as follows' if before else 'was made'}: {settings.bucket_count} buckets,"
        f" lease {settings.lease_seconds:g} s, {settings.max_attempts} attempts, backoff {settings.backoff.seconds:g} s"
        f" × {settings.backoff.factor:g} up to {settings.backoff.max_seconds:g} s"
    )
    if buckets not in (None, settings.bucket_count):
        render.say(
            f"(an existing queue keeps its {settings.bucket_count} buckets; --buckets {buckets} was not applied)"
        )


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
        str | None, typer.Option(metavar="KEY", show_default=False, help="Jobs with the same key share a bucket.")
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
        "run_at": _moment(run_at),
        "unique_key": unique_key,
        "ordering_key": ordering_key,
    }
    spec = QueueSpec(queue, AnyObject)
    if payload is None and sys.stdin.isatty():
        raise InvalidInput("no payload: give a JSON object, or - and the objects on standard input, one a line")
    if payload not in (None, "-"):
        job = NewJob(_parsed(payload, "the payload"), **settings)
        with session.queue() as target:
            job_id = target.enqueue(spec, job)
        duplicate = job_id is None
        _tell(session, queue, int(not duplicate), int(duplicate), None if duplicate else str(job_id))
        return
    with session.queue() as target, _progress() as advance:
        inserted, duplicates = _enqueue_lines(target, spec, sys.stdin.buffer, settings, advance)
    _tell(session, queue, inserted, duplicates, None)


def _enqueue_lines(
    queue: SqlQueue, spec: QueueSpec[AnyObject], lines: BinaryIO, settings: dict[str, Any], advance: Any
) -> tuple[int, int]:
    blanks: list[int] = []

    def jobs() -> Iterator[NewJob[AnyObject]]:
        row = 0
        for number, line in enumerate(lines, 1):
            text = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
            if not text.strip():
                blanks.append(row)
                continue
            if row and settings["unique_key"] is not None:
                raise InvalidInput(
                    f"--unique-key names one job, and line {number} of standard input is a second; nothing was enqueued"
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


def _finite(option: str, given: Number | None, default: Number) -> Number:
    if given is not None and not (math.isfinite(given) and abs(given) <= _LARGEST):
        raise InvalidInput(f"{option} is {given}; it must be a finite number, at most {_LARGEST:,}")
    return default if given is None else given


def _moment(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidInput(f"--run-at {text!r} is not a time; write it as 2026-01-31T08:00:00Z") from None
    if when.utcoffset() is None:
        raise InvalidInput(f"--run-at {text!r} has no time zone; end it with Z for UTC, or with an offset as +02:00")
    return when


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


def _flat(settings: QueueSettings) -> dict[str, Any]:
    values = asdict(settings)
    backoff = values.pop("backoff")
    return {**values, **{f"backoff_{name}": backoff[name] for name in ("seconds", "factor", "max_seconds")}}


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
