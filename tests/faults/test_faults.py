"""Many real processes, killed, stopped and cut off: every job is finished once all the same."""

import signal
from pathlib import Path

import pytest

from tests.core.support import until, value
from tests.faults.conftest import Fleet


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


def test_a_busy_handler_keeps_its_lease(fleet: Fleet) -> None:
    fleet.enqueue(1)
    busy = fleet.start(lease_seconds=0.6, burn=2.4)
    until(lambda: fleet.read(busy, "handled"))
    other = fleet.start(lease_seconds=0.6, linger_seconds=2.4)
    fleet.join()
    assert fleet.verdict() == []
    assert fleet.read(busy, "drained")[0]["succeeded"] == 1
    assert fleet.read(other, "drained")[0]["claimed"] == 0
    assert value(fleet.queue, "SELECT count(*) FROM {s}.audit WHERE kind = 'kept'") >= 4


def overtake(fleet: Fleet, tmp_path: Path, plant: str | None = None, outcomes: str | None = None) -> tuple[Path, Path]:
    """A consumer hangs past its lease, a second one has its jobs in hand, and the first one comes back before it ends."""
    first_may_end, second_may_end = tmp_path / "first", tmp_path / "second"
    fleet.enqueue(5)
    first = fleet.start(
        lease_seconds=0.5, job_timeout_seconds=0.2, hang_until=first_may_end, plant=plant, outcomes=outcomes
    )
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
    "an outcome without the fence": "ended under lease 1, but lease 2 was the current one",
    "a claim that does not lock": "before the end of another lease",
    "a lease number that does not grow": "got lease 0 after lease 0",
    "an ending that does not reach the archive": "jobs whose enqueue was acknowledged are gone",
    "an ending that leaves the job": "finished and live at the same time",
    "a claim that takes running jobs": "before the end of another lease",
}


@pytest.mark.parametrize("plant", list(EXPECTED))
def test_the_checker_catches(fleet: Fleet, tmp_path: Path, plant: str) -> None:
    """A judge that lets a bug pass proves nothing about code without one."""
    if "without the fence" in plant:
        overtake(fleet, tmp_path, plant, outcomes="every" if "outcome" in plant else None)
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
