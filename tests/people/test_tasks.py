"""Tasks from their opening to their end: who may do what, when, and what stays of it."""

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from uuid_utils.compat import uuid7

from dagster_sqlqueue import Consumer, Done, Hold, Job, NewJob, QueueSpec, SqlQueue
from dagster_sqlqueue.errors import DecisionRefused, InvalidInput, UnknownJob, UnknownQueue
from dagster_sqlqueue.people import HumanWork, Stage, Task
from dagster_sqlqueue.selection import Selection
from tests.core.support import Work, rows, value
from tests.people.support import enqueued, everything, handed_over

LATER = datetime(2100, 1, 1, tzinfo=UTC)


def told(people: HumanWork, job: UUID) -> list[tuple[str, str, str | None, Any]]:
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
    assert told(people, job) == [
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
    people.delay(ids[0], LATER, by="boss")
    people.hold(ids[1], by="boss")
    assert [task.id for task in people.take("anna", "work", limit=2)] == ids[2:4]
    people.delay(ids[0], 0, by="boss")
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
    assert [(action, actor) for action, actor, _, _ in told(people, second)] == [
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
    assert [action for action, _, _, _ in told(people, job)] == ["hand over", "give back"]


def test_what_a_handler_holds_is_adopted(people: HumanWork, queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    ids = enqueued(people, 3, priority=4)
    people.set_rule("work", review=True)

    def handler(job: Job[Work]) -> Hold | Done:
        return Hold(f"number {job.payload.n} is odd") if job.payload.n % 2 else Done()

    Consumer(queue, spec, handler).drain()
    assert people.adopt("work", by="clerk") == [ids[1]]
    assert people.adopt("work", by="clerk") == []
    assert told(people, ids[1]) == [("adopt", "clerk", "number 1 is odd", {"review": True, "four_eyes": False})]
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
    assert told(people, job)[-1] == ("withdraw", "clerk", "its job is not held any more", {})
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
        DecisionRefused, match="it is at revision 2, and this was decided at 1; look again; nothing was"
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
        together.wait(30)
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
    seen = people._found([job])
    if other == "approve":
        people.approve(job, by="bert")
    else:
        people.reject(job, by="bert", reason="no")
        people.submit(job, "anna", {"answer": 42})
    before = everything(people)
    late = HumanWork(queue)
    late._found = lambda *_: seen  # type: ignore[method-assign]
    with pytest.raises(DecisionRefused):
        late.approve(job, by="carl")
    assert everything(people) == before


REFUSED: dict[str, tuple[Callable[[HumanWork, list[UUID]], object], str]] = {
    "submit what is open": (
        lambda p, ids: p.submit(ids[0], "anna"),
        "it is open, and submit is for tasks that are assigned",
    ),
    "submit somebody else's": (lambda p, ids: p.submit(ids[1], "bert"), "it is assigned to 'anna', not to 'bert'"),
    "submit what is on hold": (lambda p, ids: p.submit(ids[3], "anna"), "it is on hold; resume it first"),
    "assign it again": (lambda p, ids: p.assign(ids[1], "anna", by="boss"), "it is assigned to 'anna' already"),
    "assign what is in review": (
        lambda p, ids: p.assign(ids[2], "bert", by="boss"),
        "it is in review, and assign is for",
    ),
    "unassign what is open": (lambda p, ids: p.unassign(ids[0], by="boss"), "it is open, and unassign is for"),
    "approve what is not done": (
        lambda p, ids: p.approve(ids[1], by="boss"),
        "it is assigned to 'anna', and approve is",
    ),
    "reject what is not done": (
        lambda p, ids: p.reject(ids[0], by="boss", reason="no"),
        "it is open, and reject is for",
    ),
    "hold it twice": (lambda p, ids: p.hold(ids[3], by="boss"), "it is on hold already"),
    "resume what goes on": (lambda p, ids: p.resume(ids[0], by="boss"), "it is not on hold"),
    "delay what is in review": (lambda p, ids: p.delay(ids[2], 5, by="boss"), "it is in review, and delay is for"),
    "give back what is in review": (lambda p, ids: p.give_back(ids[2], by="boss"), "it is in review, and give back is"),
    "one of several": (lambda p, ids: p.unassign(ids[1:3], by="boss"), "it is in review, and unassign is for"),
    "what runs by itself": (
        lambda p, ids: p.assign(ids[4], "anna", by="boss"),
        "people have no task of it: it is queued",
    ),
    "what ended": (lambda p, ids: p.approve(ids[5], by="boss"), "people have no task of it: it ended as succeeded"),
}


@pytest.mark.parametrize("name", list(REFUSED))
def test_what_does_not_fit_the_task_is_refused(people: HumanWork, name: str) -> None:
    ids = handed_over(people, 4, review=True)
    people.assign(ids[1:], "anna", by="boss")
    people.submit(ids[2], "anna", {"answer": 42})
    people.hold(ids[3], by="boss")
    ids += enqueued(people, 1)
    (ended,) = handed_over(people, 1)
    people.assign(ended, "anna", by="boss")
    people.submit(ended, "anna")
    before = everything(people)
    verb, why = REFUSED[name]
    with pytest.raises(DecisionRefused) as caught:
        verb(people, [*ids, ended])
    assert why in str(caught.value)
    assert str(caught.value).endswith("; nothing was changed") or "hand it over" in str(caught.value)
    assert everything(people) == before


def _unknown() -> UUID:
    found: UUID = uuid7()
    return found


BAD: dict[str, tuple[Callable[[HumanWork, UUID], object], type[Exception], str]] = {
    "no name": (lambda p, job: p.assign(job, "", by="boss"), InvalidInput, "operator is ''; give the name of a person"),
    "a name of spaces": (lambda p, job: p.assign(job, "anna", by="  "), InvalidInput, "by is '  '; give the name"),
    "spaces around it": (lambda p, job: p.take(" anna", "work"), InvalidInput, "operator is ' anna'"),
    "a name that steers a terminal": (
        lambda p, job: p.my_jobs("a\x1b[2J"),
        InvalidInput,
        "1 to 200 printable characters",
    ),
    "no text": (lambda p, job: p.unassign(job, by=None), InvalidInput, "by is None"),  # type: ignore[arg-type]
    "a long name": (lambda p, job: p.my_jobs("a" * 201), InvalidInput, "1 to 200 printable"),
    "no reason": (lambda p, job: p.reject(job, by="boss", reason=" "), InvalidInput, "the reason is ' '; give a text"),
    "a reason that cannot be kept": (lambda p, job: p.hold(job, by="b", reason="\x00"), InvalidInput, "NUL character"),
    "a long reason": (lambda p, job: p.hold(job, by="b", reason="x" * 10_001), InvalidInput, "the limit is 10,000"),
    "no id": (lambda p, job: p.assign("7", "anna", by="boss"), InvalidInput, "'7' is no job id"),
    "no jobs": (lambda p, job: p.assign([], "anna", by="boss"), InvalidInput, "0 jobs are named"),
    "too many": (
        lambda p, job: p.hold([_unknown() for _ in range(1_001)], by="b"),
        InvalidInput,
        "1,001 jobs are named",
    ),
    "two queues": (
        lambda p, job: p.hold([job, *handed_over(p, 1, "mail")], by="b"),
        InvalidInput,
        "the jobs are of the queues mail, work",
    ),
    "a job that is not there": (lambda p, job: p.assign(_unknown(), "anna", by="boss"), UnknownJob, "there is no job"),
    "one of two": (lambda p, job: p.assign([job, _unknown()], "anna", by="boss"), UnknownJob, "there is no job"),
    "its history": (lambda p, job: p.history(_unknown()), UnknownJob, "there is no job"),
    "a queue that is not there": (lambda p, job: p.take("anna", "nosuch"), UnknownQueue, "there is no queue 'nosuch'"),
    "its tasks": (lambda p, job: p.tasks("nosuch"), UnknownQueue, "there is no queue"),
    "its people": (lambda p, job: p.my_jobs("anna", queue="nosuch"), UnknownQueue, "there is no queue"),
    "its held jobs": (lambda p, job: p.adopt("nosuch", by="clerk"), UnknownQueue, "there is no queue"),
    "its rule": (lambda p, job: p.rule("nosuch"), UnknownQueue, "there is no queue"),
    "a rule for it": (lambda p, job: p.set_rule("nosuch"), UnknownQueue, "there is no queue"),
    "a queue's name": (lambda p, job: p.take("anna", "No Queue"), InvalidInput, "queue name 'No Queue' is not usable"),
    "a stage": (
        lambda p, job: p.tasks("work", "done"),
        InvalidInput,
        "stage is 'done'; it must be one of open, assigned",
    ),
    "a limit": (lambda p, job: p.take("anna", "work", limit=0), InvalidInput, "limit is 0; it must be"),
    "a large limit": (lambda p, job: p.take("anna", "work", limit=1_001), InvalidInput, "a whole number of 1 to 1,000"),
    "no zone": (lambda p, job: p.delay(job, datetime(2030, 1, 1), by="b"), InvalidInput, "with a time zone"),
    "a time that has gone": (lambda p, job: p.delay(job, -1, by="b"), InvalidInput, "until is -1"),
    "no number": (lambda p, job: p.delay(job, float("nan"), by="b"), InvalidInput, "until is nan"),
    "a result": (lambda p, job: p.submit(job, "anna", {"a": float("nan")}), InvalidInput, "cannot be written as JSON"),
    "a result with NUL": (lambda p, job: p.submit(job, "anna", "\x00"), InvalidInput, "the result cannot be stored"),
    "a revision": (lambda p, job: p.hold(job, by="b", revision="1"), InvalidInput, "revision is '1'"),  # type: ignore[arg-type]
    "a percentage": (
        lambda p, job: p.set_rule("work", automatic_percent=101),
        InvalidInput,
        "automatic_percent is 101",
    ),
    "less than nothing": (
        lambda p, job: p.set_rule("work", automatic_percent=-1),
        InvalidInput,
        "a number from 0 to 100",
    ),
    "no percentage": (lambda p, job: p.set_rule("work", automatic_percent=float("nan")), InvalidInput, "is nan"),
    "yes": (lambda p, job: p.set_rule("work", automatic_percent=True), InvalidInput, "automatic_percent is True"),
    "always everything": (
        lambda p, job: p.set_rule("work", always_people={}),
        InvalidInput,
        "which every payload contains",
    ),
    "always a list": (lambda p, job: p.set_rule("work", always_people="[1]"), InvalidInput, "is not a JSON object"),
    "a flag": (lambda p, job: p.set_rule("work", review=1), InvalidInput, "review is 1; it must be"),  # type: ignore[arg-type]
    "eyes without a review": (
        lambda p, job: p.hand_over("work", Selection(all=True), by="b", reason="r", review=False, four_eyes=True),
        InvalidInput,
        "four eyes need a review",
    ),
    "handed over by nobody": (
        lambda p, job: p.hand_over("work", Selection(all=True), by="", reason="r"),
        InvalidInput,
        "by is ''",
    ),
    "handed over for nothing": (
        lambda p, job: p.hand_over("work", Selection(all=True), by="b", reason=""),
        InvalidInput,
        "the reason is ''",
    ),
    "no job": (lambda p, job: p.is_automatic(job), InvalidInput, "job is a UUID; give the Job"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", list(BAD))
def test_bad_input_is_refused(people: HumanWork, name: str) -> None:
    (job,) = handed_over(people, 1)
    if name == "two queues":
        handed_over(people, 1, "mail")
    enqueued(people, 1)
    before = everything(people)
    verb, error, why = BAD[name]
    with pytest.raises(error) as caught:
        verb(people, job)
    assert why in str(caught.value)
    after = everything(people)
    if name != "two queues":
        assert after == before


def test_reviewed_and_unreviewed_work_is_not_submitted_together(people: HumanWork) -> None:
    (plain,), (reviewed,) = handed_over(people, 1), handed_over(people, 1, review=True)
    people.take("anna", "work", limit=2)
    before = everything(people)
    with pytest.raises(InvalidInput, match="decide about them apart; nothing was changed"):
        people.submit([plain, reviewed], "anna")
    assert everything(people) == before


def test_a_job_that_somebody_else_has_locked_is_left_as_it_is(people: HumanWork, queue: SqlQueue) -> None:
    first, second = handed_over(people, 2)
    people.take("anna", "work", limit=2)
    before = everything(people)
    with queue.database.transaction() as other:
        other.run("lock_live", {"queue": "work", "ids": [second]})
        with pytest.raises(DecisionRefused, match="somebody else is"):
            people.submit([first, second], "anna")
        assert everything(people) == before
    assert [task.state.stage for task in people.submit([first, second], "anna")] == [Stage.DONE, Stage.DONE]


def test_a_task_as_it_is(people: HumanWork) -> None:
    (job,) = handed_over(people, 1)
    task = people.task(str(job))
    assert isinstance(task, Task)
    assert (task.id, task.queue, task.held) == (job, "work", True)
    with pytest.raises(UnknownJob):
        people.task(_unknown())
    assert NewJob(Work(n=1)).id is None
