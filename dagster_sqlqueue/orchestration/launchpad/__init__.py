"""Launchpad jobs: an operator's decisions about queues and jobs, dry runs first, with a table of the results."""

from dagster_sqlqueue.orchestration.launchpad.building import USUAL_VERBS as USUAL_VERBS
from dagster_sqlqueue.orchestration.launchpad.building import VERBS as VERBS
from dagster_sqlqueue.orchestration.launchpad.building import (
    build_sqlqueue_launchpad_jobs as build_sqlqueue_launchpad_jobs,
)
