"""Consumers and servers that are killed at any moment: every job is finished, and finished once."""

import itertools
import random
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

from tests.core.support import OwnServer, until, value
from tests.faults.conftest import Fleet
from tests.faults.worker import produce

JOBS = 10_000
KILLS = 100
VERBS = ("claim", "finish", "requeue")


def test_a_hundred_kills_lose_nothing_and_end_nothing_twice(fleet: Fleet) -> None:
    luck = random.Random(20)
    lives = itertools.count(1)
    fleet.enqueue(JOBS // 5)

    def born() -> Path:
        number = next(lives)
        # Most kill themselves within a verb; the others are killed from outside, wherever they are then.
        dies = (luck.choice(VERBS), luck.randint(1, 3)) if number % 3 else None
        settings: dict[str, Any] = {"batch_size": luck.choice([5, 20, 60]), "pause": luck.choice([0.0, 0.002, 0.02])}
        return fleet.start(
            lease_seconds=1.0, outcomes="coming back", linger_seconds=60.0, dies=dies, seed=number, **settings
        )

    alive = [born() for _ in range(4)]
    for _ in range(KILLS):
        fleet.enqueue(JOBS * 4 // 5 // KILLS)
        victim = luck.choice(alive)
        target = len(fleet.read(victim, "handled")) + luck.randint(1, 40)
        until(lambda: gone(fleet, alive) or fleet.live() == 0 or len(fleet.read(victim, "handled")) >= target)  # noqa: B023
        if not gone(fleet, alive):
            fleet.kill(victim)
        for dead in gone(fleet, alive):
            alive.remove(dead)
            alive.append(born())
    alive += [fleet.start(lease_seconds=1.0, linger_seconds=60.0) for _ in range(2)]
    fleet.drained()
    fleet.dismiss(alive)

    assert fleet.verdict() == []
    assert fleet.queue.archived("work", since_seconds=600) == {"succeeded": JOBS}
    assert sum(process.exitcode == -signal.SIGKILL for process in fleet.processes.values()) >= KILLS
    within = Counter(event["verb"] for event in fleet.all("dies"))
    assert min(within["claim"], within["finish"]) >= 10, within
    # Some of the kills fell between a commit and its answer: nobody was told, and the database knew.
    claimed = "SELECT count(*) FROM {s}.audit WHERE kind = 'claim'"
    assert value(fleet.queue, claimed) > sum(len(event["jobs"]) for event in fleet.all("claimed"))


def gone(fleet: Fleet, alive: list[Path]) -> list[Path]:
    """Those that do not live any more."""
    return [history for history in alive if fleet.processes[history].exitcode is not None]


def test_crashes_of_the_server_lose_nothing_that_was_acknowledged(crashing: Fleet, server: OwnServer) -> None:
    fleet = crashing
    producers = [fleet.start(produce, jobs=3_000, batch_size=20, pause=0.005) for _ in range(2)]
    consumers = [fleet.start(lease_seconds=15.0, batch_size=50, pause=0.001, linger_seconds=60.0) for _ in range(3)]
    returns = []
    for crash in range(5):
        until(lambda: len(fleet.all("enqueued")) >= 20 * (crash + 1))  # noqa: B023
        until(lambda: len(fleet.all("ended")) >= 10 * (crash + 1))  # noqa: B023
        server.stop("immediate")
        before = [len(fleet.read(consumer, "ended")) for consumer in consumers]
        server.start()
        back = time.monotonic()
        for consumer, ended in zip(consumers, before, strict=True):
            until(lambda: len(fleet.read(consumer, "ended")) > ended, "work of each consumer", 10)  # noqa: B023
        returns.append(time.monotonic() - back)
    assert max(returns) < 10, returns
    for producer in producers:
        fleet.processes[producer].join(60)
    fleet.drained()
    fleet.dismiss(consumers)
    assert fleet.verdict() == []
    assert max(event["tries"] for event in fleet.all("enqueued")) > 1
    assert fleet.queue.archived("work", since_seconds=600) == {"succeeded": 6_000}
