"""`sqlqueue enqueue`: one job from the command line, or many from standard input."""

import sys
from dataclasses import asdict, dataclass, field
from dataclasses import replace as replaced
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, Protocol
from uuid import UUID

import typer
from uuid_utils.compat import uuid7

from dagster_sqlqueue import followers
from dagster_sqlqueue.cli.commands.followers import Callbacks, Context, callbacks_of, group_id
from dagster_sqlqueue.cli.exit_codes import Code
from dagster_sqlqueue.cli.input import options
from dagster_sqlqueue.cli.input.json_lines import Lines, parsed, progress, say_rejected
from dagster_sqlqueue.cli.input.options import Queue
from dagster_sqlqueue.cli.output import render
from dagster_sqlqueue.cli.session import Session, command
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.model.job import NewJob
from dagster_sqlqueue.model.queue import QueueSpec
from dagster_sqlqueue.payload.serialization import AnyObject as AnyObject
from dagster_sqlqueue.payload.serialization import without_row

if TYPE_CHECKING:
    from dagster_sqlqueue.followers.insert import OnConflict as OnFollowedConflict
    from dagster_sqlqueue.queue import SqlQueue
    from dagster_sqlqueue.queue.insert import OnConflict
    from dagster_sqlqueue.queue.intake import Rejected

_NOTHING = "; nothing was enqueued"


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app)(enqueue)


