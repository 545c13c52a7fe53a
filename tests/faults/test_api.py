"""Consumers and producers of both kinds on one queue at the same time: the library's, and those that speak SQL alone."""

import random
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dagster_sqlqueue import Backoff, QueueSpec, RateLimit, Strategy
from dagster_sqlqueue.functions import pinned_schema
from tests.core.support import Work, rows, until, value
from tests.faults.checker import Bounds, tables
from tests.faults.conftest import Fleet
from tests.faults.speaker import consume_by_sql, operate_by_sql, produce_by_sql
from tests.faults.worker import consume, produce

SPEC = QueueSpec("work", Work, bucket_count=4, max_attempts=1_000, backoff=Backoff(0, jitter=0))


def crowd(fleet: Fleet, **settings: Any) -> None:
    """Two consumers of each kind that live, and six that kill themselves in the middle of a verb."""
    for n, work in enumerate([consume, consume_by_sql] * 2):
        fleet.start(work, seed=n, **settings)
    luck = random.Random(7)
    for n in range(6):
        work = [consume, consume_by_sql][n % 2]
        verb = luck.choice(["claim", "finish", "requeue"])
        fleet.start(work, dies=(verb, luck.randint(2, 8)), seed=100 + n, **settings)


def producers(fleet: Fleet, **settings: Any) -> list[Path]:
    return [
        fleet.start(work, seed=n, prefix=f"of {n}, ", **settings)
        for n, work in enumerate([produce, produce_by_sql] * 2)
    ]


def ended_well(fleet: Fleet, made: list[Path], seconds: float = 90) -> None:
    until(lambda: all(fleet.processes[history].exitcode == 0 for history in made), "the end of the producers", 60)
    fleet.drained(seconds)
    fleet.dismiss(list(fleet.processes))
    undone = {job for event in fleet.all("rolled back") for job in event["ids"]}
    left = tables(fleet.queue)
    assert undone
    assert not undone & (left.live.keys() | {job for job, _ in left.archived})


@pytest.mark.parametrize("strategy", [Strategy.ROUND_ROBIN, Strategy.FIFO, Strategy.FANOUT])
def test_none_is_lost_and_none_ends_twice(fleet: Fleet, strategy: Strategy) -> None:
    fleet.queue.create_queue(replace(SPEC, strategy=strategy))
    settings = {"lease_seconds": 1.0, "batch_size": 20, "outcomes": "coming back", "linger_seconds": 60.0}
    crowd(fleet, **settings)
    made = producers(fleet, jobs=500, batch_size=50, hesitate=0.05)
    ended_well(fleet, made)
    assert fleet.verdict() == []
    assert len(fleet.all("dies")) >= 4
    both = {name for (name,) in rows(fleet.queue, "SELECT DISTINCT claimed_by = 'sql' FROM {s}.job_archive")}
    assert both == {True, False}


def test_batches_end_as_a_whole(fleet: Fleet) -> None:
    fleet.queue.create_queue(SPEC)
    crowd(fleet, lease_seconds=1.0, batch_size=50, linger_seconds=60.0)
    made = producers(fleet, jobs=2_000, batch_size=100)
    ended_well(fleet, made)
    assert fleet.verdict() == []
    assert fleet.queue.archived("work", since_seconds=600) == {"succeeded": 8_000}


@pytest.mark.parametrize("on_poison", ["dead_letter", "stop"])
def test_keys_keep_their_order(fleet: Fleet, on_poison: str) -> None:
    fleet.queue.create_queue(replace(SPEC, ordered=True, on_poison=on_poison))
    outcomes = "failing" if on_poison == "dead_letter" else "coming back"
    settings = {"lease_seconds": 1.0, "batch_size": 10, "outcomes": outcomes, "linger_seconds": 60.0}
    crowd(fleet, **settings)
    made = producers(fleet, jobs=200, batch_size=10, keys=7, hesitate=0.02)
    ended_well(fleet, made)
    # Each key has one producer, who commits one batch after the other: what came later ends later.
    assert fleet.verdict(bounds=Bounds(ordered=True)) == []


def test_keys_share_their_places(fleet: Fleet) -> None:
    fleet.queue.create_queue(replace(SPEC, max_running_per_key=2))
    settings = {"lease_seconds": 1.0, "batch_size": 10, "outcomes": "coming back", "linger_seconds": 60.0}
    crowd(fleet, **settings)
    made = producers(fleet, jobs=200, batch_size=10, keys=5)
    ended_well(fleet, made)
    assert fleet.verdict(bounds=Bounds(max_running_per_key=2)) == []


