"""Another number of buckets, under load and kills: nothing lost, nothing twice, and every key keeps its order."""

import random
from pathlib import Path

import pytest

from dagster_sqlqueue import Backoff, QueueSpec
from tests.faults.checker import Bounds, asleep
from tests.faults.conftest import LINGER, SINCE, Fleet
from tests.faults.worker import produce
from tests.gate.patience import sized
from tests.support import Work, until, value

JOBS, PRODUCERS = sized(200, 1_500), 2
KILLS = 5


@pytest.mark.parametrize("ordered", [pytest.param(False, marks=pytest.mark.prove), True])
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
            lease_seconds=1.0, batch_size=20, linger_seconds=LINGER, outcomes="coming back", dies=dies, seed=next(lives)
        )

    # Each producer has keys of its own: within a key the order of arrival is then the order of enqueueing.
    producers = [
        fleet.start(produce, jobs=JOBS, batch_size=10, keys=20, prefix=f"key {n} ", pause=0.02)
        for n in range(PRODUCERS)
    ]
    alive = [born() for _ in range(4)]

    def enqueued(share: float) -> bool:
        assert asleep(fleet.queue) == []
        for history in fleet.gone(alive):
            alive.remove(history)
            alive.append(born())
        if fleet.queued() < 50:
            # However soon the producers are done, there is something to be worked off, and to die of.
            fleet.enqueue(50, key=lambda n: f"mine {n % 20}")
        return sum(len(event["ids"]) for event in fleet.all("enqueued")) >= share * JOBS * PRODUCERS

    def ended_in_a_bucket_that_will_go() -> bool:
        return bool(value(fleet.queue, "SELECT EXISTS (SELECT FROM {s}.job_archive WHERE bucket >= 8)"))

    until(lambda: enqueued(0.3))
    fleet.queue.rebucket("work", 16)
    until(lambda: enqueued(0.6) and ended_in_a_bucket_that_will_go())
    fleet.queue.rebucket("work", 8)
    until(lambda: enqueued(1.0) and fleet.kills() >= KILLS)
    until(lambda: fleet.finished(producers), "the end of the producers")
    alive += [fleet.start(lease_seconds=1.0, linger_seconds=LINGER) for _ in range(2)]
    fleet.drained()
    fleet.dismiss(alive)
    fleet.note()

    assert fleet.verdict(bounds=Bounds(ordered=ordered)) == []
    enqueued_by_all = sum(len(event["ids"]) for event in [*fleet.all("enqueued"), *fleet.supplies()])
    assert enqueued_by_all >= JOBS * PRODUCERS
    assert fleet.queue.archived("work", since_seconds=SINCE) == {"succeeded": enqueued_by_all}
    assert fleet.queue.settings("work").claim_buckets == 8
