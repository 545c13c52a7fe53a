"""The scheduler's loop: it waits, it stops, and it waits for a database that is away."""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest

from dagster_sqlqueue import QueueSpec, SqlQueue
from dagster_sqlqueue.errors import DatabaseUnavailable, InvalidInput, SchemaMissing
from dagster_sqlqueue.schedules import Scheduler, Schedules, Ticked
from tests.gate.patience import PATIENCE, sized
from tests.schedules.support import outage, ticks_of
from tests.support import Work, own_server, rows, until


class Running:
    """A scheduler in a thread."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.stopping = threading.Event()
        self.total: int | None = None
        self._scheduler = scheduler
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        self.total = self._scheduler.run(self.stopping)

    def stop(self) -> None:
        """Stop it, long before its next poll."""
        self.stopping.set()
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive()


@contextmanager
def running(scheduler: Scheduler) -> Iterator[Running]:
    made = Running(scheduler)
    try:
        yield made
    finally:
        made.stop()


def test_it_ticks_what_is_due_and_stops_when_asked(
    queue: SqlQueue, schedules: Schedules, spec: QueueSpec[Work]
) -> None:
    schedules.put(spec, "s", Work(n=1), every=0.2, catch_up="all")
    seen: list[Ticked] = []
    # A tick is not waited for until the next poll.
    with running(Scheduler(schedules, poll_seconds=3_600, notify=seen.append)) as scheduler:
        until(lambda: len(ticks_of(queue, "s")) >= 5)
        scheduler.stop()
    assert scheduler.total == len(ticks_of(queue, "s")) == sum(done.enqueued["work", "s"] for done in seen)


def test_a_schedule_made_meanwhile_is_seen_at_the_next_poll(
    queue: SqlQueue, schedules: Schedules, spec: QueueSpec[Work]
) -> None:
    with running(Scheduler(schedules, poll_seconds=0.05)):
        schedules.put(spec, "s", Work(n=1), every=3_600, catch_up="all")
        outage(queue, "s", 3_600)
        until(lambda: ticks_of(queue, "s"))


def test_more_than_one_tick_takes_is_not_waited_for(
    queue: SqlQueue, schedules: Schedules, spec: QueueSpec[Work]
) -> None:
    schedules.put(spec, "s", Work(n=1), cron="* * * * *", catch_up="all")
    outage(queue, "s", 2_500 * 60)
    with running(Scheduler(schedules, poll_seconds=3_600)):
        until(lambda: len(ticks_of(queue, "s")) >= 2_500)


def test_what_it_pauses_is_logged(
    queue: SqlQueue, schedules: Schedules, spec: QueueSpec[Work], caplog: pytest.LogCaptureFixture
) -> None:
    schedules.put(spec, "s", Work(n=1), cron="* * * * *")
    outage(queue, "s", 60)
    rows(queue, "UPDATE {s}.schedule SET time_zone = 'Mars/Olympus'")
    with caplog.at_level(logging.ERROR), running(Scheduler(schedules, poll_seconds=0.05)):
        until(lambda: caplog.records)
    assert "schedule 's' of queue 'work' is paused: there is no time zone 'Mars/Olympus'" in caplog.text


@pytest.mark.prove
def test_a_server_that_crashes_is_waited_for_and_nothing_is_lost(
    spec: QueueSpec[Work], caplog: pytest.LogCaptureFixture
) -> None:
    with own_server() as server, SqlQueue(server.url) as queue:
        queue.migrate()
        queue.create_queue(spec)
        schedules = Schedules(queue)
        made = schedules.put(spec, "s", Work(n=1), every=0.1, catch_up="all")
        with caplog.at_level(logging.WARNING), running(Scheduler(schedules, poll_seconds=0.1)) as scheduler:
            until(lambda: len(ticks_of(queue, "s")) >= 5)
            server.stop("immediate")
            until(lambda: "scheduler: cannot use the database" in caplog.text)
            server.start()
            back = len(ticks_of(queue, "s"))
            until(lambda: len(ticks_of(queue, "s")) >= back + sized(5, 20))
            scheduler.stop()
            found = ticks_of(queue, "s")
            last = schedules.schedule("work", "s").last_tick
        assert last is not None
        assert len(found) == len(set(found)) == (last - made.next_tick) // timedelta(seconds=0.1) + 1


def test_it_stops_while_the_server_is_away(spec: QueueSpec[Work], caplog: pytest.LogCaptureFixture) -> None:
    with own_server() as server, SqlQueue(server.url) as queue:
        queue.migrate()
        server.stop("immediate")
        with caplog.at_level(logging.WARNING), running(Scheduler(Schedules(queue), poll_seconds=3_600)) as scheduler:
            until(lambda: "scheduler: cannot use the database" in caplog.text)
            scheduler.stop()
        assert scheduler.total == 0
        with pytest.raises(DatabaseUnavailable):
            Schedules(queue).tick()


def test_what_is_refused(url: str, queue: SqlQueue, schedules: Schedules) -> None:
    for seconds in (0, -1, float("nan"), float("inf"), True, "soon"):
        with pytest.raises(InvalidInput, match="poll_seconds is"):
            Scheduler(schedules, poll_seconds=seconds)  # type: ignore[arg-type]
    with SqlQueue(url, schema="nothing_here") as empty, pytest.raises(SchemaMissing, match="sqlqueue migrate"):
        Scheduler(Schedules(empty)).run(threading.Event())
