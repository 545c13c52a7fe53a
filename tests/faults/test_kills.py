"""Consumers and servers that are killed at any moment: every job is finished, and finished once."""

import contextlib
import itertools
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from dagster_sqlqueue.errors import DatabaseUnavailable
from tests.faults.conftest import LINGER, SINCE, Fleet
from tests.faults.worker import produce
from tests.gate.patience import FULL, sized
from tests.support import OwnServer, until, value

JOBS = sized(1_000, 10_000)
KILLS = sized(20, 100)
WITHIN = sized(2, 10)
"""Kills within each verb."""

CRASHES = sized(2, 5)
SEED = 20
VERBS = ("claim", "finish", "requeue")


def test_a_hundred_kills_lose_nothing_and_end_nothing_twice(fleet: Fleet) -> None:
    luck = random.Random(SEED)
    lives = itertools.count(1)
    fleet.enqueue(JOBS // 5)

    def born() -> Path:
        number = next(lives)
        # Most kill themselves within a verb; the others are killed from outside, wherever they are then.
        dies = (luck.choice(VERBS), luck.randint(1, 3)) if number % 3 else None
        settings: dict[str, Any] = {"batch_size": luck.choice([5, 20, 60]), "pause": luck.choice([0.0, 0.002, 0.02])}
        return fleet.start(
            lease_seconds=1.0, outcomes="coming back", linger_seconds=LINGER, dies=dies, seed=number, **settings
        )

    def killed() -> bool:
        """Whether there were kills enough, also within the verbs."""
        within = Counter(event["verb"] for event in fleet.all("dies"))
        return fleet.kills() >= KILLS and min(within["claim"], within["finish"]) >= WITHIN

    alive = [born() for _ in range(4)]
    turns = 0
    while turns < KILLS or not killed():
        turns += 1
        fleet.enqueue(JOBS * 4 // 5 // KILLS)
        victim = luck.choice(alive)
        target = len(fleet.read(victim, "handled")) + luck.randint(1, 40)
        until(lambda: fleet.gone(alive) or fleet.live() == 0 or len(fleet.read(victim, "handled")) >= target)  # noqa: B023
        if not fleet.gone(alive):
            fleet.kill(victim)
        for dead in fleet.gone(alive):
            alive.remove(dead)
            alive.append(born())
    alive += [fleet.start(lease_seconds=1.0, linger_seconds=LINGER) for _ in range(2)]
    fleet.drained()
    fleet.dismiss(alive)

    claimed = "SELECT count(*) FROM {s}.audit WHERE kind = 'claim'"
    unanswered = value(fleet.queue, claimed) - sum(len(event["jobs"]) for event in fleet.all("claimed"))
    fleet.note(claims_without_an_answer=unanswered, seed=SEED)
    assert fleet.verdict() == []
    enqueued = sum(len(event["ids"]) for event in fleet.supplies())
    assert fleet.queue.archived("work", since_seconds=SINCE) == {"succeeded": enqueued}
    assert enqueued >= JOBS
    if FULL:
        # Some of so many kills fell between a commit and its answer: nobody had it, and the database knew.
        assert unanswered > 0


@pytest.mark.parametrize("ahead", [1, 2])
def test_a_kill_beside_batches_claimed_ahead_loses_none_and_spends_no_attempt(
    fleet: Fleet, tmp_path: Path, ahead: int
) -> None:
    jobs, size = 200, 10
    fleet.enqueue(jobs)
    victim = fleet.start(batch_size=size, ahead=ahead, hang_until=tmp_path / "never", hang_at=2 * size + 5)
    running = "SELECT count(*) FROM {s}.job WHERE state = 'running'"
    until(
        lambda: len(fleet.read(victim, "handled")) == 2 * size + 5 and value(fleet.queue, running) == (1 + ahead) * size
    )
    fleet.kill(victim)
    others = [fleet.start(batch_size=size, ahead=ahead, linger_seconds=LINGER) for _ in range(2)]
    fleet.forget_leases()
    fleet.drained()
    fleet.dismiss(others)
    assert fleet.verdict() == []
    assert fleet.queue.archived("work", since_seconds=SINCE) == {"succeeded": jobs}
    assert value(fleet.queue, "SELECT max(attempt) FROM {s}.job_archive") == 1


def supplied(fleet: Fleet) -> bool:
    """Have something for every consumer to do, however soon the others are done; true once the database answers."""
    with contextlib.suppress(DatabaseUnavailable):
        if fleet.queued() < 300:
            fleet.enqueue(300)
        return True
    return False


def test_crashes_of_the_server_lose_nothing_that_was_acknowledged(
    crashing: Fleet, server: OwnServer, tmp_path: Path
) -> None:
    fleet = crashing
    jobs = sized(800, 3_000)
    crashed = tmp_path / "crashed"
    producing: dict[str, Any] = {"jobs": jobs, "batch_size": 20, "pause": 0.03, "goes_on_until": crashed}
    producers = [fleet.start(produce, **producing) for _ in range(2)]
    consumers = [fleet.start(batch_size=50, pause=0.001, linger_seconds=LINGER) for _ in range(3)]
    returns: list[float] = []

    def interrupted() -> bool:
        """Whether a producer had no answer, and sent again."""
        return any(event["tries"] > 1 for event in fleet.all("enqueued"))

    while len(returns) < CRASHES or not interrupted():
        crash = len(returns)
        until(lambda: len(fleet.all("enqueued")) >= 20 * (crash + 1))  # noqa: B023
        until(lambda: len(fleet.all("ended")) >= 10 * (crash + 1))  # noqa: B023
        server.stop("immediate")
        before = [len(fleet.read(consumer, "ended")) for consumer in consumers]
        server.start()
        back = time.monotonic()
        for consumer, ended in zip(consumers, before, strict=True):
            until(lambda: supplied(fleet) and len(fleet.read(consumer, "ended")) > ended, "each consumer's work")  # noqa: B023
        returns.append(time.monotonic() - back)
    crashed.touch()
    until(lambda: fleet.finished(producers), "the end of the producers")
    fleet.forget_leases()
    fleet.drained()
    fleet.dismiss(consumers)
    fleet.note(crashes=len(returns), seconds_until_all_worked_again=f"{max(returns):.1f}")
    assert fleet.verdict() == []
    enqueued = sum(len(event["ids"]) for event in [*fleet.all("enqueued"), *fleet.supplies()])
    assert enqueued >= 2 * jobs
    assert fleet.queue.archived("work", since_seconds=SINCE) == {"succeeded": enqueued}
