"""What a schedule is: its rule, the jobs that it makes, and what becomes of ticks that were not enqueued in time. No I/O."""

import enum
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Self
from uuid import UUID

from pydantic import JsonValue, RootModel

from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.model.backoff import Backoff
from dagster_sqlqueue.model.ids import stable_id
from dagster_sqlqueue.model.job import NewJob
from dagster_sqlqueue.model.queue import QueueSpec
from dagster_sqlqueue.payload import serialization
from dagster_sqlqueue.payload.storable import unstorable_text
from dagster_sqlqueue.queue.validation import values
from dagster_sqlqueue.schedules.cron import Timing, latest, timing_of, zone_of

GRACE_SECONDS = 60.0
_LONGEST_NAME = 200
_SOME_TICK = "2001-02-03T04:05:06.000789+00:00"
"""Stands for the tick where a payload is checked: with a time of day and an offset, as a real one may have them."""
_JUST_BEFORE = timedelta(microseconds=1)


class CatchUp(enum.StrEnum):
    """What becomes of the ticks that are due when a scheduler polls: several, after an outage or a pause."""

    SKIP = "skip"
    """Those that are later than the schedule's grace are dropped; the others are enqueued."""
    ONE = "one"
    """The latest is enqueued, the others are dropped."""
    ALL = "all"
    """Each is enqueued, in order; of very many, some at each poll."""


class AnyPayload(RootModel[JsonValue]):
    """A payload that was found in order when its schedule was made."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule as the database has it.

    Attributes:
        cron: the cron expression; None: an interval is set.
        every_seconds: the length of the interval; None: a cron expression is set.
        time_zone: in which the cron expression is read, and in which jobs are given their tick.
        starting: the moment before which it does not tick, if one was named.
        anchor: from which an interval counts.
        grace_seconds: so much later a tick is still in time, where `catch_up` is `skip`.
        tick_field: the payload's field that is given the tick.
        payload: of its jobs, as JSON.
        next_tick: the first moment for which nothing was decided yet; in the past: it is due.
        last_tick: the latest tick that was enqueued.
        error: why a scheduler paused it.
        revision: grows with every change.
    """

    queue: str
    name: str
    cron: str | None
    every_seconds: float | None
    time_zone: str
    starting: datetime | None
    anchor: datetime
    catch_up: CatchUp
    grace_seconds: float
    tick_field: str | None
    priority: int
    max_attempts: int | None
    timeout_seconds: float | None
    backoff: Backoff | None
    unique_key: str | None
    unique_until_claim: bool
    ordering_key: str | None
    region: str | None
    tags: Sequence[str]
    payload: Any
    next_tick: datetime
    last_tick: datetime | None
    paused_at: datetime | None
    error: str | None
    created_at: datetime
    revision: int

    @classmethod
    def of(cls, row: Sequence[Any]) -> Self:
        """The schedule in a row of `schedules.sql`."""
        found = cls(*row)
        backoff = None if found.backoff is None else Backoff(*found.backoff)  # type: ignore[misc]
        return replace(found, catch_up=CatchUp(found.catch_up), backoff=backoff, tags=tuple(found.tags))

    @property
    def timing(self) -> Timing:
        """Its rule.

        Raises:
            InvalidInput: it cannot be used here: this machine does not know the time zone, say.
        """
        return timing_of(cron=self.cron, every_seconds=self.every_seconds, time_zone=self.time_zone, anchor=self.anchor)

    def ticks(self) -> Iterator[datetime]:
        """The ticks from the next one on, in UTC; those that are due and were not enqueued among them.

        Raises:
            InvalidInput: see `timing`.
        """
        return self.timing.after(self.next_tick - _JUST_BEFORE)

    def job_at(self, tick: datetime) -> NewJob[Any]:
        """The job of a tick. Its id is made of schedule and tick: the same tick makes the same job."""
        payload = self.payload
        if self.tick_field is not None:
            payload = {**payload, self.tick_field: tick.astimezone(zone_of(self.time_zone)).isoformat()}
        return NewJob(
            payload,
            run_at=tick,
            priority=self.priority,
            ordering_key=self.ordering_key,
            unique_key=self.unique_key,
            unique_until="claim" if self.unique_until_claim else "end",
            max_attempts=self.max_attempts,
            timeout_seconds=self.timeout_seconds,
            backoff=self.backoff,
            tags=self.tags,
            region=self.region,
            id=job_id(self.queue, self.name, tick),
        )


