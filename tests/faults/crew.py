"""Processes of people who take tasks, do them and approve them, and the judgement over what became of each."""

import json
import random
import threading
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any
from uuid import UUID

import psycopg

from dagster_sqlqueue import SqlQueue
from dagster_sqlqueue.errors import DecisionRefused, InvalidInput
from dagster_sqlqueue.people import Action, HumanWork, JobEvent, Stage, TaskState, replay
from dagster_sqlqueue.people.model import event_of, task_of
from tests.faults.task import PLANTS as PLANTS_OF_ALL
from tests.faults.task import History, Task, plant
from tests.gate.plugin import verdict
from tests.support import on_sigterm, rows

PLANTS = {
    "a take that does not lock": (
        "task_take",
        "FOR UPDATE OF t SKIP LOCKED",
        "",
    ),
    "a take that is not always noted": (
        "task_take",
        "FROM taken AS t\n)",
        "FROM taken AS t WHERE hashtext(t.job_id::text) %% 5 <> 0\n)",
    ),
    "an end that does not reach the archive": (
        "complete_held",
        "FROM completed\n",
        "FROM completed WHERE hashtext(id::text) %% 10 <> 0\n",
    ),
}
"""Bugs by name, as those of `task`."""

PLANTS_OF_ALL.update(PLANTS)


def _stopping() -> threading.Event:
    ended = threading.Event()
    on_sigterm(ended.set)
    return ended


def work(task: Task) -> None:
    """Take tasks and submit them under the name `prefix`, those first that it had when it was killed, until SIGTERM."""
    ended = _stopping()
    if task.plant:
        plant(task.plant)
    history = History(task.history)
    luck = random.Random(task.seed)
    name = task.prefix
    with SqlQueue(task.url, schema=task.schema) as queue:
        people = HumanWork(queue)
        history.note("ready")
        left = [found.id for found in people.my_jobs(name) if found.state.stage is Stage.ASSIGNED]
        while not ended.is_set():
            try:
                mine = left or [found.id for found in people.take(name, "work", limit=luck.randint(1, 5))]
            except psycopg.Error as error:
                history.note("refused", name=name, why=str(error))
                continue
            left = []
            history.note("taken", name=name, ids=[str(id) for id in mine])
            ended.wait(luck.uniform(0, 0.01))
            for id in mine:
                try:
                    people.submit(id, name, {"by": name})
                except DecisionRefused as error:
                    history.note("refused", name=name, id=str(id), why=str(error))
                    continue
                history.note("submitted", name=name, id=str(id))


def review(task: Task) -> None:
    """Approve whatever waits for it, and reject a little of it, under the name `prefix`, until SIGTERM."""
    ended = _stopping()
    if task.plant:
        plant(task.plant)
    history = History(task.history)
    luck = random.Random(task.seed)
    with SqlQueue(task.url, schema=task.schema) as queue:
        people = HumanWork(queue)
        history.note("ready")
        while not ended.wait(0.002):
            for found in people.tasks("work", Stage.IN_REVIEW, limit=10):
                reject = luck.random() < 0.1
                given: dict[str, Any] = {"by": task.prefix, "revision": found.state.revision}
                try:
                    if reject:
                        people.reject(found.id, **given, reason="again", reopen=True)
                    else:
                        people.approve(found.id, **given)
                except DecisionRefused:
                    history.note("beaten", id=str(found.id))
                    continue
                history.note("rejected" if reject else "approved", id=str(found.id), revision=found.state.revision)


@verdict
def judge(
    jobs: Iterable[UUID],
    notes: Sequence[Mapping[str, Any]],
    events: Mapping[UUID, Sequence[JobEvent]],
    tasks: Mapping[UUID, TaskState],
    ended: Sequence[tuple[UUID, str, str, Any]],
    held: Set[UUID],
) -> list[str]:
    """What is wrong with a run; nothing, if nobody took what was somebody else's, each decision was taken once, and each
    history comes to what the tables say.

    Args:
        jobs: all of them.
        notes: what the processes were answered.
        events, tasks: by job.
        ended: of the archive: id, state, who did it, and the result.
        held: the live jobs that are.
    """
    wrong: list[str] = []
    ends = Counter(id for id, _, _, _ in ended)
    by_id = {id: (state, worker, result) for id, state, worker, result in ended}
    decided: defaultdict[tuple[str, int], int] = defaultdict(int)
    for note in notes:
        if note["event"] in ("approved", "rejected"):
            decided[note["id"], note["revision"]] += 1
        elif note["event"] == "refused":
            wrong.append(f"{note['name']} could not do what nobody else can: {note['why']}")
    wrong += [f"two decided about job {id} at revision {no}" for (id, no), count in decided.items() if count > 1]
    answered: defaultdict[str, set[str]] = defaultdict(set)
    for note in notes:
        if note["event"] == "taken":
            for id in note["ids"]:
                answered[id].add(note["name"])
    for id in jobs:
        try:
            state = replay(events.get(id, ()))
        except InvalidInput as error:
            wrong.append(str(error))
            continue
        takers = Counter(event.actor for event in events.get(id, ()) if event.action is Action.TAKE)
        if state is None:
            wrong.append(f"job {id} has no history")
        elif state.stage is Stage.DONE:
            expected = ("succeeded", state.done_by, {"by": state.done_by})
            if ends[id] != 1 or by_id[id] != expected or id in tasks:
                wrong.append(f"job {id} is done, and ended {ends[id]} times as {by_id.get(id)}, not as {expected}")
        elif tasks.get(id) != state or ends[id] or id not in held:
            where = "held" if id in held else "not there"
            wrong.append(f"job {id} is {state}, and the table says {tasks.get(id)}; the job is {where}")
        if answered[str(id)] - set(takers):
            wrong.append(f"job {id} was given to {answered[str(id)]}, and its history says {dict(takers)}")
    return wrong


def left_behind(
    queue: SqlQueue,
) -> tuple[dict[UUID, list[JobEvent]], dict[UUID, TaskState], list[tuple[UUID, str, str, Any]], set[UUID]]:
    """The events and the tasks by job, what ended, and what is held."""
    events: defaultdict[UUID, list[JobEvent]] = defaultdict(list)
    columns = "job_id, no, queue, at, actor, action, reason, CAST(details AS text)"
    for row in rows(queue, f"SELECT {columns} FROM {{s}}.job_event ORDER BY job_id, no"):
        events[row[0]].append(event_of(row))
    ids = [row[0] for row in rows(queue, "SELECT job_id FROM {s}.human_task")]
    tasks = {found.id: found.state for found in map(task_of, queue.database.run("tasks_by_id", {"ids": ids}))}
    ended = [
        (id, state, worker, json.loads(result))
        for id, state, worker, result in rows(
            queue, "SELECT id, state, claimed_by, CAST(result AS text) FROM {s}.job_archive"
        )
    ]
    held = {row[0] for row in rows(queue, "SELECT id FROM {s}.job WHERE state = 'held'")}
    return dict(events), tasks, ended, held
