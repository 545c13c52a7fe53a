"""Processes that submit what others submit too, those that fill groups, and the judgement over who was notified of what."""

import json
import random
import threading
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
from uuid_utils.compat import uuid7

from dagster_sqlqueue import NewJob, QueueSpec, SqlQueue
from dagster_sqlqueue.errors import GroupClosed
from dagster_sqlqueue.followers import Callback, Followers, Submitted
from tests.faults.task import PLANTS as PLANTS_OF_ALL
from tests.faults.task import History, Task, plant, wait_for
from tests.gate.plugin import verdict
from tests.support import Work, on_sigterm

PLANTS = {
    "a follower who does not lock": (
        "follow",
        "AS kept (id)\n)",
        "AS kept (id) WHERE false UNION SELECT j.id FROM {job} AS j WHERE j.id = ANY (CAST(%(job_ids)b AS uuid[]))"
        " OFFSET (SELECT 0 FROM pg_sleep(0.02))\n), marked AS (UPDATE {job} AS j SET followed = true"
        " WHERE j.id = ANY (ARRAY(SELECT live.id FROM live)) AND NOT j.followed)",
    ),
    "a merge that does not lock": (
        "merge_lock",
        "AS live (id)",
        "AS live (id) WHERE false UNION SELECT j.id FROM {job} AS j WHERE j.id = ANY (CAST(%(ids)b AS uuid[]))",
    ),
    "a job that is not always marked": (
        "follow",
        "true) AS kept (id)\n)",
        "false) AS kept (id)\n), marked AS (UPDATE {job} AS j SET followed = true"
        " WHERE j.id = ANY (ARRAY(SELECT live.id FROM live)) AND hashtext(j.id::text) %% 9 <> 0)",
    ),
    "a follower who is not noted again": (
        "merge_note",
        "SELECT merged.id, merged.job_id",
        "SELECT gen_random_uuid(), merged.id",
    ),
}
"""Bugs by name, as those of `task`."""

PLANTS_OF_ALL.update(PLANTS)

THREADS = 4
WORK = QueueSpec("work", Work)


