"""Events of a tick about a queue: its statistics as an observation, its checks, and progress as a materialisation."""

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping

import dagster as dg

from dagster_sqlqueue.orchestration.checks import CheckThresholds, verdicts
from dagster_sqlqueue.orchestration.dead_letters import letter_list
from dagster_sqlqueue.orchestration.page_links import PageLinks
from dagster_sqlqueue.orchestration.queue_page import QueueState, now_link, page_metadata, read_if_allowed
from dagster_sqlqueue.orchestration.sensor_cursor import CUT_OFF, Memory
from dagster_sqlqueue.queue import SqlQueue

REPORT_SECONDS = 54.0
"""The time between two reports, within the minute: while counts change, while jobs wait or are leased, as their age changes,
and until the rates of an emptied queue are 0."""
EARLY_SECONDS = 600.0
"""How often a report may come earlier, because the first job waits or the last one has ended: the queue of a trickle of jobs
is emptied and filled between any two ticks."""
CHECKED_SECONDS = 3_600.0
"""How often a tick reports checks whose answers have not changed."""


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
    memory.leased = max(memory.leased, depth.running)
    still = {"ready": depth.ready, "leased": depth.running, "scheduled": depth.scheduled, "held": depth.held}
    since = now - memory.observed_at
    known, was_clear = bool(memory.counts), memory.clear
    busy, was_busy = depth.ready + depth.running > 0, memory.busy
    early = known and busy != was_busy and now - memory.early_at >= EARLY_SECONDS
    hour = now - memory.checked_at >= CHECKED_SECONDS
    changes = busy or memory.flowing or memory.counts != still
    due = not known or early or hour or memory.paused != state.paused or (changes and since >= REPORT_SECONDS)
    ended = run_ended_at > memory.run_ended_at + CUT_OFF
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
        metadata = page_metadata(read, state, page, leased=memory.leased) | (now_link(key) if fresh else {})
        memory.leased = 0
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