def enqueue(
    session: Session,
    queue: Queue,
    payload: Annotated[
        str | None,
        typer.Argument(
            metavar="JSON",
            show_default=False,
            help="The payload, a JSON object; - or nothing reads one per line from standard input.",
        ),
    ] = None,
    priority: Annotated[str, typer.Option(metavar="0..9", help="Higher runs first.")] = "0",
    run_at: Annotated[
        str | None,
        typer.Option(
            metavar="MOMENT",
            show_default=False,
            help="When the job is due: 2026-01-31T08:00:00Z, or with +02:00. Default: now.",
        ),
    ] = None,
    later: Annotated[
        str | None,
        typer.Option(
            "--in",
            metavar="TIME",
            show_default=False,
            help="Instead of --run-at: time from now, by the database's clock, such as 90, 10m, 2h.",
        ),
    ] = None,
    unique_key: Annotated[
        str | None,
        typer.Option(
            metavar="KEY",
            show_default=False,
            help="At most one live job of the queue has this key; a second job is left out.",
        ),
    ] = None,
    unique_until: options.UniqueUntil = "end",
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
        typer.Option(metavar="WORD", show_default=False, help="Tag to find the job by; can be repeated."),
    ] = None,
    region: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", show_default=False, help="Region whose buckets take the job. Default: any bucket."
        ),
    ] = None,
    timeout: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            show_default=False,
            help="How long the job may run (90, 5m), instead of the queue's timeout.",
        ),
    ] = None,
    max_attempts: Annotated[
        str | None,
        typer.Option(metavar="N", show_default=False, help="Attempts of the job, instead of the queue's number."),
    ] = None,
    replace: Annotated[
        bool,
        typer.Option(
            "--replace",
            show_default=False,
            help="If a queued job has the same unique key, replace its content, instead of leaving this job out.",
        ),
    ] = False,
    merge: Annotated[
        bool,
        typer.Option(
            "--merge",
            show_default=False,
            help="If a live job has the same unique key, waiting or running, let it do the work of this one; --callback"
            " and --group then apply to it.",
        ),
    ] = False,
    callback: Callbacks = None,
    callback_context: Context = None,
    group: Annotated[
        str | None,
        typer.Option(metavar="UUID", show_default=False, help="Open group to which the job is added."),
    ] = None,
    skip_bad: Annotated[
        bool,
        typer.Option(
            "--skip-bad",
            show_default=False,
            help="Leave out invalid lines of standard input, and list them (exit code 6). Default: one invalid line"
            " refuses all.",
        ),
    ] = False,
    job_id: Annotated[
        str | None,
        typer.Option(
            "--id",
            metavar="UUID",
            show_default=False,
            help="The job's id: with it, a repeated call enqueues the job only once.",
        ),
    ] = None,
) -> None:
    """Enqueue one job, or one for each line of standard input.

    All lines are enqueued in one transaction: all of them, or none if one is refused. The options apply to each job.

    The payload is not checked against the queue's model; this happens when a consumer reads it.

    Examples: sqlqueue enqueue orders '{"order": 1}' --priority 9 --tag eu

    sqlqueue enqueue orders '{"order": 2}' --in 10m

    sqlqueue enqueue orders - < orders.jsonl

    sqlqueue enqueue orders '{"order": 1}' --unique-key order-1 --merge --callback tickets:failed
    """
    if run_at is not None and later is not None:
        raise InvalidInput("give one of --in and --run-at: when the job becomes due")
    delay = None if later is None else timedelta(seconds=options.seconds("--in", later))
    settings: dict[str, Any] = {
        "priority": options.whole("--priority", priority),
        "run_at": None if run_at is None else options.moment("--run-at", run_at),
        "unique_key": unique_key,
        "unique_until": options.unique_until(unique_until, unique_key),
        "ordering_key": ordering_key,
        "tags": tuple(tag or ()),
        "region": region,
        "timeout_seconds": None if timeout is None else options.seconds("--timeout", timeout),
        "max_attempts": None if max_attempts is None else options.whole("--max-attempts", max_attempts),
        "id": None if job_id is None else options.job_id("--id", job_id),
    }
    spec = QueueSpec(queue, AnyObject)
    if payload is None and sys.stdin.isatty():
        raise InvalidInput("no payload: give a JSON object, or - and one JSON object per line on standard input")
    on_conflict: OnConflict = "replace" if replace else "ignore"
    wanted = callbacks_of(callback, callback_context)
    put: _Put
    if merge or wanted or group is not None:
        if replace:
            raise InvalidInput(
                "--replace cannot be combined with --merge, --callback or --group: content that was given to another"
                " job has no end of its own; leave it out"
            )
        wishes: dict[str, Any] = {"callbacks": wanted, "group": None if group is None else group_id("--group", group)}
        put = _Followed("merge" if merge else "ignore", wishes)
    else:
        put = _Plain(on_conflict)
    if unique_key is None and (replace or merge):
        raise InvalidInput(
            f"{'--replace' if replace else '--merge'} is for a job with the unique key of another, and no --unique-key is"
            " given"
        )
    if payload not in (None, "-"):
        if skip_bad:
            raise InvalidInput("--skip-bad applies to the lines of standard input, and a payload was given")
        settings["id"] = settings["id"] or uuid7()
        content = parsed(payload, "the payload", _NOTHING)
        with session.queue() as target:
            settings["run_at"] = _due(target, delay, settings["run_at"])
            job = NewJob(content, **settings)
            try:
                made, done = put.one(target, spec, job)
            except InvalidInput as error:
                raise InvalidInput(f"{without_row(error)}; nothing was enqueued") from None
        _report(session, queue, done, made)
        return
    only = next(
        (f"--{name.replace('_', '-')} names one job" for name in ("id", "unique_key") if settings[name] is not None),
        None,
    )
    with session.queue() as target, progress("jobs") as advance:
        settings["run_at"] = _due(target, delay, settings["run_at"])
        lines = Lines(lambda found: NewJob(found, **settings), _NOTHING, advance, skip_bad=skip_bad, only=only)
        done = _from_lines(target, spec, lines, put)
    _report(session, queue, done)


def _due(queue: "SqlQueue", delay: timedelta | None, run_at: datetime | None) -> datetime | None:
    """Return the time that was given, or the one after the delay, by the database's clock."""
    if delay is None:
        return run_at
    now: datetime = queue.database.run("clock", {})[0][0]
    return now + delay


@dataclass(frozen=True)
class _Done:
    """What happened to the jobs: as in the library's `Enqueued`, and how many were merged into other jobs; None:
    --merge was not given.
    """

    inserted: int
    duplicates: int
    replaced: int = 0
    rejected: "list[Rejected]" = field(default_factory=list)
    merged: int | None = None


