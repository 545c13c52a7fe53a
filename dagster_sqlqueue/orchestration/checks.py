"""Asset checks of a queue's health: the sensor reports them without a run, and users can run them."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import dagster as dg

from dagster_sqlqueue import display
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.model.job import Head
from dagster_sqlqueue.model.numbers import is_number
from dagster_sqlqueue.model.queue import QueueSpec
from dagster_sqlqueue.orchestration import slots
from dagster_sqlqueue.orchestration.assets import asset_key_or_usual, name_of_asset
from dagster_sqlqueue.orchestration.dead_letters import latest_letters, letter_list
from dagster_sqlqueue.orchestration.page_links import links_in_run
from dagster_sqlqueue.orchestration.resource import RESOURCE_KEY, SqlQueueResource, under_key
from dagster_sqlqueue.orchestration.run_errors import library_errors_as_failures
from dagster_sqlqueue.orchestration.sensor_cursor import stood_by_cursors
from dagster_sqlqueue.orchestration.slots import Asked
from dagster_sqlqueue.queue import SqlQueue
from dagster_sqlqueue.queue.stats import QueueStats

OLDEST_READY = "oldest_ready"
DEAD_LETTERS = "dead_letters"
STALE_WRITES = "stale_writes"
STALLED_BUCKET = "stalled_bucket"
NAMES = (OLDEST_READY, DEAD_LETTERS, STALE_WRITES, STALLED_BUCKET)

_STALLED_STARTS = 3


@dataclass(frozen=True, slots=True)
class CheckThresholds:
    """The thresholds above which the checks of a queue fail.

    Args:
        oldest_ready_seconds: the longest that a due job may wait.
        dead_letters: the most jobs in the dead letter.
        stale_writes: the most writes a day, UTC, that are refused because the lease had passed on: it expired, and another
            claim or an operator has the job.
        stalled_seconds: the longest that a bucket with work may stand still while the queue is not paused.

    Raises:
        InvalidInput: a threshold is negative, or no number.
    """

    oldest_ready_seconds: float = 300.0
    dead_letters: int = 0
    stale_writes: int = 0
    stalled_seconds: float = 600.0

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            if not is_number(value := getattr(self, name), 0):
                raise InvalidInput(f"{name} of CheckThresholds is {value!r}; it must be a number, 0 or more")


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer of one check."""

    name: str
    passed: bool
    description: str
    metadata: dict[str, Any] = field(default_factory=dict)

    @property
    def severity(self) -> dg.AssetCheckSeverity:
        """Warnings for dead letters and stale writes; an error for a queue that does not move."""
        urgent = self.name in (OLDEST_READY, STALLED_BUCKET)
        return dg.AssetCheckSeverity.ERROR if urgent else dg.AssetCheckSeverity.WARN

    def evaluation(self, key: dg.AssetKey) -> dg.AssetCheckEvaluation:
        """The form in which a sensor reports it."""
        return dg.AssetCheckEvaluation(**self._said(key))

    def result(self, key: dg.AssetKey) -> dg.AssetCheckResult:
        """The form in which a run reports it."""
        return dg.AssetCheckResult(**self._said(key))

    def _said(self, key: dg.AssetKey) -> dict[str, Any]:
        return {
            "asset_key": key,
            "check_name": self.name,
            "passed": self.passed,
            "severity": self.severity,
            "description": self.description,
            "metadata": self.metadata,
        }


def oldest_ready_seconds(heads: Sequence[Head]) -> float:
    """How long the job that is due longest has been due; 0: none is."""
    return max((head.due_seconds for head in heads if head.due_seconds > 0), default=0.0)


def verdicts(
    stats: QueueStats | None,
    heads: Sequence[Head],
    asked: Mapping[int, Asked],
    stood: Mapping[int, float],
    limits: CheckThresholds,
    *,
    paused: bool,
    letters: str | None = None,
) -> list[Verdict]:
    """Evaluate the checks of a queue.

    Args:
        stats: its statistics; None: the database's user may not read them, and the checks of ended jobs are left out.
        heads: the first job of each bucket and priority.
        asked: the buckets for which requested runs have done nothing so far.
        stood: for how many seconds the first job of a bucket has been the same, as far as that is known.
        limits: the thresholds.
        paused: whether the queue is paused.
        letters: the latest dead letters, in Markdown.
    """
    oldest = oldest_ready_seconds(heads)
    found = [
        Verdict(
            OLDEST_READY,
            paused or oldest <= limits.oldest_ready_seconds,
            f"The oldest due job has been due for {_seconds(oldest)}{'; the queue is paused' if paused else ''}"
            f" (at most {_seconds(limits.oldest_ready_seconds)}).",
            {"oldest_ready_seconds": round(oldest, 1)},
        ),
        _stalled(heads, asked, stood, limits, paused),
    ]
    if stats is None:
        return found
    dead, refused = stats.dead_letters, stats.stale_writes_today
    return [
        *found,
        Verdict(
            DEAD_LETTERS,
            dead <= limits.dead_letters,
            f"{_jobs_are(dead, stats.counted_up_to)} in the dead letter (at most {limits.dead_letters:,})"
            f"{': read their errors, then redrive them' if dead > limits.dead_letters else ''}.",
            {
                "dead_letters": dead,
                **({} if letters is None else {"latest_dead_letters": dg.MetadataValue.md(letters)}),
            },
        ),
        Verdict(
            STALE_WRITES,
            refused <= limits.stale_writes,
            f"Stale writes that were refused today: {refused:,} (at most {limits.stale_writes:,})"
            f"{': handlers outlive their lease, or a process stood still' if refused > limits.stale_writes else ''}.",
            {"stale_writes_today": refused},
        ),
    ]


