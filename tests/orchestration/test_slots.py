"""Reservations of consumer capacity."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from dagster_sqlqueue import SqlQueue
from dagster_sqlqueue.orchestration import slots
from tests.support import rows


def test_a_slot_is_of_one_run_until_it_is_given_back(queue: SqlQueue) -> None:
    first = slots.acquire(queue, "work", 0, [0, 1], seconds=3_600)
    assert first
    assert slots.acquire(queue, "work", 0, [0, 1], seconds=3_600) is None
    assert slots.taken(queue, "work") == {0: (0, 1)}
    assert slots.extend(queue, first, seconds=3_600)
    assert slots.release(queue, first)
    assert not slots.release(queue, first)
    assert slots.taken(queue, "work") == {}


def test_a_slot_that_ran_out_passes_on_and_fences_its_former_run(queue: SqlQueue) -> None:
    former = slots.acquire(queue, "work", 3, [2], seconds=3_600)
    assert former
    rows(queue, "UPDATE {s}.consumer_slot SET expires_at = now()")
    assert slots.taken(queue, "work") == {}
    heir = slots.acquire(queue, "work", 3, [2, 3], seconds=3_600)
    assert heir
    assert not slots.extend(queue, former, seconds=3_600)
    assert not slots.release(queue, former)
    assert slots.taken(queue, "work") == {3: (2, 3)}


def test_of_many_that_ask_at_once_one_gets_it(queue: SqlQueue) -> None:
    with ThreadPoolExecutor(5) as pool:
        got = list(pool.map(lambda _: slots.acquire(queue, "work", 1, [0], seconds=3_600), range(20)))
    assert len([slot for slot in got if slot]) == 1


def test_the_slots_of_two_sensors_are_apart(queue: SqlQueue) -> None:
    ours = slots.acquire(queue, "work", 0, [0], seconds=3_600, sensor="eu")
    theirs = slots.acquire(queue, "work", 0, [1], seconds=3_600, sensor="us")
    assert ours
    assert theirs
    assert slots.taken(queue, "work", sensor="eu") == {0: (0,)}
    assert not slots.release(queue, replace(ours, sensor="us"))
    assert slots.release(queue, ours)
    assert slots.taken(queue, "work", sensor="us") == {0: (1,)}


def test_what_was_asked_for_is_counted_until_it_comes(queue: SqlQueue) -> None:
    assert slots.asked(queue, "work") == {}
    for number, buckets in enumerate([[0, 1], [1, 2]]):
        assert slots.acquire(queue, "work", number, buckets, seconds=3_600, sensor=f"sensor {number}")
    assert slots.acquire(queue, "work", 0, [3], seconds=3_600, sensor="sensor 0") is None
    assert {bucket: one.starts for bucket, one in slots.asked(queue, "work").items()} == {0: 1, 1: 2, 2: 1}
    slots.served(queue, "work", [1, 3])
    assert {bucket: one.starts for bucket, one in slots.asked(queue, "work").items()} == {0: 1, 2: 1}
    slots.served(queue, "work")
    assert slots.asked(queue, "work") == {}


def test_sensors_that_ask_for_the_same_buckets_do_not_block_each_other_for_ever(queue: SqlQueue) -> None:
    def ask(number: int) -> bool:
        buckets = [0, 1, 2, 3] if number % 2 else [3, 2, 1, 0]
        slot = slots.acquire(queue, "work", number, buckets, seconds=3_600, sensor=f"sensor {number}")
        slots.served(queue, "work", buckets)
        return slot is not None

    with ThreadPoolExecutor(5) as pool:
        assert all(pool.map(ask, range(60)))


def test_a_bucket_is_in_one_slot_at_a_time(queue: SqlQueue) -> None:
    first = slots.acquire(queue, "work", 0, [0, 1], seconds=3_600)
    assert first
    assert slots.acquire(queue, "work", 1, [1, 2], seconds=3_600) is None
    assert set(slots.asked(queue, "work")) == {0, 1}
    assert slots.acquire(queue, "work", 1, [2, 3], seconds=3_600)

    # Its buckets are somebody else's as soon as it has expired and they were asked for again.
    rows(queue, "UPDATE {s}.consumer_slot SET expires_at = now() WHERE slot = 0")
    assert slots.extend(queue, first, seconds=3_600)
    rows(queue, "UPDATE {s}.consumer_slot SET expires_at = now() WHERE slot = 0")
    assert slots.acquire(queue, "work", 2, [1], seconds=3_600)
    assert not slots.extend(queue, first, seconds=3_600)
    assert slots.taken(queue, "work") == {1: (2, 3), 2: (1,)}


def test_of_many_that_ask_for_the_same_buckets_at_once_one_gets_them(queue: SqlQueue) -> None:
    with ThreadPoolExecutor(5) as pool:
        got = list(pool.map(lambda n: slots.acquire(queue, "work", n, [n % 3, 3], seconds=3_600), range(20)))
    assert len([slot for slot in got if slot]) == 1


def test_a_slot_is_widened_by_what_no_other_one_covers(queue: SqlQueue) -> None:
    first = slots.acquire(queue, "work", 0, [0], seconds=3_600)
    assert first
    assert slots.acquire(queue, "work", 1, [1], seconds=3_600)
    assert not slots.widen(queue, first, [1, 2])
    assert slots.widen(queue, first, [2, 3])
    assert slots.extend(queue, first, seconds=3_600) == (0, 2, 3)
    assert not slots.widen(queue, first, [3]), "it has that already"
    assert not slots.widen(queue, first, [1, 3], shared=True), "part of it"
    assert slots.widen(queue, first, [1], shared=True)
    assert slots.taken(queue, "work") == {0: (0, 2, 3, 1), 1: (1,)}
    rows(queue, "UPDATE {s}.consumer_slot SET expires_at = now()")
    assert not slots.widen(queue, first, [1])


def test_a_slot_without_a_run_is_forgotten_with_what_was_asked_for(queue: SqlQueue) -> None:
    assert slots.acquire(queue, "work", 0, [0, 1], seconds=3_600, sensor="other")
    slot = slots.acquire(queue, "work", 0, [1, 2, 3], due=[1, 2], seconds=3_600, instance="an instance")
    assert slot
    (holding,) = slots.holdings(queue, "work")
    assert (holding.instance, holding.reserved_seconds < 3_600) == ("an instance", True)
    assert slots.forget(queue, slot)
    assert not slots.forget(queue, slot)
    assert slots.holdings(queue, "work") == []
    assert {bucket: one.starts for bucket, one in slots.asked(queue, "work").items()} == {0: 1, 1: 1}

    slot = slots.acquire(queue, "work", 0, [2], seconds=3_600)
    assert slot
    assert slots.extend(queue, slot, seconds=3_600, run_id="a run")
    assert not slots.forget(queue, slot), "its run is there"
    assert not slots.forget(queue, slot, run_id="another")
    assert {bucket: one.starts for bucket, one in slots.asked(queue, "work").items()} == {0: 1, 1: 1, 2: 1}
    assert slots.forget(queue, slot, run_id="a run")
    assert {bucket: one.starts for bucket, one in slots.asked(queue, "work").items()} == {0: 1, 1: 1}


def test_a_slot_says_whose_it_is(queue: SqlQueue) -> None:
    slot = slots.acquire(queue, "work", 0, [0], seconds=3_600)
    assert slot
    (holding,) = slots.holdings(queue, "work")
    assert (holding.slot, holding.run_id) == (slot, None)
    slots.extend(queue, slot, seconds=3_600, run_id="a run")
    slots.extend(queue, slot, seconds=3_600)
    assert [holding.run_id for holding in slots.holdings(queue, "work")] == ["a run"]
    rows(queue, "UPDATE {s}.consumer_slot SET expires_at = now()")
    assert [holding.seconds <= 0 for holding in slots.holdings(queue, "work")] == [True]
    heir = slots.acquire(queue, "work", 0, [0], seconds=3_600)
    assert [(holding.slot, holding.run_id) for holding in slots.holdings(queue, "work")] == [(heir, None)]