@dataclass(frozen=True, slots=True)
class Due:
    """What a poll decided about a schedule: the ticks to enqueue, and the first one that nothing was decided about."""

    schedule: Schedule
    ticks: list[datetime]
    next_tick: datetime


def due(schedule: Schedule, now: datetime, room: int) -> Due:
    """Return the ticks of a schedule to enqueue.

    Args:
        schedule: one that is due.
        now: by the database's clock.
        room: the most ticks; the rest stays due.

    Raises:
        InvalidInput: its rule cannot be used, or it has come to its end.
    """
    timing = schedule.timing
    since = schedule.next_tick
    if schedule.catch_up is CatchUp.SKIP:
        since = max(since, now - timedelta(seconds=schedule.grace_seconds))
    if schedule.catch_up is CatchUp.ONE:
        since = latest(timing, since, now) or now
    ticks: list[datetime] = []
    for tick in timing.after(since - _JUST_BEFORE):
        if tick > now or len(ticks) == room:
            return Due(schedule, ticks, tick)
        ticks.append(tick)
    raise InvalidInput(f"it has no tick after {max(now, since)}; give it another rule, or remove it")


def job_id(queue: str, name: str, tick: datetime) -> UUID:
    """The id of the job of a tick: always the same one. Ids sort by their ticks."""
    return stable_id(tick, f"{queue}/{name}/{tick.isoformat()}")


def check_name(name: object) -> str:
    """The name, if a schedule may have it.

    Raises:
        InvalidInput: it may not.
    """
    if not isinstance(name, str) or not 0 < len(name) <= _LONGEST_NAME or not name.isprintable():
        raise InvalidInput(
            f"schedule name {name!r:.100} is not usable: give a text of 1 to {_LONGEST_NAME} printable characters"
        )
    return name


def template(spec: QueueSpec[Any], name: str, job: Any, tick_field: str | None) -> dict[str, Any]:
    """What a schedule keeps about its jobs, as columns.

    Raises:
        InvalidInput: the jobs could not be enqueued, or would not be given their tick.
    """
    new = job if isinstance(job, NewJob) else NewJob(job)
    for setting in ("id", "run_at"):
        if getattr(new, setting) is not None:
            raise InvalidInput(
                f"{setting} is {getattr(new, setting)}; a schedule gives each of its jobs its own: leave it out"
            )
    if isinstance(new.tags, Sequence | set | frozenset) and not isinstance(new.tags, str | bytes):
        own = sorted(new.tags, key=str) if isinstance(new.tags, set | frozenset) else new.tags
        new = replace(new, tags=list(dict.fromkeys([*own, f"schedule:{name}"])))
    try:
        if tick_field is None:
            return values(spec, new)
        return _with_its_tick(spec, new, tick_field)
    except InvalidInput as error:
        raise type(error)(serialization.without_row(error)) from None


def _with_its_tick(spec: QueueSpec[Any], new: NewJob[Any], tick_field: object) -> dict[str, Any]:
    if not isinstance(tick_field, str) or not tick_field or unstorable_text(tick_field):
        raise InvalidInput(f"tick_field is {tick_field!r}; give the name of a field of {spec.payload.__name__}")
    payload: Any = new.payload
    if not isinstance(payload, Mapping):
        content = json.loads(values(spec, new)["payload"])
        if not isinstance(content, dict):
            raise InvalidInput(f"tick_field is {tick_field!r}, and the payload is no JSON object: it has no fields")
        payload = serialization.parse(spec, json.dumps({**content, tick_field: _SOME_TICK}))
    else:
        payload = {**payload, tick_field: _SOME_TICK}
    columns = values(spec, replace(new, payload=payload))
    content = json.loads(columns["payload"])
    if content.pop(tick_field, None) is None:
        raise InvalidInput(
            f"tick_field is {tick_field!r}, which {spec.payload.__name__} of queue {spec.name!r} does not have"
        )
    serialization.parse(spec, json.dumps({**content, tick_field: _SOME_TICK}))
    return {**columns, "payload": json.dumps(content)}
