"""Reservations of consumer capacity."""

from concurrent.futures import ThreadPoolExecutor

from dagster_sqlqueue import SqlQueue, slots
from tests.core.support import rows


def test_a_slot_has_one_holder_until_it_is_given_back(queue: SqlQueue) -> None:
    first = slots.acquire(queue, "work", 0, [0, 1], seconds=60)
    assert first
    assert slots.acquire(queue, "work", 0, [0, 1], seconds=60) is None
    assert slots.taken(queue, "work") == {0: (0, 1)}
    assert slots.extend(queue, first, seconds=60)
    assert slots.release(queue, first)
    assert not slots.release(queue, first)
    assert slots.taken(queue, "work") == {}


def test_a_slot_that_ran_out_passes_on_and_fences_its_former_holder(queue: SqlQueue) -> None:
    former = slots.acquire(queue, "work", 3, [2], seconds=60)
    assert former
    rows(queue, "UPDATE {s}.consumer_slot SET expires_at = now()")
    assert slots.taken(queue, "work") == {}
    heir = slots.acquire(queue, "work", 3, [2, 3], seconds=60)
    assert heir
    assert not slots.extend(queue, former, seconds=60)
    assert not slots.release(queue, former)
    assert slots.taken(queue, "work") == {3: (2, 3)}


def test_of_many_that_ask_at_once_one_gets_it(queue: SqlQueue) -> None:
    with ThreadPoolExecutor(5) as pool:
        got = list(pool.map(lambda _: slots.acquire(queue, "work", 1, [0], seconds=60), range(20)))
    assert len([slot for slot in got if slot]) == 1
