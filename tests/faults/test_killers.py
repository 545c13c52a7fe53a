"""A job that kills its process: it is found, and ends in the dead letter alone."""

import multiprocessing
import signal
from typing import Any

import pytest

from dagster_sqlqueue import Backoff, NewJob, QueueSpec, RateLimit, SqlQueue, Strategy
from tests.faults.killer import KILLER, Victim, drain, drain_in_threads
from tests.gate.patience import PATIENCE
from tests.support import Work, rows, value

_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(["tests.faults.killer"])

JOBS = 30

KINDS: dict[str, tuple[str, int, dict[str, Any]]] = {
    **{f"leased, {strategy}": ("leased", 100, {"strategy": strategy}) for strategy in Strategy},
    **{
        f"transactional, {strategy}": ("transactional", 100, {"strategy": strategy})
        for strategy in (Strategy.ROUND_ROBIN, Strategy.FIFO, Strategy.FANOUT)
    },
    "in batches of 7": ("leased", 7, {}),
    "one by one": ("leased", 1, {}),
    "in transactions of 7": ("transactional", 7, {}),
    "limited": ("leased", 100, {"max_running": 50}),
    "near a limit": ("leased", 100, {"max_running": 10, "rate": RateLimit(1_000, 60)}),
    "ordered": ("leased", 100, {"ordered": True}),
    "a limit for each key": ("leased", 100, {"max_running_per_key": 1}),
    "a batch handler": ("batch", 100, {}),
    "side by side": ("async", 100, {}),
    "granted by managers": ("managed", 100, {"strategy": Strategy.ASSIGN}),
    "SQL functions": ("functions", 100, {}),
    "SQL functions, fanout": ("functions", 100, {"strategy": Strategy.FANOUT}),
    "SQL functions, limited": ("functions", 100, {"max_running": 50}),
    "SQL functions, ordered": ("functions", 100, {"ordered": True}),
}

IN_ALL_RUNS = (
    "leased, round_robin",
    "transactional, fifo",
    "side by side",
    "SQL functions",
)


def worked_off(queue: SqlQueue, victim: Victim) -> list[int]:
    """The number of jobs that have ended after each start of a process, until all have; each start that dies leaves
    leases, which are ended here.
    """
    ended: list[int] = []
    while not ended or ended[-1] < JOBS:
        process = _processes.Process(target=drain, args=(victim,))
        process.start()
        process.join(PATIENCE)
        assert process.exitcode in (0, -signal.SIGKILL)
        rows(queue, "UPDATE {s}.job SET available_at = now() WHERE state = 'running'")
        rows(queue, "DELETE FROM {s}.worker")  # managers grant to a worker for as long as it may be alive
        ended.append(value(queue, "SELECT count(*) FROM {s}.job_archive"))
        assert len(ended) < 12, ended
    return ended


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=() if kind in IN_ALL_RUNS else pytest.mark.prove) for kind in KINDS]
)
def test_a_job_that_kills_its_process_dies_alone(queue: SqlQueue, url: str, kind: str) -> None:
    how, batch_size, settings = KINDS[kind]
    spec = QueueSpec(
        "lethal", Work, bucket_count=4, lease_seconds=300, max_attempts=3, backoff=Backoff(0, jitter=0), **settings
    )
    queue.create_queue(spec)
    queue.enqueue_many(spec, [NewJob(Work(n=n), ordering_key=str(n % 10)) for n in range(JOBS)])
    ended = worked_off(queue, Victim(url, queue.database.schema, spec, how, batch_size))
    found = rows(
        queue, "SELECT CAST(payload ->> 'n' AS integer), state, attempt, error FROM {s}.job_archive ORDER BY 1"
    )
    assert [(n, state) for n, state, *_ in found] == [
        (n, "failed" if n == KILLER else "succeeded") for n in range(JOBS)
    ]
    assert {attempt for n, _, attempt, _ in found if n != KILLER} == {1}
    _, _, attempt, error = found[KILLER]
    assert attempt == 3
    assert "its consumer died" in error
    # Once among the others, three times by itself, and one start that buries it.
    assert len(ended) <= 5


@pytest.mark.parametrize("how", ["leased", "transactional", "worker"])
def test_what_another_thread_works_on_does_not_die_of_it(queue: SqlQueue, url: str, how: str) -> None:
    lethal, other = (
        QueueSpec(name, Work, bucket_count=4, lease_seconds=300, max_attempts=3, backoff=Backoff(0, jitter=0))
        for name in ("lethal", "other")
    )
    for spec in (lethal, other):
        queue.create_queue(spec)
    queue.enqueue(lethal, Work(n=KILLER))
    queue.enqueue_many(other, [Work(n=1), Work(n=2)])
    for _ in range(12):
        process = _processes.Process(
            target=drain_in_threads, args=(Victim(url, queue.database.schema, lethal, how, 1), other)
        )
        process.start()
        process.join(PATIENCE)
        assert process.exitcode in (0, -signal.SIGKILL)
        rows(queue, "UPDATE {s}.job SET available_at = now() WHERE state = 'running'")
        if not value(queue, "SELECT count(*) FROM {s}.job"):
            break
    found = rows(queue, "SELECT queue, state, attempt FROM {s}.job_archive ORDER BY queue, id")
    assert found == [("lethal", "failed", 3), ("other", "succeeded", 1), ("other", "succeeded", 1)]
