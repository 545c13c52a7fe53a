"""The metadata of a queue's page: eight numbers, which Dagster plots, and tables for users."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import dagster as dg

from dagster_sqlqueue import display
from dagster_sqlqueue.errors import AccessRefused
from dagster_sqlqueue.model.job import DeadLetter, Depth, Head
from dagster_sqlqueue.orchestration import markdown
from dagster_sqlqueue.orchestration.checks import oldest_ready_seconds
from dagster_sqlqueue.orchestration.dead_letters import inline_list, latest_letters
from dagster_sqlqueue.orchestration.page_links import NO_LINKS, PageLinks
from dagster_sqlqueue.orchestration.run_rate import USUAL_JOBS
from dagster_sqlqueue.orchestration.slot_runs import Capacity
from dagster_sqlqueue.orchestration.slots import Asked
from dagster_sqlqueue.queue import SqlQueue
from dagster_sqlqueue.queue.stats import QueueStats

_TABLE_ROWS = 32
_NAMED_RUNS = 2


@dataclass(frozen=True, slots=True)
class QueueState:
    """A queue as a tick read it.

    Attributes:
        paused: whether the queue is paused.
        capacity: the slots that are taken.
        asked: the buckets whose requested runs have done nothing so far.
        jobs_per_run: the number of due jobs that is worth a run.
    """

    queue: str
    paused: bool
    heads: Sequence[Head]
    depth: Depth
    capacity: Capacity
    asked: Mapping[int, Asked]
    jobs_per_run: int = USUAL_JOBS

    @property
    def covered(self) -> dict[int, tuple[int, ...]]:
        """The buckets of live runs, by the number of their slot."""
        return self.capacity.covered


@dataclass(frozen=True, slots=True)
class Read:
    """The statistics of a queue's page that a tick does not read for its plan.

    Attributes:
        stats: those of the queue.
        letters: the latest dead letters, without the values of sensitive fields.
    """

    stats: QueueStats
    letters: Sequence[DeadLetter]


def read_if_allowed(queue: SqlQueue, name: str) -> Read | None:
    """Read the page's statistics of ended jobs; None where the database's user is no observer."""
    try:
        stats = queue.stats(name)
        return Read(stats, latest_letters(queue, name) if stats.dead_letters else ())
    except AccessRefused:
        return None


def current_page_metadata(queue: SqlQueue, name: str, links: PageLinks, *, leased: int = 0) -> dict[str, Any]:
    """The statistics that a run reports: the sensor's, so that they plot as one line.

    Args:
        queue: where the queue is.
        name: the queue's.
        links: of its page.
        leased: the most jobs that the run has had under lease at a time.
    """
    paused = queue.settings(name).paused_at is not None
    state = QueueState(name, paused, queue.peek_heads(name), queue.depth(name), Capacity(), {})
    return page_metadata(read_if_allowed(queue, name), state, links, leased=leased)


def page_metadata(
    read: Read | None, state: QueueState, links: PageLinks = NO_LINKS, *, leased: int = 0
) -> dict[str, Any]:
    """Build the page's metadata: eight numbers, which plot, or four without those of ended jobs; tables of the queue, of its
    buckets with work, and of its latest dead letters; and links.

    Args:
        read: the statistics of ended jobs; None: the database's user may not read them.
        state: the queue as a tick read it.
        links: of the page.
        leased: the most jobs that were seen under lease at a time since the last report. At the moment of a report there
            are often none: it comes when the first job waits, and when the last one has ended.
    """
    stats = read.stats if read is not None else None
    counted = state.depth if stats is None else stats
    found: dict[str, Any] = {
        "ready": counted.ready,
        "most_leased": max(counted.running, leased),
        "scheduled": counted.scheduled,
        "oldest_ready_seconds": round(oldest_ready_seconds(state.heads), 1),
    }
    if stats is not None:
        found["dead_letters"] = stats.dead_letters
        found["in_per_minute"] = round(stats.in_per_minute, 1)
        found["done_per_minute"] = round(stats.out_per_minute, 1)
        found["wait_seconds_p95"] = round(stats.wait_seconds_p95 or 0.0, 3)
    due = [head.available_at for head in state.heads if head.due_seconds > 0]
    if due:
        # While nothing moves, the overview shows an older event: its age would be wrong, the moment is not.
        found["oldest_ready_since"] = dg.MetadataValue.timestamp(min(due))
    found["summary"] = dg.MetadataValue.md(summary(stats, state))
    found["buckets"] = dg.MetadataValue.md(bucket_table(state))
    if read is not None and read.letters:
        found["latest_dead_letters"] = dg.MetadataValue.md(inline_list(read.letters, state.queue, links))
    return found | links.metadata()


def now_link(key: dg.AssetKey) -> dict[str, Any]:
    """The link from a materialisation to newer observations, which the overview does not show."""
    path = "/".join(quote(part, safe="") for part in key.path)
    return {"now": dg.MetadataValue.md(f"[newer observations](/assets/{path}?view=events)")}


def summary(stats: QueueStats | None, state: QueueState) -> str:
    """Summarise depth, rates, waits and run times, a line each, in Markdown."""
    counted, cap = (state.depth, state.depth.cap) if stats is None else (stats, stats.counted_up_to)
    depth = {
        "ready": counted.ready,
        "leased": counted.running,
        "scheduled": counted.scheduled,
        "held": counted.held,
        "waiting for the turn of their key": 0 if stats is None else stats.parked,
    }
    oldest = oldest_ready_seconds(state.heads)
    said = [f"{display.count(number, cap)} {kind}" for kind, number in depth.items() if number]
    lines = {"Jobs": ", ".join(said) or "none"}
    if state.paused:
        lines["Paused"] = "nothing is claimed until the queue is resumed"
    if oldest:
        lines["Oldest"] = f"due for {display.duration(oldest)}"
    if stats is not None:
        lines |= _of_what_ended(stats)
    # A list: a table of these is wider than the page.
    return "\n".join(f"- **{what}**: {line}" for what, line in lines.items())


def _of_what_ended(stats: QueueStats) -> dict[str, str]:
    lines = {}
    if stats.next_due_seconds is not None:
        lines["Next scheduled"] = f"in {display.duration(stats.next_due_seconds)}"
    lines["In"] = _rates(stats.in_per_minute, stats.in_per_minute_of_hour)
    lines["Out"] = _rates(stats.out_per_minute, stats.out_per_minute_of_hour)
    if stats.measured:
        ended = {"succeeded": stats.succeeded, "failed": stats.failed, "cancelled": stats.cancelled}
        said = ", ".join(f"{number:,} {kind}" for kind, number in ended.items() if number)
        lines["Ended within the hour"] = f"{said}{' (the latest)' if stats.measured >= stats.counted_up_to else ''}"
        waits = stats.wait_seconds_p50, stats.wait_seconds_p95, stats.wait_seconds_p99
        lines["Waits until the start"] = _percentiles(*waits)
        lines["From start to end"] = _percentiles(stats.run_seconds_p50, stats.run_seconds_p95, stats.run_seconds_p99)
    lines["Dead letters"] = display.count(stats.dead_letters, stats.counted_up_to)
    lines["Stale writes refused today"] = f"{stats.stale_writes_today:,}"
    return lines


def bucket_table(state: QueueState) -> str:
    """List the buckets that have work, the longest wait first, in Markdown."""
    slots_of: dict[int, list[int]] = {}
    for number, buckets in state.covered.items():
        for bucket in buckets:
            slots_of.setdefault(bucket, []).append(number)
    firsts: dict[int, Head] = {}
    for head in state.heads:
        if head.due_seconds >= 0:
            known = firsts.get(head.bucket)
            firsts[head.bucket] = head if known is None or head.due_seconds > known.due_seconds else known
    if not firsts:
        return "No bucket has work that is due."
    oldest = sorted(firsts.values(), key=lambda head: -head.due_seconds)

    def first(number: int) -> str:
        rows: list[tuple[object, ...]] = [
            (head.bucket, f"{head.due_seconds:,.0f} s", head.priority, _runs(state, slots_of, head.bucket))
            for head in oldest[:number]
        ]
        if len(oldest) > number:
            rows.append((f"and {len(oldest) - number} more", "", "", ""))
        return markdown.table(("bucket", "due for", "priority", "run"), rows)

    return markdown.most_inline(min(len(oldest), _TABLE_ROWS), first)


def _rates(minute: float, hour: float) -> str:
    return f"{minute:,.0f} in the last minute, {hour:,.1f} a minute over the hour"


def _percentiles(p50: float | None, p95: float | None, p99: float | None) -> str:
    return f"p50 {_time(p50)}, p95 {_time(p95)}, p99 {_time(p99)}"


def _time(seconds: float | None) -> str:
    return f"{1_000 * seconds:.0f} ms" if seconds is not None and seconds < 1 else display.duration(seconds)


def _runs(state: QueueState, slots_of: Mapping[int, Sequence[int]], bucket: int) -> str:
    """The runs that have a bucket, as short as they can be told from each other: the column is narrow."""
    if bucket in slots_of:
        runs = [
            state.capacity.runs[number].removeprefix("run ").removesuffix(" (at work)") for number in slots_of[bucket]
        ]
        return ", ".join(runs[:_NAMED_RUNS]) + (
            f" and {len(runs) - _NAMED_RUNS} more" if len(runs) > _NAMED_RUNS else ""
        )
    if bucket in state.asked and state.asked[bucket].starts > 1:
        return f"{state.asked[bucket].starts} were requested, none took a job"
    return "none"
