"""A crowd of processes through few sessions, some of which are killed: nothing is lost, nothing is done twice."""

from dataclasses import replace

import pytest

from dagster_sqlqueue import Mode, QueueSpec, Strategy
from tests.faults.conftest import SINCE, Fleet
from tests.gate.patience import sized
from tests.support import Work, rows, until

PROCESSES = sized(3, 12)
JOBS = sized(600, 20_000)


@pytest.mark.parametrize(
    ("strategy", "mode"),
    [
        (Strategy.ROUND_ROBIN, Mode.LEASED),
        (Strategy.ROUND_ROBIN, Mode.TRANSACTIONAL),
        *(
            pytest.param(strategy, Mode.LEASED, marks=pytest.mark.prove)
            for strategy in (Strategy.FIFO, Strategy.FANOUT)
        ),
    ],
)
def test_a_crowd_with_kills(fleet: Fleet, spec: QueueSpec[Work], strategy: Strategy, mode: Mode) -> None:
    fleet.queue.create_queue(replace(spec, strategy=strategy, max_attempts=100))
    # In transactional mode each handler writes into it.
    rows(fleet.queue, "CREATE TABLE {s}.effect (job uuid)")
    fleet.enqueue(JOBS)
    victims = [fleet.start(batch_size=20, mode=mode, pause=0.02) for _ in range(PROCESSES // 3)]
    until(lambda: all(fleet.read(history, "handled") for history in victims), "a job in the hands of each victim")
    for _ in range(PROCESSES - len(victims)):
        fleet.start(batch_size=20, mode=mode)
    for history in victims:
        fleet.kill(history)
    fleet.join()
    fleet.forget_leases()
    fleet.start(batch_size=20)
    fleet.drained()
    fleet.join()
    fleet.note()
    assert fleet.verdict() == []
    assert fleet.queue.archived("work", since_seconds=SINCE) == {"succeeded": JOBS}
    if mode is Mode.TRANSACTIONAL:
        ((effects, of_jobs),) = rows(fleet.queue, "SELECT count(*), count(DISTINCT job) FROM {s}.effect")
        assert effects == of_jobs