def build_sqlqueue_checks(
    spec: QueueSpec[Any],
    thresholds: CheckThresholds | None = None,
    *,
    asset_key: dg.AssetKey | None = None,
    resource_key: str = RESOURCE_KEY,
) -> dg.AssetChecksDefinition:
    """Build the checks of a queue: whether jobs wait too long, are in the dead letter, outlive their leases, or do not
    move. The queue's sensor reports them when one of them changes, and once an hour, without a run. Users can execute each
    of them, and all, from the asset's page.

    Args:
        spec: the queue.
        thresholds: above which they fail; give the same to `build_sqlqueue_sensor`.
        asset_key: of the queue's asset; None: `queues/<name>`.
        resource_key: of the queue's resource.

    Raises:
        InvalidInput: the queue, the thresholds or a key is none.
    """
    key = asset_key_or_usual(spec, asset_key)
    if not (thresholds is None or isinstance(thresholds, CheckThresholds)):
        raise InvalidInput(
            f"thresholds of the checks of {spec.label} is {thresholds!r:.100}; give a CheckThresholds(…)"
        )
    limits = thresholds or CheckThresholds()
    about = {
        OLDEST_READY: f"No due job waits longer than {_seconds(limits.oldest_ready_seconds)}.",
        DEAD_LETTERS: f"At most {limits.dead_letters:,} jobs are in the dead letter.",
        STALE_WRITES: f"At most {limits.stale_writes:,} stale writes a day: those of consumers that were refused because"
        " the lease had passed on.",
        STALLED_BUCKET: f"Every bucket with work moves within {_seconds(limits.stalled_seconds)}.",
    }

    @dg.multi_asset_check(
        name=f"{name_of_asset(key, spec.name)}_health",
        specs=[dg.AssetCheckSpec(name, asset=key, description=about[name]) for name in NAMES],
        description=f"Checks the health of the queue {spec.name!r}.",
        can_subset=True,
    )
    @under_key(resource_key)
    def health(context: dg.AssetCheckExecutionContext, sqlqueue: SqlQueueResource) -> Any:
        wanted = {chosen.name for chosen in context.selected_asset_check_keys}
        with library_errors_as_failures():
            found = _now(context.op_execution_context, sqlqueue.queue, spec.name, limits)
        for verdict in found:
            if verdict.name in wanted:
                yield verdict.result(key)

    return _Checks.dagster_internal_init(**health.get_attributes_dict())


def _now(context: dg.OpExecutionContext, queue: SqlQueue, name: str, limits: CheckThresholds) -> list[Verdict]:
    """Evaluate the checks in a run."""
    stats, heads = queue.stats(name), queue.peek_heads(name)
    letters = (
        letter_list(latest_letters(queue, name), name, links_in_run(context, name)) if stats.dead_letters else None
    )
    return verdicts(
        stats,
        heads,
        slots.asked(queue, name),
        stood_by_cursors(context.instance, heads),
        limits,
        paused=stats.paused_at is not None,
        letters=letters,
    )


class _Checks(dg.AssetChecksDefinition):
    """Keeps its class when Dagster copies it, as it copies all definitions of a `dg` project: it would make checks of any
    other class anew, with a `BetaWarning` in each process that loads the project.
    """

    @staticmethod
    def dagster_internal_init(**attributes: Any) -> "_Checks":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", dg.BetaWarning)
            return _Checks(**attributes)


def _stalled(
    heads: Sequence[Head], asked: Mapping[int, Asked], stood: Mapping[int, float], limits: CheckThresholds, paused: bool
) -> Verdict:
    due = {head.bucket for head in heads if head.due_seconds >= 0}
    vain = {bucket: asked[bucket] for bucket in sorted(due & asked.keys()) if asked[bucket].starts >= _STALLED_STARTS}
    still = {bucket: stood[bucket] for bucket in sorted(due & stood.keys()) if stood[bucket] > limits.stalled_seconds}
    found = {} if paused else dict.fromkeys([*vain, *still])
    reasons = [f"bucket {bucket}: {vain[bucket].starts} runs were requested and none took a job" for bucket in vain] + [
        f"bucket {bucket}: its first job has been the same for {_seconds(still[bucket])}"
        for bucket in still
        if bucket not in vain
    ]
    said = "; ".join(reasons[:10]) + ("; …" if len(reasons) > 10 else "")
    return Verdict(
        STALLED_BUCKET,
        not found,
        f"{said[0].upper()}{said[1:]}." if found else "Every bucket with work moves.",
        {"stalled_buckets": len(found)},
    )


def _jobs_are(number: int, cap: int) -> str:
    return "1 job is" if number == 1 else f"{display.count(number, cap)} jobs are"


def _seconds(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7_200 else f"{seconds / 3_600:.1f} h"
