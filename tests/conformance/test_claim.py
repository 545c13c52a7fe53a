"""Claims of every strategy: the jobs that they return, and those that they leave."""

from datetime import UTC, datetime, timedelta

import pytest
from psycopg import sql

from dagster_sqlqueue import ClaimFilter, NewJob, RateLimit, Strategy
from dagster_sqlqueue.db.executors import Executor
from dagster_sqlqueue.errors import InvalidInput, UnknownQueue
from dagster_sqlqueue.model.job import ArchiveState, ClaimedJob
from dagster_sqlqueue.queue.claim_request import ClaimRequest
from dagster_sqlqueue.queue.endings import Ending, Endings
from dagster_sqlqueue.queue.head_hints import HeadHints
from tests.conformance.conftest import EARLIER, LEASE, LOCKING, STRATEGIES, TAKING_TURNS, Line, at, numbers
from tests.gate.patience import PATIENCE
from tests.support import Work


def test_each_job_is_taken_once(line: Line) -> None:
    line.queue.enqueue_many(line.spec, [Work(n=n) for n in range(30)])
    taken: list[int] = []
    while jobs := line.take(7):
        assert len(jobs) <= 7
        taken += numbers(jobs)
    assert sorted(taken) == list(range(30))


def test_a_claim_says_everything_about_a_job(line: Line) -> None:
    (id,) = line.put(
        5, priority=3, ordering_key="k", unique_key="u", max_attempts=7, timeout_seconds=12.5, tags=["a", 'b"\\{,}']
    )
    job = line.one(lease_seconds=1_000, worker="me")
    assert (job.id, job.queue, numbers([job])) == (id, line.name, [5])
    assert (job.lease_no, job.attempt, job.max_attempts, job.last_attempt) == (1, 1, 7, False)
    assert (job.priority, job.ordering_key, job.unique_key, job.timeout_seconds) == (3, "k", "u", 12.5)
    assert (list(job.tags), job.error, job.order_no, job.limited) == (["a", 'b"\\{,}'], None, None, False)
    assert (job.cancel_requested, job.turns) == (False, False)
    assert job.due_at <= job.lease_until - timedelta(seconds=999)
    row = line.row(id)
    assert row.state == "running"
    assert row.wait is not None
    assert 1_000 - PATIENCE < row.wait <= 1_000


def test_nothing_is_taken_before_its_time(line: Line) -> None:
    line.put(1, run_at=datetime.now(UTC) + timedelta(hours=1))
    assert line.take() == []
    line.let_time_pass()
    assert numbers(line.take()) == [1]


def test_a_lease_keeps_others_off_until_it_runs_out(line: Line) -> None:
    first = line.claimed()
    assert line.take() == []
    line.let_time_pass()
    second = line.one(worker="other")
    assert (second.id, second.lease_no, second.attempt) == (first.id, 2, 2)


def test_a_lease_of_the_queue_s_own_length(line: Line) -> None:
    job = line.claimed()
    wait = line.row(job.id).wait
    assert wait is not None
    assert LEASE - PATIENCE < wait <= LEASE


def test_a_job_without_an_attempt_left_goes_to_the_dead_letter(line: Line) -> None:
    job = line.claimed(max_attempts=2)
    line.let_time_pass()
    line.one()
    line.let_time_pass()
    assert line.take() == []
    row = line.row(job.id)
    assert (row.state, row.attempt) == ("failed", 2)
    assert row.error is not None
    assert "ran out on the last of 2 attempts" in row.error
    assert [letter.id for letter in line.queue.dead_letters(line.name)] == [job.id]


def test_a_spent_job_is_no_part_of_what_a_claim_gives(line: Line) -> None:
    spent = line.claimed(max_attempts=1)
    line.let_time_pass()
    line.put(2)
    assert numbers([*line.take(), *line.take()]) == [2]
    assert line.row(spent.id).state == "failed"


def test_only_the_given_buckets(line: Line) -> None:
    line.queue.enqueue_many(line.spec, [Work(n=n) for n in range(90)])
    some = line.take(buckets=[1, 3])
    assert {job.bucket for job in some} == {1, 3}
    rest = line.take(buckets=[0, 1, 2, 3])
    assert {job.bucket for job in rest} == {0, 2}
    assert len(some) + len(rest) == 90
    assert line.take(buckets=[9]) == []


def test_hints_hide_nothing_but_what_came_in_below_them(line: Line) -> None:
    hints = HeadHints(sweep_seconds=3600)
    line.queue.enqueue_many(line.spec, [NewJob(Work(n=n), run_at=at(n)) for n in range(40)])
    assert sorted(n for _ in range(4) for n in numbers(line.take(10, hints=hints))) == list(range(40))
    line.put(99, run_at=EARLIER - timedelta(days=1))
    hints.sweep_next()
    assert numbers(line.take(hints=hints)) == [99]


