"""Many schedulers at once, killed at random moments: each tick is enqueued once, and none is missing."""

import contextlib
import itertools
import multiprocessing
import os
import random
import signal
from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import psutil
import pytest

from dagster_sqlqueue import QueueSpec, SqlQueue
from dagster_sqlqueue.schedules import Schedules
from tests.gate.patience import PATIENCE, sized
from tests.schedules.support import outage, tick_all
from tests.schedules.worker import Task, run
from tests.support import Work, claim, rows, until, value
from tests.support.few import few

PROCESSES = 4
KILLS = sized(10, 40)
TICKS = sized(40, 200)
CLOCKS = [0, 0, 400, -400]
"""By how many days the clocks of the processes are wrong."""


class Crew:
    """So many schedulers, each replaced when it has died."""

    def __init__(self, url: str, schema: str, directory: Path) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["tests.schedules.worker"])
        self._numbers = itertools.count()
        self._luck = random.Random(7)
        self._common: dict[str, Any] = {"url": url, "schema": schema}
        self._directory = directory
        self.members: list[tuple[BaseProcess, Path]] = []
        self.killed = 0

    def start(self, **settings: Any) -> None:
        number = next(self._numbers)
        ready = self._directory / f"{number}"
        task = Task(**self._common, ready=ready, seed=number, clock_off=CLOCKS[number % len(CLOCKS)], **settings)
        process = self._context.Process(target=run, args=(task,))
        process.start()
        self.members.append((process, ready))

    def start_doomed(self) -> None:
        self.start(dies_at=self._luck.randint(1, 12))

    def replace_the_dead(self) -> None:
        for member in [member for member in self.members if member[0].exitcode is not None]:
            assert member[0].exitcode == -signal.SIGKILL
            self.members.remove(member)
            self.killed += 1
            self.start_doomed()

    def dismiss(self) -> None:
        """Have everybody end well; those that have killed themselves meanwhile are forgiven."""
        for process, ready in self.members:
            until(lambda ready=ready, process=process: ready.exists() or process.exitcode is not None)
            if process.exitcode is None:
                assert process.pid
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGTERM)
            process.join(PATIENCE)
            assert process.exitcode in (0, -signal.SIGKILL)

    def end(self) -> None:
        for process, _ in self.members:
            if process.is_alive():
                process.kill()
            process.join(PATIENCE)


@pytest.fixture
def queue(url: str, schema: str, spec: QueueSpec[Work]) -> Iterator[SqlQueue]:
    with SqlQueue(url, schema=schema) as queue:
        queue.migrate()
        queue.create_queue(spec)
        yield queue


@pytest.fixture
def crew(url: str, schema: str, tmp_path: Path) -> Iterator[Crew]:
    made = Crew(url, schema, tmp_path)
    yield made
    made.end()


def wrong(queue: SqlQueue, first: dict[str, datetime], every: dict[str, float]) -> list[str]:
    """What is wrong with the jobs of the schedules, whose first ticks and intervals are known."""
    found = []
    jobs: dict[str, Counter[datetime]] = {name: Counter() for name in every}
    for tags, tick in rows(queue, "SELECT tags, run_at FROM {s}.job_all"):
        (name,) = (tag.removeprefix("schedule:") for tag in tags)
        jobs[name][tick] += 1
    for schedule in Schedules(queue).schedules():
        name = schedule.name
        step = timedelta(seconds=every[name])
        count = (schedule.next_tick - first[name]) // step
        expected = {first[name] + n * step for n in range(count)}
        found += [f"{name}: {tick} is missing" for tick in expected - set(jobs[name])]
        found += [f"{name}: {tick} is no tick" for tick in set(jobs[name]) - expected]
        found += [f"{name}: {tick} was enqueued {n} times" for tick, n in jobs[name].items() if n > 1]
    return found


