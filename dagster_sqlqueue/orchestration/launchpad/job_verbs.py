"""The launchpad's verbs about jobs: find at most `limit` jobs, and change them unless it is a dry run."""

from collections.abc import Callable, Sequence
from uuid import UUID

from dagster_sqlqueue.errors import InvalidInput, UnknownJob
from dagster_sqlqueue.model.backoff import MAX_DELAY_SECONDS
from dagster_sqlqueue.orchestration.launchpad.config import (
    CancelConfig,
    DeleteConfig,
    HoldConfig,
    JobsConfig,
    RedriveConfig,
    ReleaseConfig,
    ReprioritiseConfig,
    RescheduleConfig,
    parsed_moment,
)
from dagster_sqlqueue.orchestration.launchpad.run_report import Report, job_table, jobs, skipped_table
from dagster_sqlqueue.people.model import check_reason
from dagster_sqlqueue.queue import SqlQueue
from dagster_sqlqueue.queue.preview import find
from dagster_sqlqueue.queue.search import MAX_LIST
from dagster_sqlqueue.queue.selection import DELETABLE_STATES, LIVE_STATES, Decided, Selection

_ANY = "any"
_REDRIVABLE = ("failed", "cancelled")
_NAMED = 10

Act = Callable[[Selection], Decided]


def redrive(source: SqlQueue, config: RedriveConfig) -> Report:
    """Redrives dead letters: enqueues the same jobs again, due now, with all their attempts; the latest first."""
    states = _REDRIVABLE if config.ids else (config.state,)

    def act(selection: Selection) -> Decided:
        return source.redrive(config.queue, selection, states=states, limit=config.limit)

    return _decide(source, config, _selection(config), states, "put back", act, whole=True)


def cancel(source: SqlQueue, config: CancelConfig) -> Report:
    """Cancels jobs: queued and held ones at once; a running one is asked to end."""
    check_reason(config.reason, needed=True)

    def act(selection: Selection) -> Decided:
        return source.cancel(config.queue, selection, reason=config.reason)

    return _decide(source, config, _selection(config, config.state), LIVE_STATES, "cancelled", act, asks="running")


def hold(source: SqlQueue, config: HoldConfig) -> Report:
    """Holds queued jobs until an operator releases or cancels them. In an ordered queue their keys stop there."""
    check_reason(config.reason, needed=True)

    def act(selection: Selection) -> Decided:
        return source.hold_queued(config.queue, selection, config.reason)

    return _decide(source, config, _selection(config), ("queued",), "held", act)


def release(source: SqlQueue, config: ReleaseConfig) -> Report:
    """Releases held jobs: due now, with their remaining attempts."""

    def act(selection: Selection) -> Decided:
        return source.release_held(config.queue, selection)

    return _decide(source, config, _selection(config), ("held",), "released", act)


def reschedule(source: SqlQueue, config: RescheduleConfig) -> Report:
    """Reschedules queued jobs to another moment, earlier or later than before."""
    if (config.until is None) is (config.seconds is None):
        raise InvalidInput("give one of until and seconds: when the jobs become due")
    if config.seconds is not None and not 0 <= config.seconds <= MAX_DELAY_SECONDS:
        raise InvalidInput(
            f"seconds is {config.seconds:g}; give seconds from now, not negative and at most a hundred years"
        )
    when = config.seconds if config.seconds is not None else parsed_moment("until", config.until)
    assert when is not None

    def act(selection: Selection) -> Decided:
        return source.reschedule(config.queue, selection, when)

    return _decide(source, config, _selection(config), ("queued",), "rescheduled", act)


def reprioritise(source: SqlQueue, config: ReprioritiseConfig) -> Report:
    """Reprioritises jobs. The priority of a running job counts if it returns to the queue."""
    if not 0 <= config.priority <= 9:
        raise InvalidInput(f"priority is {config.priority}; it must be 0 to 9, higher runs first")

    def act(selection: Selection) -> Decided:
        return source.reprioritise(config.queue, selection, config.priority)

    done = f"set to priority {config.priority}"
    return _decide(source, config, _selection(config, config.state), LIVE_STATES, done, act)


def delete(source: SqlQueue, config: DeleteConfig) -> Report:
    """Deletes jobs for good, with their history: ended ones, or live ones that do not run."""
    states = DELETABLE_STATES if config.ids else (config.state,)

    def act(selection: Selection) -> Decided:
        return source.delete(config.queue, selection, states=states)

    return _decide(source, config, _selection(config), states, "deleted", act)


