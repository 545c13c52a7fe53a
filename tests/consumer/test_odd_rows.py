"""Rows that no producer of ours writes, and that are in the table all the same: they keep nobody from the others."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from pydantic import BaseModel, model_validator

from dagster_sqlqueue import Backoff, Consumer, Job, Mode, NewJob, QueueSpec, RateLimit, SqlQueue
from dagster_sqlqueue.consumer.manager import AssignedSource, Manager
from dagster_sqlqueue.payload.versions import versioned
from dagster_sqlqueue.queue import odd_jobs
from dagster_sqlqueue.queue.claim_filter import ClaimFilter
from dagster_sqlqueue.queue.selection import Selection
from tests.support import Work, make_due, rows, states
from tests.support.odd_rows import ODD, bring_back, constraints, fill, good, loosen, others

LEASED: list[dict[str, Any]] = [
    {"strategy": "round_robin"},
    {"strategy": "fifo"},
    {"strategy": "fanout"},
    {"strategy": "token"},
    {"strategy": "assign"},
    {"ordered": True},
    {"ordered": True, "on_poison": "stop", "strategy": "fifo"},
    {"max_running_per_key": 2},
    {"max_running": 50},
    {"rate": RateLimit(1_000, 60)},
]
WAYS = [(Mode.LEASED, settings) for settings in LEASED] + [(Mode.TRANSACTIONAL, settings) for settings in LEASED[:3]]
IN_ALL_RUNS: list[dict[str, Any]] = [
    {"strategy": "round_robin"},
    {"strategy": "assign"},
    {"ordered": True},
    {"max_running": 50},
]
MORE = [pytest.param(*way, marks=() if way[1] in IN_ALL_RUNS else pytest.mark.prove) for way in WAYS]
TWO_LIVES = range(2)


def named(value: Any) -> str:
    return " ".join(str(part) for part in value.values()) if isinstance(value, dict) else str(value)


@pytest.fixture(scope="module")
def all_constraints(shared: SqlQueue) -> list[tuple[str, str]]:
    return constraints(shared)


@pytest.fixture
def loose(queue: SqlQueue, all_constraints: list[tuple[str, str]]) -> Iterator[SqlQueue]:
    """Tables that take any row. Afterwards their constraints are there again: the folder's schema is also that of other
    modules, and of this one once more, if another process leaves some of its tests to this one.
    """
    loosen(queue, all_constraints)
    yield queue
    rows(queue, "DELETE FROM {s}.job")
    loosen(queue, all_constraints)
    bring_back(queue, all_constraints)


def drain(consumer: Consumer[Any], queue: SqlQueue) -> None:
    """Work off what is due now, what maintenance brings to where it is looked for, and nothing else."""
    consumer.drain()
    queue.maintain()
    consumer.drain()


def check(queue: SqlQueue, odd: Sequence[str], *, attempts: int = 1) -> None:
    assert good(queue) == dict.fromkeys(range(20), ("succeeded", attempts))
    found = others(queue)
    assert len(found) == len(odd)
    for state, error in found:
        assert state in ("succeeded", "failed", "cancelled", "held"), (odd, state)
        assert (error is None) == (state == "succeeded"), (odd, state, error)
        assert len(error or "") <= 1_000, (odd, error)


@pytest.mark.parametrize(("mode", "settings"), MORE, ids=named)
def test_they_keep_no_consumer_from_the_others(
    loose: SqlQueue, spec: QueueSpec[Work], mode: Mode, settings: dict[str, Any]
) -> None:
    spec = replace(spec, **settings)
    loose.create_queue(spec)
    fill(loose, spec, list(ODD))
    drain(Consumer(loose, spec, lambda job: None, batch_size=7, mode=mode), loose)
    check(loose, list(ODD))


@pytest.mark.parametrize(("mode", "settings"), MORE, ids=named)
def test_those_that_break_a_constraint_that_came_later_do_not(
    loose: SqlQueue,
    spec: QueueSpec[Work],
    all_constraints: list[tuple[str, str]],
    mode: Mode,
    settings: dict[str, Any],
) -> None:
    """Such a row cannot be changed as it is: what a claim does to a whole batch is refused for its sake."""
    spec = replace(spec, **settings)
    loose.create_queue(spec)
    fill(loose, spec, list(ODD))
    bring_back(loose, all_constraints)
    drain(Consumer(loose, spec, lambda job: None, batch_size=7, mode=mode), loose)
    check(loose, list(ODD))


@pytest.mark.parametrize("what", ODD)
def test_one_of_them_costs_the_others_nothing(loose: SqlQueue, spec: QueueSpec[Work], what: str) -> None:
    fill(loose, spec, [what])
    done = Consumer(loose, spec, lambda job: None).drain()
    assert done.succeeded >= 20
    assert done.stale == done.released == done.retried == 0
    loose.maintain()
    Consumer(loose, spec, lambda job: None).drain()
    check(loose, [what])


@pytest.mark.parametrize("mode", Mode)
def test_a_consumer_dies_over_them(loose: SqlQueue, spec: QueueSpec[Work], mode: Mode) -> None:
    """Each is claimed by itself then."""
    fill(loose, spec, list(ODD))
    for n in TWO_LIVES:
        assert loose.claim("work", limit=7, worker=f"dead {n}")
    make_due(loose)
    consumer = Consumer(loose, spec, lambda job: None, batch_size=7, mode=mode)
    drain(consumer, loose)
    check(loose, list(ODD))


@pytest.mark.parametrize("mode", Mode)
def test_handlers_that_fail_fail_for_each_by_itself(loose: SqlQueue, spec: QueueSpec[Work], mode: Mode) -> None:
    def handle(job: Job[Work]) -> None:
        if not job.last_attempt:
            raise ValueError(f"no {job.payload.n}"[:100])

    # One of them has two thousand million attempts left.
    fill(loose, spec, [what for what in ODD if what != "fewer attempts than none"])
    drain(Consumer(loose, spec, handle, batch_size=7, mode=mode), loose)
    make_due(loose)
    drain(Consumer(loose, spec, handle, batch_size=7, mode=mode), loose)
    assert good(loose) == dict.fromkeys(range(20), ("succeeded", 3))


def test_handlers_of_a_batch_and_async_ones(loose: SqlQueue, spec: QueueSpec[Work]) -> None:
    async def handle(job: Job[Work]) -> None:
        assert job.tags is not None

    for consumer in (
        Consumer(loose, spec, lambda jobs: None, batch=True, batch_size=7),
        Consumer(loose, spec, handle, batch_size=7),
    ):
        fill(loose, spec, list(ODD))
        drain(consumer, loose)
        check(loose, list(ODD))
        rows(loose, "DELETE FROM {s}.job")
        rows(loose, "DELETE FROM {s}.job_archive")


def test_managers_grant_the_others(
    loose: SqlQueue, spec: QueueSpec[Work], all_constraints: list[tuple[str, str]]
) -> None:
    spec = replace(spec, strategy="assign")
    loose.create_queue(spec)
    fill(loose, spec, list(ODD))
    bring_back(loose, all_constraints)
    with AssignedSource(loose, "work", "one") as source:
        consumer = Consumer(loose, spec, lambda job: None, source=source, worker="one", batch_size=50)
        consumer.drain()
        for _ in range(len(ODD) + 20):
            Manager(loose, "work").assign()
            consumer.drain()
    loose.maintain()
    Consumer(loose, spec, lambda job: None).drain()
    check(loose, list(ODD))


def test_a_filter_finds_the_others(loose: SqlQueue, spec: QueueSpec[Work]) -> None:
    fill(loose, spec, list(ODD))
    Consumer(loose, spec, lambda job: None, batch_size=7, filter=ClaimFilter(tags=["good"], scan=10)).drain()
    assert good(loose) == dict.fromkeys(range(20), ("succeeded", 1))


@pytest.mark.parametrize("settings", [{"ordered": True}, {"max_running_per_key": 1}], ids=named)
@pytest.mark.parametrize("came_later", [False, True], ids=["without constraints", "with constraints that came later"])
def test_one_that_waits_for_its_turn_keeps_no_other_key_from_going_on(
    loose: SqlQueue,
    spec: QueueSpec[Work],
    all_constraints: list[tuple[str, str]],
    settings: dict[str, Any],
    came_later: bool,
) -> None:
    """The consumer that ends the job before it lets it in, with all others of the batch."""
    spec = replace(spec, **settings)
    loose.create_queue(spec)
    loose.enqueue_many(spec, [NewJob(Work(n=n), ordering_key=f"k{n % 2}", tags=["good"]) for n in range(4)])
    rows(
        loose,
        "INSERT INTO {s}.job (id, queue, bucket, priority, available_at, run_at, max_attempts, payload, ordering_key,"
        " order_no) SELECT gen_random_uuid(), queue, bucket, 0, 'infinity', 'infinity', 3, payload || '{{\"n\": 9}}',"
        " ordering_key, nextval('{s}.job_order') FROM {s}.job WHERE payload ->> 'n' = '0'",
    )
    if came_later:
        bring_back(loose, all_constraints)
    drain(Consumer(loose, spec, lambda job: None), loose)
    assert good(loose) == dict.fromkeys(range(4), ("succeeded", 1))
    assert [state for state, _ in others(loose)] == ["held" if came_later else "succeeded"]


def test_operators_decide_about_the_others(
    loose: SqlQueue, spec: QueueSpec[Work], all_constraints: list[tuple[str, str]]
) -> None:
    """Each that cannot be changed as it is is named with the reason."""
    fill(loose, spec, ["wanted for ever"])
    bring_back(loose, all_constraints)
    every = Selection(all=True)
    decided = loose.reprioritise("work", every, 3)
    assert len(decided.changed) == 20
    ((odd, reason),) = decided.skipped.items()
    assert "job_run_at_is_of_years_1_to_9999" in reason
    assert len(reason.splitlines()) == 1
    assert loose.cancel("work", every).changed
    rows(loose, "UPDATE {s}.job_archive SET priority = 12 WHERE id = %s", odd)
    ended = loose.redrive("work", every, states=["cancelled"])
    assert len(ended.changed) == 20
    assert "job_priority_is_0_to_9" in ended.skipped[odd]


class Broken(BaseModel):
    """A model whose own rule breaks over what its author did not think of."""

    n: float

    @model_validator(mode="before")
    @classmethod
    def _rule(cls, value: Any) -> Any:
        value["n"] + 1
        return value


@versioned(2, {1: lambda old: old})
class Versioned(BaseModel):
    """A model with versions: Python reads such payloads before the model does."""

    n: float


@pytest.mark.parametrize("model", [Broken, Versioned])
@pytest.mark.parametrize("mode", Mode)
def test_what_cannot_be_read_is_held_with_the_reason(
    loose: SqlQueue, spec: QueueSpec[Work], mode: Mode, model: type[BaseModel]
) -> None:
    unreadable = ["a very long number", "a very long number elsewhere", "nested very deeply"]
    odd = [*unreadable, "no object", "nothing", "a very large number"]
    fill(loose, spec, odd)
    reading: QueueSpec[Any] = QueueSpec("work", model, bucket_count=4, max_attempts=3, backoff=Backoff(0, jitter=0))
    drain(Consumer(loose, reading, lambda job: None, mode=mode), loose)
    check(loose, odd)
    held = [error or "" for state, error in others(loose) if state == "held"]
    assert len(held) >= len(unreadable)
    assert all("payload" in error and len(error.splitlines()) == 1 for error in held)


@pytest.mark.parametrize("strategy", ["fifo", "round_robin", "fanout"])
@pytest.mark.parametrize("mode", Mode)
def test_one_that_spent_more_attempts_than_can_be_counted(
    queue: SqlQueue, spec: QueueSpec[Work], strategy: str, mode: Mode
) -> None:
    """Its consumer died of it: it is claimed to be buried, which its row does not allow."""
    chosen = replace(spec, strategy=strategy, bucket_count=1)
    queue.create_queue(chosen)
    queue.rebucket("work", 1)
    queue.enqueue(chosen, Work(n=-1))
    rows(queue, "UPDATE {s}.job SET state = 'running', alone = true, lease_no = 1, attempt = 2147483647")
    make_due(queue)
    queue.enqueue_many(chosen, [Work(n=n) for n in range(12)])
    assert Consumer(queue, chosen, lambda job: None, mode=mode, batch_size=5).drain().succeeded == 12
    assert rows(queue, "SELECT state FROM {s}.job") == [("held",)]


@pytest.mark.parametrize("mode", Mode)
def test_one_that_another_consumer_is_setting_aside(
    queue: SqlQueue, spec: QueueSpec[Work], url: str, monkeypatch: pytest.MonkeyPatch, mode: Mode
) -> None:
    """The consumer that met it too finds nothing to hold, and claims again."""
    queue.enqueue(spec, Work(n=-1))
    rows(queue, "UPDATE {s}.job SET attempt = 2147483647")
    queue.enqueue(spec, Work(n=1))
    hold, held = odd_jobs.hold_unclaimable, []

    def late(*arguments: Any) -> int:
        held.append(hold(*arguments))
        return 0 if len(held) == 1 else held[-1]

    monkeypatch.setattr(odd_jobs, "hold_unclaimable", late)
    assert Consumer(queue, spec, lambda job: None, mode=mode).drain().succeeded == 1
    assert held == [1]


@pytest.mark.parametrize("mode", Mode)
def test_what_no_row_is_to_blame_for_is_raised(queue: SqlQueue, spec: QueueSpec[Work], mode: Mode) -> None:
    queue.enqueue_many(spec, [Work(n=n) for n in range(3)])
    refuse = "CREATE FUNCTION {s}.refused() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE SQLSTATE '22000'; END $$"
    rows(queue, refuse)
    rows(queue, "CREATE TRIGGER refused BEFORE UPDATE OR DELETE ON {s}.job FOR EACH ROW EXECUTE FUNCTION {s}.refused()")
    try:
        with pytest.raises(psycopg.DataError):
            Consumer(queue, spec, lambda job: None, mode=mode).drain()
    finally:
        rows(queue, "DROP FUNCTION {s}.refused CASCADE")
    assert set(states(queue).values()) == {"queued"}
