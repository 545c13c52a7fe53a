"""Consumers and producers of both kinds on one queue at the same time: the library's, and those that speak SQL alone."""

import random
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dagster_sqlqueue import Backoff, QueueSpec, RateLimit, Strategy
from dagster_sqlqueue.schema.functions import pinned_schema
from tests.faults.checker import Bounds, tables
from tests.faults.conftest import LINGER, SINCE, Fleet
from tests.faults.speaker import consume_by_sql, operate_by_sql, produce_by_sql
from tests.faults.worker import consume, produce
from tests.gate.patience import PATIENCE, sized
from tests.support import Work, make_due, rows, until, value

SEED = 7
EACH = sized(1, 2)
"""Of each kind: consumers that live, and producers."""
MORTAL = sized(2, 6)
SETTINGS: dict[str, Any] = {"lease_seconds": 1.0, "linger_seconds": LINGER}
SPEC = QueueSpec("work", Work, bucket_count=4, max_attempts=1_000, backoff=Backoff(0, jitter=0))


def crowd(fleet: Fleet, **settings: Any) -> list[Path]:
    """Consumers of each kind that live, and those that kill themselves in the middle of a verb. Gives the latter."""
    alive = [fleet.start(work, seed=n, **settings) for n, work in enumerate([consume, consume_by_sql] * EACH)]
    luck = random.Random(SEED)
    mortal = []
    for n in range(MORTAL):
        work = [consume, consume_by_sql][n % 2]
        verb = luck.choice(["claim", "finish", "requeue"])
        mortal.append(fleet.start(work, dies=(verb, luck.randint(2, 8)), seed=100 + n, **settings))
    fleet.ready([*alive, *mortal])
    return mortal


def producers(fleet: Fleet, **settings: Any) -> list[Path]:
    return [
        fleet.start(work, seed=n, prefix=f"of {n}, ", **settings)
        for n, work in enumerate([produce, produce_by_sql] * EACH)
    ]


def both_go_on(fleet: Fleet) -> bool:
    """Have something for everybody to do; true when consumers of both kinds have ended jobs."""
    if fleet.live() < 100:
        fleet.enqueue(100)
    kinds = rows(fleet.queue, "SELECT DISTINCT claimed_by = 'sql' FROM {s}.job_archive WHERE state = 'succeeded'")
    return {kind for (kind,) in kinds} == {True, False}


def ended_well(fleet: Fleet, made: list[Path]) -> None:
    until(lambda: fleet.finished(made), "the end of the producers")
    until(lambda: both_go_on(fleet), "ends by both kinds of consumers")
    fleet.drained()
    fleet.dismiss(list(fleet.processes))
    undone = {job for event in fleet.all("rolled back") for job in event["ids"]}
    left = tables(fleet.queue)
    assert undone
    assert not undone & (left.live.keys() | {job for job, _ in left.archived})
    fleet.note(seed=SEED)


@pytest.mark.parametrize(
    "strategy",
    [
        Strategy.ROUND_ROBIN,
        pytest.param(Strategy.FIFO, marks=pytest.mark.prove),
        pytest.param(Strategy.FANOUT, marks=pytest.mark.prove),
    ],
)
def test_none_is_lost_and_none_ends_twice(fleet: Fleet, strategy: Strategy) -> None:
    fleet.queue.create_queue(replace(SPEC, strategy=strategy))
    mortal = crowd(fleet, batch_size=20, outcomes="coming back", **SETTINGS)
    made = producers(fleet, jobs=sized(150, 500), batch_size=sized(25, 50), hesitate=0.05)
    until(lambda: both_go_on(fleet) and len(fleet.gone(mortal)) == MORTAL, "the last kill")
    ended_well(fleet, made)
    assert fleet.verdict() == []
    assert fleet.kills() == MORTAL


@pytest.mark.prove
def test_batches_end_as_a_whole(fleet: Fleet) -> None:
    fleet.queue.create_queue(SPEC)
    crowd(fleet, batch_size=50, **SETTINGS)
    jobs = sized(500, 2_000)
    made = producers(fleet, jobs=jobs, batch_size=100)
    ended_well(fleet, made)
    assert fleet.verdict() == []
    enqueued = sum(len(event["ids"]) for event in [*fleet.all("enqueued"), *fleet.supplies()])
    assert enqueued >= 2 * EACH * jobs
    assert fleet.queue.archived("work", since_seconds=SINCE) == {"succeeded": enqueued}


@pytest.mark.parametrize("on_poison", ["dead_letter", pytest.param("stop", marks=pytest.mark.prove)])
def test_keys_keep_their_order(fleet: Fleet, on_poison: str) -> None:
    fleet.queue.create_queue(replace(SPEC, ordered=True, on_poison=on_poison))
    outcomes = "failing" if on_poison == "dead_letter" else "coming back"
    crowd(fleet, batch_size=10, outcomes=outcomes, **SETTINGS)
    made = producers(fleet, jobs=sized(70, 200), batch_size=10, keys=7, hesitate=0.02)
    ended_well(fleet, made)
    # Each key has one producer, who commits one batch after the other: what came later ends later.
    assert fleet.verdict(bounds=Bounds(ordered=True)) == []


@pytest.mark.prove
def test_keys_share_their_places(fleet: Fleet) -> None:
    fleet.queue.create_queue(replace(SPEC, max_running_per_key=2))
    crowd(fleet, batch_size=10, outcomes="coming back", **SETTINGS)
    made = producers(fleet, jobs=sized(60, 200), batch_size=10, keys=5)
    ended_well(fleet, made)
    assert fleet.verdict(bounds=Bounds(max_running_per_key=2)) == []


