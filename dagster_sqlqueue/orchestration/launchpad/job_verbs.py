"""The launchpad's verbs about jobs: find at most `limit` jobs, and change them unless it is a dry run."""

from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

from dagster_sqlqueue.errors import InvalidInput, UnknownJob
from dagster_sqlqueue.model.numbers import MAX_DELAY_SECONDS
from dagster_sqlqueue.orchestration.launchpad.config import (
    CancelConfig,
    DeleteConfig,
    HoldConfig,
    JobsConfig,
    RedriveConfig,
    ReleaseConfig,
    ReprioritiseConfig,
    RescheduleConfig,
    name_of,
    parsed_moment,
)
from dagster_sqlqueue.orchestration.launchpad.run_report import Report, job_table, jobs, skipped_table
from dagster_sqlqueue.people.model import check_reason
from dagster_sqlqueue.queue import SqlQueue
from dagster_sqlqueue.queue.preview import find
from dagster_sqlqueue.queue.search import MAX_LIST
from dagster_sqlqueue.queue.selection import (
    DELETABLE_STATES,
    LIVE_STATES,
    REDRIVABLE_STATES,
    Decided,
    JobRow,
    Selection,
)

_ANY = "any"
_NAMED = 10

Act = Callable[[Selection], Decided]


def redrive(source: SqlQueue, config: RedriveConfig) -> Report:
    """Redrives dead letters: enqueues the same jobs again, due now, with all their attempts; the latest first."""
    states = REDRIVABLE_STATES if config.ids else (config.state,)

    def act(selection: Selection) -> Decided:
        return source.redrive(name_of(config), selection, states=states, limit=config.limit)

    return _decide(source, config, _selection(config), states, "put back", act, whole=True)


def cancel(source: SqlQueue, config: CancelConfig) -> Report:
    """Cancels jobs: queued and held ones at once; a running one is asked to end."""
    check_reason(config.reason, needed=True)

    def act(selection: Selection) -> Decided:
        return source.cancel(name_of(config), selection, reason=config.reason)

    return _decide(source, config, _selection(config, config.state), LIVE_STATES, "cancelled", act, asks="running")


def hold(source: SqlQueue, config: HoldConfig) -> Report:
    """Holds queued jobs until an operator releases or cancels them. In an ordered queue their keys stop there."""
    check_reason(config.reason, needed=True)

    def act(selection: Selection) -> Decided:
        return source.hold_queued(name_of(config), selection, config.reason)

    return _decide(source, config, _selection(config), ("queued",), "held", act)


def release(source: SqlQueue, config: ReleaseConfig) -> Report:
    """Releases held jobs: due now, with their remaining attempts."""

    def act(selection: Selection) -> Decided:
        return source.release_held(name_of(config), selection)

    return _decide(source, config, _selection(config), ("held",), "released", act)


def reschedule(source: SqlQueue, config: RescheduleConfig) -> Report:
    """Reschedules queued jobs to another moment, earlier or later than before."""
    selection = _selection(config)
    said = [moment for moment in (config.until, config.seconds) if moment is not None]
    if len(said) != 1 and not (_lists(config, selection) and not said):
        raise InvalidInput("give one of until and seconds: when the jobs become due")
    if config.seconds is not None and not 0 <= config.seconds <= MAX_DELAY_SECONDS:
        raise InvalidInput(
            f"seconds is {config.seconds:g}; give seconds from now, not negative and at most a hundred years"
        )
    when = config.seconds if config.seconds is not None else parsed_moment("until", config.until)

    def act(selection: Selection) -> Decided:
        assert when is not None
        return source.reschedule(name_of(config), selection, when)

    return _decide(source, config, selection, ("queued",), "rescheduled", act)


