"""Schedules without the values of sensitive fields, for whatever shows them."""

from dataclasses import replace
from typing import TYPE_CHECKING

from dagster_sqlqueue.payload.redaction import redacted, scrubbed, values_in
from dagster_sqlqueue.schedules.model import Schedule

if TYPE_CHECKING:
    from dagster_sqlqueue.queue import SqlQueue


def discreet_schedule(source: "SqlQueue", schedule: Schedule) -> Schedule:
    """A schedule, as it may be shown: the payload of its jobs redacted, the error without what the payload hides."""
    names = source.catalog.sensitive_names(schedule.queue)
    error = schedule.error and scrubbed(schedule.error, values_in(schedule.payload, names))
    return replace(schedule, payload=redacted(schedule.payload, names), error=error)
