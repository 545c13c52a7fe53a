"""Limits and rates, with many processes and kills: never broken at any moment, and no slot is ever lost."""

import random
import signal
import threading
from dataclasses import dataclass
from pathlib import Path

import pytest

from dagster_sqlqueue import Backoff, NewJob, QueueSpec, SqlQueue
from dagster_sqlqueue.db.executors import Executor
from dagster_sqlqueue.errors import DatabaseUnavailable
from dagster_sqlqueue.model.queue import RateLimit
from tests.faults.checker import Bounds, broken, leases, most_at_once, tables
from tests.faults.conftest import LINGER, RACE, Fleet
from tests.faults.worker import produce
from tests.gate.patience import FULL, PATIENCE, sized
from tests.support import Work, make_due, until, value
from tests.support.few import few

PROCESSES = sized(6, 16)
KILLS = sized(4, 10)
HEIRS = sized(2, 10)


@dataclass(frozen=True)
class Case:
    """A queue with limits, and how many jobs go through it."""

    bounds: Bounds
    jobs: int
    pause: float = 0.01
    strategy: str = "round_robin"
    batch_sizes: tuple[int, ...] = (3,)


SMALL_AND_LARGE = (3, 30)
"""Room is reserved where it is enough for twenty claims: for consumers with small batches, while those with large ones
reach the limit beside them.
"""
CASES = {
    "queue": Case(Bounds(max_running=7), sized(150, 500)),
    "key": Case(Bounds(max_running_per_key=2), 250),
    "rate": Case(Bounds(rate=RateLimit(60, 0.5)), 400, 0.002),
    "queue, with reservations": Case(Bounds(max_running=100), sized(600, 4_000), batch_sizes=SMALL_AND_LARGE),
    "rate, with reservations": Case(Bounds(rate=RateLimit(200, 0.5)), 2_000, 0.002, batch_sizes=SMALL_AND_LARGE),
    "all of them": Case(
        Bounds(max_running=7, max_running_per_key=2, rate=RateLimit(100, 0.5)), sized(150, 400), 0.002, "assign"
    ),
}


IN_SMALL = ("all of them",)


def limited(fleet: Fleet, bounds: Bounds, strategy: str = "round_robin") -> None:
    fleet.queue.create_queue(
        QueueSpec(
            "work",
            Work,
            bucket_count=2,
            max_attempts=100,
            backoff=Backoff(0, jitter=0),
            strategy=strategy,
            ordered=bounds.ordered,
            max_running=bounds.max_running,
            max_running_per_key=bounds.max_running_per_key,
            rate=bounds.rate,
        )
    )


def hot_key(n: int) -> str:
    """Twenty keys; half of all jobs have one of them."""
    return f"key {n % 20 if n % 2 else 0}"


