"""Reminders: each becomes due at a moment of its own, may be moved, put off or called off, and is sent once."""

import csv
import functools
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Annotated

import dagster as dg
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from dagster_sqlqueue import Backoff, Cancel, Done, Job, QueueSpec, Reject, Retry, Snooze
from dagster_sqlqueue.embedded import home
from dagster_sqlqueue.orchestration import (
    SensorSettings,
    build_cleanup_sensors,
    build_observe_job,
    build_sqlqueue_asset_spec,
    build_sqlqueue_checks,
    build_sqlqueue_launchpad_jobs,
    queue_consumer,
)
from definitions.flights import Airport, Clock, listed_airports
from definitions.resources import QUEUES_MOVE, executor, resources

BUSY_CARRIERS = frozenset({"9E"})
"""Carriers with a gateway that accepts a message at the second attempt only."""


class Reminder(BaseModel):
    """The payload of a reminder to an account, the destination airport, of a flight to it that leaves soon.

    It carries what the airline knows when the reminder is due: whether the flight is `cancelled`, and
    `late_until` when a late one has to wait.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    day: date
    account: Airport
    carrier: str
    flight: Annotated[int, Field(ge=1, le=9999)]
    origin: Airport
    leaves: Clock
    cancelled: bool = False
    late_until: AwareDatetime | None = None


reminders = QueueSpec(
    "reminders",
    Reminder,
    bucket_count=4,
    lease_seconds=30,
    max_attempts=4,
    backoff=Backoff(seconds=1, factor=2, max_seconds=60),
)


@queue_consumer(
    reminders,
    mode="linger",
    sensor={
        "settings": SensorSettings(max_runs=1),
        "default_status": dg.DefaultSensorStatus.RUNNING,
        "observe_job": build_observe_job(reminders),
    },
)
def send_reminder(job: Job[Reminder]) -> Done | Retry | Snooze | Cancel | Reject:
    """Remind an account of a flight that leaves soon.

    A cancelled flight's reminder is called off, and that of an account without an address ends in the dead letter: with
    a line `account,address` in the file contacts.csv of the state directory it can be redriven. A late flight's reminder
    is put off, at no attempt's cost. A busy gateway costs an attempt.
    """
    reminder = job.payload
    flight = f"{reminder.carrier}{reminder.flight} from {reminder.origin}"
    if reminder.cancelled:
        return Cancel(f"{flight} is cancelled")
    address = contacts().get(reminder.account)
    if address is None:
        return Reject(f"no address for {reminder.account}: add it to {contacts_file().name} and redrive")
    if reminder.late_until is not None and datetime.now(UTC) < reminder.late_until:
        return Snooze(reminder.late_until)
    if reminder.carrier in BUSY_CARRIERS and job.attempt == 1:
        return Retry(f"the gateway of {reminder.carrier} is busy")
    return Done(
        {"sent_to": address, "text": f"{flight} leaves at {reminder.leaves // 100:02}:{reminder.leaves % 100:02}"}
    )


def contacts() -> dict[str, str]:
    """The address of each account: the airports of the table, and those of the file of additions."""
    return _listed() | additions()


def contacts_file() -> Path:
    """The file for addresses that users add by hand, a line `account,address` each."""
    return home() / "contacts.csv"


def additions() -> dict[str, str]:
    """Read the addresses that users added by hand."""
    try:
        with contacts_file().open(encoding="utf-8", newline="") as lines:
            return {row[0].strip(): row[1].strip() for row in csv.reader(lines) if len(row) == 2}
    except FileNotFoundError:
        return {}


@functools.cache
def _listed() -> dict[str, str]:
    return {code: f"{code.lower()}@airports.example" for code in listed_airports()}


launchpad = build_sqlqueue_launchpad_jobs(
    reminders, name_prefix="reminders", verbs=("show", "redrive", "cancel", "reschedule", "pause", "resume")
)

cleanup = build_cleanup_sensors([send_reminder], prefix="reminders", default_status=dg.DefaultSensorStatus.RUNNING)

defs = dg.Definitions(
    assets=[
        build_sqlqueue_asset_spec(
            reminders,
            description="One reminder for each flight, due when it leaves soon.",
            freshness_policy=QUEUES_MOVE,
        )
    ],
    asset_checks=[build_sqlqueue_checks(reminders)],
    jobs=[send_reminder.job, *launchpad],
    sensors=[send_reminder.sensor, *cleanup],
    resources=resources,
    executor=executor,
)
