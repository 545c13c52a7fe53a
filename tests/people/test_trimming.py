"""What people did is kept as long as its job is, and goes after it."""

from collections.abc import Sequence
from uuid import UUID

import pytest

from dagster_sqlqueue import QueueSpec, SqlQueue
from dagster_sqlqueue.people import HumanWork
from dagster_sqlqueue.queue.selection import Selection
from tests.people.support import handed_over
from tests.support import Work, rows, value


def retain(queue: SqlQueue, name: str, days: int) -> None:
    queue.create_queue(QueueSpec(name, Work, bucket_count=4, retention_days=days))


def age(queue: SqlQueue, ids: Sequence[UUID], days: int) -> None:
    """Let it be so many days ago that people did something with these jobs, and that they ended."""
    for statement in (
        "UPDATE {s}.job_event SET at = at - make_interval(days => %s) WHERE job_id = ANY (%s)",
        "UPDATE {s}.job_archive SET finished_at = finished_at - make_interval(days => %s) WHERE id = ANY (%s)",
    ):
        rows(queue, statement, days, list(ids))


def done(people: HumanWork, count: int, queue: str = "work") -> list[UUID]:
    ids = handed_over(people, count, queue)
    people.assign(ids, "anna", by="boss")
    people.submit(ids, "anna", {"answer": 42})
    return ids


def with_events(queue: SqlQueue) -> dict[UUID, int]:
    return dict(rows(queue, "SELECT job_id, count(*) FROM {s}.job_event GROUP BY 1"))


@pytest.mark.parametrize("verb", ["trim", "maintain"])
def test_the_steps_of_a_job_go_when_it_is_gone(people: HumanWork, queue: SqlQueue, verb: str) -> None:
    retain(queue, "work", 30)
    retain(queue, "mail", 0)
    gone, kept, live = done(people, 2), done(people, 1), handed_over(people, 1)
    ever = done(people, 1, "mail")
    age(queue, [*gone, *live, *ever], 40)
    age(queue, kept, 30)
    assert getattr(queue, verb)().events_deleted == {"work": 6}
    assert with_events(queue) == {kept[0]: 3, live[0]: 1, ever[0]: 3}
    assert queue.trim().events_deleted == {}
    # What was left is whole: people go on with it, under its next number.
    people.take("anna", "work")
    assert [event.no for event in people.history(live[0])] == [1, 2]


def test_the_steps_of_an_archived_job_stay_however_old_they_are(people: HumanWork, queue: SqlQueue) -> None:
    """People had it for a year, and it ended yesterday."""
    retain(queue, "work", 30)
    (job,) = handed_over(people, 1)
    age(queue, [job], 365)
    people.take("anna", "work")
    people.submit(job, "anna")
    age(queue, [job], 1)
    assert queue.trim().events_deleted == {}
    assert with_events(queue) == {job: 3}
    age(queue, [job], 30)
    assert queue.trim().events_deleted == {"work": 3}


def test_the_steps_of_a_job_that_was_brought_back_stay(people: HumanWork, queue: SqlQueue) -> None:
    retain(queue, "work", 30)
    (job,) = handed_over(people, 1)
    queue.cancel("work", Selection(ids=[job]))
    queue.redrive("work", Selection(ids=[job]), states=["cancelled"])
    age(queue, [job], 365)
    assert queue.trim().events_deleted == {}
    assert with_events(queue) == {job: 1}


def test_a_step_that_was_noted_after_its_job_was_gone_goes_too(people: HumanWork, queue: SqlQueue) -> None:
    retain(queue, "work", 30)
    (job,) = handed_over(people, 1)
    queue.cancel("work", Selection(ids=[job]))
    age(queue, [job], 40)
    assert queue.trim().events_deleted == {"work": 1}
    people.adopt("work", by="clerk")
    assert with_events(queue) == {job: 1}
    age(queue, [job], 40)
    assert queue.trim().events_deleted == {"work": 1}


def test_one_queue_is_trimmed_alone(people: HumanWork, queue: SqlQueue) -> None:
    for name in ("work", "mail"):
        retain(queue, name, 1)
        age(queue, done(people, 1, name), 5)
    assert queue.trim("mail").events_deleted == {"mail": 3}
    assert queue.trim().events_deleted == {"work": 3}


def test_many_that_stay_do_not_hide_those_that_go(people: HumanWork, queue: SqlQueue) -> None:
    """Several pages, of which the first hold nothing to delete, and many steps were taken at one moment."""
    retain(queue, "work", 30)
    (live,) = handed_over(people, 1)
    age(queue, [live], 90)
    rows(
        queue,
        "INSERT INTO {s}.job_event (job_id, no, queue, at, actor, action)"
        " SELECT job_id, n, queue, at, actor, 'hold' FROM {s}.job_event CROSS JOIN generate_series(2, 2500) AS n",
    )
    rows(
        queue,
        "INSERT INTO {s}.job_event (job_id, no, queue, at, actor, action)"
        " SELECT gen_random_uuid(), 1, 'work', now() - interval '60 days', 'boss', 'hand over'"
        " FROM generate_series(1, 3500)",
    )
    assert queue.trim().events_deleted == {"work": 3_500}
    assert with_events(queue) == {live: 2_500}
    assert value(queue, "SELECT count(*) FROM {s}.job_event") == 2_500
