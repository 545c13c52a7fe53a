"""What people may not do with a task, and what is no name, reason or rule: refused, and nothing is changed."""

from collections.abc import Callable
from datetime import datetime, timedelta
from uuid import UUID

import pytest
from uuid_utils.compat import uuid7

from dagster_sqlqueue import SqlQueue
from dagster_sqlqueue.errors import DecisionRefused, InvalidInput, UnknownJob, UnknownQueue
from dagster_sqlqueue.people import HumanWork, Stage
from dagster_sqlqueue.queue.selection import Selection
from tests.people.support import enqueued, everything, handed_over

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
    "reschedule what is in review": (
        lambda p, ids: p.reschedule(ids[2], 5, by="boss"),
        "it is in review, and reschedule is",
    ),
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
    "a reason that cannot be kept": (lambda p, job: p.hold(job, by="b", reason="a\x00"), InvalidInput, "NUL character"),
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
    "no zone": (lambda p, job: p.reschedule(job, datetime(2030, 1, 1), by="b"), InvalidInput, "with a time zone"),
    "a time that has gone": (lambda p, job: p.reschedule(job, -1, by="b"), InvalidInput, "until is -1"),
    "no number": (lambda p, job: p.reschedule(job, float("nan"), by="b"), InvalidInput, "until is nan"),
    "no time to come": (lambda p, job: p.reschedule(job, -timedelta(1), by="b"), InvalidInput, "give a datetime with"),
    "a result": (lambda p, job: p.submit(job, "anna", {"a": float("nan")}), InvalidInput, "cannot be written as JSON"),
    "a result with NUL": (lambda p, job: p.submit(job, "anna", "\x00"), InvalidInput, "the result cannot be stored"),
    "a truth value": (lambda p, job: p.hold(job, by="b", revision=True), InvalidInput, "revision is True"),
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
