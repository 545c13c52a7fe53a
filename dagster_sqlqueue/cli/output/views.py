"""Results of the library, as rows for people and as JSON with stable keys."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.text import Text

from dagster_sqlqueue import display
from dagster_sqlqueue.cli.output import render
from dagster_sqlqueue.model.job import DeadLetter, WaitingJob
from dagster_sqlqueue.model.queue import QueueSettings, RateLimit
from dagster_sqlqueue.payload import json_text
from dagster_sqlqueue.queue.selection import JobRow

if TYPE_CHECKING:
    from dagster_sqlqueue.results import Progress
    from dagster_sqlqueue.schedules import Schedule, Ticked


def settings_json(settings: QueueSettings) -> dict[str, Any]:
    """Return a queue's settings."""
    values = asdict(settings)
    backoff = values.pop("backoff")
    # They follow from the others.
    del values["keyed"], values["limited"]
    return {**values, **{f"backoff_{name}": value for name, value in backoff.items()}}


def settings_rows(settings: QueueSettings) -> Iterator[tuple[str, str]]:
    """Yield a queue's settings as names and words, without those that are not set."""
    pause = settings.backoff
    yield "buckets", _buckets(settings)
    yield "strategy", str(settings.strategy)
    if settings.ordered:
        stops = "its key stops" if settings.on_poison == "stop" else "it becomes a dead letter, and the key continues"
        yield "order", f"strict per ordering key; when a job fails permanently, {stops}"
    yield "lease", length(settings.lease_seconds)
    if settings.timeout_seconds is not None:
        yield "timeout", length(settings.timeout_seconds)
    yield "attempts", f"{settings.max_attempts:,}"
    yield (
        "backoff",
        f"{length(pause.seconds)} × {pause.factor:g} up to {length(pause.max_seconds)}, jitter {pause.jitter:.0%}",
    )
    if limits(settings):
        yield "limits", limits(settings)
    yield "finished jobs", f"kept {settings.retention_days} days" if settings.retention_days else "kept for ever"
    if any(region != "local" for region in settings.regions):
        yield "regions", regions(settings)
    if settings.paused_at:
        yield (
            "paused",
            f"{display.span(settings.paused_at, settings.paused_until)}; resume with: sqlqueue resume {settings.name}",
        )


def limits(settings: QueueSettings) -> str:
    """Return a queue's limits in words; empty if it has none."""
    found = []
    if settings.max_running is not None:
        found.append(f"{settings.max_running:,} running")
    if settings.max_running_per_key is not None:
        found.append(f"{settings.max_running_per_key:,} running per key")
    if settings.rate is not None:
        found.append(rate(settings.rate))
    return ", ".join(found)


def rate(limit: RateLimit) -> str:
    """Return a rate limit in words."""
    return f"{limit.starts:,} starts per {length(limit.seconds)}"


def regions(settings: QueueSettings) -> str:
    """Return which buckets belong to which region."""
    by_region: dict[str, list[int]] = {}
    for bucket, region in enumerate(settings.regions[: settings.claim_buckets]):
        by_region.setdefault(region, []).append(bucket)
    return "; ".join(f"{region} {spans(numbers)}" for region, numbers in by_region.items())


def spans(numbers: list[int]) -> str:
    """Return ascending numbers as ranges: `0-3, 7`."""
    found: list[list[int]] = []
    for number in numbers:
        if found and found[-1][1] == number - 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in found)


def _buckets(settings: QueueSettings) -> str:
    if settings.claim_buckets > settings.bucket_count:
        return f"{settings.bucket_count} (and jobs in up to {settings.claim_buckets}, of an earlier count)"
    return str(settings.bucket_count)


def length(seconds: float) -> str:
    """Return a duration that a user has set; a short one is not rounded."""
    return f"{seconds:g} s" if seconds < 60 else display.duration(seconds)


def job_json(job: JobRow) -> dict[str, Any]:
    """Return all about a job; payload and result are JSON themselves."""
    result = None if job.result is None else json_text.read(job.result)
    return {**asdict(job), "archived": job.archived, "payload": json_text.read(job.payload), "result": result}


def job_table(jobs: Sequence[JobRow]) -> None:
    """Print jobs to standard output, one line each."""
    render.table(
        ["id", "state", "prio", "when", "tries", "keys", "error", "payload"],
        [
            [
                job.id,
                job.state,
                job.priority,
                _when(job),
                f"{job.attempt}/{job.max_attempts}",
                Text(" ".join(part for part in (keys(job), _tags(job)) if part)),
                Text(display.shortened(job.error or "", 60), style="red"),
                display.shortened(job.payload, 60),
            ]
            for job in jobs
        ],
        right=["prio"],
    )


