"""The code location of the benchmark `dagster_runs`: a consumer of each mode, whose handlers note when they were called."""

import os
import time
from typing import Any

import dagster as dg

from benchmarks.harness import Event
from dagster_sqlqueue import Done, Job, QueueSpec
from dagster_sqlqueue.orchestration import DrainMode, QueueConsumer, SensorSettings, SqlQueueResource, queue_consumer

SCHEMA = "SQLQUEUE_BENCH_SCHEMA"
LINGER_SECONDS = 20.0


def spec_of(mode: DrainMode) -> QueueSpec[Event]:
    """The queue of the consumer of a mode."""
    return QueueSpec(f"bench_{mode}", Event, bucket_count=16)


def _consumer(mode: DrainMode) -> QueueConsumer[Event]:
    linger = LINGER_SECONDS if mode is DrainMode.LINGER else None
    settings = SensorSettings(max_runs=1, linger_seconds=linger, jobs_per_run=1_000_000)
    running = dg.DefaultSensorStatus.RUNNING

    @queue_consumer(spec_of(mode), mode=mode, sensor={"settings": settings, "default_status": running})
    def handle(job: Job[Event]) -> Done:
        return Done({"called_at": time.time()})

    return handle


CONSUMERS: dict[DrainMode, QueueConsumer[Any]] = {mode: _consumer(mode) for mode in DrainMode}

# Imported without a schema by the benchmark itself, which needs the queues only.
defs = dg.Definitions(
    jobs=[consumer.job for consumer in CONSUMERS.values()],
    sensors=[consumer.sensor for consumer in CONSUMERS.values()],
    resources={
        "sqlqueue": SqlQueueResource(url=dg.EnvVar("SQLQUEUE_URL"), schema_name=os.environ.get(SCHEMA, "sqlqueue"))
    },
)
