"""Why the last run of a sensor failed, for the status of its ticks: read only where a requested run came to nothing."""

import time
from datetime import UTC, datetime

import dagster as dg

from dagster_sqlqueue import errors
from dagster_sqlqueue.orchestration.page_links import SENSOR_TAG
from dagster_sqlqueue.orchestration.queue_page import QueueState
from dagster_sqlqueue.orchestration.slot_runs import short

_LIBRARY = frozenset(
    f"{one.__module__}.{one.__qualname__}"
    for one in vars(errors).values()
    if isinstance(one, type) and issubclass(one, errors.QueueError)
)
"""As a stored error begins: its class, with the module. The class's name alone may be another's."""
_LONGEST = 200
_CLOCK_SECONDS = 60.0
"""How far the clocks of the database and of Dagster may differ."""


def last_failure(instance: dg.DagsterInstance, job: str, sensor: str, state: QueueState) -> str | None:
    """Say which run failed last, and why; None if no due job is left behind by a requested run.

    The message is given of the library's own errors, which quote no secrets; of others only the class.

    Args:
        instance: Dagster's, with the runs.
        job: the name of the runs' job.
        sensor: the sensor that requested them.
        state: the queue as the tick read it.
    """
    due = {head.bucket for head in state.heads if head.due_seconds >= 0}
    left = due.difference(*state.covered.values())
    came_to_nothing = [asked.seconds for bucket, asked in state.asked.items() if bucket in left]
    if not came_to_nothing:
        return None
    since = datetime.fromtimestamp(time.time() - max(came_to_nothing) - _CLOCK_SECONDS, UTC)
    failed = dg.RunsFilter(
        job_name=job, statuses=[dg.DagsterRunStatus.FAILURE], tags={SENSOR_TAG: sensor}, created_after=since
    )
    runs = instance.get_runs(failed, limit=1)
    return f"run {short(runs[0].run_id)} failed{_reason(instance, runs[0].run_id)}" if runs else None


def _reason(instance: dg.DagsterInstance, run_id: str) -> str:
    found = instance.get_records_for_run(run_id, of_type=dg.DagsterEventType.STEP_FAILURE, limit=1).records
    event = found[0].event_log_entry.dagster_event if found else None
    error = event.step_failure_data.error if event is not None else None
    while error is not None and error.cause is not None:
        error = error.cause
    if error is None or error.cls_name is None:
        return " before its op had begun, or without an error; see its page"
    kind, _, said = error.message.partition(": ")
    if kind not in _LIBRARY:
        return f" with {error.cls_name}; see its page"
    # Its first sentence: what is wrong, and what to do.
    message = " ".join(said.split()).partition(". ")[0]
    return f": {message if len(message) <= _LONGEST else message[: _LONGEST - 1] + '…'}"
