"""The share of a queue that runs by itself, from none of it to all."""

import itertools
from datetime import UTC, datetime
from uuid import UUID

from uuid_utils.compat import uuid7

from dagster_sqlqueue import Consumer, Done, Hold, Job, NewJob, QueueSpec, SqlQueue
from dagster_sqlqueue.people import AutomationRule, HumanWork
from dagster_sqlqueue.queue.selection import Selection
from tests.people.support import enqueued, handed_over
from tests.support import Work, rows

IDS = [uuid7() for _ in range(4_000)]


def covered(percent: float) -> set[UUID]:
    rule = AutomationRule("work", percent)
    return {id for id in IDS if rule.covers(id)}


def test_a_share_only_grows() -> None:
    shares = [covered(percent) for percent in (0, 0.5, 1, 10, 33, 50, 75, 99, 100)]
    assert shares[0] == set()
    assert shares[-1] == set(IDS)
    for smaller, larger in itertools.pairwise(shares):
        assert smaller < larger


def test_a_share_is_as_large_as_it_says() -> None:
    for percent in (10, 50, 90):
        # Six standard deviations of 4,000 draws are at most 190.
        assert abs(len(covered(percent)) - 40 * percent) < 190


def test_a_rule_is_kept_and_changed(people: HumanWork) -> None:
    assert people.rule("work") == AutomationRule("work", 100.0)
    made = people.set_rule("work", automatic_percent=12.5, always_people={"n": 1}, four_eyes=True)
    assert made == AutomationRule("work", 12.5, '{"n": 1}', review=True, four_eyes=True) == people.rule("work")
    people.set_rule("work")
    assert people.rule("work") == AutomationRule("work", 100.0)
    assert people.rule("mail") == AutomationRule("mail", 100.0)


def test_a_queue_goes_from_people_to_machines(people: HumanWork, queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    """The handler asks; nothing but the rule changes meanwhile."""

    def handler(job: Job[Work]) -> Done | Hold:
        return Done() if people.is_automatic(job) else Hold("for people")

    share = []
    for percent in (0, 50, 100):
        people.set_rule("work", automatic_percent=percent)
        ids = enqueued(people, 200)
        done = Consumer(queue, spec, handler).drain()
        assert done.succeeded + done.held == 200
        assert done.succeeded == len([id for id in ids if AutomationRule("work", percent).covers(id)])
        assert len(people.adopt("work", by="clerk")) == done.held
        share.append(done.succeeded)
    assert (share[0], share[2]) == (0, 200)
    # Six standard deviations are 43.
    assert 57 < share[1] < 143


def test_some_are_always_for_people(people: HumanWork, queue: SqlQueue) -> None:
    ids = enqueued(people, 10)
    people.set_rule("work", automatic_percent=100, always_people={"n": 3})
    assert [people.is_automatic(queue.job(id)) for id in ids] == [n != 3 for n in range(10)]
    assert people.route("work", by="router").changed == [ids[3]]
    assert people.history(ids[3])[0].reason == 'always for people: {"n": 3}'


def test_routing_hands_over_what_the_rule_gives_to_people(people: HumanWork, queue: SqlQueue) -> None:
    ids = enqueued(people, 2_300)
    later = enqueued(people, 10, "mail")
    people.set_rule("work", automatic_percent=40, review=True)
    rule = people.rule("work")
    assert len(people.route("work", by="router", limit=25).changed) == 25
    people.route("work", by="router")
    held = {row[0] for row in rows(queue, "SELECT id FROM {s}.job WHERE state = 'held'")}
    assert held == {id for id in ids if not rule.covers(id)}
    assert held.isdisjoint(later)
    assert {task.id for task in people.tasks("work", limit=10_000)} == held
    assert all(task.state.review for task in people.tasks("work"))
    assert people.route("work", by="router").changed == []
    people.set_rule("work", automatic_percent=100)
    assert people.route("work", by="router").changed == []


def test_routing_says_the_beginning_of_a_long_rule(people: HumanWork, queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    large = "x" * 20_000
    job = queue.enqueue(spec, Work(n=1, note=large))
    people.set_rule("work", always_people={"note": large})
    assert people.route("work", by="clerk").changed == [job]
    (event,) = people.history(job)
    assert event.reason is not None
    assert event.reason.startswith('always for people: {"note": "xxx')
    assert len(event.reason) == 10_000


def test_a_rule_counts_from_the_next_question_on(people: HumanWork, queue: SqlQueue) -> None:
    (job,) = handed_over(people, 1)
    people.set_rule("work", automatic_percent=100, four_eyes=True)
    assert not people.task(job).state.four_eyes
    assert people.route("work", by="router").changed == []
    assert queue.job(job).state == "held"
    queue.enqueue(QueueSpec("work", Work), NewJob(Work(n=1)))
    people.hand_over("work", Selection(all=True), by="boss", reason="hard", review=False)
    assert sorted(task.state.four_eyes for task in people.tasks("work")) == [False, False]


def test_routing_looks_once_at_jobs_of_every_priority_and_moment(people: HumanWork, queue: SqlQueue) -> None:
    """More than one page of a bucket, beside jobs that people have already."""
    ids = [
        id
        for n, priority in enumerate((9, 4, 0))
        for moment in (None, datetime(2100, 1, 1 + n, tzinfo=UTC))
        for id in enqueued(people, 900, priority=priority, run_at=moment)
    ]
    people.set_rule("work", automatic_percent=50, always_people={"n": 7})
    theirs = {id for id in ids if not people.rule("work").covers(id)} | set(ids[7::900])
    done = people.route("work", by="router")
    assert sorted(done.changed) == sorted(theirs)
    always = rows(queue, "SELECT job_id FROM {s}.job_event WHERE reason LIKE %s", "always for people%")
    assert {row[0] for row in always} == set(ids[7::900])
    assert people.route("work", by="router").changed == []


def test_a_held_job_is_adopted_behind_pages_of_tasks(people: HumanWork, queue: SqlQueue) -> None:
    ids = enqueued(people, 6_000, ordering_key="one bucket", priority=3)
    queue.hold_queued("work", Selection(ids=ids[:-1]), "look at it")
    assert len(people.adopt("work", by="clerk")) == len(ids) - 1
    queue.hold_queued("work", Selection(ids=ids[-1:]), "look at it")
    assert people.adopt("work", by="clerk") == ids[-1:]
    queue.release_held("work", Selection(ids=ids[-1:] + ids[:1]))
    assert people.adopt("work", by="clerk") == []
    left = rows(queue, "SELECT job_id FROM {s}.human_task")
    assert {row[0] for row in left} == set(ids[1:-1])
