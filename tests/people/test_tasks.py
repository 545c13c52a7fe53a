"""Tasks from their opening to their end: who may do what, when, and what stays of it."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from uuid_utils.compat import uuid7

from dagster_sqlqueue import Consumer, Done, Hold, Job, NewJob, QueueSpec, SqlQueue
from dagster_sqlqueue.errors import DecisionRefused, UnknownJob
from dagster_sqlqueue.people import HumanWork, Stage, Task
from dagster_sqlqueue.queue.selection import Selection
from tests.gate.patience import PATIENCE
from tests.people.support import enqueued, everything, handed_over
from tests.support import Work, rows, value

LATER = datetime(2100, 1, 1, tzinfo=UTC)


def history(people: HumanWork, job: UUID) -> list[tuple[str, str, str | None, Any]]:
    return [(str(e.action), e.actor, e.reason, e.details) for e in people.history(job)]


def test_a_job_is_handed_over_taken_and_done(people: HumanWork, queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    (job, other) = enqueued(people, 2)
    done = people.hand_over("work", Selection(ids=[job]), by="boss", reason="too hard")
    assert done.changed == [job]
    assert (queue.job(job).state, queue.job(job).error) == ("held", "too hard")
    seen: list[UUID] = []
    Consumer(queue, spec, lambda job: seen.append(job.id)).drain()
    assert seen == [other]

    (taken,) = people.take("anna", "work")
    assert (taken.id, taken.state.stage, taken.state.assignee) == (job, Stage.ASSIGNED, "anna")
    assert Work.model_validate_json(taken.payload or "").n == 0
    assert people.take("anna", "work") == []
    assert [task.id for task in people.my_jobs("anna")] == [job]
    (ended,) = people.submit(job, "anna", {"answer": 42}, reason="looked it up")
    assert (ended.state.stage, ended.held) == (Stage.DONE, False)
    row = queue.job(job)
    assert (row.state, row.claimed_by, json.loads(row.result or ""), row.lease_no) == (
        "succeeded",
        "anna",
        {"answer": 42},
        0,
    )
    assert value(queue, "SELECT count(*) FROM {s}.human_task") == 0
    assert history(people, job) == [
        ("hand over", "boss", "too hard", {"review": False, "four_eyes": False}),
        ("take", "anna", None, {"assignee": "anna"}),
        ("submit", "anna", "looked it up", {"result": {"answer": 42}}),
    ]
    events = people.history(job)
    assert [event.no for event in events] == [1, 2, 3]
    now = value(queue, "SELECT now()")
    assert all(now - timedelta(minutes=1) < event.at <= now for event in events)


def test_the_next_task_is_the_longest_available(people: HumanWork) -> None:
    ids = handed_over(people, 5)
    people.reschedule(ids[0], LATER, by="boss")
    people.hold(ids[1], by="boss")
    assert [task.id for task in people.take("anna", "work", limit=2)] == ids[2:4]
    people.reschedule(ids[0], 0, by="boss")
    people.resume(ids[1], by="boss")
    # What was on hold has kept its place; what was delayed is offered since just now.
    assert [task.id for task in people.take("bert", "work", limit=9)] == [ids[1], ids[4], ids[0]]
    assert [task.id for task in people.my_jobs("bert")] == [ids[1], ids[4], ids[0]]


def test_assigning_and_unassigning(people: HumanWork) -> None:
    first, second = handed_over(people, 2)
    people.assign([first, second], "anna", by="boss", reason="she knows them")
    assert people.take("bert", "work") == []
    people.assign(first, "bert", by="boss")
    assert [task.id for task in people.my_jobs("anna", queue="work")] == [second]
    assert people.my_jobs("anna", queue="mail") == []
    people.unassign(second, by="anna", reason="on leave")
    assert [task.id for task in people.tasks("work")] == [second]
    assert [task.id for task in people.tasks("work", Stage.ASSIGNED)] == [first]
    assert [(action, actor) for action, actor, _, _ in history(people, second)] == [
        ("hand over", "boss"),
        ("assign", "boss"),
        ("unassign", "anna"),
    ]


def test_a_review(people: HumanWork, queue: SqlQueue) -> None:
    (job,) = handed_over(people, 1, review=True)
    people.take("anna", "work")
    (task,) = people.submit(job, "anna", {"answer": 41})
    assert (task.state.stage, task.state.done_by, task.held) == (Stage.IN_REVIEW, "anna", True)
    assert queue.job(job).state == "held"
    assert [found.id for found in people.tasks("work", "in_review")] == [job]
    people.reject(job, by="bert", reason="wrong")
    (task,) = people.my_jobs("anna")
    assert (task.state.stage, task.state.done_by, task.state.result) == (Stage.ASSIGNED, None, None)
    people.submit(job, "anna", {"answer": 43})
    people.reject(job, by="bert", reason="wrong again", reopen=True)
    assert people.my_jobs("anna") == []
    people.take("carl", "work")
    people.submit(job, "carl", {"answer": 42})
    people.approve(job, by="carl")
    row = queue.job(job)
    assert (row.state, row.claimed_by, json.loads(row.result or "")) == ("succeeded", "carl", {"answer": 42})


def test_each_of_many_keeps_its_own_result_and_person(people: HumanWork, queue: SqlQueue) -> None:
    ids = handed_over(people, 3, review=True)
    for name, job in zip(("anna", "bert", "carl"), ids, strict=True):
        people.assign(job, name, by="boss")
        people.submit(job, name, {"by": name})
    people.approve(ids, by="boss")
    assert [queue.job(job).claimed_by for job in ids] == ["anna", "bert", "carl"]
    assert [json.loads(queue.job(job).result or "") for job in ids] == [{"by": n} for n in ("anna", "bert", "carl")]


@pytest.mark.parametrize("review", [False, True])
def test_a_result_may_have_names_that_are_no_texts(people: HumanWork, queue: SqlQueue, review: bool) -> None:
    (job,) = handed_over(people, 1, review=review)
    people.take("anna", "work")
    people.submit(job, "anna", {7: "seats", "row": (1, 2), None: 3})  # type: ignore[dict-item]
    if review:
        people.approve(job, by="boss")
    assert json.loads(queue.job(job).result or "") == {"7": "seats", "row": [1, 2], "null": 3}


@pytest.mark.parametrize("name", ["anna", "Anna", "ANNA"])
def test_four_eyes(people: HumanWork, queue: SqlQueue, name: str) -> None:
    (job,) = handed_over(people, 1, four_eyes=True)
    assert people.task(job).state.review
    people.take("anna", "work")
    people.submit(job, "anna")
    before = everything(people)
    with pytest.raises(DecisionRefused, match=f"it needs four eyes, and '{name}' did it; somebody else has to approve"):
        people.approve(job, by=name)
    assert everything(people) == before
    people.approve(job, by="bert")
    assert queue.job(job).state == "succeeded"


def test_given_back_it_runs_by_itself(people: HumanWork, queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    (job,) = handed_over(people, 1)
    people.set_rule("work", automatic_percent=0)
    (task,) = people.give_back(job, by="anna", reason="a machine can")
    assert task.state.stage is Stage.GIVEN_BACK
    # No rule sends it to people again.
    assert people.route("work", by="router").changed == []
    assert people.is_automatic(queue.job(job))
    assert Consumer(queue, spec, lambda job: Done()).drain().succeeded == 1
    assert [action for action, _, _, _ in history(people, job)] == ["hand over", "give back"]


def test_what_a_handler_holds_is_adopted(people: HumanWork, queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    ids = enqueued(people, 3, priority=4)
    people.set_rule("work", review=True)

    def handler(job: Job[Work]) -> Hold | Done:
        return Hold(f"number {job.payload.n} is odd") if job.payload.n % 2 else Done()

    Consumer(queue, spec, handler).drain()
    assert people.adopt("work", by="clerk") == [ids[1]]
    assert people.adopt("work", by="clerk") == []
    assert history(people, ids[1]) == [("adopt", "clerk", "number 1 is odd", {"review": True, "four_eyes": False})]
    people.take("anna", "work")
    assert people.adopt("work", by="clerk") == []
    assert people.task(ids[1]).state.assignee == "anna"


def test_many_are_adopted(people: HumanWork, queue: SqlQueue) -> None:
    ids = enqueued(people, 2_500)
    queue.hold_queued("work", Selection(all=True), "look at it")
    assert len(people.adopt("work", by="clerk", limit=100)) == 100
    people.adopt("work", by="clerk")
    assert {row[0] for row in rows(queue, "SELECT job_id FROM {s}.human_task")} == set(ids)
    assert value(queue, "SELECT count(*) FROM {s}.job_event WHERE no = 1") == 2_500


@pytest.mark.parametrize("past", ["cancel", "release_held"])
def test_a_job_that_is_decided_about_past_its_task(people: HumanWork, queue: SqlQueue, past: str) -> None:
    kept, job, own = handed_over(people, 3)
    people.assign(own, "anna", by="boss")
    for id in (job, own):
        getattr(queue, past)("work", Selection(ids=[id]))
    assert people.my_jobs("anna") == []
    assert [task.id for task in people.tasks("work")] == [kept]
    assert not people.task(job).held
    before = everything(people)
    with pytest.raises(
        DecisionRefused, match="somebody decided about the job past its task, which is void; nothing was"
    ):
        people.submit(own, "anna")
    with pytest.raises(DecisionRefused, match="past its task"):
        people.assign([kept, job], "anna", by="boss")
    assert everything(people) == before
    assert [task.id for task in people.take("anna", "work", limit=5)] == [kept]
    assert people.adopt("work", by="clerk") == []
    assert history(people, job)[-1] == ("withdraw", "clerk", "its job is not held any more", {})
    assert value(queue, "SELECT count(*) FROM {s}.human_task") == 1


def test_a_second_time_with_people_goes_on_in_the_same_history(people: HumanWork, queue: SqlQueue) -> None:
    (job,) = handed_over(people, 1)
    people.take("anna", "work")
    queue.release_held("work", Selection(ids=[job]))
    # Nobody has ended the first task.
    people.hand_over("work", Selection(ids=[job]), by="boss", reason="again", four_eyes=True)
    task = people.task(job)
    assert (task.state.stage, task.state.assignee, task.state.four_eyes, task.state.revision) == (
        Stage.OPEN,
        None,
        True,
        3,
    )
    people.give_back(job, by="boss")
    people.hand_over("work", Selection(ids=[job]), by="boss", reason="and again")
    assert [event.no for event in people.history(job)] == [1, 2, 3, 4, 5]


def test_in_an_ordered_queue_the_key_waits_for_its_person(people: HumanWork, queue: SqlQueue) -> None:
    spec = QueueSpec("mail", Work, bucket_count=4, ordered=True)
    queue.create_queue(spec)
    first, second = enqueued(people, 2, "mail", ordering_key="k")
    people.hand_over("mail", Selection(ids=[first]), by="boss", reason="first")
    seen: list[UUID] = []
    consumer = Consumer(queue, spec, lambda job: seen.append(job.id))
    consumer.drain()
    assert seen == []
    people.take("anna", "mail")
    people.submit(first, "anna")
    consumer.drain()
    assert seen == [second]


def test_a_decision_names_what_was_looked_at(people: HumanWork) -> None:
    (job,) = handed_over(people, 1)
    seen = people.task(job).state.revision
    people.assign(job, "anna", by="boss", revision=seen)
    before = everything(people)
    with pytest.raises(
        DecisionRefused, match="it is at revision 2, and this was decided at 1; read it again; nothing was"
    ):
        people.assign(job, "bert", by="chief", revision=seen)
    with pytest.raises(DecisionRefused, match="at revision 2"):
        people.submit(job, "anna", revision=seen)
    assert everything(people) == before


@pytest.mark.parametrize("revised", [False, True])
def test_of_two_who_approve_at_once_one_does(people: HumanWork, queue: SqlQueue, revised: bool) -> None:
    ids = handed_over(people, 20, review=True)
    people.take("anna", "work", limit=20)
    people.submit(ids, "anna")
    together = threading.Barrier(2)

    def approve(job: UUID, name: str) -> bool:
        together.wait(PATIENCE)
        try:
            people.approve(job, by=name, revision=3 if revised else None)
        except DecisionRefused:
            return False
        return True

    with ThreadPoolExecutor(2) as pool:
        for job in ids:
            assert sorted(pool.map(approve, [job, job], ["bert", "carl"])) == [False, True]
    assert value(queue, "SELECT count(*) FROM {s}.job_event WHERE action = 'approve'") == 20
    assert value(queue, "SELECT count(*) FROM {s}.job_archive") == 20


@pytest.mark.parametrize("other", ["approve", "reject"])
def test_a_decision_waits_for_the_one_before_it(people: HumanWork, queue: SqlQueue, other: str) -> None:
    """The first has read and not yet decided, when the second is through."""
    (job,) = handed_over(people, 1, review=True)
    people.take("anna", "work")
    people.submit(job, "anna", {"answer": 41})
    seen = people._transitions.tasks([job])
    if other == "approve":
        people.approve(job, by="bert")
    else:
        people.reject(job, by="bert", reason="no")
        people.submit(job, "anna", {"answer": 42})
    before = everything(people)
    late = HumanWork(queue)
    late._transitions.tasks = lambda *_: seen  # type: ignore[method-assign]
    with pytest.raises(DecisionRefused):
        late.approve(job, by="carl")
    assert everything(people) == before


def test_a_task_as_it_is(people: HumanWork) -> None:
    (job,) = handed_over(people, 1)
    task = people.task(str(job))
    assert isinstance(task, Task)
    assert (task.id, task.queue, task.held) == (job, "work", True)
    with pytest.raises(UnknownJob):
        people.task(uuid7())
    assert NewJob(Work(n=1)).id is None
