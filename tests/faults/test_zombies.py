"""Consumers that were stopped past their lease and woken when others had their jobs: none of their writes is accepted."""

import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from dagster_sqlqueue import Backoff, QueueSpec
from tests.faults.conftest import WORKED_OFF, Fleet
from tests.gate.patience import sized
from tests.support import Work, make_due, rows, until, value

ZOMBIES, BATCH = sized((3, 20), (6, 40))
LEASE = sized(8.0, 12.0)
"""A heartbeat comes when half of it is over."""

KINDS = {"succeeded", "retry", "snooze", "hold", "failed", "cancelled", "heartbeat", "progress"}
NO_LEASE_LIVES = "SELECT NOT EXISTS (SELECT FROM {s}.job WHERE state = 'running' AND available_at > now())"
LIMITS = {"free": {}, "ordered": {"ordered": True}, "limited": {"max_running": 1_000, "max_running_per_key": 10}}


@pytest.mark.parametrize(
    "limits",
    [pytest.param("free", marks=pytest.mark.prove), pytest.param("ordered", marks=pytest.mark.prove), "limited"],
)
def test_every_write_of_a_zombie_is_refused(fleet: Fleet, tmp_path: Path, limits: str) -> None:
    jobs = ZOMBIES * BATCH
    fleet.queue.create_queue(
        QueueSpec("work", Work, max_attempts=100, backoff=Backoff(0, jitter=0), **LIMITS[limits])  # type: ignore[arg-type]
    )
    fleet.enqueue(jobs, key=lambda n: f"key {n}")
    awake = tmp_path / "awake"
    in_hand: dict[str, Any] = {"batch_size": BATCH, "hang_at": 7, "hang_until": awake}
    works: dict[str, Any] = {"outcomes": "every", "reports": True}
    zombies = []
    for _ in range(ZOMBIES):
        zombies.append(fleet.start(lease_seconds=LEASE, job_timeout_seconds=WORKED_OFF, **works, **in_hand))
        # At the same time, one would claim what the other just took, and be left with fewer.
        until(lambda: fleet.read(zombies[-1], "claimed"))
    until(lambda: all(len(fleet.read(zombie, "handled")) == 7 for zombie in zombies))
    for zombie in zombies:
        fleet.signal(zombie, signal.SIGSTOP)
    assert fleet.all("ended") == []
    make_due(fleet.queue)
    until(lambda: value(fleet.queue, NO_LEASE_LIVES))
    # As if somebody had given them back: after leases that only ran out they would be claimed one by one.
    rows(fleet.queue, "UPDATE {s}.job SET state = 'queued'")

    # Half of the jobs are finished by others, half are in others' hands, when the zombies come back.
    may_end = tmp_path / "may end"
    present = fleet.start(batch_size=jobs // 2, hang_until=may_end, reports=True)
    until(lambda: fleet.read(present, "handled"))
    finisher = fleet.start()
    until(lambda: fleet.live() == len(fleet.read(present, "claimed")[0]["jobs"]))
    for zombie in zombies:
        fleet.signal(zombie, signal.SIGCONT)
    until(
        lambda: all(kinds(fleet, zombie)["heartbeat"] == BATCH for zombie in zombies), "the refusal of the heartbeats"
    )
    awake.touch()
    until(lambda: all(fleet.read(zombie, "drained") for zombie in zombies))
    assert all(kinds(fleet, zombie).keys() == KINDS for zombie in zombies)
    assert fleet.read(present, "ended") == []
    # What was said is what the present consumer said, of the job that it is at.
    assert rows(
        fleet.queue,
        "SELECT DISTINCT j.lease_no, percent FROM {s}.job_progress JOIN {s}.job AS j ON id = job_id"
        " WHERE j.lease_no = job_progress.lease_no",
    ) == [(2, 0.0)]
    may_end.touch()
    until(lambda: fleet.read(present, "drained") and fleet.read(finisher, "drained"))
    fleet.dismiss([])
    fleet.note()

    refused = sum((kinds(fleet, zombie) for zombie in zombies), Counter())
    assert refused.total() == ZOMBIES * (7 + BATCH + 1)
    assert value(fleet.queue, "SELECT sum(writes) FROM {s}.stale_write") == refused.total()
    assert all(summary["stale"] == BATCH for zombie in zombies for summary in fleet.read(zombie, "drained"))
    assert fleet.verdict() == []
    assert value(fleet.queue, "SELECT array_agg(DISTINCT (state, lease_no, attempt)::text) FROM {s}.job_archive") == [
        "(succeeded,2,2)"
    ]
    assert rows(fleet.queue, "SELECT FROM {s}.job_progress") == []


def kinds(fleet: Fleet, history: Path) -> Counter[str]:
    """How many writes of each kind were refused to a process."""
    return Counter(kind for event in fleet.read(history, "refused") for kind in event["kinds"])
