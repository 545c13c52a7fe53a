"""Launchpad jobs: an operator's decisions about queues and jobs, dry runs first, with a table of the results."""

from dagster_sqlqueue.orchestration.launchpad.job_builder import (
    USUAL_VERBS,
    VERBS,
    build_sqlqueue_launchpad_jobs,
)

__all__ = [
    "USUAL_VERBS",
    "VERBS",
    "build_sqlqueue_launchpad_jobs",
]
