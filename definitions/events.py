"""Real-time events: an application enqueues flights, drain runs handle them within seconds."""

import os

import dagster as dg

from dagster_sqlqueue import Backoff, Done, Job, QueueSpec, Retry
from dagster_sqlqueue.orchestration import (
    SensorSettings,
    SqlQueueResource,
    build_sqlqueue_asset_spec,
    build_sqlqueue_sensor,
    queue_consumer,
)
from definitions.flights import FlightEvent, outcome_of

events = QueueSpec(
    "events",
    FlightEvent,
    bucket_count=16,
    lease_seconds=30,
    max_attempts=3,
    backoff=Backoff(seconds=1, factor=2, max_seconds=60),
)


@queue_consumer(events)
def handle_flight(job: Job[FlightEvent]) -> Done | Retry:
    """Note what became of a flight.

    A flight that departed and never reported an arrival is asked for again, and ends in the dead letter. One that
    landed without an arrival delay was diverted; its report is given one more chance to be completed.
    """
    flight = job.payload
    status = outcome_of(flight)
    if status == "lost":
        return Retry(
            f"{flight.carrier}{flight.flight} {flight.origin}-{flight.dest} of {flight.day} departed at"
            f" {flight.dep_time:04} and reported no arrival"
        )
    if status == "diverted" and job.attempt == 1:
        return Retry(
            f"{flight.carrier}{flight.flight} of {flight.day} landed without an arrival delay: report incomplete"
        )
    return Done({"status": status})


sensor = build_sqlqueue_sensor(
    handle_flight,
    settings=SensorSettings(max_runs=3, jobs_per_run=20_000),
    default_status=dg.DefaultSensorStatus.RUNNING,
)

defs = dg.Definitions(
    assets=[build_sqlqueue_asset_spec(events, description="Flights as they are reported, one job each.")],
    jobs=[handle_flight.job],
    sensors=[sensor],
    resources={
        "sqlqueue": SqlQueueResource(
            url=dg.EnvVar("SQLQUEUE_URL"), schema_name=os.environ.get("SQLQUEUE_SCHEMA", "sqlqueue")
        )
    },
)
