"""Drivers of batches that die, or lose their connections, after every single statement from the opening to the end."""

import json
import multiprocessing
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dagster_sqlqueue import Backoff, Mode, NewJob, QueueSpec, SqlQueue
from dagster_sqlqueue.db import statements
from dagster_sqlqueue.db.execution import Parameters
from dagster_sqlqueue.db.executors import Transaction
from dagster_sqlqueue.errors import BatchLost
from dagster_sqlqueue.spark import batches
from dagster_sqlqueue.spark.batches import lease
from tests.faults.batched import KEY, Drive, consume, drive, read, verdict
from tests.faults.conftest import PRELOADED
from tests.gate.patience import PATIENCE, sized
from tests.gate.plugin import note_figures
from tests.support import Work, rows, value
from tests.support.few import few

JOBS = 8
MOST = 60
"""No driver runs so many statements."""

STEP = sized(3, 1)
"""From one point at which a driver dies to the next."""

LEAST = {Mode.LEASED: 12, Mode.TRANSACTIONAL: 15}
"""Statements that one runs at least: each is a point at which it dies."""


class Drivers:
    """Drivers one after the other, on one queue that is filled anew for each first one."""

    def __init__(self, queue: SqlQueue, url: str, directory: Path, spec: QueueSpec[Work]) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(PRELOADED)
        self._url, self._directory, self._spec = url, directory, spec
        self.made = 0
        self.queue = queue
        self.events: list[dict[str, Any]] = []

    def fill(self, first: int = 0) -> None:
        """So many due jobs, and nothing else."""
        if not first:
            rows(
                self.queue,
                "TRUNCATE {s}.job, {s}.job_archive, {s}.batch, {s}.batch_outcome, {s}.batch_pack, {s}.effect",
            )
            self.events = []
        self.queue.enqueue_many(self._spec, [NewJob(Work(n=n)) for n in range(first, first + JOBS)])

    def run(self, mode: Mode, **settings: Any) -> int | None:
        """Have a driver consume; returns how its process ended."""
        self.made += 1
        number = self.made
        history = self._directory / f"{number}.jsonl"
        task = Drive(self._url, self.queue.database.schema, history, f"driver {number:05}", mode, **settings)
        process = self._context.Process(target=drive, args=(task,))
        process.start()
        process.join(PATIENCE)
        assert process.exitcode is not None
        self.events += [json.loads(line) for line in history.read_text().splitlines()]
        return process.exitcode

    def lose_patience(self) -> None:
        """Let the lease of the killed process run out. Waits for the end of its transaction."""
        rows(
            self.queue, "UPDATE {s}.batch SET lease_until = now() - interval '1 s' WHERE state IN ('sealing', 'sealed')"
        )

    def finish(self, mode: Mode) -> None:
        """Have others do what is left: the jobs, and those that the first of them wants again."""
        for _ in range(3):
            self.lose_patience()
            assert self.run(mode) == 0
            if not value(self.queue, "SELECT count(*) FROM {s}.job"):
                return

    def names(self) -> list[str]:
        """The statements that ran."""
        return [event.get("name", event["event"]) for event in self.events]


@pytest.fixture
def spec() -> QueueSpec[Work]:
    return QueueSpec("work", Work, bucket_count=2, max_attempts=20, backoff=Backoff(0, jitter=0))


@pytest.fixture
def drivers(queue: SqlQueue, url: str, tmp_path: Path, spec: QueueSpec[Work]) -> Drivers:
    rows(queue, "CREATE TABLE {s}.effect (job uuid)")
    return Drivers(queue, url, tmp_path, spec)


