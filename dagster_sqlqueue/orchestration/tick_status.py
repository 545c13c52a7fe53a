"""The status of a sensor's tick, in words: the depth of the queue, its runs, and what the tick requested."""

from collections.abc import Sequence

from dagster_sqlqueue.model.job import Depth, Head
from dagster_sqlqueue.model.queue import QueueSettings
from dagster_sqlqueue.orchestration import slots
from dagster_sqlqueue.orchestration.queue_page import QueueState
from dagster_sqlqueue.orchestration.run_plan import Plan
from dagster_sqlqueue.orchestration.run_rate import RunRate

COUNTED = 1_000
"""The most jobs to count for a text that only users read."""

_NAMED = 5
_LONGEST_TAG = 200
_LONGEST_NAMES = 20


def tick_status(
    state: QueueState,
    planned: Plan,
    reserved: Sequence[slots.Slot],
    widened: Sequence[slots.Slot],
    settings: QueueSettings,
    rate: RunRate | None,
    failure: str | None = None,
) -> str:
    """Describe what a tick read and did, for users. What it did comes last, as the cursor ends with it.

    Args:
        state: the queue as the tick read it.
        planned: the plan of runs.
        reserved: the slots of the runs that the tick requests.
        widened: the buckets that it added to live runs, as slots.
        settings: of the queue.
        rate: the measured rate by which the runs were counted; None: the number of jobs for a run is set.
        failure: which run failed last, and why, where a requested run took no job.
    """
    said = [_status_line(state.queue, state.heads, state.depth)]
    if state.capacity.freed:
        said.append(f"free again: {_some(state.capacity.freed, 'slot')}")
    if runs := state.capacity.runs:
        said.append(_some([f"{run} has {_buckets(state.covered[number])}" for number, run in runs.items()], "run"))
    if failure is not None:
        said.append(failure)
    if planned.waiting:
        named = [
            f"{bucket} ({state.asked[bucket].starts} runs, the next in {wait:.0f} s)"
            for bucket, wait in planned.waiting.items()
        ]
        said.append(f"no run took a job of bucket {_some(named, 'bucket')}")
    if widened:
        said.append(f"live runs take over {', '.join(_buckets(slot.buckets) for slot in widened)}")
    if reserved:
        if rate is not None:
            said.append(f"{rate}, so {state.jobs_per_run:,} for each")
        said.append(f"requested {_some([f'a run for {_buckets(slot.buckets)}' for slot in reserved], 'run')}")
    if at := settings.paused_at:
        until = f" until {settings.paused_until:%Y-%m-%d %H:%M} UTC" if settings.paused_until else ""
        said.append(f"paused since {at:%Y-%m-%d %H:%M} UTC{until}, resume it with: sqlqueue resume {state.queue}")
    return "; ".join(said)


def _status_line(name: str, heads: Sequence[Head], depth: Depth) -> str:
    """The depth of the queue, for the list of ticks."""
    waits = [-head.due_seconds for head in heads if head.due_seconds < 0]
    later = f", next due in {min(waits):.0f} s" if waits and not depth.ready else ""
    more = "+" if depth.ready >= depth.cap else ""
    others = "+" if depth.running + depth.scheduled + depth.held >= COUNTED else ""
    leased, scheduled = f"{depth.running:,}{others} leased", f"{depth.scheduled:,}{others} scheduled"
    return f"{name}: {depth.ready:,}{more} ready, {leased}, {scheduled}{later}"


def _some(texts: Sequence[str], what: str) -> str:
    """List the first texts, and how many more there are."""
    more = len(texts) - _NAMED
    return ", ".join(texts[:_NAMED]) + (f" and {more} more {what}{'s' * (more > 1)}" if more > 0 else "")


def _buckets(numbers: Sequence[int]) -> str:
    text = ranges(numbers)
    if len(text) > _LONGEST_NAMES:
        return f"{len(numbers)} buckets ({text[:_LONGEST_NAMES].rpartition(',')[0]},…)"
    return f"bucket{'s' * (len(numbers) != 1)} {text}"


def ranges(numbers: Sequence[int]) -> str:
    """Write numbers as ranges, `0-3,7`; cut to the longest tag that Dagster accepts."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and parts[-1][-1] == number - 1:
            parts[-1] = [parts[-1][0], number]
        else:
            parts.append([number])
    text = ",".join("-".join(map(str, part)) for part in parts)
    return text if len(text) <= _LONGEST_TAG else f"{text[:_LONGEST_TAG].rpartition(',')[0]},…"
