"""What a tick tells Dagster of a queue: its figures as an observation, its checks, and progress as a materialisation."""

import hashlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

import dagster as dg

from dagster_sqlqueue.errors import AccessRefused
from dagster_sqlqueue.model.job import Depth, Head
from dagster_sqlqueue.orchestration import markdown
from dagster_sqlqueue.orchestration.checks import CheckThresholds, oldest_ready_seconds, verdicts
from dagster_sqlqueue.orchestration.run_rate import USUAL_JOBS, RunRate
from dagster_sqlqueue.orchestration.slot_runs import Capacity
from dagster_sqlqueue.orchestration.slots import Asked
from dagster_sqlqueue.queue import SqlQueue
from dagster_sqlqueue.queue.stats import QueueStats

CHANGED_SECONDS = 10.0
"""While a backlog is worked off its depth changes at every tick; it is observed this often at most."""
WAITING_SECONDS = 54.0
"""Where jobs wait, or are leased, and nothing else changes, their age does: it is observed at the first tick after that,
which comes before the minute is over."""
PROGRESS_SECONDS = 60.0
"""While live runs end jobs, the asset is materialised this often."""
CHECKED_SECONDS = 3_600.0
"""Checks that say what they said before are reported this often."""

_TABLE_ROWS = 32
_MOMENTS = ("observed_at", "progress_at", "run_ended_at", "checked_at", "measured_at")
_CUT_OFF = 0.001
"""A moment in the cursor is this much too early at most."""
_SEEN = " after it was due: "


@dataclass(slots=True)
class Memory:
    """What a sensor's cursor keeps from tick to tick.

    Attributes:
        status: what the tick said, for people who look at the cursor.
        figures: ready, leased, scheduled and held, as last observed.
        observed_at: when they were.
        progress_at: when progress was last reported.
        run_ended_at: when the last run that ended jobs said so, as far as that was answered.
        heads: the first due job of each bucket, as its priority, due time and id, and how long that was due when it was
            first seen there.
        checks: what the checks said.
        checked_at: when they were last reported.
        rate: how fast runs ended jobs, as last measured.
        measured_at: when that was.
    """

    status: str = ""
    figures: dict[str, int] = field(default_factory=dict)
    observed_at: float = 0.0
    progress_at: float = 0.0
    run_ended_at: float = 0.0
    heads: dict[str, tuple[str, float]] = field(default_factory=dict)
    checks: dict[str, bool] = field(default_factory=dict)
    checked_at: float = 0.0
    rate: RunRate | None = None
    measured_at: float = 0.0

    @classmethod
    def of(cls, cursor: str | None) -> "Memory":
        """What the cursor holds; nothing, if it is none of ours or a person emptied it."""
        try:
            kept = json.loads(cursor or "{}")
            memory = cls(**{**kept, **{name: _seconds(kept[name]) for name in _MOMENTS if name in kept}})
            memory.figures = {str(name): int(count) for name, count in memory.figures.items()}
            memory.heads = {bucket: _head(text) for bucket, text in kept.get("heads", {}).items()}
            memory.rate = _rate(kept.get("rate"))
        except (TypeError, ValueError, AttributeError, KeyError):
            return cls()
        return memory

    def cursor(self) -> str:
        """For the next tick, and for people: moments are written as such, in UTC."""
        written = asdict(self) | {name: _moment(getattr(self, name)) for name in _MOMENTS}
        if self.rate is not None:
            written["rate"]["per_second"] = round(self.rate.per_second, 1)
        heads = {bucket: f"{seconds} s{_SEEN}{first}" for bucket, (first, seconds) in self.heads.items()}
        return json.dumps({**written, "heads": heads}, indent=1)

    def stood(self, heads: Sequence[Head]) -> dict[int, float]:
        """For how many seconds, by the database's clock, the first due job of each bucket has been the same; and remember
        the ones that are there now.
        """
        before, self.heads = self.heads, {}
        stood: dict[int, float] = {}
        for head in heads:
            bucket = str(head.bucket)
            if head.due_seconds < 0 or bucket in self.heads:
                continue
            first = f"priority {head.priority}, due at {head.available_at.isoformat()}, job {head.id}"
            known = before.get(bucket)
            since = known[1] if known is not None and known[0] == first else round(head.due_seconds, 3)
            self.heads[bucket] = (first, since)
            stood[head.bucket] = head.due_seconds - since
        return stood