def reprioritise(source: SqlQueue, config: ReprioritiseConfig) -> Report:
    """Reprioritises jobs. The priority of a running job counts if it returns to the queue."""
    selection, priority = _selection(config, config.state), config.priority
    if not (priority is None and _lists(config, selection)) and (priority is None or not 0 <= priority <= 9):
        raise InvalidInput(f"priority is {priority}; it must be 0 to 9, higher runs first")

    def act(selection: Selection) -> Decided:
        assert priority is not None
        return source.reprioritise(name_of(config), selection, priority)

    done = "reprioritised" if priority is None else f"set to priority {priority}"
    return _decide(source, config, selection, LIVE_STATES, done, act)


def delete(source: SqlQueue, config: DeleteConfig) -> Report:
    """Deletes jobs for good, with their history: ended ones, or live ones that do not run."""
    states = DELETABLE_STATES if config.ids else (config.state,)

    def act(selection: Selection) -> Decided:
        return source.delete(name_of(config), selection, states=states)

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
    """Find the selected jobs, and change them unless it is a dry run. One without a selection lists jobs to select from.

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
    queue = name_of(config)
    found = find(source, queue, selection, states, limit=min(config.limit + 1, MAX_LIST))
    if found.unknown:
        raise _unknown(queue, found.unknown)
    more = not selection.ids and (len(found.jobs) > config.limit or len(found.jobs) == MAX_LIST)
    chosen = found.jobs[: config.limit]
    if _lists(config, selection):
        return _listed(source, config, chosen, done, more)
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
    shown = {"jobs": job_table(source, queue, chosen, outcomes, payloads=config.show_payloads)}
    if decided.skipped:
        shown["left_as_before"] = skipped_table(decided.skipped)
    would = "would_be_" if config.dry_run else ""
    counts = {
        f"jobs_{would}changed": len(decided.changed),
        f"jobs_{would}asked_to_end": len(decided.requested),
        f"jobs_{would}left": len(decided.skipped),
    }
    said = _said(config, done, decided, more)
    return Report(queue, said, counts, shown, not config.dry_run and bool(decided.changed or decided.requested))


def _said(config: JobsConfig, done: str, decided: Decided, more: bool) -> str:
    queue = name_of(config)

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
    said = f"queue {queue}: {', '.join(parts)}"
    if more:
        said += f"; more may fit, the limit is {config.limit:,}"
    return f"{said}. Nothing was changed: this was a dry run" if config.dry_run else said


def _listed(source: SqlQueue, config: JobsConfig, found: Sequence[JobRow], done: str, more: bool) -> Report:
    """Show the first jobs that could be selected."""
    queue = name_of(config)
    outcomes = {job.id: "not selected" for job in found}
    shown = {"jobs": job_table(source, queue, found, outcomes, payloads=config.show_payloads)}
    there = f"{'at least ' if more else ''}{jobs(len(found))} could be; select them by ids, by conditions or by all"
    said = f"queue {queue}: no jobs were selected to be {done}, and {there if found else 'there are none'}"
    return Report(queue, f"{said}. Nothing was changed: this was a dry run", {"jobs_to_select_from": len(found)}, shown)


def _lists(config: JobsConfig, selection: Selection) -> bool:
    """Whether a dry run selects nothing."""
    return config.dry_run and selection.all and not config.all


def _selection(config: JobsConfig, state: str = _ANY) -> Selection:
    named: dict[str, Any] = {
        "ids": [text.strip() for text in config.ids],
        "tags": config.tags,
        "payload": config.payload or None,
        "ordering_key": config.ordering_key,
        "state": None if state == _ANY else state,
        "error_contains": config.error_contains,
        "since": parsed_moment("since", config.since),
        "before": parsed_moment("before", config.before),
    }
    lists = config.dry_run and all(value in (None, []) for value in named.values())
    return Selection(**named, all=config.all or lists)


def _unknown(queue: str, ids: Sequence[UUID]) -> UnknownJob:
    named = ", ".join(map(str, ids[:_NAMED]))
    others = f" and {len(ids) - _NAMED} more" if len(ids) > _NAMED else ""
    return UnknownJob(
        f"queue {queue!r} has no job {named}{others}, live or ended; nothing was changed. Correct the ids, or leave them"
        " out: ended jobs are trimmed in time"
    )