FILTERS = {
    "a tag": (ClaimFilter(tags=["even"]), {0, 2, 4, 6, 8}),
    "two tags": (ClaimFilter(tags=["even", "third"]), {0, 6}),
    "the payload": (ClaimFilter(payload={"note": "x"}), {0, 4, 8}),
    "the payload's text": (ClaimFilter(payload='{"n": 7}'), {7}),
    "both": (ClaimFilter(tags=["third"], payload={"note": "x"}), {0}),
    "nothing": (ClaimFilter(), set(range(10))),
    "what no job has": (ClaimFilter(tags=["none"]), set()),
}


@pytest.mark.parametrize("kind", list(FILTERS))
def test_a_filter_takes_what_fits_and_leaves_the_rest(line: Line, kind: str) -> None:
    filter, fitting = FILTERS[kind]
    for n in range(10):
        tags = ["even"] * (n % 2 == 0) + ["third"] * (n % 3 == 0)
        line.queue.enqueue(line.spec, NewJob(Work(n=n, note="x" if n % 4 == 0 else ""), tags=tags))
    assert set(numbers(line.take(filter=filter))) == fitting
    assert set(numbers(line.take())) == set(range(10)) - fitting


def test_a_filter_s_bound_costs_more_claims_and_no_job(line: Line) -> None:
    line.queue.enqueue_many(line.spec, [NewJob(Work(n=n), tags=["x"] if n % 10 == 0 else []) for n in range(100)])
    filter = ClaimFilter(tags=["x"], scan=7)
    found: list[int] = []
    for _ in range(100):
        found += numbers(line.take(3, filter=filter))
        if not filter.unfinished and len(found) == 10:
            break
    assert sorted(found) == list(range(0, 100, 10))


@pytest.mark.parametrize("strategy", LOCKING)
@pytest.mark.parametrize("filter", [None, ClaimFilter(tags=["x"])], ids=["any", "filtered"])
def test_what_others_lock_is_stepped_over_however_much(line: Line, filter: ClaimFilter | None) -> None:
    """Others work on the first jobs of every bucket inside their transactions: the next claim takes what comes after."""
    line.queue.enqueue_many(line.spec, [NewJob(Work(n=n), run_at=at(n), tags=["x"]) for n in range(400)])
    with line.queue.database.transaction() as transaction:
        locked = line.queue.leases.lock_due(transaction, ClaimRequest(line.name, limit=300))
        others: list[ClaimedJob] = []
        while jobs := line.take(10, filter=filter):
            others += jobs
        assert len(locked) == 300
        assert len(others) == 100
        assert {job.id for job in locked}.isdisjoint(job.id for job in others)
    assert len(line.take(400)) == 300


def endings(jobs: list[ClaimedJob]) -> Endings:
    return Endings.of(Ending(job, ArchiveState.SUCCEEDED) for job in jobs)


@pytest.mark.parametrize("strategy", LOCKING)
def test_transactional_work_is_ended_or_undone_as_one(line: Line) -> None:
    line.put(*range(6))

    def work(executor: Executor) -> None:
        jobs = line.queue.leases.lock_due(executor, ClaimRequest(line.name, limit=4))
        assert len(line.queue.leases.finish_locked(executor, endings(jobs), worker="w")) == 4
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        line.queue.database.transact(work)
    assert line.states() == ["queued"] * 6
    with line.queue.database.transaction() as transaction:
        jobs = line.queue.leases.lock_due(transaction, ClaimRequest(line.name, limit=4))
        assert len(line.queue.leases.finish_locked(transaction, endings(jobs), worker="w")) == 4
    assert sorted(line.states()) == ["queued"] * 2 + ["succeeded"] * 4


@pytest.mark.parametrize("plain", [True, False])
@pytest.mark.parametrize("strategy", LOCKING)
def test_what_was_locked_ends_although_the_clock_was_put_back(line: Line, plain: bool) -> None:
    """The handlers' writes are committed: a job that were left would be worked on twice."""
    line.put(*range(2))
    with line.queue.database.transaction() as transaction:
        jobs = line.queue.leases.lock_due(transaction, ClaimRequest(line.name, limit=2))
        schema = sql.Identifier(line.queue.database.schema)
        # To the clock the jobs are then what these are: not due yet.
        put_back = "UPDATE {}.job SET available_at = available_at + interval '1 hour' WHERE queue = %s"
        transaction.connection.execute(sql.SQL(put_back).format(schema), [line.name])
        ends = Endings.of(Ending(job, ArchiveState.SUCCEEDED, None if plain else {"n": 1}) for job in jobs)
        assert len(line.queue.leases.finish_locked(transaction, ends, worker="w")) == 2
    assert line.states() == ["succeeded"] * 2