@pytest.mark.parametrize("mode", few(list(Mode), 1))
def test_a_driver_that_is_killed_after_each_statement(drivers: Drivers, mode: Mode) -> None:
    other = {Mode.LEASED: Mode.TRANSACTIONAL, Mode.TRANSACTIONAL: Mode.LEASED}[mode]
    for point in range(1, MOST, STEP):
        drivers.fill()
        ended = drivers.run(mode, dies_after=point)
        at = f"killed after {drivers.names()}"
        drivers.finish(other if point % 4 == 0 else mode)
        assert verdict(drivers.queue) == [], at
        if ended == 0:
            break
        assert ended == -signal.SIGKILL, at
    assert LEAST[mode] <= point < MOST
    note_figures(kills=point // STEP, jobs=JOBS, processes=drivers.made)


@pytest.mark.parametrize(
    ("mode", "overlap"),
    [
        pytest.param(Mode.LEASED, False, marks=pytest.mark.prove),
        pytest.param(Mode.TRANSACTIONAL, False, marks=pytest.mark.prove),
        pytest.param(Mode.TRANSACTIONAL, True, marks=pytest.mark.prove),
    ],
)
def test_a_driver_whose_connections_are_cut_after_each_statement(drivers: Drivers, mode: Mode, overlap: bool) -> None:
    for point in range(1, MOST, sized(5, 3)):
        drivers.fill()
        assert drivers.run(mode, dies_after=point, cut=True, overlap=overlap) == 0
        at = f"cut after {drivers.names()}"
        done = len(drivers.events) < point
        drivers.finish(mode)
        assert verdict(drivers.queue) == [], at
        if done:
            break
    assert LEAST[mode] <= point < MOST


def test_a_batch_that_kills_every_driver_spends_no_attempt_of_its_jobs(drivers: Drivers) -> None:
    """Each driver dies when it has read, in either mode: the batch counts it, and the jobs are there for the next."""
    drivers.fill()
    rows(drivers.queue, "UPDATE {s}.job SET max_attempts = 2")
    for mode, point in (
        (Mode.LEASED, "batch_sealed"),
        (Mode.TRANSACTIONAL, "batch_hold"),
        (Mode.LEASED, "batch_sealed"),
    ):
        assert drivers.run(mode, dies_at=point) == -signal.SIGKILL
        drivers.lose_patience()
    assert batches.sweep_batches(drivers.queue, grace_seconds=0).returned == JOBS
    assert rows(drivers.queue, "SELECT DISTINCT state, attempt FROM {s}.job") == [("queued", 0)]
    assert rows(drivers.queue, "SELECT state, attempt FROM {s}.batch") == [("abandoned", 3)]
    drivers.finish(Mode.LEASED)
    assert verdict(drivers.queue) == []


def test_many_deaths_in_a_row(drivers: Drivers) -> None:
    """The next driver dies, too, and the one after it, wherever they are: in turns of the modes."""
    for start in range(1, 16, sized(14, 3)):
        drivers.fill()
        for step in range(4):
            drivers.run(list(Mode)[(start + step) % 2], dies_after=start + 2 * step)
            drivers.lose_patience()
        drivers.finish(Mode.LEASED)
        assert verdict(drivers.queue) == []


def _zombie(drivers: Drivers, url: str) -> list[str]:
    """A driver sleeps until its batch is another's, for which more has become due; then it publishes first."""
    queue, schema = drivers.queue, drivers.queue.database.schema
    drivers.fill()
    old = batches.seal(queue, "work", KEY, owner="driver 1")
    seen = read(url, schema, old)
    drivers.lose_patience()
    drivers.fill(JOBS)
    new = batches.seal(queue, "work", KEY, owner="driver 2")
    for batch, jobs in ((old, seen), (new, read(url, schema, new))):
        try:
            consume(queue, batch, jobs)
        except BatchLost:
            continue
    drivers.finish(Mode.LEASED)
    return verdict(queue)


def test_a_driver_that_was_overtaken_publishes_nothing(drivers: Drivers, url: str) -> None:
    assert _zombie(drivers, url) == []


def test_a_dropped_fence_is_seen(drivers: Drivers, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    load = statements.load

    def planted(name: str, *rest: str) -> str:
        text = load(name, *rest)
        return (
            text.replace("b.token = %(token)s", "%(token)s > 0") if name in ("batch_publish", "batch_report") else text
        )

    monkeypatch.setattr(statements, "load", planted)
    assert any("has 0 effects" in wrong for wrong in _zombie(drivers, url))


def _late_producer(drivers: Drivers, url: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Jobs that were due long ago are committed between the snapshot and the move."""
    queue = drivers.queue
    run: Callable[..., Any] = Transaction.run

    def late(transaction: Transaction, name: str, parameters: Parameters) -> Any:
        found = run(transaction, name, parameters)
        if name == "batch_hold":
            rows(
                queue,
                "INSERT INTO {s}.job (id, queue, bucket, priority, available_at, run_at, max_attempts, payload)"
                " SELECT gen_random_uuid(), 'work', n % 2, 0, now() - interval '1 h', now(), 5,"
                " jsonb_build_object('n', n) FROM generate_series(100, 103) AS n",
            )
        return found

    monkeypatch.setattr(Transaction, "run", late)
    drivers.fill()
    batch = batches.seal(queue, "work", KEY, owner="driver 1", mode=Mode.TRANSACTIONAL)
    monkeypatch.setattr(Transaction, "run", run)
    consume(queue, batch, read(url, queue.database.schema, batch))
    drivers.finish(Mode.TRANSACTIONAL)
    return verdict(queue)


def test_what_is_committed_late_is_not_ended_unread(
    drivers: Drivers, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _late_producer(drivers, url, monkeypatch) == []


def test_a_move_of_other_jobs_than_were_read_is_seen(
    drivers: Drivers, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "_BEGIN", b"BEGIN ISOLATION LEVEL READ COMMITTED")
    assert any("has 0 effects" in wrong for wrong in _late_producer(drivers, url, monkeypatch))
