"""Processes under a test's control."""

import contextlib
import itertools
import json
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, TypeVar

import psycopg
import pytest
from psycopg import sql
from uuid_utils.compat import uuid7

from dagster_sqlqueue import Backoff, NewJob, QueueSpec, SqlQueue
from tests.faults.checker import UNBOUNDED, Bounds, asleep, audited, check, tables
from tests.faults.task import History, Task
from tests.faults.worker import consume
from tests.gate.patience import PATIENCE, sized
from tests.gate.plugin import note_figures
from tests.support import OwnServer, Work, make_due, own_server, rows, until, value

RACE = (pytest.mark.prove, pytest.mark.flaky(reruns=9))
"""For the tests with a planted bug that shows when processes meet: they may happen to take turns, and then nothing is wrong.
A judge that sees the bug in none of ten runs fails. No test of the code without a bug has these marks.
"""

WORKED_OFF = 2 * PATIENCE
"""For what is the end of a long chain: the last of all jobs."""

SINCE = 86_400
"""Seconds in which all of a run has ended."""

LINGER = 10 * PATIENCE
"""For how long a consumer waits for more that is to end only when it is dismissed."""

Test = TypeVar("Test", bound=Callable[..., object])


def a_race(test: Test) -> Test:
    """Give a test the marks of `RACE`."""
    for mark in RACE:
        test = mark(test)
    return test


PRELOADED = [f"tests.faults.{name}" for name in ("batched", "crew", "followed", "speaker", "topical", "worker")]
"""What the server has loaded that processes are forked from. There is one for all tests of a process."""