@pytest.mark.parametrize("strategy", [Strategy.ASSIGN, Strategy.TOKEN])
def test_strategies_that_need_leases_say_so(line: Line) -> None:
    line.put(1)
    with line.queue.database.transaction() as transaction, pytest.raises(InvalidInput, match="needs leases"):
        line.queue.leases.lock_due(transaction, ClaimRequest(line.name, limit=4))


@pytest.mark.parametrize("other", STRATEGIES)
def test_the_strategy_changes_while_jobs_run(line: Line, other: Strategy) -> None:
    line.put(*range(8))
    before = line.take(4)
    line.change(strategy=other)
    after = line.take()
    assert sorted(numbers(before + after)) == list(range(8))
    line.queue.complete([*before, *after])
    assert line.states() == ["succeeded"] * 8


@pytest.mark.parametrize("strategy", TAKING_TURNS)
def test_a_limit_of_the_queue(line: Line) -> None:
    line.change(max_running=3)
    line.put(*range(6))
    jobs = line.take()
    assert len(jobs) == 3
    assert line.take() == []
    line.queue.complete(jobs[:1])
    line.queue.release(jobs[1:2])
    assert len(line.take()) == 2
    line.let_time_pass()
    again: list[ClaimedJob] = []
    while more := line.take():
        again += more
    assert len(again) == 3


@pytest.mark.parametrize("strategy", TAKING_TURNS)
def test_a_limit_of_each_key(line: Line) -> None:
    line.change(max_running_per_key=2)
    line.queue.enqueue_many(line.spec, [NewJob(Work(n=n), ordering_key=f"k{n % 2}") for n in range(10)])
    jobs = line.take()
    assert sorted(job.ordering_key or "" for job in jobs) == ["k0", "k0", "k1", "k1"]
    line.queue.complete(jobs)
    assert len(line.take()) == 4


@pytest.mark.parametrize("strategy", TAKING_TURNS)
def test_a_rate(line: Line) -> None:
    line.change(rate=RateLimit(4, 3600))
    line.put(*range(10))
    assert len(line.take(3)) == 3
    assert len(line.take(3)) == 1
    assert line.take(3) == []


def test_a_paused_queue_gives_nothing_until_it_is_resumed(line: Line) -> None:
    running = line.claimed()
    line.put(2)
    line.queue.pause(line.name)
    assert line.take() == []
    line.queue.complete([running])
    line.queue.resume(line.name)
    assert numbers(line.take()) == [2]


def test_the_bucket_count_changes_while_jobs_wait(line: Line) -> None:
    for count in (4, 16, 8, 1):
        line.queue.rebucket(line.name, count)
        line.queue.enqueue_many(line.spec, [Work(n=n) for n in range(20)])
    jobs = line.take(1000)
    assert len(jobs) == 80
    assert max(job.bucket for job in jobs) > 7
    line.queue.complete(jobs)
    assert line.queue.settings(line.name).claim_buckets == 1


REFUSED: dict[str, tuple[dict[str, object], type[Exception]]] = {
    "no jobs": ({"limit": 0}, InvalidInput),
    "too many jobs": ({"limit": 10_001}, InvalidInput),
    "a negative limit": ({"limit": -1}, InvalidInput),
    "no lease": ({"lease_seconds": 0}, InvalidInput),
    "a negative lease": ({"lease_seconds": -5}, InvalidInput),
    "a lease for ever": ({"lease_seconds": float("inf")}, InvalidInput),
    "a lease that is no number": ({"lease_seconds": float("nan")}, InvalidInput),
    "no bucket": ({"buckets": []}, InvalidInput),
    "a negative bucket": ({"buckets": [-1]}, InvalidInput),
    "a bucket out of range": ({"buckets": [0, 1024]}, InvalidInput),
}


@pytest.mark.parametrize("case", list(REFUSED))
def test_a_claim_that_makes_no_sense_is_refused(line: Line, case: str) -> None:
    arguments, error = REFUSED[case]
    (id,) = line.put(1)
    with pytest.raises(error):
        line.queue.claim(line.name, **{"limit": 1, "worker": "w", **arguments})  # type: ignore[arg-type]
    assert line.row(id).lease_no == 0


@pytest.mark.parametrize("strategy", [Strategy.ROUND_ROBIN])
def test_a_queue_that_is_not_there(line: Line) -> None:
    with pytest.raises(UnknownQueue, match="no queue 'nowhere'"):
        line.queue.claim("nowhere", limit=1, worker="w")
