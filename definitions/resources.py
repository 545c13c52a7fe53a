"""The resources and the executor of all code locations."""

import os

import dagster as dg

from dagster_sqlqueue.orchestration import SqlQueueResource

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
