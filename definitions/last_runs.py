"""The end of the runs that are at work when there is nothing left to do."""

import time
from collections.abc import Collection

import dagster as dg

from dagster_sqlqueue.errors import QueueError

_POLL_SECONDS = 0.25
_ENDED = {dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED}
_AT_WORK = [status for status in dg.DagsterRunStatus if status not in _ENDED]
# A run that is starting has no process yet that could be asked; one that is cancelling has been asked.
_CANCELLABLE = {dg.DagsterRunStatus.QUEUED, dg.DagsterRunStatus.STARTED}


class RunsGoOn(QueueError):
    """Runs did not end in time; the message names them."""


def end_runs(instance: dg.DagsterInstance, waiting: Collection[str], patience_seconds: float) -> None:
    """Cancel the runs that only wait for further jobs, and wait until every run has ended.

    A daemon that ends takes its runs' processes with it, and Dagster would show them as failed.

    Args:
        instance: where the runs are; its daemon is still at work.
        waiting: the names of the jobs whose runs are cancelled.
        patience_seconds: how long to wait for all of them.

    Raises:
        RunsGoOn: if one has not ended by then.
    """
    deadline = time.monotonic() + patience_seconds
    while runs := instance.get_runs(dg.RunsFilter(statuses=_AT_WORK)):
        if time.monotonic() > deadline:
            names = ", ".join(f"{run.run_id} of {run.job_name} ({run.status.value})" for run in runs)
            raise RunsGoOn(f"after {patience_seconds:.0f} s these runs have not ended: {names}")
        for run in runs:
            if run.job_name in waiting and run.status in _CANCELLABLE:
                instance.run_coordinator.cancel_run(run.run_id)
        time.sleep(_POLL_SECONDS)
