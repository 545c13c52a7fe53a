"""The resources and the executor of all code locations, and the freshness of their queues."""

import os
from datetime import timedelta

import dagster as dg

from dagster_sqlqueue.orchestration import SqlQueueResource

# An idle queue is materialised once an hour.
QUEUES_MOVE = dg.FreshnessPolicy.time_window(fail_window=timedelta(hours=3), warn_window=timedelta(hours=2))

# The URL stays in the environment: the UI shows the variable's name only. The output of a run is on its page, and in no
# file.
resources = {
    "sqlqueue": SqlQueueResource(
        url=dg.EnvVar("SQLQUEUE_URL"), schema_name=os.environ.get("SQLQUEUE_SCHEMA", "sqlqueue")
    ),
    "io_manager": dg.mem_io_manager,
}

# What the UI launches from an asset's page is one step too, or Spark in one session: a process for each step would only take
# longer to start.
executor = dg.in_process_executor