class _Put(Protocol):
    """How jobs are enqueued."""

    def one(
        self, queue: "SqlQueue", spec: QueueSpec[AnyObject], job: NewJob[AnyObject]
    ) -> tuple[UUID | None, _Done]: ...

    def many(self, queue: "SqlQueue", spec: QueueSpec[AnyObject], lines: "Lines[NewJob[AnyObject]]") -> _Done: ...


@dataclass(frozen=True)
class _Plain:
    on_conflict: "OnConflict"

    def one(self, queue: "SqlQueue", spec: QueueSpec[AnyObject], job: NewJob[AnyObject]) -> tuple[UUID | None, _Done]:
        made = queue.enqueue(spec, job, on_conflict=self.on_conflict)
        return made, _Done(int(made == job.id), int(made is None), int(made not in (None, job.id)))

    def many(self, queue: "SqlQueue", spec: QueueSpec[AnyObject], lines: "Lines[NewJob[AnyObject]]") -> _Done:
        done = queue.enqueue_many(spec, lines, on_conflict=self.on_conflict, on_bad_row=lines.on_bad_row)
        return _Done(done.inserted, done.duplicates, done.replaced, done.rejected)


@dataclass(frozen=True)
class _Followed:
    on_conflict: "OnFollowedConflict"
    wishes: dict[str, Any]

    def one(self, queue: "SqlQueue", spec: QueueSpec[AnyObject], job: NewJob[AnyObject]) -> tuple[UUID | None, _Done]:
        sent = followers.Followers(queue).enqueue(spec, job, on_conflict=self.on_conflict, **self.wishes)
        left_out = not sent.inserted and not sent.merged
        return sent.job_id, _Done(int(sent.inserted), int(left_out), merged=int(sent.merged))

    def many(self, queue: "SqlQueue", spec: QueueSpec[AnyObject], lines: "Lines[NewJob[AnyObject]]") -> _Done:
        done = followers.Followers(queue).enqueue_many(
            spec, lines, on_conflict=self.on_conflict, on_bad_row=lines.on_bad_row, **self.wishes
        )
        return _Done(done.inserted, done.duplicates, 0, done.rejected, done.merged)


def _from_lines(queue: "SqlQueue", spec: QueueSpec[AnyObject], lines: "Lines[NewJob[AnyObject]]", put: _Put) -> _Done:
    try:
        done = put.many(queue, spec, lines)
    except InvalidInput as error:
        raise InvalidInput(lines.with_line(str(error))) from None
    rejected = lines.with_lines(done.rejected)
    if not (done.inserted or done.duplicates or done.replaced or done.merged or rejected):
        raise InvalidInput("standard input contained no payload: write one JSON object per line")
    return replaced(done, rejected=rejected)


def _report(session: Session, queue: str, done: _Done, job_id: UUID | None = None) -> None:
    if session.as_json:
        rejected = [{"line": bad.row, "error": bad.error} for bad in done.rejected]
        found = {"queue": queue, **asdict(done), "rejected": rejected}
        if done.merged is None:
            del found["merged"]
        render.emit_json({**found, "id": job_id} if job_id else found)
    elif job_id and done.merged:
        render.say(f"merged into {job_id} on {queue}, which has the same unique key")
    elif job_id and done.duplicates:
        render.say(f"{job_id} was enqueued on {queue} before")
    elif job_id:
        render.say(f"enqueued {job_id} on {queue}{', replacing its previous content' if done.replaced else ''}")
    else:
        _say(queue, done)
    if done.rejected:
        raise typer.Exit(Code.PARTLY)


def _say(queue: str, done: _Done) -> None:
    merged = f"; {done.merged:,} merged into live jobs with the same unique keys" if done.merged else ""
    replaced = f"; {done.replaced:,} replaced queued jobs with the same unique keys" if done.replaced else ""
    left_out = (
        f"; {done.duplicates:,} left out: a live job has the same unique key, or the id is known"
        if done.duplicates
        else ""
    )
    refused = f"; {len(done.rejected):,} refused" if done.rejected else ""
    jobs = f"{done.inserted:,} {'job' if done.inserted == 1 else 'jobs'}"
    render.say(f"enqueued {jobs} on {queue}{merged}{replaced}{left_out}{refused}")
    say_rejected(done.rejected)
