"""Events of a tick about a queue: its statistics as an observation, its checks, and progress as a materialisation."""

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

import dagster as dg

from dagster_sqlqueue.model.job import Head
from dagster_sqlqueue.orchestration.checks import CheckThresholds, verdicts
from dagster_sqlqueue.orchestration.dead_letters import letter_list
from dagster_sqlqueue.orchestration.page_links import PageLinks
from dagster_sqlqueue.orchestration.queue_page import QueueState, now_link, page_metadata, read_if_allowed
from dagster_sqlqueue.orchestration.run_rate import RunRate
from dagster_sqlqueue.queue import SqlQueue

REPORT_SECONDS = 54.0
"""The time between two reports, within the minute: while counts change, while jobs wait or are leased, as their age changes,
and until the rates of an emptied queue are 0."""
EARLY_SECONDS = 600.0
"""How often a report may come earlier, because the first job waits or the last one has ended: the queue of a trickle of jobs
is emptied and filled between any two ticks."""
CHECKED_SECONDS = 3_600.0
"""How often a tick reports checks whose answers have not changed."""

_MOMENTS = ("observed_at", "early_at", "run_ended_at", "events_read_at", "checked_at", "measured_at")
_CUT_OFF = 0.001
"""By how much a moment in the cursor may be too early."""
_SEEN = " after it was due: "


