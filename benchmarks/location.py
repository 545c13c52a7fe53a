"""The code location of the benchmarks with a daemon: a consumer of each mode, whose handlers note when they were called, one
with every default, one whose sensor only ticks, and one that waits to be killed.
"""

import os
import threading
import time
from pathlib import Path
from typing import Any

import dagster as dg

from benchmarks.harness import Event
from dagster_sqlqueue import Done, Job, QueueSpec
from dagster_sqlqueue.orchestration import DrainMode, QueueConsumer, SensorSettings, SqlQueueResource, queue_consumer

SCHEMA = "SQLQUEUE_BENCH_SCHEMA"
LINGER_SECONDS = 20.0
QUEUES = "SQLQUEUE_BENCH_QUEUES"
"""The queues whose sensors are on."""
PID_FILE = "SQLQUEUE_BENCH_PID"
"""Where the run that is to be killed writes its process id; a run that finds it there works its jobs off."""

KILLED = QueueSpec("bench_killed", Event, bucket_count=16)
"""With the lease that a queue has unless it says otherwise."""
TICKS = QueueSpec("bench_ticks", Event, bucket_count=64)
TRICKLE = QueueSpec("bench_trickle", Event, bucket_count=16)


def spec_of(mode: DrainMode) -> QueueSpec[Event]:
    """The queue of the consumer of a mode."""
    return QueueSpec(f"bench_{mode}", Event, bucket_count=16)


def _consumer(mode: DrainMode) -> QueueConsumer[Event]:
    linger = LINGER_SECONDS if mode is DrainMode.LINGER else None
    settings = SensorSettings(max_runs=1, linger_seconds=linger, jobs_per_run=1_000_000)

    @queue_consumer(spec_of(mode), mode=mode, sensor={"settings": settings})
    def handle(job: Job[Event]) -> Done:
        return Done({"called_at": time.time()})

    return handle


CONSUMERS: dict[DrainMode, QueueConsumer[Any]] = {mode: _consumer(mode) for mode in DrainMode}


@queue_consumer(TICKS)
def tick(job: Job[Event]) -> None:
    """Not called: the runs that its sensor finds at work do nothing."""


@dg.sensor(
    name="bench_nothing_sensor",
    job=tick.job,
    minimum_interval_seconds=1,
    default_status=dg.DefaultSensorStatus.RUNNING,
)
def nothing(sqlqueue: SqlQueueResource) -> dg.SkipReason:
    """What Dagster itself takes for a tick of a sensor with a resource."""
    return dg.SkipReason("nothing")


@queue_consumer(TRICKLE)
def trickle(job: Job[Event]) -> Done:
    """As a consumer is that nobody has set up."""
    return Done({"called_at": time.time()})


# A run that Dagster takes for starting keeps its buckets for ten minutes unless a consumer says otherwise.
@queue_consumer(
    KILLED,
    mode=DrainMode.BATCH,
    name="drain_killed",
    sensor={"settings": SensorSettings(starting_seconds=KILLED.lease_seconds)},
)
def killed(job: Job[Event]) -> Done:
    """The first run stays at its first job."""
    file = Path(os.environ[PID_FILE])
    if not file.exists():
        made = file.with_suffix(".new")
        made.write_text(str(os.getpid()))
        made.rename(file)
        threading.Event().wait()
    return Done({"called_at": time.time()})


ALL: list[QueueConsumer[Any]] = [*CONSUMERS.values(), tick, trickle, killed]
ON = os.environ.get(QUEUES, "").split()

# Imported without a schema by the benchmark itself, which needs the queues only.
defs = dg.Definitions(
    jobs=[consumer.job for consumer in ALL],
    sensors=[
        *(
            consumer.sensor_with(default_status=dg.DefaultSensorStatus.RUNNING)
            for consumer in ALL
            if consumer.spec.name in ON
        ),
        *([nothing] if TICKS.name in ON else []),
    ],
    resources={
        "sqlqueue": SqlQueueResource(url=dg.EnvVar("SQLQUEUE_URL"), schema_name=os.environ.get(SCHEMA, "sqlqueue"))
    },
)
