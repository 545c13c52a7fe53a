"""Consumers that say how far they are and are killed, waits in other processes of which some are killed: everybody who lives
is notified of every end once, as it was, and nothing is left of the others.
"""

import random

from dagster_sqlqueue.results import Results
from tests.faults.conftest import LINGER, Fleet
from tests.faults.worker import await_ends
from tests.gate.patience import sized
from tests.support import rows, until, value

JOBS = sized(120, 300)
SEED = 7
WAITS = "SELECT count(*) FROM {s}.follower"


def test_everybody_who_waits_is_answered(fleet: Fleet) -> None:
    luck = random.Random(SEED)
    fleet.enqueue(JOBS)
    ids = [str(row[0]) for row in rows(fleet.queue, "SELECT id FROM {s}.job ORDER BY id")]
    shares = [luck.sample(ids, JOBS // 3) for _ in range(4)]
    waits = {fleet.start(await_ends, ids=share): share for share in shares}
    fleet.ready(list(waits))
    until(lambda: value(fleet.queue, WAITS) >= len(waits) * JOBS // 3)
    victim, its_share = next(iter(waits.items()))
    # It does not know of all before it is killed, however soon the others end.
    due = "UPDATE {s}.job SET available_at = CAST(%s AS timestamptz) WHERE id = CAST(%s AS uuid)"
    rows(fleet.queue, due, "9000-01-01", its_share[0])
    working = {"lease_seconds": 1.0, "batch_size": 10, "pause": 0.005, "outcomes": "failing", "reports": True}
    consumers = [fleet.start(linger_seconds=LINGER, **working) for _ in range(3)]
    while fleet.live() > JOBS // 10:
        pick = luck.randrange(len(consumers))
        until(lambda pick=pick: fleet.read(consumers[pick], "handled") or fleet.live() <= JOBS // 10)  # type: ignore[misc]
        fleet.kill(consumers[pick])
        consumers[pick] = fleet.start(linger_seconds=LINGER, **working)
        if fleet.live() < JOBS // 2 and fleet.processes[victim].is_alive():
            fleet.kill(victim)
    if fleet.processes[victim].is_alive():
        fleet.kill(victim)
    rows(fleet.queue, due, "now", its_share[0])
    fleet.drained()
    fleet.dismiss(consumers)
    fleet.note(seed=SEED)
    assert fleet.verdict() == []

    ends = {
        str(id): (state, result)
        for id, state, result in rows(fleet.queue, "SELECT id, state, result FROM {s}.job_archive")
    }
    assert len(ends) == JOBS
    assert {state for state, _ in ends.values()} == {"succeeded", "failed"}
    for history, share in waits.items():
        answered = {end["id"]: (end["state"], end["result"]) for end in fleet.read(history, "answered")}
        assert len(answered) == len(fleet.read(history, "answered"))
        assert answered.items() <= ends.items()
        if history != victim:
            assert answered.keys() == set(share)
            ((all_answered),) = fleet.read(history, "all answered")
            assert all_answered["states"] == [ends[id][0] for id in share]
    assert len(fleet.read(victim, "all answered")) == 0
    # The victim's waits went with the ends of its jobs, and no word about any job outlived it.
    assert value(fleet.queue, WAITS) == 0
    assert rows(fleet.queue, "SELECT FROM {s}.job_progress") == []
    with Results(fleet.queue) as results:
        assert {str(id): outcome.state for id, outcome in results.wait_many(ids).items()} == {
            id: state for id, (state, _) in ends.items()
        }
