"""The commands that decide about jobs, from `retry` to `purge`."""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import typer

from dagster_sqlqueue.cli.exit_codes import Code
from dagster_sqlqueue.cli.input import options
from dagster_sqlqueue.cli.input.options import Queue
from dagster_sqlqueue.cli.input.selection import queue_of, selecting
from dagster_sqlqueue.cli.output import render, views
from dagster_sqlqueue.cli.session import Session, command
from dagster_sqlqueue.db import permissions
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.queue import preview
from dagster_sqlqueue.queue.redaction import discreet
from dagster_sqlqueue.queue.selection import (
    DELETABLE_STATES,
    EVERYTHING,
    LIVE_STATES,
    REDRIVABLE_STATES,
    WAITING_STATES,
    Decided,
    Selection,
)

if TYPE_CHECKING:
    from dagster_sqlqueue.queue import SqlQueue

_MOST_PREVIEWED = 5_000
_SHOWN = 20

Reason = Annotated[str, typer.Option(metavar="TEXT", show_default=False, help="Reason; stored as the job's error.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    for function in (retry, cancel, hold, release, reschedule, reprioritise, delete, purge):
        command(app)(function)


@dataclass(frozen=True, slots=True)
class Verb:
    """A decision in words, and the jobs that it applies to.

    Attributes:
        states: the states of these jobs.
        done: what was done, as in "cancelled 3 jobs".
        would: what a dry run says that jobs would be, as in "3 jobs would be cancelled"; empty for `done`.
        ask: the state of jobs that can only be asked to end; empty for none.
    """

    states: Sequence[str]
    done: str
    ask: str = ""
    would: str = ""


@selecting(
    REDRIVABLE_STATES,
    "retry",
    all_jobs="All failed jobs of the queue; for cancelled ones, use --state cancelled instead",
)
def retry(
    session: Session,
    queue: str | None,
    selection: Selection,
    dry_run: bool,
    limit: Annotated[
        str | None,
        typer.Option(metavar="N", show_default=False, help="Redrive at most this many jobs, those that ended last."),
    ] = None,
) -> None:
    """Redrive dead letters: the same jobs, due now, with a full set of attempts.

    With --all or conditions, these are jobs that failed; with --state cancelled, cancelled ones; ids can be of either. Jobs
    whose id or unique key a live job has stay in the archive and are listed: exit code 6.

    Examples: sqlqueue retry orders --error "connection refused" --dry-run

    sqlqueue retry orders --all

    sqlqueue retry 0199a1b2-c3d4-7e5f-8a6b-7c8d9e0f1a2b
    """
    most = None if limit is None else options.whole("--limit", limit)
    if most is not None and most < 1:
        raise InvalidInput(f"--limit is {most}; it must be at least 1")
    verb = Verb((selection.state or "failed",) if not selection.ids else REDRIVABLE_STATES, "put back")
    decide(
        session,
        (queue, selection, dry_run),
        verb,
        lambda source, its: source.redrive(its, selection, states=verb.states, limit=most),
        most,
    )


@selecting(
    LIVE_STATES,
    "cancel",
    all_jobs="All live jobs of the queue: queued and held ones are cancelled at once, running ones are asked to end",
)
def cancel(
    session: Session,
    queue: str | None,
    selection: Selection,
    dry_run: bool,
    reason: Reason = "cancelled by an operator",
) -> None:
    """Cancel waiting jobs, and ask running ones to end.

    The handler of a running job is notified at the next heartbeat. If it does not end the job as cancelled, the job ends as
    the handler says; if it returns to the queue instead, or its lease expires, the next claim cancels it.

    Examples: sqlqueue cancel orders --tag import --dry-run

    sqlqueue cancel orders --payload '{"customer": 7}' --reason "customer left"
    """
    verb = Verb(LIVE_STATES, "cancelled", ask="running")
    decide(session, (queue, selection, dry_run), verb, lambda source, its: source.cancel(its, selection, reason=reason))


@selecting(("queued",), "hold", all_jobs="All queued jobs of the queue, due or not; running ones continue")
def hold(
    session: Session, queue: str | None, selection: Selection, dry_run: bool, reason: Reason = "held by an operator"
) -> None:
    """Hold queued jobs until they are released or cancelled.

    In an ordered queue, their keys stop there.

    Examples: sqlqueue hold 0199a1b2-c3d4-7e5f-8a6b-7c8d9e0f1a2b

    sqlqueue hold orders --ordering-key customer-7 --reason "asks to wait"
    """
    verb = Verb(("queued",), "held")
    decide(session, (queue, selection, dry_run), verb, lambda source, its: source.hold_queued(its, selection, reason))


@selecting(("held",), "release", all_jobs="All held jobs of the queue")
def release(session: Session, queue: str | None, selection: Selection, dry_run: bool) -> None:
    """Release held jobs: they are due now, with their remaining attempts.

    Example: sqlqueue release orders --all
    """
    verb = Verb(("held",), "released")
    decide(session, (queue, selection, dry_run), verb, lambda source, its: source.release_held(its, selection))


@selecting(
    ("queued",),
    "reschedule",
    all_jobs="All queued jobs of the queue, due or not; running and held ones are not changed",
)
def reschedule(
    session: Session,
    queue: str | None,
    selection: Selection,
    dry_run: bool,
    until: Annotated[
        str | None,
        typer.Option(
            metavar="MOMENT",
            show_default=False,
            help="2026-01-31T08:00:00Z, or with +02:00. A time in the past means now.",
        ),
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(
            "--for",
            metavar="TIME",
            show_default=False,
            help="Instead of --until: time from now, such as 90, 5m, 2h; 0 for now.",
        ),
    ] = None,
) -> None:
    """Change when queued jobs are due, to an earlier or a later time.

    Examples: sqlqueue reschedule orders --tag newsletter --for 2h

    sqlqueue reschedule orders --all --until 2030-01-31T08:00:00Z
    """
    if (until is None) is (by is None):
        raise InvalidInput("give one of --until and --for: when the jobs are due")
    when = options.seconds("--for", by) if by is not None else options.moment("--until", until or "")
    verb = Verb(("queued",), "rescheduled")
    decide(session, (queue, selection, dry_run), verb, lambda source, its: source.reschedule(its, selection, when))


@selecting(LIVE_STATES, "reprioritise", all_jobs="All live jobs of the queue: queued, running and held")
def reprioritise(
    session: Session,
    queue: str | None,
    selection: Selection,
    dry_run: bool,
    priority: Annotated[str | None, typer.Option(metavar="0..9", show_default=False, help="Higher runs first.")] = None,
) -> None:
    """Change the priority of live jobs.

    For a running job, the new priority applies when it returns to the queue.

    Example: sqlqueue reprioritise orders --tag vip --priority 9
    """
    if priority is None:
        raise InvalidInput("--priority is missing: 0 to 9, higher runs first")
    number = options.whole("--priority", priority)
    if not 0 <= number <= 9:
        raise InvalidInput(f"--priority is {number}; it must be 0 to 9, higher runs first")
    verb = Verb(LIVE_STATES, f"set to priority {number}")
    decide(session, (queue, selection, dry_run), verb, lambda source, its: source.reprioritise(its, selection, number))


@selecting(
    DELETABLE_STATES,
    "delete",
    all_jobs="All jobs of the queue that are not running: waiting ones, and the archive. See also purge",
)
def delete(session: Session, queue: str | None, selection: Selection, dry_run: bool) -> None:
    """Delete ended or waiting jobs permanently, with payload, result, error and history.

    Without --state, the conditions match jobs in any of these states. Followers of a live job are notified that it was
    cancelled. Ids are remembered for a week: a producer that sends such a job again does not enqueue it again.

    Examples: sqlqueue delete orders --state failed --before 2026-01-31T00:00:00Z --dry-run

    sqlqueue delete orders --payload '{"customer": 7}'

    sqlqueue delete 0199a1b2-c3d4-7e5f-8a6b-7c8d9e0f1a2b
    """
    verb = Verb(DELETABLE_STATES, "deleted")
    decide(session, (queue, selection, dry_run), verb, lambda source, its: source.delete(its, selection))


def purge(
    session: Session,
    queue: Queue,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            show_default=False,
            help="Change nothing; show which of the first 5,000 jobs would be selected.",
        ),
    ] = False,
) -> None:
    """Delete all waiting jobs of a queue: due, scheduled or held ones.

    Running jobs continue, and the archive stays.

    Example: sqlqueue purge orders --dry-run
    """
    verb = Verb(WAITING_STATES, "deleted")
    asked = (queue, EVERYTHING, dry_run)
    decide(session, asked, verb, lambda source, its: source.delete(its, EVERYTHING, states=WAITING_STATES))


