"""Many real processes, killed, stopped and cut off: every job is finished once all the same."""

import contextlib
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.faults.conftest import LINGER, SINCE, Fleet
from tests.gate.patience import FULL, sized
from tests.support import leases_go_on, make_due, until, value


def test_a_drain_survives_that_its_connections_are_cut(fleet: Fleet) -> None:
    jobs, cuts = sized(300, 3_000), sized(6, 12)
    fleet.enqueue(jobs)
    histories = [fleet.start(pause=0.001, batch_size=sized(20, 50), linger_seconds=LINGER) for _ in range(3)]
    cut = (
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND query LIKE %s"
    )
    total = 0
    for turn in range(cuts):
        until(lambda turn=turn: len(fleet.all("ended")) >= 3 * turn or fleet.queued() < jobs // 3)
        if fleet.queued() < jobs // 3:
            fleet.enqueue(jobs // 3)
        total += until(lambda: value(fleet.queue, cut, f"%{fleet.queue.database.schema}%"), "a connection to cut")
        # This process may have had a second connection in its pool, which was cut as well.
        fleet.queue.database.close()
    fleet.forget_leases()
    fleet.drained()
    fleet.dismiss(histories)
    fleet.note(cuts=total)
    assert total >= cuts
    assert fleet.verdict() == []
    enqueued = sum(len(event["ids"]) for event in fleet.supplies())
    assert fleet.queue.archived("work", since_seconds=SINCE) == {"succeeded": enqueued}


LEASE = sized(8.0, 20.0)


@pytest.mark.prove
def test_a_busy_handler_keeps_its_lease(fleet: Fleet, tmp_path: Path) -> None:
    """The handler computes, and leaves the interpreter to the heartbeat only when that asks for it."""
    fleet.enqueue(1)
    may_end = tmp_path / "may end"
    busy = fleet.start(lease_seconds=LEASE, burn_until=may_end)
    until(lambda: fleet.read(busy, "handled"))
    other = fleet.start(lease_seconds=LEASE, linger_seconds=LINGER)
    for _ in range(sized(1, 2)):
        until(leases_go_on(fleet.queue), "a lease that goes on")
    may_end.touch()
    until(lambda: fleet.read(busy, "drained"))
    fleet.dismiss([other])
    assert fleet.verdict() == []
    assert fleet.read(busy, "drained")[0]["succeeded"] == 1
    assert fleet.read(other, "drained")[0]["claimed"] == 0
    assert value(fleet.queue, "SELECT count(*) FROM {s}.audit WHERE kind = 'kept'") >= sized(1, 2)


HANGING: dict[str, Any] = sized({}, {"lease_seconds": 0.5, "job_timeout_seconds": 0.2})
"""The lease of a handler that hangs is ended by the test, or runs out because the job took too long."""


def overtake(fleet: Fleet, tmp_path: Path, plant: str | None = None, outcomes: str | None = None) -> tuple[Path, Path]:
    """A consumer hangs past its lease, a second one has its jobs in hand, and the first one comes back before it ends."""
    first_may_end, second_may_end = tmp_path / "first", tmp_path / "second"
    fleet.enqueue(5)
    first = fleet.start(hang_until=first_may_end, plant=plant, outcomes=outcomes, **HANGING)
    until(lambda: fleet.read(first, "handled"))
    if not FULL:
        make_due(fleet.queue)
    over = "SELECT count(*) FROM {s}.job WHERE state = 'running' AND available_at < now()"
    until(lambda: value(fleet.queue, over) == 5)
    second = fleet.start(hang_until=second_may_end, plant=plant)
    until(lambda: fleet.read(second, "handled"))
    first_may_end.touch()
    until(lambda: fleet.read(first, "drained"))
    second_may_end.touch()
    fleet.join()
    return first, second


def test_a_handler_that_hung_is_refused_while_another_has_the_job(fleet: Fleet, tmp_path: Path) -> None:
    first, second = overtake(fleet, tmp_path)
    assert fleet.verdict() == []
    # The other one took the first job by itself; those that nobody had taken yet are ended by whom they were leased to.
    drained = [fleet.read(history, "drained")[0] for history in (first, second)]
    assert [(summary["stale"], summary["succeeded"]) for summary in drained] == [(1, 4), (0, 1)]


EXPECTED = {
    "an ending without the fence": "ended under lease 1, but lease 2 was the current one",
    "an outcome without the fence": "ended under lease 1, but lease 2 was the current one",
    "a claim that does not lock": "before the end of another lease",
    "a lease number that does not grow": "got lease 0 after lease 0",
    "an ending that does not reach the archive": "jobs whose enqueue was acknowledged are gone",
    "an ending that leaves the job": "finished and live at the same time",
    "a claim that takes running jobs": "before the end of another lease",
}


def race(fleet: Fleet, go: Path, plant: str) -> None:
    """Consumers with a bug begin at one moment, and drain the queue."""
    fleet.enqueue(sized(200, 600))
    histories = [fleet.start(plant=plant, batch_size=50, pause=0.001, go=go) for _ in range(sized(2, 4))]
    fleet.ready(histories)
    go.touch()
    if plant == "an ending that leaves the job":
        ended = len(fleet.all("ended"))
        until(lambda: len(fleet.all("ended")) > ended + 20)
        for history in histories:
            with contextlib.suppress(ProcessLookupError):  # it came to the end by itself
                fleet.signal(history, signal.SIGTERM)
    fleet.join()


def meet(fleet: Fleet, tmp_path: Path, plant: str) -> None:
    """Two consumers with a bug, and the second takes what the first one has in hand."""
    may_end = tmp_path / "may end"
    fleet.enqueue(5)

    def another() -> Path:
        return fleet.start(plant=plant, hang_until=may_end)

    if plant == "a claim that does not lock":
        with fleet.in_the_way(of=2):
            histories = [another(), another()]
    else:
        histories = [another()]
        until(lambda: fleet.read(histories[0], "handled"))
        histories.append(another())
    until(lambda: all(fleet.read(history, "handled") for history in histories), "a job in hand of each")


@pytest.mark.parametrize("plant", EXPECTED)
def test_the_checker_catches(fleet: Fleet, tmp_path: Path, plant: str) -> None:
    """A judge that lets a bug pass proves nothing about code without one."""
    if "without the fence" in plant:
        overtake(fleet, tmp_path, plant, outcomes="every" if "outcome" in plant else None)
    elif EXPECTED[plant] == "before the end of another lease":
        meet(fleet, tmp_path, plant)
    else:
        race(fleet, tmp_path / "go", plant)
    found = fleet.verdict()
    assert any(EXPECTED[plant] in wrong for wrong in found), found[:5]
