"""Many real processes, killed, stopped and cut off: every job is finished once all the same."""

import random
import signal
from pathlib import Path

import pytest

from tests.core.support import OwnServer, until, value
from tests.faults.conftest import Fleet
from tests.faults.worker import produce


def test_a_crowd_finishes_every_job_once(fleet: Fleet, tmp_path: Path) -> None:
    go = tmp_path / "go"
    fleet.enqueue(40_000)
    histories = [fleet.start(go=go) for _ in range(8)]
    until(lambda: all(fleet.read(history, "ready") for history in histories))
    go.touch()
    summaries = fleet.join()
    assert fleet.verdict() == []
    assert sum(summary["succeeded"] for summary in summaries) == 40_000
    assert sum(summary["stale"] for summary in summaries) == 0
    # Nobody was shut out: the buckets take turns, and locked jobs are stepped over.
    assert all(summary["succeeded"] > 500 for summary in summaries)


def test_kills_in_mid_batch_lose_nothing(fleet: Fleet) -> None:
    luck = random.Random(20)
    settings = {"lease_seconds": 1.0, "batch_size": 40, "pause": 0.002, "linger_seconds": 60.0}
    alive = [fleet.start(**settings) for _ in range(3)]
    jobs = 0

    def in_mid_batch(victim: Path, handled: int) -> bool:
        nonlocal jobs
        if fleet.live() < 200:
            fleet.enqueue(400)
            jobs += 400
        return len(fleet.read(victim, "handled")) >= handled

    for _ in range(24):
        victim = alive.pop(luck.randrange(len(alive)))
        target = len(fleet.read(victim, "handled")) + luck.randint(1, 100)
        until(lambda victim=victim, target=target: in_mid_batch(victim, target))
        fleet.kill(victim)
        alive.append(fleet.start(**settings))
    until(lambda: fleet.live() == 0)
    for survivor in alive:
        until(lambda survivor=survivor: fleet.read(survivor, "ready"))
        fleet.signal(survivor, signal.SIGTERM)
    fleet.join()
    assert fleet.verdict() == []
    handled = [event["id"] for event in fleet.all("handled")]
    assert len(handled) > len(set(handled)) == jobs
    assert fleet.queue.archived("work", since_seconds=600) == {"succeeded": jobs}


def test_a_process_that_was_stopped_past_its_lease_is_refused(fleet: Fleet) -> None:
    fleet.enqueue(300)
    stopped = fleet.start(lease_seconds=1.0, pause=0.003, batch_size=100)
    until(lambda: len(fleet.read(stopped, "handled")) >= 10)
    fleet.signal(stopped, signal.SIGSTOP)
    running = "SELECT count(*) FROM {s}.job WHERE state = 'running' AND available_at > now()"
    until(lambda: value(fleet.queue, running) == 0)
    other = fleet.start(lease_seconds=30.0)
    until(lambda: fleet.read(other, "drained"))
    assert fleet.verdict() == []
    fleet.signal(stopped, signal.SIGCONT)
    fleet.join()
    assert fleet.verdict() == []
    (late,) = fleet.read(stopped, "drained")
    assert late["stale"] == late["claimed"] - late["succeeded"] >= 10
    assert fleet.read(stopped, "refused")[-1]["jobs"]


def test_a_drain_survives_that_its_connections_are_cut(fleet: Fleet) -> None:
    fleet.enqueue(3_000)
    histories = [fleet.start(lease_seconds=10.0, pause=0.001, batch_size=50) for _ in range(3)]
    cut = (
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND query LIKE %s"
    )
    total = 0
    for turn in range(12):
        until(lambda turn=turn: len(fleet.all("ended")) >= 3 * turn)
        total += value(fleet.queue, cut, f"%{fleet.queue.database.schema}%")
    fleet.join()
    assert total >= 12
    assert fleet.verdict() == []
    assert len(histories) == 3
    assert fleet.queue.archived("work", since_seconds=600) == {"succeeded": 3_000}