def decide(
    session: Session,
    asked: tuple[str | None, Selection, bool],
    verb: Verb,
    act: "Callable[[SqlQueue, str], Decided]",
    limit: int | None = None,
) -> None:
    """Decide about jobs and print what was done, or, for a dry run, what would be.

    Args:
        session: the options that every command takes.
        asked: what `selecting` passes: the queue, or None for that of the ids; which jobs; whether it is a dry run.
        verb: the decision in words.
        act: decides about the jobs of the queue with that name.
        limit: the maximum number of jobs.
    """
    queue, selection, dry_run = asked
    whole = contextlib.nullcontext() if dry_run else permissions.needing("queue_steady")
    with session.queue() as source, whole:
        its = queue or queue_of(source, selection.job_ids)
        if dry_run:
            show_preview(session, source, its, selection, verb, limit)
        else:
            report(session, its, verb, act(source, its))


def report(session: Session, queue: str, verb: Verb, decided: Decided) -> None:
    """Print what a decision did; if some jobs were left unchanged, exit with the code for that."""
    if session.as_json:
        render.emit_json(_decided_json(queue, decided.changed, decided.requested, decided.skipped))
    else:
        said = [f"{verb.done} {_jobs(len(decided.changed))}"] if decided.changed or not decided.requested else []
        if decided.requested:
            said.append(f"asked {_jobs(len(decided.requested), 'running ')} to end")
        if decided.skipped:
            said.append(f"left {_jobs(len(decided.skipped))} unchanged")
        render.say(f"queue {queue}: {'; '.join(said)}")
        _skipped(decided.skipped)
    if decided.skipped:
        raise typer.Exit(Code.PARTLY)