def _decide(
    source: SqlQueue,
    config: JobsConfig,
    selection: Selection,
    states: Sequence[str],
    done: str,
    act: Act,
    *,
    asks: str = "",
    whole: bool = False,
) -> Report:
    """Find the selected jobs, and change them unless it is a dry run.

    Args:
        source: the queues of the schema.
        config: of the run.
        selection: the jobs that the config names.
        states: the states of jobs that the verb changes.
        done: the result in words, as in "3 jobs were cancelled".
        act: changes the jobs.
        asks: the state of jobs that can only be asked to end.
        whole: whether the verb applies the limit itself, and gets the selection unchanged.
    """
    if not 1 <= config.limit <= MAX_LIST:
        raise InvalidInput(f"limit is {config.limit}; one run changes 1 to {MAX_LIST:,} jobs")
    if len(selection.job_ids) > config.limit:
        raise InvalidInput(f"ids names {jobs(len(selection.job_ids))}, and the limit is {config.limit:,}")
    found = find(source, config.queue, selection, states, limit=min(config.limit + 1, MAX_LIST))
    if found.unknown:
        raise _unknown(config.queue, found.unknown)
    more = not selection.ids and (len(found.jobs) > config.limit or len(found.jobs) == MAX_LIST)
    chosen = found.jobs[: config.limit]
    if config.dry_run:
        decided = Decided(
            [job.id for job in chosen if job.state != asks],
            [job.id for job in chosen if job.state == asks],
            dict(found.skipped),
        )
    else:
        ids = Selection(ids=[job.id for job in chosen]) if chosen else None
        decided = act(selection if whole and not selection.ids else ids) if ids else Decided()
        decided.skipped.update(found.skipped)
    outcomes = {
        **dict.fromkeys(decided.changed, done),
        **dict.fromkeys(decided.requested, "asked to end"),
        **{job: f"left: {why}" for job, why in decided.skipped.items()},
    }
    shown = {"jobs": job_table(source, config.queue, chosen, outcomes, payloads=config.show_payloads)}
    if decided.skipped:
        shown["left_as_before"] = skipped_table(decided.skipped)
    would = "would_be_" if config.dry_run else ""
    counts = {
        f"jobs_{would}changed": len(decided.changed),
        f"jobs_{would}asked_to_end": len(decided.requested),
        f"jobs_{would}left": len(decided.skipped),
    }
    said = _said(config, done, decided, more)
    return Report(config.queue, said, counts, shown, not config.dry_run and bool(decided.changed or decided.requested))


def _said(config: JobsConfig, done: str, decided: Decided, more: bool) -> str:
    def were(number: int, what: str, kind: str = "") -> str:
        verb = "would be" if config.dry_run else "was" if number == 1 else "were"
        return f"{jobs(number, kind)} {verb} {what}"

    parts = []
    if decided.changed or not decided.requested:
        parts.append(were(len(decided.changed), done))
    if decided.requested:
        parts.append(were(len(decided.requested), "asked to end", "running "))
    if decided.skipped:
        parts.append(were(len(decided.skipped), "left unchanged"))
    said = f"queue {config.queue}: {', '.join(parts)}"
    if more:
        said += f"; more may fit, the limit is {config.limit:,}"
    return f"{said}. Nothing was changed: this was a dry run" if config.dry_run else said


def _selection(config: JobsConfig, state: str = _ANY) -> Selection:
    return Selection(
        ids=[text.strip() for text in config.ids],
        tags=config.tags,
        payload=config.payload or None,
        ordering_key=config.ordering_key,
        state=None if state == _ANY else state,
        error_contains=config.error_contains,
        since=parsed_moment("since", config.since),
        before=parsed_moment("before", config.before),
        all=config.all,
    )


def _unknown(queue: str, ids: Sequence[UUID]) -> UnknownJob:
    named = ", ".join(map(str, ids[:_NAMED]))
    others = f" and {len(ids) - _NAMED} more" if len(ids) > _NAMED else ""
    return UnknownJob(
        f"queue {queue!r} has no job {named}{others}, live or ended; nothing was changed. Correct the ids, or leave them"
        " out: ended jobs are trimmed in time"
    )