def test_a_crash_of_the_server_loses_nothing_that_was_acknowledged(crashing: Fleet, server: OwnServer) -> None:
    fleet = crashing
    producers = [fleet.start(produce, jobs=2_000, batch_size=20, pause=0.005) for _ in range(2)]
    consumers = [fleet.start(lease_seconds=15.0, batch_size=50, pause=0.001, linger_seconds=60.0) for _ in range(2)]
    for crash in range(3):
        until(lambda crash=crash: len(fleet.all("ended")) >= 10 * (crash + 1))
        until(lambda crash=crash: len(fleet.all("enqueued")) >= 20 * (crash + 1))
        server.stop("immediate")
        before = len(fleet.all("ended"))
        server.start()
        until(lambda before=before: len(fleet.all("ended")) > before, "work after the crash")
    for producer in producers:
        fleet.processes[producer].join(60)
    until(lambda: fleet.live() == 0)
    for consumer in consumers:
        fleet.signal(consumer, signal.SIGTERM)
    fleet.join()
    assert fleet.verdict() == []
    assert max(event["tries"] for event in fleet.all("enqueued")) > 1
    assert fleet.queue.archived("work", since_seconds=600) == {"succeeded": 4_000}


def overtake(fleet: Fleet, tmp_path: Path, plant: str | None = None) -> tuple[Path, Path]:
    """A consumer hangs past its lease, a second one has its jobs in hand, and the first one comes back before it ends."""
    first_may_end, second_may_end = tmp_path / "first", tmp_path / "second"
    fleet.enqueue(5)
    first = fleet.start(lease_seconds=0.5, job_timeout_seconds=0.2, hang_until=first_may_end, plant=plant)
    until(lambda: fleet.read(first, "handled"))
    over = "SELECT count(*) FROM {s}.job WHERE state = 'running' AND available_at < now()"
    until(lambda: value(fleet.queue, over) == 5)
    second = fleet.start(lease_seconds=30.0, hang_until=second_may_end, plant=plant)
    until(lambda: fleet.read(second, "handled"))
    first_may_end.touch()
    until(lambda: fleet.read(first, "drained"))
    second_may_end.touch()
    fleet.join()
    return first, second


def test_a_handler_that_hung_is_refused_while_another_has_the_job(fleet: Fleet, tmp_path: Path) -> None:
    first, second = overtake(fleet, tmp_path)
    assert fleet.verdict() == []
    assert fleet.read(first, "drained")[0]["stale"] == 5
    assert fleet.read(second, "drained")[0]["succeeded"] == 5


EXPECTED = {
    "an ending without the fence": "ended under lease 1, but lease 2 was the current one",
    "a claim that does not lock": "before the end of another lease",
    "a lease number that does not grow": "got lease 0 after lease 0",
    "an ending that does not reach the archive": "jobs whose enqueue was acknowledged are gone",
    "an ending that leaves the job": "finished and live at the same time",
    "a claim that takes running jobs": "before the end of another lease",
}


@pytest.mark.parametrize("plant", list(EXPECTED))
def test_the_checker_catches(fleet: Fleet, tmp_path: Path, plant: str) -> None:
    """A judge that lets a bug pass proves nothing about code without one."""
    if plant == "an ending without the fence":
        overtake(fleet, tmp_path, plant)
    else:
        go = tmp_path / "go"
        fleet.enqueue(600)
        histories = [fleet.start(plant=plant, batch_size=50, pause=0.001, go=go) for _ in range(4)]
        until(lambda: all(fleet.read(history, "ready") for history in histories))
        go.touch()
        if plant == "an ending that leaves the job":
            until(lambda: len(fleet.all("ended")) > 20)
            for history in histories:
                fleet.signal(history, signal.SIGTERM)
        fleet.join()
    found = fleet.verdict()
    assert any(EXPECTED[plant] in wrong for wrong in found), found[:5]