def show_preview(
    session: Session, source: "SqlQueue", queue: str, selection: Selection, verb: Verb, limit: int | None = None
) -> None:
    """Print what a decision would do, to at most so many jobs; nothing is changed."""
    expected = preview.find(source, queue, selection, verb.states, limit=min(limit or _MOST_PREVIEWED, _MOST_PREVIEWED))
    found, skipped = expected.jobs, expected.skipped
    changed = [job for job in found if job.state != verb.ask]
    requested = [job for job in found if job.state == verb.ask]
    more = len(found) >= _MOST_PREVIEWED
    if session.as_json:
        values = _decided_json(queue, [job.id for job in changed], [job.id for job in requested], skipped)
        render.emit_json({**values, "dry_run": True, "complete": not more})
    else:
        least = "at least " if more else ""
        said = [f"{least}{_jobs(len(changed))} would be {verb.would or verb.done}"]
        if requested:
            said.append(f"{least}{_jobs(len(requested), 'running ')} asked to end")
        if skipped:
            said.append(f"{_jobs(len(skipped))} left unchanged")
        render.say(f"queue {queue}: {'; '.join(said)}. Nothing was changed (--dry-run)")
        if found:
            views.job_table(discreet(source, queue, found[:_SHOWN]))
        if len(found) > _SHOWN:
            render.say(f"(the first {_SHOWN} of {least}{len(found):,})")
        _skipped(skipped)
    if skipped:
        raise typer.Exit(Code.PARTLY)


def _decided_json(
    queue: str, changed: Sequence[UUID], requested: Sequence[UUID], skipped: dict[UUID, str]
) -> dict[str, Any]:
    reasons = [{"id": str(id_), "reason": reason} for id_, reason in skipped.items()]
    return {
        "queue": queue,
        "changed": [str(id_) for id_ in changed],
        "requested": [str(id_) for id_ in requested],
        "skipped": reasons,
    }


def _skipped(skipped: dict[UUID, str]) -> None:
    if not skipped:
        return
    first = list(skipped.items())[:_SHOWN]
    render.table(["left unchanged", "because"], first)
    if len(skipped) > len(first):
        render.say(f"(the first {_SHOWN} of {len(skipped):,})")


def _jobs(number: int, kind: str = "") -> str:
    return f"{number:,} {kind}{'job' if number == 1 else 'jobs'}"