def test_limits_hold_for_both(fleet: Fleet) -> None:
    rate = RateLimit(60, 1)
    fleet.queue.create_queue(replace(SPEC, max_running=5, rate=rate))
    crowd(fleet, batch_size=4, pause=0.002, **SETTINGS)
    made = producers(fleet, jobs=sized(60, 100), batch_size=10)
    by_sql = "SELECT count(*) FROM {s}.job_archive WHERE claimed_by = 'sql'"
    until(lambda: both_go_on(fleet) and value(fleet.queue, by_sql) > 20, "twenty ends by SQL")
    ended_well(fleet, made)
    assert fleet.verdict(bounds=Bounds(max_running=5, rate=rate)) == []


@pytest.mark.parametrize(
    "turns",
    [
        pytest.param({}, marks=pytest.mark.prove),
        {"ordered": True},
        pytest.param({"max_running_per_key": 2}, marks=pytest.mark.prove),
    ],
)
def test_operators_disturb_nobody(fleet: Fleet, turns: dict[str, Any]) -> None:
    """Jobs are cancelled, held, let go, put off and given priority while both kinds of consumers work and die."""
    fleet.queue.create_queue(replace(SPEC, **turns))
    crowd(fleet, batch_size=5, outcomes="coming back", **SETTINGS)
    operators = [fleet.start(operate_by_sql, seed=n) for n in range(EACH)]
    fleet.ready(operators)
    made = producers(fleet, jobs=sized(60, 150), batch_size=10, keys=6, hesitate=0.05)
    until(lambda: fleet.finished(made), "the end of the producers")
    decided = "SELECT count(*) FROM {s}.job_archive WHERE error = 'an operator'"
    until(lambda: both_go_on(fleet) and value(fleet.queue, decided), "something that an operator has cancelled")
    for operator in operators:
        fleet.signal(operator, signal.SIGTERM)
        fleet.processes[operator].join(PATIENCE)
        assert fleet.processes[operator].exitcode == 0
    rows(fleet.queue, "UPDATE {s}.job SET state = 'queued', available_at = now() WHERE state = 'held'")
    ended_well(fleet, made)
    bounds = Bounds(max_running_per_key=1 if "ordered" in turns else turns.get("max_running_per_key"))
    assert fleet.verdict(bounds=bounds) == []


PLANTS = {
    "a claim that does not lock": (
        "claim",
        "FOR UPDATE SKIP LOCKED",
        "",
        # Found by its place, a row that another has claimed meanwhile would not be claimed again.
        "j.ctid = taken.version",
        "j.id = (SELECT o.id FROM {job} AS o WHERE o.ctid = taken.version)",
    ),
    "an end without the fence": ("end_leased", "AND j.lease_no = ended.lease_no", ""),
    "an end that does not reach the archive": (
        "end_leased",
        "FROM finished",
        "FROM finished WHERE hashtext(id::text) % 5 <> 0",
    ),
}
"""Bugs by name: the function, what is taken out of its body, and what is put there; of some, more of the two."""


EXPECTED = {
    "a claim that does not lock": "before the end of another lease",
    "an end without the fence": "ended under lease 1, but lease 2 was the current one",
    "an end that does not reach the archive": "jobs were deleted without an archive row",
}


@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_bug_is_seen(fleet: Fleet, name: str) -> None:
    function, *parts = PLANTS[name]
    schema = fleet.queue.database.schema
    changes = [part.replace("{job}", f'"{schema}".job') for part in parts]
    oid = "SELECT oid FROM pg_proc WHERE proname = %s AND pronamespace = ANY (%s::regnamespace[]) AND strpos(prosrc, %s) > 0"
    places = [schema, pinned_schema(schema)]
    body = value(fleet.queue, f"SELECT pg_get_functiondef(({oid}))", function, places, changes[0])
    for old, new in zip(changes[::2], changes[1::2], strict=True):
        assert old in body
        body = body.replace(old, new)
    with fleet.queue.database.connection() as connection:
        connection.execute(body.encode())
    fleet.queue.create_queue(SPEC)
    unlocked = name == "a claim that does not lock"
    if unlocked:
        # Two such claims begin at different buckets: of more than one job and one bucket they would be a deadlock.
        fleet.queue.rebucket(SPEC.name, 1)
    fleet.enqueue(50)

    def born() -> Path:
        """One that ends the jobs in its hands when it is dismissed."""
        return fleet.start(consume_by_sql, batch_size=1 if unlocked else 50, pause=LINGER)

    if unlocked:
        with fleet.in_the_way(of=2):
            first, second = born(), born()
        until(lambda: fleet.read(first, "claimed"), "the first claim")
    else:
        first = born()
        until(lambda: fleet.read(first, "claimed"), "the first claim")
        make_due(fleet.queue)
        second = born()
    until(lambda: fleet.read(second, "claimed"), "the second claim")
    fleet.signal(first, signal.SIGTERM)
    until(lambda: fleet.finished([first]), "the end of the first")
    fleet.dismiss([second])
    found = fleet.verdict()
    assert any(EXPECTED[name] in wrong for wrong in found), found[:5]


@pytest.mark.prove
def test_limits_hold_beside_turns(fleet: Fleet) -> None:
    fleet.queue.create_queue(replace(SPEC, ordered=True, max_running=3))
    crowd(fleet, batch_size=4, outcomes="coming back", **SETTINGS)
    made = producers(fleet, jobs=60, batch_size=10, keys=5)
    ended_well(fleet, made)
    assert fleet.verdict(bounds=Bounds(max_running=3, ordered=True)) == []
