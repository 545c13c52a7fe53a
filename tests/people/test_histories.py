"""Random histories through the verbs: each replays to what the tables say, and to what a model of its own expects."""

import json
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from dagster_sqlqueue import SqlQueue
from dagster_sqlqueue.errors import DecisionRefused, InvalidInput
from dagster_sqlqueue.people import Action, HumanWork, JobEvent, Stage, TaskState, replay
from dagster_sqlqueue.people.model import event_of, task_of
from dagster_sqlqueue.queue.selection import Selection
from tests.people.support import enqueued
from tests.support import rows

ROUNDS = 12
PEOPLE = ("anna", "bert", "carl")
FIRST = datetime(2090, 1, 1, tzinfo=UTC)


@dataclass
class Expected:
    """What ought to be so of one job, in words of its own."""

    where: str = "line"
    """line, open, hers, review, done"""
    whose: str = ""
    worker: str = ""
    result: int | None = None
    reviewed: bool = False
    two: bool = False
    set_aside: bool = False
    due: datetime | None = None
    steps: int = 0


def choices(luck: random.Random, job: Expected) -> tuple[Any, ...]:
    """A step that fits, with what it is given."""
    person, other = luck.sample(PEOPLE, 2)
    if job.where == "line":
        return ("deliver_grants", luck.choice([(False, False), (True, False), (None, True)]))
    if job.where == "review":
        checker = luck.choice([name for name in PEOPLE if not job.two or name != job.worker])
        return luck.choice([("approve", checker), ("reject", person, False), ("reject", person, True)])
    may: list[tuple[Any, ...]] = [("reschedule", luck.randrange(5)), ("resume" if job.set_aside else "hold", person)]
    if luck.random() < 0.15:
        may = [("give_back", person)]
    if job.where == "open":
        return luck.choice([*may, ("assign", person), ("assign", other)])
    may += [("unassign", person), ("assign", luck.choice([name for name in PEOPLE if name != job.whose]))]
    if not job.set_aside:
        may += [("submit", job.whose, luck.randrange(3), job.reviewed)] * 2
    return luck.choice(may)


def apply(job: Expected, step: tuple[Any, ...]) -> None:
    job.steps += 1
    match step:
        case ("deliver_grants", (review, two)):
            job.where, job.whose, job.worker, job.result = "open", "", "", None
            job.reviewed, job.two, job.set_aside, job.due = bool(review or two), two, False, None
        case ("assign", name):
            job.where, job.whose = "hers", name
        case ("unassign", _):
            job.where, job.whose = "open", ""
        case ("hold", _):
            job.set_aside = True
        case ("resume", _):
            job.set_aside = False
        case ("reschedule", days):
            job.due = FIRST + timedelta(days=days)
        case ("submit", name, result, _):
            job.where, job.worker, job.result = "review" if job.reviewed else "done", name, result
        case ("approve", _):
            job.where = "done"
        case ("reject", _, reopen):
            job.where, job.worker, job.result = ("open" if reopen else "hers"), "", None
            job.whose = "" if reopen else job.whose
        case ("give_back", _):
            job.where = "line"
        case _:
            raise AssertionError(step)


def do(people: HumanWork, ids: list[UUID], step: tuple[Any, ...]) -> None:
    match step:
        case ("deliver_grants", (review, two)):
            chosen = Selection(ids=ids)
            done = people.hand_over("work", chosen, by="boss", reason="hard", review=review, four_eyes=two)
            assert len(done.changed) == len(ids)
        case ("assign", name):
            people.assign(ids, name, by="boss")
        case ("reschedule", days):
            people.reschedule(ids, FIRST + timedelta(days=days), by="boss")
        case ("submit", name, result, _):
            people.submit(ids, name, result)
        case ("reject", name, reopen):
            people.reject(ids, by=name, reason="no", reopen=reopen)
        case (verb, name):
            getattr(people, verb)(ids, by=name)


