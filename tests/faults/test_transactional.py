"""Transactional mode under kills: what a handler writes is there once for each job that ended, and for no other."""

import itertools
import random
from pathlib import Path
from typing import Any

import pytest

from dagster_sqlqueue import Mode
from tests.faults.conftest import LINGER, SINCE, Fleet
from tests.gate.patience import FULL, sized
from tests.gate.plugin import verdict
from tests.support import OwnServer, rows, until, value

JOBS = sized(500, 3_000)
KILLS = sized(12, 40)
SEED = 21


@pytest.fixture
def effects(fleet: Fleet) -> Fleet:
    rows(fleet.queue, "CREATE TABLE {s}.effect (job uuid)")
    return fleet


def within_a_transaction(fleet: Fleet, **settings: Any) -> Path:
    return fleet.start(mode=Mode.TRANSACTIONAL, linger_seconds=LINGER, ahead=1, **settings)


@verdict
def wrong_effects(fleet: Fleet) -> list[str]:
    """Whether jobs ended without an effect, and whether there are effects beyond the first of their job, or of jobs that
    did not end.
    """
    missing = "SELECT count(*) FROM {s}.job_archive AS a WHERE NOT EXISTS (SELECT FROM {s}.effect WHERE job = a.id)"
    surplus = "SELECT (SELECT count(*) FROM {s}.effect) - (SELECT count(*) FROM {s}.job_archive)"
    wrong = []
    if count := value(fleet.queue, missing):
        wrong.append(f"{count} jobs ended without their effect")
    if count := value(fleet.queue, surplus):
        wrong.append(f"{count} effects are there beyond the one of each job")
    return wrong


def test_kills_leave_each_effect_once(effects: Fleet) -> None:
    fleet = effects
    luck = random.Random(SEED)
    seeds = itertools.count(1)
    fleet.enqueue(JOBS)

    def born() -> Path:
        seed = next(seeds)
        dies = (luck.choice(["claim", "finish", "finish"]), luck.randint(1, 4)) if seed % 3 else None
        return within_a_transaction(fleet, batch_size=luck.choice([5, 10]), pause=0.002, dies=dies, seed=seed)

    alive = [born() for _ in range(4)]
    for _ in range(KILLS):
        victim = luck.choice(alive)
        target = len(fleet.read(victim, "handled")) + luck.randint(1, 30)
        until(lambda: fleet.gone(alive) or fleet.live() == 0 or len(fleet.read(victim, "handled")) >= target)  # noqa: B023
        if not fleet.gone(alive):
            fleet.kill(victim)
        dead = fleet.gone(alive)
        alive = [one for one in alive if one not in dead] + [born() for _ in dead]
    alive += [within_a_transaction(fleet, batch_size=100) for _ in range(2)]
    fleet.drained()
    fleet.dismiss(alive)

    in_vain = len(fleet.all("handled")) - JOBS
    fleet.note(handlers_that_ran_in_vain=in_vain, seed=SEED)
    assert fleet.verdict() == []
    assert wrong_effects(fleet) == []
    assert fleet.queue.archived("work", since_seconds=SINCE) == {"succeeded": JOBS}
    assert fleet.kills() >= KILLS
    if FULL:
        # What they wrote went with their transactions.
        assert in_vain > 0


@pytest.mark.prove
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
    crashing.note(crashes=2)
    assert crashing.verdict() == []
    assert wrong_effects(crashing) == []
    assert crashing.queue.archived("work", since_seconds=SINCE) == {"succeeded": JOBS}


def test_a_pick_that_does_not_lock_is_seen(effects: Fleet, tmp_path: Path) -> None:
    effects.enqueue(5)
    may_end = tmp_path / "may end"
    for count in (1, 2):
        within_a_transaction(effects, hang_until=may_end, plant="a pick that does not lock")
        until(lambda: len(effects.all("handled")) == count, "a job in hand of each")  # noqa: B023
    may_end.touch()
    effects.drained()
    effects.dismiss(list(effects.processes))
    assert any("beyond" in wrong for wrong in wrong_effects(effects))
