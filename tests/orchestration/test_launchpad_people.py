"""Launchpad jobs about the tasks of people."""

from typing import Annotated, Any
from uuid import UUID, uuid4

import pytest
from pydantic import BaseModel

from dagster_sqlqueue import QueueSpec, Sensitive, SqlQueue
from dagster_sqlqueue.people import HumanWork, Stage
from dagster_sqlqueue.queue.selection import Selection
from tests.orchestration.launchpad_support import Launchpad, everything
from tests.people.support import handed_over
from tests.support import Work


@pytest.fixture
def people(queue: SqlQueue) -> HumanWork:
    return HumanWork(queue)


def in_review(people: HumanWork, count: int, **settings: Any) -> list[UUID]:
    """Tasks that Anna did and that wait for somebody to approve them."""
    ids = handed_over(people, count, review=True, **settings)
    people.assign(ids, "anna", by="boss")
    people.submit(ids, "anna", {"paid": "forty"})
    return ids


def test_tasks_are_found_looked_at_and_approved(queue: SqlQueue, people: HumanWork, launchpad: Launchpad) -> None:
    ids = in_review(people, 3)
    before = everything(queue)
    there = launchpad("approve", queue="work", by="bert")
    assert there.value == {"queue": "work", "changed": False, "tasks_would_be_changed": 3, "tasks_would_be_refused": 0}
    assert there.said == "queue work: 3 tasks could be approved by bert. Nothing was changed: this was a dry run"
    assert all(str(id) in there.metadata["tasks"] for id in ids)
    assert everything(queue) == before
    done = launchpad("approve", queue="work", by="bert", ids=[str(id) for id in ids[:2]], dry_run=False)
    assert done.said == "queue work: 2 tasks were approved by bert"
    assert done.observed is not None
    assert done.metadata["tasks_changed"] == 2
    assert [queue.job(id).state for id in ids] == ["succeeded", "succeeded", "held"]
    story = launchpad("show", id=str(ids[0]))
    assert "| bert | approve |" in story.metadata["what_people_did"]
    assert "not shown" in story.metadata["what_people_did"]
    assert "forty" not in story.metadata["what_people_did"]


def test_four_eyes_are_two_people(people: HumanWork, queue: SqlQueue, launchpad: Launchpad) -> None:
    (id,) = in_review(people, 1, four_eyes=True)
    before = everything(queue)
    dry = launchpad("approve", queue="work", by="Anna", ids=[str(id)])
    assert dry.value["tasks_would_be_refused"] == 1
    assert "it needs four eyes, and 'Anna' did it" in dry.metadata["tasks"]
    refused = launchpad.refused("approve", queue="work", by="Anna", ids=[str(id)], dry_run=False)
    assert "it needs four eyes, and 'Anna' did it" in refused
    assert everything(queue) == before


def test_reject_and_assign(people: HumanWork, launchpad: Launchpad) -> None:
    first, second = in_review(people, 2)
    launchpad("reject", queue="work", by="bert", ids=[str(first)], reason="the sum is wrong", dry_run=False)
    assert people.task(first).state.stage is Stage.ASSIGNED
    back = launchpad(
        "reject", queue="work", by="bert", ids=[str(second)], reason="once more", reopen=True, dry_run=False
    )
    assert "| open |" in back.metadata["tasks"]
    dry = launchpad("assign", queue="work", by="boss", to="carl", ids=[str(first), str(second)])
    assert dry.value["tasks_would_be_changed"] == 2
    done = launchpad("assign", queue="work", by="boss", to="carl", ids=[str(first), str(second)], dry_run=False)
    assert done.said == "queue work: 2 tasks were assigned to carl by boss"
    assert {task.id for task in people.my_jobs("carl")} == {first, second}
    assert "it is assigned to 'carl' already" in launchpad.refused(
        "assign", queue="work", by="boss", to="carl", ids=[str(first)], dry_run=False
    )


def test_what_is_wrong_is_said_and_nothing_is_changed(queue: SqlQueue, people: HumanWork, launchpad: Launchpad) -> None:
    queue.create_queue(QueueSpec("other", Work))
    first, second = in_review(people, 2)
    (automatic,) = [job for job in [queue.enqueue(QueueSpec("work", Work), Work(n=9))] if job]
    before = everything(queue)

    def refused(message: str, verb: str = "approve", **config: Any) -> None:
        config = {"queue": "work", "by": "bert", "ids": [str(first)], "dry_run": False, **config}
        assert message in launchpad.refused(verb, **config)
        assert everything(queue) == before

    refused("ids is empty: name the jobs", ids=[])
    refused("by is ' '", by=" ")
    refused("'x' is no job id", ids=["x"])
    unknown = str(uuid4())
    refused(f"there is no job {unknown}", ids=[str(first), unknown])
    refused("people have no task of it", ids=[str(first), str(automatic)])
    refused(f"job {first} is of queue 'work', not of 'other'", queue="other")
    refused("there is no queue 'mails'", queue="mails")
    refused("there is no queue 'mails'", queue="mails", ids=[], dry_run=True)
    refused("it is at revision 3, and this was decided at 2", revision=2)
    refused("ids names 101 jobs; one run decides 100", ids=[str(uuid4()) for _ in range(101)])
    refused("the reason is ' '", verb="reject", reason=" ")
    refused("to is ''", verb="assign", to="")
    refused("assign is for tasks that are open or assigned", verb="assign", to="carl")
    assert launchpad("approve", queue="work", by="bert", ids=[str(second)], revision=3, dry_run=False).value["changed"]


class Claim(BaseModel):
    holder: str
    account: Annotated[str, Sensitive()]


def test_payloads_are_shown_when_asked_for_and_secrets_never(
    queue: SqlQueue, people: HumanWork, launchpad: Launchpad
) -> None:
    claims = QueueSpec("claims", Claim)
    queue.create_queue(claims)
    job = queue.enqueue(claims, Claim(holder="Anna", account="DE02120300000000202051"))
    assert job is not None
    people.hand_over("claims", Selection(ids=[job]), by="boss", reason="too hard")
    for show in (True, False):
        done = launchpad("assign", queue="claims", by="boss", to="bert", show_payloads=show)
        assert "DE02" not in str(done.metadata)
        assert ("Anna" in str(done.metadata)) is show
