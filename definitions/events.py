"""Real-time events: an application enqueues flights, drain runs handle them within seconds."""

import dagster as dg

from dagster_sqlqueue import Backoff, Done, Job, QueueSpec, Retry
from dagster_sqlqueue.orchestration import (
    SensorSettings,
    build_cleanup_sensors,
    build_maintenance_schedule,
    build_observe_job,
    build_sqlqueue_asset_spec,
    build_sqlqueue_checks,
    build_sqlqueue_launchpad_jobs,
    queue_consumer,
)
from definitions.flights import FlightEvent, outcome_of
from definitions.resources import QUEUES_MOVE, executor, resources

events = QueueSpec(
    "events",
    FlightEvent,
    bucket_count=16,
    lease_seconds=30,
    max_attempts=3,
    backoff=Backoff(seconds=1, factor=2, max_seconds=60),
)


@queue_consumer(
    events,
    sensor={
        "settings": SensorSettings(max_runs=3, jobs_per_run=20_000, linger_seconds=5),
        "default_status": dg.DefaultSensorStatus.RUNNING,
        "observe_job": build_observe_job(events),
    },
)
def handle_flight(job: Job[FlightEvent]) -> Done | Retry:
    """Record the outcome of a flight.

    The job of a flight that departed and never reported an arrival is retried, and ends in the dead letter. A flight that
    landed without an arrival delay was diverted; the handler retries it once, for a complete report.
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


launchpad = build_sqlqueue_launchpad_jobs(
    events, name_prefix="events", verbs=("show", "redrive", "cancel", "pause", "resume", "rebucket")
)

cleanup = build_cleanup_sensors([handle_flight], prefix="events", default_status=dg.DefaultSensorStatus.RUNNING)

defs = dg.Definitions(
    assets=[
        build_sqlqueue_asset_spec(
            events, description="Flights as they are reported, one job each.", freshness_policy=QUEUES_MOVE
        )
    ],
    asset_checks=[build_sqlqueue_checks(events)],
    jobs=[handle_flight.job, *launchpad],
    sensors=[handle_flight.sensor, *cleanup],
    schedules=[build_maintenance_schedule(default_status=dg.DefaultScheduleStatus.RUNNING)],
    resources=resources,
    executor=executor,
)
