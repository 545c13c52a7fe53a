"""What the tests of schedules share: an outage without waiting for one, and a query of what was enqueued."""

from datetime import datetime, timedelta

from pydantic import BaseModel

from dagster_sqlqueue import SqlQueue
from dagster_sqlqueue.schedules import Schedules, Ticked
from tests.support import rows, value


class Report(BaseModel):
    """A payload that has its tick."""

    n: int
    at: datetime


def now(queue: SqlQueue) -> datetime:
    """By the database's clock."""
    found: datetime = value(queue, "SELECT clock_timestamp()")
    return found


def outage(queue: SqlQueue, name: str, seconds: float) -> None:
    """As if nobody had looked at the schedule for so long."""
    moved = rows(
        queue,
        "UPDATE {s}.schedule SET next_tick = next_tick - make_interval(secs => %s) WHERE name = %s RETURNING name",
        seconds,
        name,
    )
    assert len(moved) == 1


def overdue_by(queue: SqlQueue, name: str, *, ticks: int, every: float, late: float = 1.0) -> datetime:
    """As if so many ticks of an interval had passed, the last one some seconds ago; returns that one."""
    found: datetime = value(
        queue,
        "UPDATE {s}.schedule SET anchor = now() - make_interval(secs => %s),"
        " next_tick = now() - make_interval(secs => %s) WHERE name = %s"
        " RETURNING next_tick + make_interval(secs => %s)",
        late + every * (ticks - 1),
        late + every * (ticks - 1),
        name,
        every * (ticks - 1),
    )
    return found


def ticks_of(queue: SqlQueue, name: str) -> list[datetime]:
    """The moments of a schedule's jobs, live or ended, in order."""
    found = rows(
        queue, "SELECT run_at FROM {s}.job_all WHERE tags @> ARRAY[%s] ORDER BY run_at, id", f"schedule:{name}"
    )
    return [row[0] for row in found]


def tick_all(schedules: Schedules) -> int:
    """Tick until nothing is due; returns the number of ticks enqueued."""
    total = 0
    done = Ticked(more=True)
    while done.more:
        done = schedules.tick()
        total += sum(done.enqueued.values())
    return total


def steps(first: datetime, count: int, every: float) -> list[datetime]:
    return [first + n * timedelta(seconds=every) for n in range(count)]
