"""A day's reminders for the demo, due within seconds: an hour of that day passes in less than a second."""

from collections.abc import Callable, Iterable, Iterator
from datetime import date, datetime, timedelta

import pandas as pd
from psycopg import sql

from dagster_sqlqueue import NewJob, SqlQueue, stable_id
from dagster_sqlqueue.queue.insert import Enqueued
from definitions.flights import FlightEvent, read_flights
from definitions.reminders import Reminder, reminders

MOVED_MINUTES = 15
"""A flight with at least this delay is announced as late: its reminder moves."""

LATE_MINUTES = 60
"""A flight with at least this delay is late unannounced: the handler snoozes its reminder when it is due."""

SECONDS_PER_HOUR = 0.75
FIRST_DUE_SECONDS = 8.0


def put_reminders(queue: SqlQueue, day: date) -> tuple[Enqueued, Enqueued]:
    """Enqueue a reminder for each flight of the day, and in the same transaction once more those of flights that moved.

    The second ones replace queued ones by their unique key. A repeated call enqueues no reminder twice.

    Returns:
        The results for the reminders, and for those that moved.
    """
    flights = list(read_flights(day, day))
    first = min(flight.scheduled_departure for flight in flights)
    with queue.database.connection() as connection, connection.transaction():
        now: datetime = connection.execute("SELECT now()").fetchall()[0][0]

        def moment(departure: datetime) -> datetime:
            hours = (departure - first) / timedelta(hours=1)
            return now + timedelta(seconds=FIRST_DUE_SECONDS + hours * SECONDS_PER_HOUR)

        planned = queue.enqueue_many(
            reminders,
            (_planned(flight, moment) for flight in flights),
            connection=connection,
        )
        moved = queue.enqueue_many(
            reminders,
            _moved(flights, moment),
            connection=connection,
            on_conflict="replace",
        )
    return planned, moved


def _planned(flight: FlightEvent, moment: Callable[[datetime], datetime]) -> NewJob[Reminder]:
    late = flight.dep_delay is not None and flight.dep_delay >= LATE_MINUTES
    reminder = Reminder(
        day=flight.day,
        account=flight.account,
        carrier=flight.carrier,
        flight=flight.flight,
        origin=flight.origin,
        leaves=flight.sched_dep_time,
        cancelled=flight.dep_time is None,
        late_until=moment(_departure(flight)) if late else None,
    )
    return NewJob(
        reminder,
        id=stable_id(flight.scheduled_departure, f"reminder|{flight.key}"),
        run_at=moment(flight.scheduled_departure),
        unique_key=flight.key,
        tags=(flight.account,),
    )


def _moved(flights: Iterable[FlightEvent], moment: Callable[[datetime], datetime]) -> Iterator[NewJob[Reminder]]:
    for flight in flights:
        if flight.dep_time is None or not MOVED_MINUTES <= (flight.dep_delay or 0) < LATE_MINUTES:
            continue
        reminder = Reminder(
            day=flight.day,
            account=flight.account,
            carrier=flight.carrier,
            flight=flight.flight,
            origin=flight.origin,
            leaves=flight.dep_time,
        )
        yield NewJob(
            reminder,
            id=stable_id(flight.scheduled_departure, f"moved|{flight.key}"),
            run_at=moment(_departure(flight)),
            unique_key=flight.key,
            tags=(flight.account,),
        )


def _departure(flight: FlightEvent) -> datetime:
    return flight.scheduled_departure + timedelta(minutes=flight.dep_delay or 0)


def ended_reminders(queue: SqlQueue, day: date) -> pd.DataFrame:
    """Read how the day's reminders ended: a row each.

    Columns: `key`, `account`, `ending` (succeeded, cancelled or failed), `attempts`, `leaves` (hhmm), `late` (whether its
    flight is), `put_off` (whether it was found too early then, and put off), `wait` (seconds from when it was due to its
    start, of those that were taken once), `early` (whether it was sent before its moment).
    """
    query = sql.SQL(
        "SELECT unique_key, payload->>'account', state, attempt, CAST(payload->>'leaves' AS integer),"
        " payload->>'late_until' IS NOT NULL, lease_no > attempt,"
        " CASE WHEN lease_no = 1 THEN CAST(extract(epoch FROM started_at - run_at) AS float8) END,"
        " started_at < run_at"
        " OR state = 'succeeded' AND finished_at < CAST(payload->>'late_until' AS timestamptz) IS TRUE"
        " FROM {}.job_archive WHERE queue = %s AND payload->>'day' = %s"
    ).format(sql.Identifier(queue.database.schema))
    columns = ["key", "account", "ending", "attempts", "leaves", "late", "put_off", "wait", "early"]
    with queue.database.connection() as connection:
        return pd.DataFrame(connection.execute(query, (reminders.name, day.isoformat())).fetchall(), columns=columns)
