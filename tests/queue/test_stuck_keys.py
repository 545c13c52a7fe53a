"""Keys whose jobs wait for a turn that nobody gives them: found, and let go on by `maintain`, and no others."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from dagster_sqlqueue import NewJob, QueueSpec, SqlQueue
from dagster_sqlqueue.model.outcome import Retry, Snooze
from dagster_sqlqueue.queue.selection import Selection
from dagster_sqlqueue.queue.stuck_keys import stuck_keys
from tests.gate.patience import PATIENCE
from tests.support import Work, caller, make_due, narrow_queue, rows, states
from tests.support.decisions import ORDERED, PLAIN, finish_all, put, take

LIMITED = replace(PLAIN, max_running_per_key=1)
KEYED = pytest.mark.parametrize("spec", [ORDERED, LIMITED], ids=["ordered", "limited"])
PARKED = "UPDATE {s}.job SET state = 'queued', available_at = 'infinity'"


def waiting(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    """Three jobs of a key, of which nobody lets the first in."""
    put(queue, spec, 3, ordering_key="k")
    rows(queue, PARKED)
    assert take(queue) == []


def stuck(queue: SqlQueue) -> list[tuple[str, str]]:
    """The keys that stand still, each with its queue."""
    return [(name, key) for page in stuck_keys(queue.database) for name, keys in page.items() for key in keys]


@KEYED
def test_a_key_that_nobody_would_have_let_go_on_does(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    waiting(queue, spec)
    assert stuck(queue) == [("work", "k")]
    assert queue.maintain().keys_healed == 1
    assert stuck(queue) == []
    assert queue.maintain().keys_healed == 0
    assert finish_all(queue) == [0, 1, 2]
    assert set(states(queue).values()) == {"succeeded"}


def test_a_job_that_has_lost_its_place_in_line_is_not_parked(queue: SqlQueue) -> None:
    put(queue, PLAIN, 1, ordering_key="k")
    ids = [row[0] for row in rows(queue, "SELECT id FROM {s}.job")]
    assert queue.database.run("park_waiting", {"queue": "work", "ids": ids}) == []
    assert finish_all(queue) == [0]


def _due(queue: SqlQueue) -> None:
    queue.complete(take(queue))


def _due_behind_one_that_waits(queue: SqlQueue) -> None:
    """The next claim lets that one in."""
    rows(queue, f"{PARKED} WHERE payload ->> 'n' = '0'")


def _running(queue: SqlQueue) -> None:
    assert len(take(queue)) == 1


def _lease_over(queue: SqlQueue) -> None:
    _running(queue)
    make_due(queue)


def _held(queue: SqlQueue) -> None:
    queue.hold([(job, "look") for job in take(queue)])


def _held_by_an_operator(queue: SqlQueue) -> None:
    (head,) = take(queue)
    queue.requeue([(head, Snooze(0))])
    queue.hold_queued("work", Selection(ids=[head.id]), "look")


def _retried_later(queue: SqlQueue) -> None:
    queue.requeue([(job, Retry("no", after=3_600)) for job in take(queue)])


def _put_off(queue: SqlQueue) -> None:
    (head,) = take(queue)
    queue.requeue([(head, Snooze(0))])
    queue.reschedule("work", Selection(ids=[head.id]), 3_600)


HEALTHY: dict[str, Callable[[SqlQueue], None]] = {
    "due": _due,
    "due behind one that waits": _due_behind_one_that_waits,
    "running": _running,
    "a lease that ran out": _lease_over,
    "held": _held,
    "held by an operator": _held_by_an_operator,
    "retried later": _retried_later,
    "put off": _put_off,
}


@pytest.mark.parametrize("state", list(HEALTHY))
@KEYED
def test_a_key_that_goes_on_by_itself_is_left_as_it_is(queue: SqlQueue, spec: QueueSpec[Work], state: str) -> None:
    put(queue, spec, 3, ordering_key="k")
    HEALTHY[state](queue)
    before = rows(queue, "SELECT j::text FROM {s}.job AS j ORDER BY 1")
    assert queue.maintain().keys_healed == 0
    assert stuck(queue) == []
    assert rows(queue, "SELECT j::text FROM {s}.job AS j ORDER BY 1") == before


def test_under_a_limit_a_held_job_keeps_no_place_that_others_wait_for(queue: SqlQueue) -> None:
    """In an ordered queue its key stops there; here the others go on."""
    put(queue, LIMITED, 3, ordering_key="k")
    queue.hold([(take(queue, 1)[0], "look")])
    rows(queue, f"{PARKED} WHERE state = 'queued'")
    assert queue.maintain().keys_healed == 1
    assert finish_all(queue) == [1, 2]


def test_what_waits_in_a_queue_that_takes_no_turns_any_more_goes_on(queue: SqlQueue) -> None:
    """Put there by a claim that began before the change and committed long after it."""
    waiting(queue, ORDERED)
    places = rows(queue, "SELECT order_no, id FROM {s}.job")
    queue.create_queue(PLAIN)
    for place, job in places:
        rows(queue, f"{PARKED}, order_no = %s WHERE id = %s", place, job)
    assert queue.maintain().keys_healed == 1
    assert finish_all(queue) == [0, 1, 2]


@KEYED
def test_every_key_of_every_queue_is_looked_at(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    """More than are looked at at once, and healthy ones among them."""
    for name in ("work", "a"):
        named = replace(spec, name=name)
        queue.create_queue(named)
        jobs = [NewJob(Work(n=n), ordering_key=f"k{n % 1_100}") for n in range(2_200)]
        queue.enqueue_many(named, jobs)
    rows(queue, f"{PARKED} WHERE ordering_key <> 'k7' OR queue <> 'work'")
    assert len(stuck(queue)) == 1_100 + 1_099
    assert queue.maintain().keys_healed == 1_100 + 1_099
    assert stuck(queue) == []


def test_a_key_that_somebody_decides_about_is_left_to_him(queue: SqlQueue) -> None:
    waiting(queue, ORDERED)
    with queue.database.transaction() as decision:
        decision.run("key_wait", {"queue": "work", "keys": ["k"]})
        assert queue.maintain().keys_healed == 0
    assert queue.maintain().keys_healed == 1


def test_one_connection_is_enough(queue: SqlQueue, url: str) -> None:
    waiting(queue, ORDERED)
    with narrow_queue(url, queue.database.schema) as narrow:
        assert narrow.maintain().keys_healed == 1


def test_consumers_that_wait_are_notified(queue: SqlQueue, url: str) -> None:
    waiting(queue, ORDERED)
    rows(queue, "INSERT INTO {s}.waiter VALUES ('work', 'w', now() + interval '1 hour')")
    with caller(url, autocommit=True) as connection:
        connection.execute(f'LISTEN "{queue.database.schema}"'.encode())
        queue.maintain()
        (note,) = connection.notifies(timeout=PATIENCE, stop_after=1)
    assert note.payload == "work"
