"""What the library gives back, as rows for people and as JSON whose keys stay the same."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from dagster_sqlqueue.cli import render
from dagster_sqlqueue.settings import QueueSettings, RateLimit


def settings_json(settings: QueueSettings) -> dict[str, Any]:
    """A queue's settings."""
    values = asdict(settings)
    backoff = values.pop("backoff")
    return {**values, **{f"backoff_{name}": value for name, value in backoff.items()}}


def settings_rows(settings: QueueSettings) -> Iterator[tuple[str, str]]:
    """A queue's settings: names and words, leaving out what is not set."""
    pause = settings.backoff
    yield "buckets", _buckets(settings)
    yield "strategy", str(settings.strategy)
    if settings.ordered:
        stops = "that key stops" if settings.on_poison == "stop" else "it becomes a dead letter, the key goes on"
        yield "order", f"strict per ordering key; when a job fails for good, {stops}"
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
        yield "paused", f"since {render.moment(settings.paused_at)}; go on with: sqlqueue resume {settings.name}"


def limits(settings: QueueSettings) -> str:
    """A queue's limits in words; empty when it has none."""
    found = []
    if settings.max_running is not None:
        found.append(f"{settings.max_running:,} running")
    if settings.max_running_per_key is not None:
        found.append(f"{settings.max_running_per_key:,} running per key")
    if settings.rate is not None:
        found.append(rate(settings.rate))
    return ", ".join(found)


def rate(limit: RateLimit) -> str:
    """A rate limit in words."""
    return f"{limit.starts:,} starts per {length(limit.seconds)}"


def regions(settings: QueueSettings) -> str:
    """Which buckets belong to which region."""
    by_region: dict[str, list[int]] = {}
    for bucket, region in enumerate(settings.regions):
        by_region.setdefault(region, []).append(bucket)
    return "; ".join(f"{region} {spans(numbers)}" for region, numbers in by_region.items())


def spans(numbers: list[int]) -> str:
    """Ascending numbers, neighbours drawn together: `0-3, 7`."""
    found: list[list[int]] = []
    for number in numbers:
        if found and found[-1][1] == number - 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in found)


def _buckets(settings: QueueSettings) -> str:
    if settings.lanes > settings.bucket_count:
        return f"{settings.bucket_count} (and jobs in up to {settings.lanes}, of an older count)"
    return str(settings.bucket_count)


def length(seconds: float) -> str:
    """A length of time that somebody chose, to the digit where it is short."""
    return f"{seconds:g} s" if seconds < 60 else render.duration(seconds)