class Fleet:
    """The processes of one run, their histories, and the judgement over it."""

    def __init__(self, queue: SqlQueue, url: str, directory: Path) -> None:
        # Forked from a server that has the library loaded and no threads: a process is up in milliseconds.
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(PRELOADED)
        self._numbers = itertools.count()
        self._url = url
        self._directory = directory
        self._mine = directory / "mine.jsonl"
        self.queue = queue
        self.processes: dict[Path, BaseProcess] = {}

    def start(self, work: Callable[[Task], None] = consume, **settings: Any) -> Path:
        """Start a process; returns its history."""
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
        with contextlib.suppress(ProcessLookupError):  # it killed itself meanwhile
            self.signal(history, signal.SIGKILL)
        self.processes[history].join(PATIENCE)
        assert self.processes[history].exitcode == -signal.SIGKILL

    def join(self) -> list[dict[str, Any]]:
        """Wait for every process that was not killed to end well; returns what their drains said."""
        summaries = []
        for history, process in self.processes.items():
            process.join(WORKED_OFF)
            assert process.exitcode in (0, -signal.SIGKILL), (history, process.exitcode)
            summaries += self.read(history, "drained")
        return summaries

    @contextlib.contextmanager
    def in_the_way(self, of: int, table: str = "job") -> Iterator[None]:
        """Hold every row of a table during the block, and go on holding them until so many processes wait for one of them.

        What steps over locked rows goes its way; what does not has chosen its rows, and meets the others there.
        """
        schema = self.queue.database.schema
        with psycopg.connect(self._url) as connection:
            connection.execute(sql.SQL("SELECT FROM {} FOR UPDATE").format(sql.Identifier(schema, table)))
            yield
            self._until_others_wait(of)

    @contextlib.contextmanager
    def in_mid_change(self, of: int) -> Iterator[None]:
        """Have those that change a job wait in the midst of it, during the block and until so many processes wait.

        What such a statement has counted by then, it has counted without the others.
        """
        key = value(self.queue, "SELECT CAST(CAST(CAST('{s}' AS regnamespace) AS oid) AS bigint)")
        rows(
            self.queue,
            "CREATE FUNCTION {s}.wait_in_mid_change() RETURNS trigger LANGUAGE plpgsql AS"
            f" $$ BEGIN PERFORM pg_advisory_xact_lock_shared({key}); RETURN NEW; END $$;"
            " CREATE TRIGGER wait_in_mid_change BEFORE UPDATE ON {s}.job"
            " FOR EACH ROW EXECUTE FUNCTION {s}.wait_in_mid_change()",
        )
        with psycopg.connect(self._url) as connection:
            connection.execute("SELECT pg_advisory_xact_lock(%s)", [key])
            yield
            self._until_others_wait(of)

    def _until_others_wait(self, count: int) -> None:
        query = "SELECT count(*) >= %s FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND strpos(query, %s) > 0"
        until(lambda: value(self.queue, query, count, self.queue.database.schema), "processes that wait for a lock")

    def all(self, event: str) -> list[dict[str, Any]]:
        """The events of one kind in every history."""
        return [found for history in self.processes for found in self.read(history, event)]

    def gone(self, histories: Iterable[Path]) -> list[Path]:
        """Those of them that do not live any more."""
        return [history for history in histories if self.processes[history].exitcode is not None]

    def finished(self, histories: Iterable[Path]) -> bool:
        """Whether all of them have ended well."""
        return all(self.processes[history].exitcode == 0 for history in histories)

    def ready(self, histories: Sequence[Path]) -> None:
        """Wait until these processes have begun."""
        until(lambda: all(self.read(history, "ready") for history in histories), "the start of every process")

    def dismiss(self, histories: Sequence[Path]) -> None:
        """Have consumers end after the job in hand, and wait for every process."""
        self.ready(histories)
        for history in histories:
            if self.processes[history].exitcode is None:
                with contextlib.suppress(ProcessLookupError):  # it ended by itself meanwhile
                    self.signal(history, signal.SIGTERM)
        self.join()

    def drained(self) -> None:
        """Wait until every job is finished; fails at once when one can never be."""

        def nothing_lives() -> bool:
            assert asleep(self.queue) == []
            return self.live() == 0

        until(nothing_lives, "the end of the last job", WORKED_OFF)

    def forget_leases(self) -> None:
        """When nothing is queued any more, end the leases that are left: above all those whose claim got no answer."""
        until(lambda: self.queued() == 0, "the claim of the last job", WORKED_OFF)
        make_due(self.queue)

    def enqueue(self, count: int, *, key: Callable[[int], str] | None = None, **settings: Any) -> None:
        """Put jobs on the queue, each with its number's ordering key, and note them as acknowledged."""
        jobs = [NewJob(Work(n=n), id=uuid7(), ordering_key=key and key(n), **settings) for n in range(count)]
        self.queue.enqueue_many(QueueSpec("work", Work), jobs)
        History(self._mine).note("enqueued", ids=[str(job.id) for job in jobs])

    def supplies(self) -> list[dict[str, Any]]:
        """What `enqueue` put on the queue."""
        return self.read(self._mine, "enqueued")

    def live(self) -> int:
        """Jobs that are not finished."""
        return int(value(self.queue, "SELECT count(*) FROM {s}.job"))

    def queued(self) -> int:
        """Jobs that nobody has in hand."""
        return int(value(self.queue, "SELECT count(*) FROM {s}.job WHERE state = 'queued'"))

    def verdict(self, *, drained: bool = True, bounds: Bounds = UNBOUNDED) -> list[str]:
        """What the run did wrong."""
        histories = [self.read(history) for history in [*self.processes, self._mine]]
        return check(histories, tables(self.queue), drained=drained, bounds=bounds)

    def kills(self) -> int:
        """How many processes were killed, by the test or by themselves."""
        return sum(process.exitcode == -signal.SIGKILL for process in self.processes.values())

    def note(self, **figures: object) -> None:
        """Note the figures of the run beside these."""
        jobs = "SELECT (SELECT count(*) FROM {s}.job) + (SELECT count(*) FROM {s}.job_archive)"
        stale = "SELECT COALESCE(sum(writes), 0) FROM {s}.stale_write"
        counted = {
            "kills": self.kills(),
            "jobs": value(self.queue, jobs),
            "processes": len(self.processes),
            "stale writes refused": value(self.queue, stale),
        }
        note_figures(**counted, **figures)

    def end(self) -> None:
        """Leave no process behind."""
        for process in self.processes.values():
            if process.is_alive():
                process.kill()
            process.join(PATIENCE)


@pytest.fixture
def spec() -> QueueSpec[Work]:
    """Two buckets for all: claims shall meet each other."""
    return QueueSpec("work", Work, bucket_count=2, max_attempts=1_000_000, backoff=Backoff(0, jitter=0))


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
    with own_server(settings=sized(["fsync=off"], [])) as made:
        yield made


@pytest.fixture
def crashing(server: OwnServer, spec: QueueSpec[Work], tmp_path: Path) -> Iterator[Fleet]:
    """Processes on a server that the test may crash, audited."""
    with SqlQueue(server.url) as queue:
        queue.migrate()
        queue.create_queue(spec)
        audited(queue)
        made = Fleet(queue, server.url, tmp_path)
        yield made
        made.end()