@dataclass(frozen=True, slots=True)
class Look:
    """What a tick saw of a queue.

    Attributes:
        paused: the queue is.
        capacity: the slots that are taken.
        asked: buckets for which runs were asked in vain so far.
        jobs_per_run: so many jobs that are due are worth a run.
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


def report(
    queue: SqlQueue,
    look: Look,
    key: dg.AssetKey,
    memory: Memory,
    thresholds: CheckThresholds,
    *,
    stood: Mapping[int, float],
    run_ended_at: float = 0.0,
) -> Iterator[dg.AssetObservation | dg.AssetMaterialization | dg.AssetCheckEvaluation]:
    """The events of a tick, none at most ticks: an observation when the figures have changed, or once a minute while jobs
    wait or are leased; a materialisation in its place once a minute while live runs end jobs; checks whose answer changed,
    or all of them once an hour. After each materialisation all is said anew, for Dagster shows nothing that is older.

    The figures are read only when there is something to say; those of what ended are left out where the database's user
    is no observer.

    Args:
        queue: where the queue is.
        look: what the tick saw.
        key: of the queue's asset.
        memory: of the ticks before; brought up to date.
        thresholds: of the checks.
        stood: for how long the first job of a bucket has been the same.
        run_ended_at: when a run last materialised the asset.
    """
    depth, now = look.depth, round(time.time(), 1)
    still = {"ready": depth.ready, "leased": depth.running, "scheduled": depth.scheduled, "held": depth.held}
    since = now - memory.observed_at
    emptied = bool(memory.figures) and (memory.figures["ready"] == 0) != (depth.ready == 0)
    changed = memory.figures != still and (since >= CHANGED_SECONDS or emptied or not memory.figures)
    anew = run_ended_at > memory.run_ended_at + _CUT_OFF or now - memory.checked_at >= CHECKED_SECONDS
    if not (changed or anew or ((depth.ready or depth.running) and since >= WAITING_SECONDS)):
        return
    memory.run_ended_at = max(memory.run_ended_at, run_ended_at)
    stats = stats_if_allowed(queue, look.queue)
    memory.figures, memory.observed_at = still, now
    ending = stats is not None and stats.out_per_minute > 0 and bool(look.covered)
    moving = ending and now - memory.progress_at >= PROGRESS_SECONDS
    if moving:
        memory.progress_at = now
    event = dg.AssetMaterialization if moving else dg.AssetObservation
    yield event(key, metadata=figures(stats, look), tags={"dagster/data_version": _version(look)})
    found = verdicts(stats, look.heads, look.asked, stood, thresholds, paused=look.paused)
    for verdict in found:
        if anew or moving or memory.checks.get(verdict.name) != verdict.passed:
            yield verdict.evaluation(key)
    memory.checks = {verdict.name: verdict.passed for verdict in found}
    if anew or moving:
        memory.checked_at = now


def stats_if_allowed(queue: SqlQueue, name: str) -> QueueStats | None:
    """The figures of the queue; None where the database's user is no observer."""
    try:
        return queue.stats(name)
    except AccessRefused:
        return None


def figures_after_run(queue: SqlQueue, name: str) -> dict[str, Any]:
    """What a run says of the queue when it has ended jobs: the figures of the sensor, so that they plot as one line."""
    look = Look(name, False, queue.peek_heads(name), queue.depth(name), Capacity(), {})
    return figures(stats_if_allowed(queue, name), look)


def figures(stats: QueueStats | None, look: Look) -> dict[str, Any]:
    """Eight numbers, which plot, or five without those of what ended, and a table of the buckets with work."""
    counted = look.depth if stats is None else stats
    found: dict[str, Any] = {
        "ready": counted.ready,
        "leased": counted.running,
        "scheduled": counted.scheduled,
        "held": counted.held,
        "oldest_ready_seconds": round(oldest_ready_seconds(look.heads), 1),
    }
    if stats is not None:
        found["dead_letters"] = stats.dead_letters
        found["done_per_minute"] = round(stats.out_per_minute, 1)
        found["wait_seconds_p95"] = round(stats.wait_seconds_p95 or 0.0, 3)
    return {**found, "buckets": dg.MetadataValue.md(table(look))}


def table(look: Look) -> str:
    """The buckets that have work, the ones that wait longest first, in Markdown."""
    slot_of = {bucket: number for number, buckets in look.covered.items() for bucket in buckets}
    firsts: dict[int, Head] = {}
    for head in look.heads:
        if head.due_seconds >= 0:
            known = firsts.get(head.bucket)
            firsts[head.bucket] = head if known is None or head.due_seconds > known.due_seconds else known
    if not firsts:
        return "No bucket has work that is due."
    oldest = sorted(firsts.values(), key=lambda head: -head.due_seconds)
    rows: list[tuple[object, ...]] = [
        (head.bucket, f"{head.due_seconds:,.1f} s", head.priority, _run(look, slot_of, head.bucket))
        for head in oldest[:_TABLE_ROWS]
    ]
    if len(oldest) > _TABLE_ROWS:
        rows.append((f"and {len(oldest) - _TABLE_ROWS} more", "", "", ""))
    return markdown.table(("bucket", "oldest is due for", "priority", "run"), rows)


def _run(look: Look, slot_of: Mapping[int, int], bucket: int) -> str:
    if bucket in slot_of:
        return look.capacity.runs[slot_of[bucket]]
    if bucket in look.asked and look.asked[bucket].starts > 1:
        return f"{look.asked[bucket].starts} were asked for, none took a job"
    return "none"


def _version(look: Look) -> str:
    """Changes with what is on the queue, so that assets downstream can be told that it did."""
    heads = [(head.bucket, head.priority, head.available_at.isoformat()) for head in look.heads]
    return hashlib.sha256(repr((heads, look.depth)).encode()).hexdigest()[:16]


def _moment(seconds: float) -> str | None:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds") if seconds else None


def _seconds(moment: str | None) -> float:
    return datetime.fromisoformat(moment).timestamp() if moment else 0.0


def _rate(kept: dict[str, Any] | None) -> RunRate | None:
    if not kept:
        return None
    rate = RunRate(int(kept["jobs"]), float(kept["seconds"]))
    return rate if rate.jobs > 0 and rate.seconds > 0 else None


def _head(text: str) -> tuple[str, float]:
    seconds, _, first = text.partition(f" s{_SEEN}")
    return first, float(seconds)
