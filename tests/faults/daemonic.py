"""What a daemon loads of the tests' own: Dagster's coordinator and launcher, with a gate before each of their deeds."""

import os
from pathlib import Path

import dagster as dg
from dagster._core.launcher import DefaultRunLauncher, LaunchRunContext
from dagster._core.run_coordinator import QueuedRunCoordinator, SubmitRunContext

from tests.faults.gates import Gates

_gates = Gates(Path(os.environ.get("SQLQUEUE_FAULTS", ".")) / "gates")


class GatedCoordinator(QueuedRunCoordinator):
    """`submitting`: the tick's cursor is written, and its runs' ids with it; the first run is made and not submitted."""

    def submit_run(self, context: SubmitRunContext) -> dg.DagsterRun:
        _gates.pass_by("submitting", run=context.dagster_run.run_id)
        return super().submit_run(context)


class GatedLauncher(DefaultRunLauncher):
    """`launching`: the run has left the queue, and the code server has not heard of it."""

    def launch_run(self, context: LaunchRunContext) -> None:
        tags = context.dagster_run.tags
        _gates.pass_by("launching", run=context.dagster_run.run_id, queue=tags["sqlqueue/queue"])
        super().launch_run(context)