def test_each_tick_is_enqueued_once_and_none_is_missing(queue: SqlQueue, spec: QueueSpec[Work], crew: Crew) -> None:
    schedules = Schedules(queue)
    every = {"a": 0.1, "b": 0.1, "c": 0.5, "minutes": 60.0}
    for name in ("a", "b", "c"):
        schedules.put(spec, name, Work(n=1), every=every[name], catch_up="all")
    schedules.put(spec, "minutes", Work(n=1), cron="* * * * *", time_zone="Europe/Berlin", catch_up="all")
    outage(queue, "minutes", 86_400)
    outage(queue, "c", 600)
    first = {schedule.name: schedule.next_tick for schedule in schedules.schedules()}
    begun = value(queue, "SELECT clock_timestamp()")
    for _ in range(PROCESSES):
        crew.start_doomed()

    def enough() -> bool:
        crew.replace_the_dead()
        assert len(crew.members) == PROCESSES
        # Some of the jobs are done while the race goes on: what is archived must not come back.
        queue.complete(claim(queue, 50))
        found = schedules.schedules()
        assert [schedule.error for schedule in found if schedule.error] == []
        ticked = {schedule.name: schedule.next_tick - first[schedule.name] for schedule in found}
        return crew.killed >= KILLS and min(ticked["a"], ticked["b"]) >= TICKS * timedelta(seconds=0.1)

    until(enough, "the end of the race", 2 * PATIENCE)
    crew.dismiss()
    ended = value(queue, "SELECT clock_timestamp()")

    assert wrong(queue, first, every) == []
    assert value(queue, "SELECT count(*) FROM {s}.job_archive") > 0
    for schedule in schedules.schedules():
        # Clocks that are wrong by more than a year have decided nothing.
        assert begun <= schedule.next_tick <= ended + timedelta(seconds=every[schedule.name])
        assert schedule.last_tick == schedule.next_tick - timedelta(seconds=every[schedule.name])


@pytest.mark.prove
def test_what_a_stopped_scheduler_holds_is_ticked_by_the_others_within_seconds(
    queue: SqlQueue, spec: QueueSpec[Work], crew: Crew
) -> None:
    schedules = Schedules(queue)
    made = schedules.put(spec, "a", Work(n=1), every=0.1, catch_up="all")
    crew.start(stops=True)
    ((stopped, _),) = crew.members
    assert stopped.pid
    until(lambda: psutil.Process(stopped.pid).status() == psutil.STATUS_STOPPED, "the stop")
    held = schedules.schedule("work", "a").next_tick
    crew.start()
    until(lambda: schedules.schedule("work", "a").next_tick > held, "a tick by the other one")
    os.kill(stopped.pid, signal.SIGCONT)
    reached = schedules.schedule("work", "a").next_tick
    until(lambda: schedules.schedule("work", "a").next_tick >= reached + timedelta(seconds=sized(0.5, 2)))
    crew.dismiss()
    assert wrong(queue, {"a": made.next_tick}, {"a": 0.1}) == []


@pytest.mark.parametrize("without", few(["lock", "ids"], 1))
def test_either_guard_alone_keeps_ticks_apart(queue: SqlQueue, spec: QueueSpec[Work], crew: Crew, without: str) -> None:
    first = _start_without(queue, spec, crew, without)
    lasts = timedelta(seconds=sized(2, 4))
    until(lambda: all(one.next_tick - first[one.name] > lasts for one in Schedules(queue).schedules()))
    crew.dismiss()
    # Without the lock, the last to come may have moved a schedule back.
    tick_all(Schedules(queue))
    assert wrong(queue, first, dict.fromkeys(first, 0.1)) == []


@pytest.mark.prove
@pytest.mark.flaky(reruns=9)
def test_without_both_guards_ticks_are_seen_to_be_enqueued_twice(
    queue: SqlQueue, spec: QueueSpec[Work], crew: Crew
) -> None:
    first = _start_without(queue, spec, crew, "lock", "ids")

    def seen() -> bool:
        return any("times" in line for line in wrong(queue, first, dict.fromkeys(first, 0.1)))

    until(seen, "a tick enqueued twice")
    crew.dismiss()


def _start_without(queue: SqlQueue, spec: QueueSpec[Work], crew: Crew, *guards: str) -> dict[str, datetime]:
    """Have everybody tick without these guards; returns the first ticks."""
    schedules = Schedules(queue)
    made = [schedules.put(spec, name, Work(n=1), every=0.1, catch_up="all") for name in ("a", "b")]
    for _ in range(PROCESSES):
        crew.start(without=guards)
    return {schedule.name: schedule.next_tick for schedule in made}
