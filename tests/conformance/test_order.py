"""The order in which claims of every strategy take: priorities, ages, buckets, and the turns of each key."""

from collections.abc import Callable
from uuid import UUID

import pytest
from uuid_utils.compat import uuid7

from dagster_sqlqueue import NewJob, PoisonPolicy, Strategy
from dagster_sqlqueue.model.job import ClaimedJob
from dagster_sqlqueue.model.outcome import Retry, Snooze
from tests.conformance.conftest import TAKING_TURNS, Line, at, numbers
from tests.support import Work, rows


def test_higher_priorities_first(line: Line) -> None:
    line.queue.rebucket(line.name, 1)
    line.queue.enqueue_many(line.spec, [NewJob(Work(n=n), priority=n % 10) for n in range(30)])
    order = [job.priority for _ in range(10) for job in line.take(3)]
    assert order == [priority for priority in range(9, -1, -1) for _ in range(3)]


@pytest.mark.parametrize("strategy", [Strategy.ROUND_ROBIN, Strategy.FIFO, Strategy.TOKEN, Strategy.ASSIGN])
def test_the_oldest_of_a_bucket_first(line: Line) -> None:
    """Within the batch, too; but for `assign`, which shuffles what it has chosen."""
    line.queue.rebucket(line.name, 1)
    for n in (5, 2, 8, 1, 7, 4, 3, 6):
        line.put(n, run_at=at(n))
    batches = [numbers(line.take(2)) for _ in range(4)]
    assert [sorted(batch) for batch in batches] == [[1, 2], [3, 4], [5, 6], [7, 8]]
    if line.spec.strategy is not Strategy.ASSIGN:
        assert batches == [sorted(batch) for batch in batches]


@pytest.mark.parametrize("strategy", [Strategy.FIFO])
def test_fifo_is_one_order_over_all_buckets(line: Line) -> None:
    line.queue.enqueue_many(line.spec, [NewJob(Work(n=n), run_at=at(n)) for n in reversed(range(60))])
    assert [n for _ in range(12) for n in numbers(line.take(5))] == list(range(60))


@pytest.mark.parametrize("strategy", [Strategy.FIFO])
def test_fifo_has_priorities_over_all_buckets(line: Line) -> None:
    line.queue.enqueue_many(line.spec, [NewJob(Work(n=n), run_at=at(n), priority=n % 3) for n in range(30)])
    expected = sorted(range(30), key=lambda n: (-(n % 3), n))
    assert [n for _ in range(6) for n in numbers(line.take(5))] == expected


@pytest.mark.parametrize("strategy", [Strategy.ROUND_ROBIN])
def test_round_robin_takes_bucket_after_bucket_as_given(line: Line) -> None:
    line.queue.enqueue_many(line.spec, [NewJob(Work(n=n), run_at=at(n)) for n in range(60)])
    jobs = line.take(buckets=[2, 0, 3, 1])
    assert [
        bucket for n, bucket in enumerate(job.bucket for job in jobs) if n == 0 or jobs[n - 1].bucket != bucket
    ] == [
        2,
        0,
        3,
        1,
    ]
    for bucket in range(4):
        inside = numbers([job for job in jobs if job.bucket == bucket])
        assert inside == sorted(inside)


@pytest.mark.parametrize("strategy", [Strategy.FANOUT])
@pytest.mark.parametrize("at_once", [True, False])
def test_fanout_begins_anywhere_and_wraps_around(line: Line, at_once: bool) -> None:
    """Whether the jobs became due over some time, long ago, or all of them at the same moment."""
    line.queue.rebucket(line.name, 1)
    jobs = [NewJob(Work(n=n), run_at=None if at_once else at(n), id=spread_id(n)) for n in range(200)]
    line.queue.enqueue_many(line.spec, jobs)
    firsts = [number for _ in range(20) for number in numbers(line.take(1))]
    assert len(set(firsts)) == 20
    assert max(firsts) - min(firsts) > 50
    assert firsts != sorted(firsts)
    assert len(line.take(180)) == 180


def spread_id(n: int) -> UUID:
    """A version 7 id as it was made 200 - n seconds ago."""
    return UUID(int=uuid7().int - ((200 - n) * 1000 << 80))


TROUBLE: dict[str, Callable[[Line, ClaimedJob], object]] = {
    "a retry": lambda line, job: line.queue.requeue([(job, Retry("again", 0))]),
    "a snooze": lambda line, job: line.queue.requeue([(job, Snooze(0))]),
    "a release": lambda line, job: line.queue.release([job]),
    "a lease that ran out": lambda line, job: rows(
        line.queue, "UPDATE {s}.job SET available_at = now() WHERE id = %s", job.id
    ),
}


@pytest.mark.parametrize("strategy", TAKING_TURNS)
@pytest.mark.parametrize("trouble", list(TROUBLE))
def test_an_ordered_queue_keeps_each_key_s_order(line: Line, trouble: str) -> None:
    line.change(ordered=True, max_attempts=50)
    jobs = [NewJob(Work(n=n), ordering_key=f"k{n % 3}") for n in range(24)]
    line.queue.enqueue_many(line.spec, jobs)
    ended: list[int] = []
    seen: set[int] = set()
    while hand := line.take(10):
        keys = [job.ordering_key for job in hand]
        assert len(set(keys)) == len(keys), "two jobs of one key at a time"
        for job in hand:
            (n,) = numbers([job])
            if n % 2 and n not in seen:
                TROUBLE[trouble](line, job)
            else:
                line.queue.complete([job])
                ended.append(n)
            seen.add(n)
    assert [[n for n in ended if n % 3 == key] for key in range(3)] == [list(range(key, 24, 3)) for key in range(3)]


@pytest.mark.parametrize("strategy", TAKING_TURNS)
@pytest.mark.parametrize("policy", list(PoisonPolicy))
@pytest.mark.parametrize("how", ["fails", "dies"])
def test_a_poisoned_head(line: Line, policy: PoisonPolicy, how: str) -> None:
    line.change(ordered=True, on_poison=policy, max_attempts=1)
    line.put(1, 2, ordering_key="k")
    line.put(3, ordering_key="other")
    hand = {numbers([job])[0]: job for job in line.take()}
    assert set(hand) == {1, 3}
    if how == "fails":
        assert line.queue.fail(hand[1], "never") is False
        line.queue.complete([hand[3]])
    else:
        line.queue.complete([hand[3]])
        line.let_time_pass()
        # Nobody knows which of the two had begun: it is claimed by itself, and its consumer dies once more.
        (again,) = line.take()
        assert (numbers([again]), again.attempt, again.alone) == ([1], 1, True)
        line.let_time_pass()
    following = numbers(line.take())
    if policy is PoisonPolicy.STOP:
        assert following == []
        assert line.states() == ["held", "queued", "succeeded"]
    else:
        assert following == [2]
        assert line.states() == ["failed", "running", "succeeded"]


@pytest.mark.parametrize("strategy", TAKING_TURNS)
def test_jobs_without_a_key_take_no_turns(line: Line) -> None:
    line.change(ordered=True)
    line.put(1, 2, 3)
    assert sorted(numbers(line.take())) == [1, 2, 3]