def test_limits_hold_for_both(fleet: Fleet) -> None:
    rate = RateLimit(60, 1)
    fleet.queue.create_queue(replace(SPEC, max_running=5, rate=rate))
    settings = {"lease_seconds": 1.0, "batch_size": 4, "linger_seconds": 60.0, "pause": 0.002}
    crowd(fleet, **settings)
    made = producers(fleet, jobs=100, batch_size=10)
    ended_well(fleet, made)
    assert fleet.verdict(bounds=Bounds(max_running=5, rate=rate)) == []
    assert value(fleet.queue, "SELECT count(*) FROM {s}.job_archive WHERE claimed_by = 'sql'") > 20


@pytest.mark.parametrize("turns", [{}, {"ordered": True}, {"max_running_per_key": 2}])
def test_operators_disturb_nobody(fleet: Fleet, turns: dict[str, Any]) -> None:
    """Jobs are cancelled, held, let go, put off and given priority while both kinds of consumers work and die."""
    fleet.queue.create_queue(replace(SPEC, **turns))
    settings = {"lease_seconds": 1.0, "batch_size": 5, "outcomes": "coming back", "linger_seconds": 60.0}
    crowd(fleet, **settings)
    operators = [fleet.start(operate_by_sql, seed=n) for n in range(2)]
    made = producers(fleet, jobs=150, batch_size=10, keys=6, hesitate=0.05)
    until(lambda: all(fleet.processes[history].exitcode == 0 for history in made), "the end of the producers", 60)
    for operator in operators:
        fleet.signal(operator, signal.SIGTERM)
        fleet.processes[operator].join(30)
        assert fleet.processes[operator].exitcode == 0
    rows(fleet.queue, "UPDATE {s}.job SET state = 'queued', available_at = now() WHERE state = 'held'")
    ended_well(fleet, made)
    bounds = Bounds(max_running_per_key=1 if "ordered" in turns else turns.get("max_running_per_key"))
    assert fleet.verdict(bounds=bounds) == []
    assert value(fleet.queue, "SELECT count(*) FROM {s}.job_archive WHERE error = 'an operator'") > 0


PLANTS = {
    "a claim that does not lock": ("claim", "FOR UPDATE SKIP LOCKED", ""),
    "an end without the fence": ("_end", "AND j.lease_no = ended.lease_no", ""),
    "an end that does not reach the archive": (
        "_end",
        "FROM finished",
        "FROM finished WHERE hashtext(id::text) % 5 <> 0",
    ),
}
"""Bugs by name: the function, what is taken out of its body, and what is put there."""


@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_bug_is_seen(fleet: Fleet, name: str) -> None:
    function, old, new = PLANTS[name]
    pinned = pinned_schema(fleet.queue.database.schema)
    oid = "SELECT oid FROM pg_proc WHERE proname = %s AND pronamespace = %s::regnamespace"
    body = value(fleet.queue, f"SELECT pg_get_functiondef(({oid}))", function, pinned)
    assert old in body
    with fleet.queue.database.connection() as connection:
        connection.execute(body.replace(old, new).encode())
    fleet.queue.create_queue(SPEC)
    fleet.enqueue(3_000)
    for n in range(4):
        # Leases end while their jobs are worked on.
        fleet.start(consume_by_sql, seed=n, lease_seconds=0.05, batch_size=20, pause=0.04 + 0.02 * (n % 2))
    until(lambda: fleet.live() == 0 or fleet.verdict(drained=False), "an end, or a wrong", 60)
    fleet.dismiss(list(fleet.processes))
    assert fleet.verdict() != []


def test_limits_hold_beside_turns(fleet: Fleet) -> None:
    fleet.queue.create_queue(replace(SPEC, ordered=True, max_running=3))
    settings = {"lease_seconds": 1.0, "batch_size": 4, "outcomes": "coming back", "linger_seconds": 60.0}
    crowd(fleet, **settings)
    made = producers(fleet, jobs=60, batch_size=10, keys=5)
    ended_well(fleet, made)
    assert fleet.verdict(bounds=Bounds(max_running=3, ordered=True)) == []
