"""Jobs that people start from the launchpad: what operators decide, a dry run first and a table of what came of it."""

from dagster_sqlqueue.orchestration.launchpad.building import USUAL_VERBS as USUAL_VERBS
from dagster_sqlqueue.orchestration.launchpad.building import VERBS as VERBS
from dagster_sqlqueue.orchestration.launchpad.building import (
    build_sqlqueue_launchpad_jobs as build_sqlqueue_launchpad_jobs,
)
