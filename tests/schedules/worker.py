"""What the processes of a race do: run a scheduler until they are stopped, or until they kill themselves."""

import os
import random
import signal
import threading
import time
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any, Self

from uuid_utils.compat import uuid7

from dagster_sqlqueue import SqlQueue
from dagster_sqlqueue.db import statements
from dagster_sqlqueue.queue import selection, validation
from dagster_sqlqueue.schedules import Scheduler, Schedules, Ticked, cron, model, schedules
from tests.support import on_sigterm


@dataclass(frozen=True)
class Task:
    """What one process is to do.

    Attributes:
        ready: the file that it makes when it begins.
        dies_at: it kills itself at a random moment of so manieth look that finds something; 0: never.
        stops: it stops itself, as the system can a process, while it holds what is due.
        clock_off: by how many days the process's own clock is wrong.
        without: the guards that it lacks: the `lock` on schedules, the `ids` that are made of ticks.
        seed: of its luck.
    """

    url: str
    schema: str
    ready: Path
    dies_at: int = 0
    stops: bool = False
    clock_off: int = 0
    without: tuple[str, ...] = ()
    seed: int = 0


class _Doomed(Schedules):
    def __init__(self, queue: SqlQueue, task: Task) -> None:
        super().__init__(queue)
        self._left = task.dies_at
        self._stops = task.stops
        self._luck = random.Random(task.seed)

    def _tick(self, transaction: Any) -> Ticked:
        due = transaction.run("schedules_due", {"limit": 1})
        if due:
            if self._stops:
                self._stops = False
                os.kill(os.getpid(), signal.SIGSTOP)
            self._left -= 1
            if self._left == 0:
                pause = self._luck.uniform(0, 0.008)
                threading.Thread(target=_die, args=(pause,), daemon=True).start()
        return super()._tick(transaction)


def _die(pause: float) -> None:
    threading.Event().wait(pause)
    os.kill(os.getpid(), signal.SIGKILL)


def wrong_clock(days: int) -> None:
    """Have this process believe in another time, wherever the library could ask for it."""
    right = time.time

    class Alike(type):
        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, datetime)

    class Wrong(datetime, metaclass=Alike):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Self:
            return cls.fromtimestamp(time.time(), tz)

    time.time = lambda: right() + timedelta(days=days).total_seconds()
    for module in (cron, model, schedules, validation, selection):
        module.datetime = Wrong  # type: ignore[attr-defined]


def without_lock() -> None:
    """Have this process look at schedules that others are at."""
    load = statements.load

    def bare(name: str, *rest: str) -> str:
        text = load(name, *rest)
        assert name != "schedules_due" or "FOR NO KEY UPDATE SKIP LOCKED" in text
        return text.replace("FOR NO KEY UPDATE SKIP LOCKED", "")

    statements.load = bare  # type: ignore[assignment]


def run(task: Task) -> None:
    """Tick until SIGTERM."""
    if task.clock_off:
        wrong_clock(task.clock_off)
    if "lock" in task.without:
        without_lock()
    if "ids" in task.without:
        model.job_id = lambda *_: uuid7()
    stopping = threading.Event()
    on_sigterm(stopping.set)
    with SqlQueue(task.url, schema=task.schema) as queue:
        task.ready.touch()
        Scheduler(_Doomed(queue, task), poll_seconds=0.05).run(stopping)