def progress_json(progress: "Progress | None") -> dict[str, Any] | None:
    """Return the progress of a job; None if none was reported."""
    return None if progress is None else asdict(progress)


def job_rows(job: JobRow, progress: "Progress | None" = None) -> Iterator[tuple[str, Any]]:
    """Yield all about a job as names and words, without what is not set."""
    yield "queue", f"{job.queue}, bucket {job.bucket}, priority {job.priority}"
    yield "state", job.state + (", asked to end" if job.cancel_requested_at else "")
    if progress is not None:
        yield "progress", _progress(progress)
    yield "when", _when(job)
    yield "run at", display.moment(job.run_at)
    yield "enqueued at", display.moment(job.created_at)
    if job.started_at:
        yield "started at", f"{display.moment(job.started_at)} by {job.claimed_by or 'an unknown consumer'}"
    if job.finished_at:
        yield "finished at", display.moment(job.finished_at)
    if job.cancel_requested_at:
        yield "asked to end at", display.moment(job.cancel_requested_at)
    yield "attempt", f"{job.attempt} of {job.max_attempts}"
    yield "lease number", job.lease_no
    if job.timeout_seconds is not None:
        yield "timeout", length(job.timeout_seconds)
    if job.unique_key is not None:
        yield "unique key", f"{job.unique_key}{', until it is claimed' if job.unique_until_claim else ''}"
    if job.ordering_key is not None:
        place = "" if job.order_no is None else f" (position {job.order_no})"
        yield "ordering key", f"{job.ordering_key}{place}"
    if job.tags:
        yield "tags", ", ".join(map(str, job.tags))
    if job.region != "local":
        yield "region", job.region
    if job.batch_id:
        yield "batch", job.batch_id
    yield "payload", json_text.indented(job.payload)
    if job.result is not None:
        yield "result", json_text.indented(job.result)
    if job.error is not None:
        yield "error", Text(display.printable(job.error.rstrip(), lines=True), style="red")


def _progress(progress: "Progress") -> str:
    message = display.printable(f" {progress.message}") if progress.message else ""
    return f"{progress.percent:g} %{message}, {display.moment(progress.updated_at)}"


def keys(job: WaitingJob | DeadLetter | JobRow) -> str:
    """Return the unique key and the ordering key of a job, named."""
    named = {"unique": job.unique_key, "order": job.ordering_key}
    return display.printable(", ".join(f"{name} {key}" for name, key in named.items() if key is not None))


def _tags(job: JobRow) -> str:
    return display.printable(" ".join(f"#{tag}" for tag in job.tags))


def _when(job: JobRow) -> str:
    if job.finished_at:
        return f"ended {display.moment(job.finished_at)}"
    if job.waits_for_turn:
        return "after others of its key"
    if job.available_at is None:
        return "when it is released"
    return f"{'lease ends' if job.state == 'running' else 'due'} {display.moment(job.available_at)}"


def schedule_json(schedule: "Schedule") -> dict[str, Any]:
    """Return all about a schedule."""
    return asdict(schedule)


def schedule_rule(schedule: "Schedule") -> str:
    """Return when a schedule ticks, in words."""
    if schedule.cron is not None:
        return f"{schedule.cron} in {schedule.time_zone}"
    return f"every {length(schedule.every_seconds or 0)}"


def schedule_table(schedules: "Sequence[Schedule]") -> None:
    """Print schedules to standard output, one line each."""
    render.table(
        ["queue", "schedule", "when", "catch up", "next", "last", "paused", "because"],
        [
            [
                schedule.queue,
                schedule.name,
                schedule_rule(schedule),
                schedule.catch_up,
                display.moment(schedule.next_tick),
                display.moment(schedule.last_tick) if schedule.last_tick else "",
                display.moment(schedule.paused_at) if schedule.paused_at else "",
                Text(display.printable(schedule.error or ""), style="red"),
            ]
            for schedule in schedules
        ],
    )


def ticked_json(done: "Ticked") -> dict[str, Any]:
    """Return what one pass over the schedules did."""
    return {
        "enqueued": [{"queue": queue, "name": name, "ticks": ticks} for (queue, name), ticks in done.enqueued.items()],
        "duplicates": done.duplicates,
        "paused": [{"queue": queue, "name": name, "error": reason} for (queue, name), reason in done.failed.items()],
    }
