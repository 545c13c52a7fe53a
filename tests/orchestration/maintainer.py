"""A deployment of its own that maintains a schema once: `python maintainer.py URL SCHEMA`. It says what its run gave."""

import json
import sys

import dagster as dg

from dagster_sqlqueue.orchestration import SqlQueueResource, build_maintenance_schedule, output_metadata

url, schema = sys.argv[1:]
with dg.DagsterInstance.ephemeral() as instance:
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()
    done = build_maintenance_schedule().job.execute_in_process(
        instance=instance, resources={"sqlqueue": SqlQueueResource(url=url, schema_name=schema)}
    )
    sys.stdout.write(json.dumps(output_metadata(done, "sqlqueue_maintenance_op")) + "\n")