@pytest.mark.parametrize("count", [1_000, pytest.param(10_000, marks=pytest.mark.prove)])
def test_random_histories_replay_to_what_is_so(people: HumanWork, queue: SqlQueue, count: int) -> None:
    luck = random.Random(4)
    jobs = {id: Expected() for id in enqueued(people, count)}
    for _ in range(ROUNDS):
        together: defaultdict[tuple[Any, ...], list[UUID]] = defaultdict(list)
        for id, job in jobs.items():
            if job.where != "done":
                step = choices(luck, job)
                together[step].append(id)
                apply(job, step)
        for step, ids in together.items():
            for at in range(0, len(ids), 1_000):
                do(people, ids[at : at + 1_000], step)

    histories: defaultdict[UUID, list[JobEvent]] = defaultdict(list)
    columns = "job_id, no, queue, at, actor, action, reason, CAST(details AS text)"
    for row in rows(queue, f"SELECT {columns} FROM {{s}}.job_event ORDER BY job_id, no"):
        histories[row[0]].append(event_of(row))
    assert set(histories) == set(jobs)
    tasks = {
        task.id: task.state
        for at in range(0, count, 1_000)
        for task in map(task_of, queue.database.run("tasks_by_id", {"ids": list(jobs)[at : at + 1_000]}))
    }
    states: dict[UUID, str] = dict(rows(queue, "SELECT id, state FROM {s}.job"))  # type: ignore[arg-type]
    ended = {row[0]: row[1:] for row in rows(queue, "SELECT id, state, claimed_by, result FROM {s}.job_archive")}
    for id, job in jobs.items():
        state = replay(histories[id])
        assert state is not None
        assert (state.revision, len(histories[id])) == (job.steps, job.steps)
        if job.where == "done":
            assert state.stage is Stage.DONE
            assert ended[id] == ("succeeded", state.done_by, json.loads(state.result or "null"))
            assert ended[id][1:] == (job.worker, job.result)
            assert id not in tasks
            assert id not in states
        elif job.where == "line":
            assert state.stage is Stage.GIVEN_BACK
            assert id not in tasks
            assert states[id] == "queued"
        else:
            assert state == tasks[id]
            assert states[id] == "held"
            assert state.stage == {"open": "open", "hers": "assigned", "review": "in_review"}[job.where]
            assert (state.assignee or "", state.done_by or "") == (job.whose, job.worker)
            assert (state.review, state.four_eyes, state.on_hold) == (job.reviewed, job.two, job.set_aside)
            assert state.result == (None if job.result is None else str(job.result))
            opened = next(e for e in reversed(histories[id]) if e.action is Action.HAND_OVER)
            assert state.available_at == (job.due or opened.at)
    # The luck went everywhere.
    assert min(Counter(job.where for job in jobs.values()).values()) > count / 100
    seen = Counter(event.action for history in histories.values() for event in history)
    assert set(seen) == set(Action) - {Action.ADOPT, Action.TAKE, Action.WITHDRAW}
    assert len({tuple(event.action for event in history) for history in histories.values()}) > count / 2


JOB = uuid4()
BEGUN = JobEvent(JOB, 1, "work", FIRST, "boss", Action.HAND_OVER, "hard", {"review": True, "four_eyes": False})
TAKEN = JobEvent(JOB, 2, "work", FIRST, "anna", Action.TAKE, None, {"assignee": "anna"})
DONE = JobEvent(JOB, 3, "work", FIRST, "anna", Action.SUBMIT, None, {"result": 7})


def test_a_history_replays_step_by_step() -> None:
    assert replay([]) is None
    opened = TaskState(Stage.OPEN, True, False, False, FIRST, 1)
    assert replay([BEGUN]) == opened
    assert replay([BEGUN, TAKEN]) == TaskState(Stage.ASSIGNED, True, False, False, FIRST, 2, "anna")
    assert replay([BEGUN, TAKEN, DONE]) == TaskState(Stage.IN_REVIEW, True, False, False, FIRST, 3, "anna", "anna", "7")
    gone = JobEvent(JOB, 4, "work", FIRST, "clerk", Action.WITHDRAW)
    found = replay([BEGUN, TAKEN, DONE, gone])
    assert found is not None
    assert found.stage is Stage.WITHDRAWN


NO_HISTORY: dict[str, tuple[Callable[[], Sequence[JobEvent]], str]] = {
    "its beginning is missing": (lambda: [TAKEN, DONE], "event 2 of job .* comes where event 1 is due"),
    "one is missing": (lambda: [BEGUN, DONE], "event 3 of job .* comes where event 2 is due"),
    "one comes twice": (lambda: [BEGUN, BEGUN], "event 1 of job .* comes where event 2 is due"),
    "nobody had it": (
        lambda: [BEGUN, JobEvent(JOB, 2, "work", FIRST, "anna", Action.APPROVE)],
        "event 2 of job .* is approve, which does not follow on open",
    ),
    "it begins in the middle": (
        lambda: [JobEvent(JOB, 1, "work", FIRST, "anna", Action.APPROVE)],
        "is approve, which does not follow on no task yet",
    ),
}


@pytest.mark.parametrize("name", list(NO_HISTORY))
def test_what_is_no_history_is_refused(name: str) -> None:
    events, why = NO_HISTORY[name]
    with pytest.raises(InvalidInput, match=why):
        replay(events())


def test_a_refused_step_is_in_no_history(people: HumanWork) -> None:
    (job,) = enqueued(people, 1)
    people.hand_over("work", Selection(ids=[job]), by="boss", reason="hard")
    with pytest.raises(DecisionRefused):
        people.approve(job, by="boss")
    assert [event.action for event in people.history(job)] == [Action.HAND_OVER]
