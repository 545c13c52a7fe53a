"""Verbs of schedules: create, list, pause, remove, and tick."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import islice
from typing import Any

from dagster_sqlqueue.db.executors import Executor, Transaction
from dagster_sqlqueue.errors import InvalidInput, UnknownSchedule
from dagster_sqlqueue.model.job import NewJob
from dagster_sqlqueue.model.numbers import is_delay, is_whole
from dagster_sqlqueue.model.queue import Payload, QueueSpec, check_queue_name, check_spec
from dagster_sqlqueue.payload.serialization import without_row
from dagster_sqlqueue.queue import SqlQueue
from dagster_sqlqueue.queue.intake import Terms, no_bucket
from dagster_sqlqueue.queue.selection import moment_in_utc
from dagster_sqlqueue.queue.sql_queue import check_sql_queue
from dagster_sqlqueue.schedules.cron import timing_of
from dagster_sqlqueue.schedules.model import (
    GRACE_SECONDS,
    AnyPayload,
    CatchUp,
    Due,
    Schedule,
    check_name,
    due,
    template,
)

_SCHEDULES_AT_ONCE = 200
_JOBS_AT_ONCE = 1_000
_MOST_TICKS = 10_000
_JUST_BEFORE = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Ticked:
    """What a poll of the schedules did.

    Attributes:
        enqueued: how many ticks of each schedule, by queue and name, were enqueued.
        duplicates: of those, how many were there already: a live job has the unique key, or an earlier database, of
            which this one is a copy, had enqueued the tick.
        failed: the schedules that cannot be used as they are, each with the reason. They are paused.
        more: whether something may still be due; poll again at once.
    """

    enqueued: dict[tuple[str, str], int] = field(default_factory=dict)
    duplicates: int = 0
    failed: dict[tuple[str, str], str] = field(default_factory=dict)
    more: bool = False


class Schedules:
    """The schedules of one schema.

    Args:
        queue: where they are, beside their queues.

    Raises:
        InvalidInput: this is no `SqlQueue`.
    """

    def __init__(self, queue: SqlQueue) -> None:
        check_sql_queue(queue)
        self._queue = queue
        self._database = queue.database

    def put(
        self,
        spec: QueueSpec[Payload],
        name: str,
        job: "Payload | NewJob[Payload] | Mapping[str, Any]",
        *,
        cron: str | None = None,
        every: float | timedelta | None = None,
        time_zone: str = "UTC",
        starting: datetime | None = None,
        catch_up: CatchUp | str = CatchUp.ONE,
        grace_seconds: float = GRACE_SECONDS,
        tick_field: str | None = None,
    ) -> Schedule:
        """Make a schedule, or bring the one of that name up to date. Saying the same again changes nothing.

        Another rule (cron, interval, zone or start) goes on with its next tick from now; ticks of the old one that were
        missed are void. Any other change holds from the next tick that is enqueued.

        Args:
            spec: the queue to which the jobs are enqueued.
            name: of the schedule, 1 to 200 printable characters; one queue has it once.
            job: what every tick enqueues: the payload, or a `NewJob` with more to say. With a `unique_key`, a tick is left
                out while the job of an earlier one is live.
            cron: a cron expression of five fields, or `@hourly`, `@daily`, `@weekly`, `@monthly`, `@yearly`; or
            every: an interval of elapsed time, in seconds or as a timedelta, of at least 0.1 seconds.
            time_zone: an IANA name; the cron expression is read in it.
            starting: there is no tick before it. An interval counts from it, and it is the first tick; without it, the first
                tick is one interval from now.
            catch_up: what becomes of ticks that were not enqueued in time: `skip`, `one` or `all`.
            grace_seconds: with `skip`, how late a tick may be enqueued.
            tick_field: a field of the payload, named as in its JSON, that each job is given its tick in: a time with the
                offset of the time zone. In any case the tick is the job's `run_at`, and the job has the tag
                `schedule:` with the name.

        Raises:
            InvalidPayload, InvalidInput: something is not usable; nothing was changed.
            UnknownQueue: the queue does not exist.
        """
        check_spec(spec)
        check_name(name)
        every_seconds = every.total_seconds() if isinstance(every, timedelta) else every
        timing_of(cron=cron, every_seconds=every_seconds, time_zone=time_zone)
        if catch_up not in list(CatchUp):
            raise InvalidInput(f"catch_up is {catch_up!r}; it must be one of {', '.join(map(repr, map(str, CatchUp)))}")
        if not is_delay(grace_seconds):
            raise InvalidInput(
                f"grace_seconds is {grace_seconds!r}; it must be seconds, not negative and at most a hundred years"
            )
        parameters = {
            **template(spec, name, job, tick_field),
            "queue": spec.name,
            "name": name,
            "cron": cron,
            "every_seconds": None if every_seconds is None else float(every_seconds),
            "time_zone": time_zone,
            "starting": None if starting is None else moment_in_utc("starting", starting),
            "catch_up": str(catch_up),
            "grace_seconds": float(grace_seconds),
            "tick_field": tick_field,
        }
        return self._database.transact(lambda transaction: self._put(transaction, parameters))

    def _put(self, transaction: Transaction, parameters: dict[str, Any]) -> Schedule:
        queue, name, region = (parameters[given] for given in ("queue", "name", "region"))
        # Without a lock of the queue: a tick locks the schedule's row first.
        terms = transaction.run("enqueue_terms", {"queue": queue, "keep": False})
        if not terms:
            # It may be there by now, and was not when the terms were read.
            raise self._queue.catalog.not_among(queue, transaction.run("queues", {"name": None}))
        known = Terms(*terms[0])
        now = known.now
        if region is not None and region not in known.regions:
            raise InvalidInput(no_bucket(queue, region, known.regions))
        starting = parameters["starting"]
        anchor = starting or now.replace(microsecond=0)
        rule = {given: parameters[given] for given in ("cron", "every_seconds", "time_zone")}
        since = now if starting is None or starting <= now else starting - _JUST_BEFORE
        next_tick = next(timing_of(**rule, anchor=anchor).after(since), None)
        if next_tick is None:
            raise InvalidInput(f"the schedule would never tick after {since}; give it another rule")
        transaction.run("schedule_put", {**parameters, "anchor": anchor, "next_tick": next_tick})
        return self._one(transaction, queue, name)

    def schedule(self, queue: str, name: str) -> Schedule:
        """One schedule.

        Raises:
            UnknownQueue, UnknownSchedule: there is none of that name.
        """
        return self._one(self._database, check_queue_name(queue), check_name(name))

    def schedules(self, queue: str | None = None) -> list[Schedule]:
        """Every schedule of a queue, or of all of them, by queue and name.

        Raises:
            UnknownQueue: there is no such queue.
        """
        if queue is not None:
            self._queue.catalog.check_exists(check_queue_name(queue))
        return [Schedule.of(row) for row in self._database.run("schedules", {"queue": queue})]

    def remove(self, queue: str, name: str) -> None:
        """Remove a schedule. The jobs that it enqueued stay.

        Raises:
            UnknownQueue, UnknownSchedule: there is none of that name.
        """
        self._change("schedule_remove", queue, name)

    def pause(self, queue: str, name: str) -> Schedule:
        """Have none of its ticks enqueued; one that is paused stays as it is.

        Raises:
            UnknownQueue, UnknownSchedule: there is none of that name.
        """
        self._change("schedule_pause", queue, name)
        return self.schedule(queue, name)

    def resume(self, queue: str, name: str) -> Schedule:
        """Have a paused schedule go on. Ticks that passed meanwhile were missed: `catch_up` says what becomes of them.

        Raises:
            UnknownQueue, UnknownSchedule: there is none of that name.
        """
        self._change("schedule_resume", queue, name)
        return self.schedule(queue, name)

    def next_ticks(self, queue: str, name: str, count: int = 10) -> list[datetime]:
        """The ticks to come, in UTC, paused or not; those that are due and were not enqueued among them.

        Args:
            queue: the schedule's queue.
            name: the schedule.
            count: how many, 1 to 10,000.

        Raises:
            InvalidInput: the count is out of range, or the rule cannot be used here.
            UnknownQueue, UnknownSchedule: there is none of that name.
        """
        if not is_whole(count, 1, _MOST_TICKS):
            raise InvalidInput(f"count is {count!r}; it must be 1 to {_MOST_TICKS:,}")
        return list(islice(self.schedule(queue, name).ticks(), count))

    def seconds_to_wait(self) -> float | None:
        """How long nothing is due, by the database's clock; negative: something is overdue. None: no schedule ticks."""
        ((seconds,),) = self._database.run("schedule_wait", {})
        return None if seconds is None else float(seconds)

    def tick(self) -> Ticked:
        """Enqueue what is due now, by the database's clock; in one transaction, of at most 1,000 jobs of 200 schedules.

        Any number of processes may call this at any time. A schedule that another one is at is left to it.
        """
        return self._database.transact(self._tick)

    def _tick(self, transaction: Transaction) -> Ticked:
        rows = transaction.run("schedules_due", {"limit": _SCHEDULES_AT_ONCE})
        decided: list[Due] = []
        failed: dict[tuple[str, str], str] = {}
        more = len(rows) == _SCHEDULES_AT_ONCE
        room = _JOBS_AT_ONCE
        for place, (*row, now) in enumerate(rows):
            schedule = Schedule.of(row)
            # What one leaves of its share goes to the others, so that a long backlog delays no other.
            share = max(room // (len(rows) - place), 1)
            try:
                found = due(schedule, now, share)
            except InvalidInput as error:
                failed[schedule.queue, schedule.name] = str(error)
                found = Due(schedule, [], schedule.next_tick)
            decided.append(found)
            room -= len(found.ticks)
            more = more or (_key(found) not in failed and found.next_tick <= now)
        duplicates = self._enqueue(transaction, decided, failed)
        if decided:
            self._move(transaction, decided, failed)
        enqueued = {_key(one): len(one.ticks) for one in decided if one.ticks and _key(one) not in failed}
        return Ticked(enqueued, duplicates, failed, more)

    def _enqueue(self, transaction: Transaction, decided: Sequence[Due], failed: dict[tuple[str, str], str]) -> int:
        """Enqueue the ticks; returns how many were there already. Notes what cannot be enqueued as failed."""
        by_queue: defaultdict[str, list[Due]] = defaultdict(list)
        for one in decided:
            if one.ticks:
                by_queue[one.schedule.queue].append(one)
        duplicates = 0
        for queue, group in by_queue.items():
            try:
                duplicates += self._enqueue_on(transaction, queue, group)
            except InvalidInput:
                # One of them; the others must not wait until it is corrected.
                for one in group:
                    try:
                        duplicates += self._enqueue_on(transaction, queue, [one])
                    except InvalidInput as error:
                        failed[_key(one)] = without_row(error)
        return duplicates

    def _enqueue_on(self, transaction: Transaction, queue: str, group: Sequence[Due]) -> int:
        jobs = (one.schedule.job_at(tick) for one in group for tick in one.ticks)
        done = self._queue.enqueue_many(QueueSpec(queue, AnyPayload), jobs, connection=transaction.connection)
        return done.duplicates

    def _move(self, transaction: Transaction, decided: Sequence[Due], failed: Mapping[tuple[str, str], str]) -> None:
        def moved(one: Due) -> tuple[Any, ...]:
            queue, name = _key(one)
            if (queue, name) in failed:
                return queue, name, one.schedule.next_tick, None, failed[queue, name]
            return queue, name, one.next_tick, one.ticks[-1] if one.ticks else None, None

        columns = zip(*map(moved, decided), strict=True)
        names = ("queues", "names", "next_ticks", "last_ticks", "errors")
        transaction.run("schedules_move", {given: list(values) for given, values in zip(names, columns, strict=True)})

    def _one(self, executor: Executor, queue: str, name: str) -> Schedule:
        rows = executor.run("schedule", {"queue": queue, "name": name})
        if not rows:
            raise self._unknown(queue, name)
        return Schedule.of(rows[0])

    def _change(self, statement: str, queue: str, name: str) -> None:
        if not self._database.run(statement, {"queue": check_queue_name(queue), "name": check_name(name)}):
            raise self._unknown(queue, name)

    def _unknown(self, queue: str, name: str) -> UnknownSchedule:
        names = ", ".join(repr(schedule.name) for schedule in self.schedules(queue)[:20]) or "none"
        return UnknownSchedule(
            f"queue {queue!r} has no schedule {name!r} (it has: {names}). Make it with put, or with: sqlqueue schedule put"
        )


def _key(one: Due) -> tuple[str, str]:
    return one.schedule.queue, one.schedule.name