@dataclass(slots=True)
class Memory:
    """The contents of a sensor's cursor, from tick to tick.

    Attributes:
        status: the status line of the tick, for users who read the cursor.
        counts: the counts ready, leased, scheduled and held, as last observed.
        observed_at: when they were observed.
        flowing: whether jobs were enqueued or ended within the minute before that.
        paused: whether the queue was paused then.
        clear: whether no job was due, leased, or waiting for the turn of its key then.
        early_at: when a report last came before its minute was over.
        run_ended_at: when the last run materialised the asset to which a tick has responded.
        events_read_at: when a tick last read the asset's materialisations.
        heads: the first due job of each bucket, as its priority, due time and id, and how long it had been due when a tick
            first read it there.
        checks: the answers of the checks.
        checked_at: when they were last reported.
        rate: how fast runs ended jobs, as last measured.
        measured_at: when that was.
    """

    status: str = ""
    counts: dict[str, int] = field(default_factory=dict)
    observed_at: float = 0.0
    flowing: bool = False
    paused: bool = False
    clear: bool = False
    early_at: float = 0.0
    run_ended_at: float = 0.0
    events_read_at: float = 0.0
    heads: dict[str, tuple[str, float]] = field(default_factory=dict)
    checks: dict[str, bool] = field(default_factory=dict)
    checked_at: float = 0.0
    rate: RunRate | None = None
    measured_at: float = 0.0

    @property
    def busy(self) -> bool:
        """Whether jobs were due or leased."""
        return self.counts.get("ready", 0) + self.counts.get("leased", 0) > 0

    @classmethod
    def of(cls, cursor: str | None) -> "Memory":
        """Parse a cursor; an empty memory, if it has another form or a user cleared it."""
        try:
            kept = json.loads(cursor or "{}")
            memory = cls(**{**kept, **{name: _seconds(kept[name]) for name in _MOMENTS if name in kept}})
            memory.counts = {str(name): int(count) for name, count in memory.counts.items()}
            memory.heads = {bucket: _head(text) for bucket, text in kept.get("heads", {}).items()}
            memory.rate = _rate(kept.get("rate"))
        except (TypeError, ValueError, AttributeError, KeyError):
            return cls()
        return memory

    def cursor(self) -> str:
        """Write the cursor for the next tick, and for users: moments as text, in UTC."""
        written = asdict(self) | {name: _moment(getattr(self, name)) for name in _MOMENTS}
        if self.rate is not None:
            written["rate"]["per_second"] = round(self.rate.per_second, 1)
        heads = {bucket: f"{seconds} s{_SEEN}{first}" for bucket, (first, seconds) in self.heads.items()}
        return json.dumps({**written, "heads": heads}, indent=1)

    def stood(self, heads: Sequence[Head]) -> dict[int, float]:
        """For how many seconds, by the database's clock, the first due job of each bucket has been the same; remembers the
        present ones.
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


def report(
    queue: SqlQueue,
    state: QueueState,
    key: dg.AssetKey,
    memory: Memory,
    thresholds: CheckThresholds,
    *,
    stood: Mapping[int, float],
    links: Callable[[], PageLinks],
    run_ended_at: float = 0.0,
) -> Iterator[dg.AssetObservation | dg.AssetMaterialization | dg.AssetCheckEvaluation]:
    """Make the events of a tick, none at most ticks: one with the queue's statistics once a minute while its counts change,
    while jobs wait or are leased, and until the rates of enqueued and ended jobs are 0; at once when the queue was paused or
    resumed, and once in ten minutes when the first job waits or the last one has ended; and checks whose answer changed, or
    all of them once an hour. After each materialisation, its own or a run's, it reports all checks anew: Dagster shows no
    older ones.

    The event is a materialisation if live runs ended jobs within the minute, or if nothing was due until now: when the first
    job waits, when the last one has ended, and once an hour. It is an observation otherwise.

    It reads the stats only when there is something to report, and leaves out those of ended jobs where the database's user
    is no observer.

    Args:
        queue: where the queue is.
        state: the queue as the tick read it.
        key: of the queue's asset.
        memory: of the ticks before; updated.
        thresholds: of the checks.
        stood: for how long the first job of a bucket has been the same.
        links: of the queue's page.
        run_ended_at: when a run last materialised the asset.
    """
    depth, now = state.depth, round(time.time(), 1)
    still = {"ready": depth.ready, "leased": depth.running, "scheduled": depth.scheduled, "held": depth.held}
    since = now - memory.observed_at
    known, was_clear = bool(memory.counts), memory.clear
    busy, was_busy = depth.ready + depth.running > 0, memory.busy
    early = known and busy != was_busy and now - memory.early_at >= EARLY_SECONDS
    hour = now - memory.checked_at >= CHECKED_SECONDS
    changes = busy or memory.flowing or memory.counts != still
    due = not known or early or hour or memory.paused != state.paused or (changes and since >= REPORT_SECONDS)
    ended = run_ended_at > memory.run_ended_at + _CUT_OFF
    if not (due or ended):
        return
    if early and since < REPORT_SECONDS:
        memory.early_at = now
    memory.run_ended_at = max(memory.run_ended_at, run_ended_at)
    read = read_if_allowed(queue, state.queue)
    stats = None if read is None else read.stats
    memory.counts, memory.paused, memory.observed_at = still, state.paused, now
    memory.flowing = stats is not None and (stats.in_per_minute > 0 or stats.out_per_minute > 0)
    # Jobs that wait for the turn of their key are not due, and may be stuck behind one that failed.
    memory.clear = not busy and stats is not None and not stats.parked
    # The page's overview shows the metadata of the last materialisation, and that of an observation only if there is none
    # (AssetNodeOverview: event = materialization || observation); FreshnessPolicy knows nothing but the time of the last
    # materialisation. So one for each report would keep the table current, and a stuck queue fresh. Instead, a
    # materialisation means that jobs ended, or that nothing was due until then. While a queue is stuck the table is that of
    # the last progress, or of the arrival of the first job: it therefore has the moment since when the oldest job is due,
    # which stays true then, and a link to the observations, beside the failing check `oldest_ready`. A job that is leased
    # and due in turn, because its runs die, keeps the queue busy, and is no progress.
    moving = stats is not None and stats.out_per_minute > 0 and bool(state.covered)
    idle = memory.clear and (hour or was_busy)
    arrived = was_clear and busy and not state.paused
    fresh = due and (moving or idle or arrived)
    page = links()
    # The materialisation of a run that has just ended has the statistics already.
    if due:
        event = dg.AssetMaterialization if fresh else dg.AssetObservation
        metadata = page_metadata(read, state, page) | (now_link(key) if fresh else {})
        yield event(key, metadata=metadata, tags={"dagster/data_version": _version(state)})
    letters = letter_list(read.letters, state.queue, page) if read is not None and read.letters else None
    anew = hour or ended or fresh
    found = verdicts(stats, state.heads, state.asked, stood, thresholds, paused=state.paused, letters=letters)
    for verdict in found:
        if anew or memory.checks.get(verdict.name) != verdict.passed:
            yield verdict.evaluation(key)
    memory.checks = {verdict.name: verdict.passed for verdict in found}
    if anew:
        memory.checked_at = now


def _version(state: QueueState) -> str:
    """The data version: it changes with the jobs on the queue, so that Dagster marks downstream assets."""
    heads = [(head.bucket, head.priority, head.available_at.isoformat()) for head in state.heads]
    return hashlib.sha256(repr((heads, state.depth)).encode()).hexdigest()[:16]


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