@dataclass(frozen=True)
class Submit:
    """Four submitters in one process: each sends one job for each of `task.jobs` keys, in an order of its own.

    Attributes:
        heir_of: the history of a process that was killed, whose submitters go on here: they send what is in doubt again,
            and the last that was answered.
    """

    heir_of: Path | None = None

    def __call__(self, task: Task) -> None:
        for name in task.plant.split(" and ") if task.plant else ():
            plant(name)
        history = History(task.history)
        with SqlQueue(task.url, schema=task.schema, pool_size=THREADS) as queue:
            threads = [threading.Thread(target=self._submit, args=(task, queue, history, n)) for n in range(THREADS)]
            history.note("ready")
            if task.go:
                wait_for(task.go)
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            history.note("done")

    def _submit(self, task: Task, queue: SqlQueue, history: History, number: int) -> None:
        luck = random.Random(task.seed * THREADS + number)
        followers = Followers(queue)
        keys = list(range(task.jobs))
        luck.shuffle(keys)
        before = events(self.heir_of, number=number)
        # Also the last that were answered: as if the answers had been lost, too.
        last = [note["jobs"] for note in before if note["event"] == "sending"][-6:]
        for again in last:
            _send(followers, history, number, again)
        if self.heir_of:
            begun = {key for note in before if note["event"] == "sending" for _, key in note["jobs"]}
            keys = [key for key in keys if f"k{key}" not in begun]
        while keys:
            size = luck.choice([1, task.batch_size // 4, task.batch_size])
            chunk, keys = keys[:size], keys[size:]
            jobs = [(str(uuid7()), f"k{key}") for key in chunk]
            history.note("sending", of=number, jobs=jobs)
            _send(followers, history, number, jobs)


def _send(followers: Followers, history: History, number: int, jobs: Sequence[tuple[str, str]]) -> None:
    """Send jobs, each with a callback; after a deadlock, once more."""
    new = [NewJob(Work(n=int(key[1:])), id=UUID(id), unique_key=key) for id, key in jobs]
    while True:
        became: list[tuple[str, str]] = []

        def note(sent: Submitted) -> None:
            became.append((str(sent.id), str(sent.job_id)))  # noqa: B023

        try:
            if len(new) == 1:
                note(followers.enqueue(WORK, new[0], callbacks=Callback("ended")))
            else:
                followers.enqueue_many(WORK, new, callbacks=Callback("ended"), on_submitted=note)
        except psycopg.errors.DeadlockDetected as error:
            history.note("deadlock", why=str(error))
            continue
        history.note("sent", of=number, jobs=became)
        return


def events(history: Path | None, event: str | None = None, number: int | None = None) -> list[dict[str, Any]]:
    """The events of a history, without a line that was cut off by a kill."""
    text = history.read_text() if history and history.exists() else ""
    found = [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
    return [one for one in found if event in (None, one["event"]) and number in (None, one.get("of"))]


def left_in_doubt(history: Iterable[Mapping[str, Any]], number: int | None = None) -> list[list[tuple[str, str]]]:
    """What was being sent by a process, or by one of its submitters, when it was killed: ids and keys."""
    sent = {id for note in history if note["event"] == "sent" for id, _ in note["jobs"]}
    return [
        [(id, key) for id, key in note["jobs"]]
        for note in history
        if note["event"] == "sending" and number in (None, note["of"]) and note["jobs"][0][0] not in sent
    ]


@dataclass(frozen=True)
class Fill:
    """Fills the groups with jobs, in transactions that it commits or rolls back, until SIGTERM.

    Attributes:
        groups: the ids.
    """

    groups: Sequence[UUID]

    def __call__(self, task: Task) -> None:
        ended = threading.Event()
        on_sigterm(ended.set)
        history = History(task.history)
        luck = random.Random(task.seed)
        with SqlQueue(task.url, schema=task.schema) as queue:
            followers = Followers(queue)
            history.note("ready")
            while not ended.wait(luck.uniform(0, 0.01)):
                group = luck.choice(self.groups)
                jobs = [NewJob(Work(n=luck.randint(0, 1_000)), id=uuid7()) for _ in range(luck.choice([1, 5, 40]))]
                commits = luck.random() < 0.8
                filling = {"group": str(group), "ids": [str(job.id) for job in jobs]}
                history.note("filling", **filling)
                try:
                    with queue.database.connection() as connection, connection.transaction(force_rollback=not commits):
                        followers.enqueue_many(WORK, jobs, group=group, connection=connection)
                except GroupClosed:
                    history.note("late", **filling)
                    continue
                history.note("filled" if commits else "undone", **filling)


@verdict
def judge_groups(
    histories: Sequence[Sequence[Mapping[str, Any]]],
    called: Iterable[Mapping[str, Any]],
    ended: Mapping[str, str],
    groups: Iterable[UUID],
) -> list[str]:
    """What is wrong with groups that are closed and whose jobs have ended; nothing, if each had one callback, of all
    that was committed to it, as it ended.

    Args:
        histories: of those who filled them.
        called: the payloads of the callbacks.
        ended: the states of the jobs that ended.
        groups: all of them.
    """
    wrong: list[str] = []
    notes = [note for history in histories for note in history]
    members: dict[str, set[str]] = {str(group): set() for group in groups}
    for note in notes:
        there = {id for id in note.get("ids", ()) if id in ended}
        match note["event"]:
            case "filling":
                members[note["group"]] |= there
                if there and len(there) < len(note["ids"]):
                    wrong.append(f"of the jobs {note['ids'][0]} and others, sent at once, some were enqueued")
            case "filled" if len(there) < len(note["ids"]):
                wrong.append(f"of the jobs {note['ids'][0]} and others, {len(note['ids']) - len(there)} never ended")
            case "undone" | "late" if there:
                wrong.append(f"{len(there)} jobs were undone or too late, and ended")
    callbacks = Counter(call["group_id"] for call in called)
    wrong += [f"group {group} was notified {callbacks[group]} times" for group in members if callbacks[group] != 1]
    for call in called:
        states = Counter(ended[id] for id in members[call["group_id"]])
        said = {state: call[state] for state in ("succeeded", "failed", "cancelled")}
        if call["members"] != states.total() or any(states[state] != count for state, count in said.items()):
            wrong.append(f"group {call['group_id']} was notified of {said}, and its jobs ended as {dict(states)}")
    return wrong


@verdict
def judge(
    histories: Sequence[Sequence[Mapping[str, Any]]],
    called: Iterable[tuple[str, str, str]],
    ended: Iterable[tuple[str, str]],
    *,
    once: bool,
) -> list[str]:
    """What is wrong with a race; nothing, if each submitter who had an answer was notified of the end of its job, once, and
    a submitter without one once or never.

    Args:
        histories: of the submitters, and of the consumers.
        called: the callbacks: the id under which the job was sent, the job, its key.
        ended: the jobs that ended, with their keys.
        once: whether each key was run once only.
    """
    wrong: list[str] = []
    notes = [note for history in histories for note in history]
    keys = {id: key for note in notes if note["event"] == "sending" for id, key in note["jobs"]}
    answered = {id: job for note in notes if note["event"] == "sent" for id, job in note["jobs"]}
    callbacks: defaultdict[str, list[tuple[str, str]]] = defaultdict(list)
    for id, job, key in called:
        callbacks[id].append((job, key))
    ends = list(ended)
    key_of = dict(ends)
    wrong += [f"job {job} ended {count} times" for job, count in Counter(job for job, _ in ends).items() if count > 1]
    for id, key in keys.items():
        got = callbacks.pop(id, [])
        if id in answered and len(got) != 1:
            wrong.append(f"{id} was answered, and notified {len(got)} times")
        elif len(got) > 1:
            wrong.append(f"{id} was notified {len(got)} times")
        for job, their_key in got:
            if answered.get(id, job) != job or their_key != key or key_of.get(job) != key:
                wrong.append(f"{id} of {key} was notified of {job} of {their_key}, and had joined {answered.get(id)}")
        if not got and id in answered and answered[id] not in key_of:
            wrong.append(f"job {answered[id]} of {id} never ended")
    wrong += [f"nobody had sent {id}, and it was notified" for id in callbacks]
    for history in histories:
        for chunk in left_in_doubt(history):
            doubtful = {id in answered or any(one[0] == id for one in called) for id, _ in chunk}
            if len(doubtful) > 1:
                wrong.append(f"of the jobs {chunk[0][0]} to {chunk[-1][0]}, sent at once, some were enqueued")
    if once:
        runs = Counter(key for _, key in ends)
        wrong += [f"{key} was run {count} times" for key, count in runs.items() if count > 1]
        handled = Counter(note["id"] for note in notes if note["event"] == "handled")
        wrong += [f"job {job} was handled {handled[job]} times" for job in key_of if handled[job] != 1]
    return wrong