def whole_room(fleet: Fleet, room: int, key: str | None = None) -> None:
    """So many jobs can be claimed, and not one more: no slot was lost."""
    fleet.enqueue(2 * room, key=key and (lambda _: key))
    claimed = 0

    def all_of_it() -> bool:
        nonlocal claimed
        claimed += len(fleet.queue.claim("work", worker="the last one", limit=room, lease_seconds=600))
        return claimed >= room

    until(all_of_it, "the whole room")
    assert claimed == room
    assert fleet.queue.claim("work", worker="the last one", limit=room) == []


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in IN_SMALL else pytest.mark.prove) for name in CASES]
)
def test_limits_hold_at_every_moment_and_kills_lose_no_slot(fleet: Fleet, tmp_path: Path, name: str) -> None:
    case = CASES[name]
    limited(fleet, case.bounds, case.strategy)
    fleet.enqueue(case.jobs, key=hot_key)
    luck = random.Random(name)
    go = {size: tmp_path / f"go {size}" for size in case.batch_sizes}

    def born(number: int, dies: tuple[str, int] | None) -> Path:
        size = case.batch_sizes[number % len(case.batch_sizes)]
        return fleet.start(
            lease_seconds=1.0, batch_size=size, pause=case.pause, linger_seconds=LINGER, seed=number, dies=dies,
            go=go[size], outcomes="coming back",
        )  # fmt: skip

    def fed() -> bool:
        """Have something for everybody to do."""
        if fleet.live() < case.jobs // 4:
            fleet.enqueue(case.jobs // 4, key=hot_key)
        return True

    mortal = [born(n, (luck.choice(["claim", "finish", "requeue"]), luck.randint(1, 2))) for n in range(KILLS)]
    alive = [born(n, None) for n in range(KILLS, PROCESSES)]
    fleet.ready([*mortal, *alive])
    go[case.batch_sizes[0]].touch()
    if case.batch_sizes == SMALL_AND_LARGE:
        until(lambda: fed() and value(fleet.queue, "SELECT count(*) FROM {s}.limit_reservation"), "a reservation")
        go[case.batch_sizes[1]].touch()

    def killed() -> bool:
        return fed() and len(fleet.gone(mortal)) == KILLS

    until(killed, "the last kill")
    # The last ones begin when all of the others are gone: whatever those held, somebody has to take it up.
    alive += [born(n, None) for n in range(PROCESSES, PROCESSES + HEIRS)]
    fleet.drained()
    fleet.dismiss(alive)
    lived = leases(tables(fleet.queue).audit)
    at_once = most_at_once(lived)
    fleet.note(most_at_once=at_once)
    assert fleet.verdict(bounds=case.bounds) == []
    if FULL and case.bounds.max_running and case.batch_sizes != SMALL_AND_LARGE:
        # What was reserved and not used is room that nobody took.
        assert at_once == case.bounds.max_running
    if FULL and case.bounds.max_running_per_key and not case.bounds.max_running:
        assert most_at_once([lease for lease in lived if lease.key == "key 0"]) == 2
    if case.bounds.max_running:
        whole_room(fleet, case.bounds.max_running)
    elif case.bounds.max_running_per_key:
        whole_room(fleet, case.bounds.max_running_per_key, "key 0")


AN_HOUR = RateLimit(40, 3_600)
EXPECTED = {
    "a limit without its lock": (Bounds(max_running=7), "leases lived at one moment, and the queue allows 7"),
    "a limit that allows one more": (Bounds(max_running=7), "leases lived at one moment, and the queue allows 7"),
    "a rate that allows some more": (Bounds(rate=AN_HOUR), "jobs began within"),
    "starts that are not noted": (Bounds(rate=AN_HOUR), "jobs began within"),
    "a limit beside turns that allows one more": (
        Bounds(max_running=7, max_running_per_key=10),
        "leases lived at one moment, and the queue allows 7",
    ),
    "starts beside turns that are not noted": (Bounds(rate=AN_HOUR, max_running_per_key=10), "jobs began within"),
    "a turn without its lock": (Bounds(max_running_per_key=2), "leases of key key"),
    "a key that may run one more": (Bounds(max_running_per_key=2), "3 leases of key key"),
    "a turn for any that comes": (Bounds(ordered=True), "was overtaken by one"),
}


WHEN_THEY_MEET = ("a turn without its lock", "a turn for any that comes")
IN_ALL_RUNS = (
    "a limit without its lock",
    "a limit that allows one more",
    "a rate that allows some more",
    "a key that may run one more",
)


@pytest.mark.parametrize(
    "plant",
    [
        pytest.param(
            plant, marks=RACE if plant in WHEN_THEY_MEET else () if plant in IN_ALL_RUNS else pytest.mark.prove
        )
        for plant in EXPECTED
    ],
)
def test_the_judge_catches(fleet: Fleet, tmp_path: Path, plant: str) -> None:
    bounds, wrong = EXPECTED[plant]
    limited(fleet, bounds)
    if plant == "a limit without its lock":
        fleet.enqueue(50)
        with fleet.in_mid_change(of=2):
            for _ in range(2):
                fleet.start(plant=plant, batch_size=7, hang_until=tmp_path / "never")
        until(lambda: len(fleet.all("handled")) == 2, "a job in hand of each")
        assert any(wrong in found for found in broken(tables(fleet.queue).audit, bounds))
        return
    go = tmp_path / "go"
    if plant.startswith("a turn"):
        # Others of a key have to come while its first waits for a retry, and while two claims decide about it.
        for _ in range(2):
            fleet.start(produce, jobs=3_000, batch_size=6, keys=4, pause=0.002, go=go)
    else:
        fleet.enqueue(sized(200, 500), key=lambda n: f"key {n % 4}")
    # The others show in the first claims of one consumer, if those are large enough.
    crowd, batch_size = (6, 3) if FULL or plant in WHEN_THEY_MEET else (1, 60)
    histories = [
        fleet.start(
            plant=plant, batch_size=batch_size, pause=0.01, linger_seconds=LINGER, outcomes="coming back", go=go
        )
        for _ in range(crowd)
    ]
    fleet.ready(histories)
    go.touch()
    until(lambda: any(wrong in found for found in broken(tables(fleet.queue).audit, bounds)), plant)


@pytest.mark.parametrize("plant", few([None, "a heartbeat that revives a lease"], 1))
def test_a_lease_that_ran_out_takes_no_slot_again(fleet: Fleet, tmp_path: Path, plant: str | None) -> None:
    bounds = Bounds(max_running=1)
    limited(fleet, bounds)
    fleet.enqueue(2, key=lambda _: "one bucket")
    may_end = tmp_path / "may end"
    stopped = fleet.start(lease_seconds=2.0, batch_size=1, hang_until=may_end, plant=plant)
    until(lambda: fleet.read(stopped, "handled"))
    fleet.signal(stopped, signal.SIGSTOP)
    make_due(fleet.queue)
    other = fleet.start(batch_size=1, hang_until=may_end)
    until(lambda: fleet.read(other, "handled"))
    beats = "SELECT count(*) FROM {s}.audit WHERE kind = 'kept'"
    before = value(fleet.queue, beats)
    fleet.signal(stopped, signal.SIGCONT)
    if plant:
        until(lambda: value(fleet.queue, beats) > before)
    else:
        until(lambda: any(event["kinds"] == ["heartbeat"] for event in fleet.read(stopped, "refused")))
    may_end.touch()
    fleet.join()
    found = fleet.verdict(bounds=bounds)
    assert any("2 leases lived at one moment" in wrong for wrong in found) if plant else found == []


@pytest.mark.prove
def test_a_process_that_stopped_in_mid_claim_keeps_nobody_from_a_limited_queue(queue: SqlQueue, url: str) -> None:
    spec = QueueSpec("work", Work, max_running=2)
    queue.create_queue(spec)
    queue.enqueue(spec, NewJob(Work(n=1)))
    locked, awake = threading.Event(), threading.Event()
    errors = []

    def stop_in_mid_claim(executor: Executor) -> None:
        executor.run("limit_lock", {"queue": "work"})
        locked.set()
        awake.wait()
        executor.run("limit_allowance", {"queue": "work", "revision": 1, "limit": 1})

    def claim_and_stop() -> None:
        with SqlQueue(url, schema=queue.database.schema) as stopped, pytest.raises(DatabaseUnavailable) as caught:
            stopped.database.transact(stop_in_mid_claim)
        errors.append(caught.value)

    thread = threading.Thread(target=claim_and_stop)
    thread.start()
    try:
        assert locked.wait(PATIENCE)
        assert len(queue.claim("work", limit=1, worker="w")) == 1
    finally:
        awake.set()
        thread.join(PATIENCE)
    assert "idle-in-transaction" in str(errors)
