"""Another number of buckets, under load and kills: nothing lost, nothing twice, and every key keeps its order."""

import random
from pathlib import Path

import pytest

from dagster_sqlqueue import Backoff, QueueSpec
from tests.core.support import Work, until, value
from tests.faults.checker import Bounds, asleep
from tests.faults.conftest import Fleet
from tests.faults.worker import produce

JOBS, PRODUCERS = 1_500, 2


@pytest.mark.parametrize("ordered", [False, True])
def test_buckets_change_under_load_and_kills(fleet: Fleet, ordered: bool) -> None:
    spec = QueueSpec("work", Work, bucket_count=4, max_attempts=100, backoff=Backoff(0, jitter=0), ordered=ordered)
    # The fixture's queue has two buckets; so it begins with yet another change.
    fleet.queue.create_queue(spec)
    fleet.queue.rebucket("work", 4)
    luck = random.Random(ordered)
    lives = iter(range(1_000))

    def born() -> Path:
        dies = (luck.choice(["claim", "finish", "requeue"]), luck.randint(2, 5))
        return fleet.start(
            lease_seconds=1.0, batch_size=20, linger_seconds=30.0, outcomes="coming back", dies=dies, seed=next(lives)
        )

    # Each producer has keys of its own: within a key the order of arrival is then the order of enqueueing.
    producers = [
        fleet.start(produce, jobs=JOBS, batch_size=10, keys=20, prefix=f"key {n} ", pause=0.005)
        for n in range(PRODUCERS)
    ]
    alive = [born() for _ in range(4)]

    def enqueued(share: float) -> bool:
        assert asleep(fleet.queue) == []
        for history in [history for history in alive if fleet.processes[history].exitcode is not None]:
            alive.remove(history)
            alive.append(born())
        return sum(len(event["ids"]) for event in fleet.all("enqueued")) >= share * JOBS * PRODUCERS

    until(lambda: enqueued(0.3), seconds=60)
    fleet.queue.rebucket("work", 16)
    until(lambda: enqueued(0.6), seconds=60)
    fleet.queue.rebucket("work", 8)
    until(lambda: enqueued(1.0), seconds=60)
    for producer in producers:
        fleet.processes[producer].join(30)
    alive += [fleet.start(lease_seconds=1.0, linger_seconds=30.0) for _ in range(2)]
    fleet.drained()
    fleet.dismiss(alive)

    assert fleet.verdict(bounds=Bounds(ordered=ordered)) == []
    assert fleet.queue.archived("work", since_seconds=600) == {"succeeded": JOBS * PRODUCERS}
    assert value(fleet.queue, "SELECT max(bucket) FROM {s}.job_archive") >= 8
    assert fleet.queue.settings("work").lanes == 8
    killed = [process for process in fleet.processes.values() if process.exitcode]
    assert len(killed) >= 5
