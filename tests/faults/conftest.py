"""Processes under a test's control."""

import itertools
import json
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
from uuid_utils.compat import uuid7

from dagster_sqlqueue import Backoff, NewJob, QueueSpec, SqlQueue
from tests.core.support import OwnServer, Work, own_server, until, value
from tests.faults.checker import UNBOUNDED, Bounds, asleep, audited, check, tables
from tests.faults.worker import History, Task, consume


class Fleet:
    """The processes of one run, their histories, and the judgement over it."""

    def __init__(self, queue: SqlQueue, url: str, directory: Path) -> None:
        # Forked from a server that has the library loaded and no threads: a process is up in milliseconds.
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["tests.faults.worker"])
        self._numbers = itertools.count()
        self._url = url
        self._directory = directory
        self._mine = directory / "mine.jsonl"
        self.queue = queue
        self.processes: dict[Path, BaseProcess] = {}

    def start(self, work: Callable[[Task], None] = consume, **settings: Any) -> Path:
        """Start a process; gives its history."""
        history = self._directory / f"{next(self._numbers)}.jsonl"
        task = Task(self._url, self.queue.database.schema, history, **settings)
        process = self._context.Process(target=work, args=(task,))
        process.start()
        self.processes[history] = process
        return history

    def read(self, history: Path, event: str | None = None) -> list[dict[str, Any]]:
        """The events of a history so far, without a line that is being written or was cut off by a kill."""
        text = history.read_text() if history.exists() else ""
        lines = text[: text.rfind("\n") + 1].splitlines()
        events = [json.loads(line) for line in lines]
        return [found for found in events if event in (None, found["event"])]

    def signal(self, history: Path, number: int) -> None:
        """Send a signal to the process of a history."""
        pid = self.processes[history].pid
        assert pid
        os.kill(pid, number)

    def kill(self, history: Path) -> None:
        """End a process as the system does when memory is short."""
        self.signal(history, signal.SIGKILL)
        self.processes[history].join(20)
        assert self.processes[history].exitcode == -signal.SIGKILL

    def join(self, seconds: float = 90) -> list[dict[str, Any]]:
        """Wait for every process that was not killed to end well; gives what their drains said."""
        summaries = []
        for history, process in self.processes.items():
            process.join(seconds)
            assert process.exitcode in (0, -signal.SIGKILL), (history, process.exitcode)
            summaries += self.read(history, "drained")
        return summaries

    def all(self, event: str) -> list[dict[str, Any]]:
        """The events of one kind in every history."""
        return [found for history in self.processes for found in self.read(history, event)]

    def ready(self, histories: Sequence[Path]) -> None:
        """Wait until these processes have begun."""
        until(lambda: all(self.read(history, "ready") for history in histories), "the start of every process")

    def dismiss(self, histories: Sequence[Path]) -> None:
        """Have consumers end after the job in hand, and wait for every process."""
        self.ready(histories)
        for history in histories:
            if self.processes[history].exitcode is None:
                self.signal(history, signal.SIGTERM)
        self.join()

    def drained(self, seconds: float = 60) -> None:
        """Wait until every job is finished; fails at once when one can never be."""

        def nothing_lives() -> bool:
            assert asleep(self.queue) == []
            return self.live() == 0

        until(nothing_lives, "the end of the last job", seconds)

    def enqueue(self, count: int, *, key: Callable[[int], str] | None = None, **settings: Any) -> None:
        """Put jobs on the queue, each with its number's ordering key, and note them as acknowledged."""
        jobs = [NewJob(Work(n=n), id=uuid7(), ordering_key=key and key(n), **settings) for n in range(count)]
        self.queue.enqueue_many(QueueSpec("work", Work), jobs)
        History(self._mine).note("enqueued", ids=[str(job.id) for job in jobs])

    def live(self) -> int:
        """Jobs that are not finished."""
        return int(value(self.queue, "SELECT count(*) FROM {s}.job"))

    def verdict(self, *, drained: bool = True, bounds: Bounds = UNBOUNDED) -> list[str]:
        """What the run did wrong."""
        histories = [self.read(history) for history in [*self.processes, self._mine]]
        return check(histories, tables(self.queue), drained=drained, bounds=bounds)

    def end(self) -> None:
        """Leave no process behind."""
        for process in self.processes.values():
            if process.is_alive():
                process.kill()
            process.join(20)


@pytest.fixture
def spec() -> QueueSpec[Work]:
    """Two buckets for all: claims shall meet each other."""
    return QueueSpec("work", Work, bucket_count=2, max_attempts=100, backoff=Backoff(0, jitter=0))


@pytest.fixture
def fleet(queue: SqlQueue, url: str, tmp_path: Path) -> Iterator[Fleet]:
    """Processes on the schema of the test, audited."""
    audited(queue)
    made = Fleet(queue, url, tmp_path)
    yield made
    made.end()


@pytest.fixture
def server() -> Iterator[OwnServer]:
    """A server that the test may crash."""
    with own_server() as made:
        yield made


@pytest.fixture
def crashing(server: OwnServer, spec: QueueSpec[Work], tmp_path: Path) -> Iterator[Fleet]:
    """Processes on a server that the test may crash, audited."""
    with SqlQueue(server.url) as queue:
        queue.init()
        queue.create_queue(spec)
        audited(queue)
        made = Fleet(queue, server.url, tmp_path)
        yield made
        made.end()
