"""The launchpad's verbs about a whole queue."""

from collections.abc import Sequence

from dagster_sqlqueue import display
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.model.queue import QueueSettings, check_bucket_count
from dagster_sqlqueue.orchestration import markdown
from dagster_sqlqueue.orchestration.launchpad.config import (
    PauseConfig,
    RebucketConfig,
    ResumeConfig,
    name_of,
    parsed_moment,
)
from dagster_sqlqueue.orchestration.launchpad.run_report import Report
from dagster_sqlqueue.queue import SqlQueue

_LONGEST_WAIT = 3_600


def list_queues(source: SqlQueue, names: Sequence[str]) -> Report:
    """List the queues that a job could be about: these, or all of the schema. Changes nothing."""
    found = [each for each in source.queues() if not names or each.name in names]
    rows = [
        [each.name, each.bucket_count, display.span(each.paused_at, each.paused_until) if each.paused_at else "no"]
        for each in found
    ]
    said = "no queue was named; name one of those that are listed. Nothing was changed: this was a dry run"
    return Report(None, said, {}, {"queues": markdown.table(["queue", "buckets", "paused"], rows)})


def pause(source: SqlQueue, config: PauseConfig) -> Report:
    """Pauses a queue: no job of it is claimed. Running jobs go on, and producers can still enqueue."""
    if not 0 <= config.wait_seconds <= _LONGEST_WAIT:
        raise InvalidInput(f"wait_seconds is {config.wait_seconds:g}; it must be 0 to {_LONGEST_WAIT:,}")
    until = parsed_moment("until", config.until)
    before = source.settings(name_of(config))
    if config.dry_run:
        if until is not None and until <= source.database.run("clock", {})[0][0]:
            raise InvalidInput(f"until is {until}, which has passed by the database's clock; nothing was changed")
        return _dry_run(before, f"would be paused{f' until {display.moment(until)}' if until else ''}")
    after = source.pause(before.name, until=until)
    drained = bool(config.wait_seconds) and source.drain(before.name, timeout_seconds=config.wait_seconds)
    assert after.paused_at
    rest = "running jobs go on"
    if config.wait_seconds:
        rest = "no job of it is running any more" if drained else "jobs of it are still running, or it was resumed"
    said = f"queue {config.queue} is paused {display.span(after.paused_at, after.paused_until)}; {rest}"
    counts = {"drained": int(drained)} if config.wait_seconds else {}
    return Report(config.queue, said, counts, {"queue": _settings(before, after)}, before.revision != after.revision)


def resume(source: SqlQueue, config: ResumeConfig) -> Report:
    """Resumes a paused queue: its jobs can be claimed again."""
    before = source.settings(name_of(config))
    if config.dry_run:
        return _dry_run(before, "would hand out jobs again" if before.paused_at else "is not paused")
    after = source.resume(before.name)
    again = " again" if before.paused_at else "; it was not paused"
    said = f"queue {config.queue} hands out jobs{again}"
    return Report(config.queue, said, {}, {"queue": _settings(before, after)}, before.paused_at is not None)


def rebucket(source: SqlQueue, config: RebucketConfig) -> Report:
    """Changes the number of buckets of a queue while producers and consumers run; no job moves."""
    before = source.settings(name_of(config))
    if config.buckets is None:
        if not config.dry_run:
            raise InvalidInput(
                "buckets is not given; give the new number of buckets, as a dry run shows the present one"
            )
        said = f"queue {config.queue} has {before.bucket_count} buckets; give buckets, the new number"
        said += ". Nothing was changed: this was a dry run"
        return Report(config.queue, said, {"buckets_now": before.bucket_count}, {"queue": _settings(before, before)})
    check_bucket_count(config.buckets, before.name)
    after = before if config.dry_run else source.rebucket(before.name, config.buckets)
    left = max(after.claim_buckets - after.bucket_count, 0)
    if config.dry_run:
        said = (
            f"queue {config.queue} has {before.bucket_count} buckets and would have {config.buckets}. Nothing was changed:"
            " this was a dry run"
        )
    else:
        rest = f"; {left} more still hold jobs and are emptied" if left else ""
        said = f"queue {config.queue} has {after.bucket_count} buckets{rest}"
    counts = {"buckets_before": before.bucket_count, "buckets_now": after.bucket_count}
    changed = before.bucket_count != after.bucket_count
    return Report(config.queue, said, counts, {"queue": _settings(before, after)}, changed)


def _dry_run(settings: QueueSettings, would: str) -> Report:
    now = f"; it is paused {display.span(settings.paused_at, settings.paused_until)}" if settings.paused_at else ""
    said = f"queue {settings.name} {would}{now}. Nothing was changed: this was a dry run"
    return Report(settings.name, said, {}, {"queue": _settings(settings, settings)})


def _settings(before: QueueSettings, after: QueueSettings) -> str:
    def of(settings: QueueSettings) -> list[object]:
        paused = display.span(settings.paused_at, settings.paused_until) if settings.paused_at else "no"
        return [settings.bucket_count, settings.claim_buckets, paused]

    names = ["buckets", "buckets that may hold jobs", "paused"]
    return markdown.table(
        ["queue", "before", "now"],
        [[name, *values] for name, values in zip(names, zip(of(before), of(after), strict=True), strict=True)],
    )
