"""Transactional mode under kills: what a handler writes is there once for each job that ended, and for no other."""

import itertools
import random
import signal
from pathlib import Path
from typing import Any

import pytest

from dagster_sqlqueue import Mode
from tests.core.support import OwnServer, rows, until, value
from tests.faults.conftest import Fleet

JOBS = 3_000
KILLS = 40


@pytest.fixture
def effects(fleet: Fleet) -> Fleet:
    rows(fleet.queue, "CREATE TABLE {s}.effect (job uuid)")
    return fleet


def within_a_transaction(fleet: Fleet, **settings: Any) -> Path:
    return fleet.start(mode=Mode.TRANSACTIONAL, linger_seconds=60.0, **settings)


def missing_and_repeated(fleet: Fleet) -> tuple[int, int]:
    """Jobs that ended without an effect, and effects beyond the first of their job, or of jobs that did not end."""
    missing = "SELECT count(*) FROM {s}.job_archive AS a WHERE NOT EXISTS (SELECT FROM {s}.effect WHERE job = a.id)"
    surplus = "SELECT (SELECT count(*) FROM {s}.effect) - (SELECT count(*) FROM {s}.job_archive)"
    return value(fleet.queue, missing), value(fleet.queue, surplus)


def test_kills_leave_each_effect_once(effects: Fleet) -> None:
    fleet = effects
    luck = random.Random(21)
    seeds = itertools.count(1)
    fleet.enqueue(JOBS)

    def born() -> Path:
        seed = next(seeds)
        dies = (luck.choice(["claim", "finish", "finish"]), luck.randint(1, 4)) if seed % 3 else None
        return within_a_transaction(fleet, batch_size=luck.choice([5, 10]), pause=0.002, dies=dies, seed=seed)

    def gone() -> list[Path]:
        return [one for one in alive if fleet.processes[one].exitcode is not None]

    alive = [born() for _ in range(4)]
    for _ in range(KILLS):
        victim = luck.choice(alive)
        target = len(fleet.read(victim, "handled")) + luck.randint(1, 30)
        until(lambda: gone() or fleet.live() == 0 or len(fleet.read(victim, "handled")) >= target)  # noqa: B023
        if not gone():
            fleet.kill(victim)
        dead = gone()
        alive = [one for one in alive if one not in dead] + [born() for _ in dead]
    alive += [within_a_transaction(fleet, batch_size=100) for _ in range(2)]
    fleet.drained()
    fleet.dismiss(alive)

    assert fleet.verdict() == []
    assert missing_and_repeated(fleet) == (0, 0)
    assert fleet.queue.archived("work", since_seconds=600) == {"succeeded": JOBS}
    assert sum(process.exitcode == -signal.SIGKILL for process in fleet.processes.values()) >= KILLS
    # Handlers ran in vain, and what they wrote went with their transactions.
    assert len(fleet.all("handled")) > JOBS


def test_a_crash_of_the_server_leaves_each_effect_once(crashing: Fleet, server: OwnServer) -> None:
    rows(crashing.queue, "CREATE TABLE {s}.effect (job uuid)")
    crashing.enqueue(JOBS)
    alive = [within_a_transaction(crashing, batch_size=20, pause=0.001) for _ in range(2)]
    for crash in range(2):
        until(lambda: len(crashing.all("handled")) >= JOBS // 4 * (crash + 1))  # noqa: B023
        server.stop("immediate")
        server.start()
    crashing.drained()
    crashing.dismiss(alive)
    assert crashing.verdict() == []
    assert missing_and_repeated(crashing) == (0, 0)
    assert crashing.queue.archived("work", since_seconds=600) == {"succeeded": JOBS}


def test_a_look_that_does_not_lock_is_seen(effects: Fleet) -> None:
    effects.enqueue(1_000)
    alive = [
        within_a_transaction(effects, batch_size=50, pause=0.001, plant="a look that does not lock") for _ in range(3)
    ]
    effects.drained()
    effects.dismiss(alive)
    assert missing_and_repeated(effects)[1] > 0
