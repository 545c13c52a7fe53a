"""People who are killed while they take, do and approve: a task is one person's, and is decided about once."""

import random
from collections import Counter
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from dagster_sqlqueue.people import Action, HumanWork, JobEvent, Stage, TaskState
from dagster_sqlqueue.queue.selection import EVERYTHING
from tests.faults.conftest import WORKED_OFF, Fleet
from tests.faults.crew import PLANTS, judge, left_behind, review, work
from tests.gate.patience import FULL, sized
from tests.support import rows, until
from tests.support.few import few

OF_TAKING = ("a take that does not lock", "a take that is not always noted")
WORKERS = ("anna", "bert", "carl", "dora")
REVIEWERS = ("rosa", "saul", "tina")


def run(fleet: Fleet, *, jobs: int, kills: int, plant: str | None = None) -> list[str]:
    """People who work until nothing is left, while they are killed and come back under their names; what went wrong."""
    fleet.enqueue(jobs)
    ids: list[UUID] = [row[0] for row in rows(fleet.queue, "SELECT id FROM {s}.job")]
    done = HumanWork(fleet.queue).hand_over("work", EVERYTHING, by="boss", reason="hard", four_eyes=True)
    assert len(done.changed) == jobs
    luck = random.Random(kills)

    def born(name: str, seed: int) -> Path:
        return fleet.start(work if name in WORKERS else review, prefix=name, seed=seed, plant=plant)

    alive = {name: born(name, number) for number, name in enumerate((*WORKERS, *REVIEWERS))}
    fleet.ready(list(alive.values()))

    def over() -> bool:
        """Nothing is left to do, or what a bug has left behind does not change any more."""
        return fleet.live() == 0

    for number in range(kills):
        name = luck.choice([*WORKERS, *REVIEWERS])
        before = len(fleet.read(alive[name]))
        target = before + luck.randint(1, 10)
        until(lambda: over() or len(fleet.read(alive[name])) >= target)  # noqa: B023
        fleet.kill(alive[name])
        alive[name] = born(name, 100 + number)
        fleet.ready([alive[name]])
    # A bug in what is taken leaves some for ever.
    until(
        lambda: over() or (plant in OF_TAKING and len(fleet.all("taken")) > 100), "the end of the last job", WORKED_OFF
    )
    fleet.dismiss(list(alive.values()))
    notes = [note for history in fleet.processes for note in fleet.read(history)]
    wrong = judge(ids, notes, *left_behind(fleet.queue))
    if plant is None:
        counted = Counter(note["event"] for note in notes)
        fleet.note(seed=kills, **counted)
        # The luck went everywhere; and where so many approve, some are beaten.
        common = ["taken", "submitted", "approved", "rejected"] + ["beaten"] * FULL
        assert min(counted[event] for event in common) > 5, counted
    return wrong


def test_a_task_is_one_persons_whoever_is_killed(fleet: Fleet) -> None:
    assert run(fleet, jobs=sized(100, 600), kills=sized(6, 25)) == []


def take_at_once(fleet: Fleet, plant: str) -> list[str]:
    """Two who take at one moment; what went wrong."""
    fleet.enqueue(5)
    ids: list[UUID] = [row[0] for row in rows(fleet.queue, "SELECT id FROM {s}.job")]
    HumanWork(fleet.queue).hand_over("work", EVERYTHING, by="boss", reason="hard")
    with fleet.in_the_way(of=2, table="human_task"):
        both = [fleet.start(work, prefix=name, seed=1, plant=plant) for name in WORKERS[:2]]
    until(lambda: all(fleet.read(history, "taken") for history in both), "what each has taken")
    fleet.dismiss(both)
    notes = [note for history in fleet.processes for note in fleet.read(history)]
    return judge(ids, notes, *left_behind(fleet.queue))


@pytest.mark.parametrize("name", few(list(PLANTS), 1))
def test_the_judgement_finds(fleet: Fleet, name: str) -> None:
    """A bug that is put into the statements is seen."""
    if name == "a take that does not lock":
        assert take_at_once(fleet, name) != []
    else:
        assert run(fleet, jobs=sized(100, 600), kills=0, plant=name) != []


JOB = uuid4()
OPENED = JobEvent(JOB, 1, "work", None, "boss", Action.HAND_OVER, "hard", {"review": False, "four_eyes": False})  # type: ignore[arg-type]
TAKEN = JobEvent(JOB, 2, "work", None, "anna", Action.TAKE, None, {"assignee": "anna"})  # type: ignore[arg-type]
DONE = JobEvent(JOB, 3, "work", None, "anna", Action.SUBMIT, None, {"result": {"by": "anna"}})  # type: ignore[arg-type]
STATE = TaskState(Stage.ASSIGNED, False, False, False, None, 2, "anna")  # type: ignore[arg-type]
NOTES = [{"event": "taken", "name": "anna", "ids": [str(JOB)]}]
ENDED = [(JOB, "succeeded", "anna", {"by": "anna"})]


def test_a_good_run_passes() -> None:
    assert judge([JOB], NOTES, {JOB: [OPENED, TAKEN]}, {JOB: STATE}, [], {JOB}) == []
    assert judge([JOB], NOTES, {JOB: [OPENED, TAKEN, DONE]}, {}, ENDED, set()) == []


def test_a_bad_run_is_found() -> None:
    history = {JOB: [OPENED, TAKEN, DONE]}
    approved = {"event": "approved", "id": str(JOB), "revision": 3}
    other = {"event": "taken", "name": "bert", "ids": [str(JOB)]}
    for notes, events, tasks, ended, held, why in (
        (NOTES, history, {}, [], set(), "ended 0 times"),
        (NOTES, history, {}, ENDED * 2, set(), "ended 2 times"),
        (NOTES, history, {JOB: STATE}, ENDED, set(), "is done, and ended"),
        (NOTES, history, {}, [(JOB, "succeeded", "bert", {"by": "bert"})], set(), "not as"),
        ([*NOTES, other], history, {}, ENDED, set(), "was given to"),
        ([*NOTES, approved, approved], history, {}, ENDED, set(), "two decided about"),
        (NOTES, {JOB: [OPENED, DONE]}, {}, ENDED, set(), "comes where event 2 is due"),
        (NOTES, {}, {}, [], set(), "has no history"),
        (NOTES, {JOB: [OPENED, TAKEN]}, {}, [], {JOB}, "the table says None"),
        (NOTES, {JOB: [OPENED, TAKEN]}, {JOB: STATE}, [], set(), "the job is not there"),
        ([{"event": "refused", "name": "anna", "why": "no"}], history, {}, ENDED, set(), "could not do"),
    ):
        assert any(why in found for found in judge([JOB], notes, events, tasks, ended, held)), why
