"""Processes that know the SQL functions and nothing of the library: they enqueue, claim, end and decide by
plain SQL."""

import json
import random
import threading
from collections.abc import Callable
from typing import Any

import psycopg
from psycopg import sql

from dagster_sqlqueue.model.outcome import Cancel, Done, Hold, Reject, Retry, Snooze
from dagster_sqlqueue.schema.functions import pinned_schema
from tests.faults.task import History, Task, die, wait_for
from tests.faults.worker import OUTCOMES
from tests.support import on_sigterm


class Speaker:
    """A connection, the functions' schema, and a bad heart."""

    def __init__(self, task: Task, history: History) -> None:
        self.connection = psycopg.connect(task.url, autocommit=True)
        self._names = {"v1": sql.Identifier(pinned_schema(task.schema)), "s": sql.Identifier(task.schema)}
        self._history = history
        self._dies, self._after = task.dies or (None, 0)
        self._luck = random.Random(task.seed)

    def call(self, verb: str, query: str, *parameters: object) -> list[tuple[Any, ...]]:
        """The rows of a call; the process may die in its middle."""
        if verb == self._dies:
            self._after -= 1
            if self._after == 0:
                self._history.note("dies", verb=verb)
                threading.Thread(target=die, args=(self._luck.uniform(0, 0.004),), daemon=True).start()
        text = sql.SQL(query).format(**self._names)  # type: ignore[arg-type]
        return self.connection.execute(text, parameters or None).fetchall()


def consume_by_sql(task: Task) -> None:
    """Claim, heed the outcome and say it, until SIGTERM."""
    history = History(task.history)
    luck = random.Random(task.seed)
    ended = threading.Event()
    on_sigterm(ended.set)
    speaker = Speaker(task, history)
    history.note("ready")
    if task.go:
        wait_for(task.go)
    while not ended.is_set():
        jobs = speaker.call(
            "claim",
            "SELECT CAST(job_id AS text), lease_no, CAST(payload ->> 'n' AS int)"
            " FROM {v1}.claim('work', 'sql', %s, %s)",
            task.batch_size,
            task.lease_seconds,
        )
        if not jobs:
            ended.wait(0.01)
            continue
        history.note("claimed", jobs=[job[:2] for job in jobs])
        if not task.outcomes:
            ended.wait(task.pause)
            _complete_all(speaker, history, jobs)
            continue
        for job, lease, n in jobs:
            ended.wait(task.pause)
            speaker.call("heartbeat", "SELECT {v1}.heartbeat(%s, %s, %s, 'report')", job, lease, task.lease_seconds)
            verb, query, said = _SAYING[type(OUTCOMES[task.outcomes](n, luck))]
            ((state,),) = speaker.call(verb, f"SELECT {{v1}}.{query}", job, lease, *said(luck))
            if state in ("succeeded", "failed", "cancelled"):
                history.note("ended", jobs=[(job, lease)])


_SAYING: dict[type, tuple[str, str, Callable[[random.Random], tuple[object, ...]]]] = {
    Done: ("finish", "complete(%s, %s, on_stale => 'report')", lambda luck: ()),
    Retry: ("requeue", "fail(%s, %s, 'again', %s, 'report')", lambda luck: (luck.uniform(0, 0.03),)),
    Snooze: ("requeue", "snooze(%s, %s, %s, on_stale => 'report')", lambda luck: (luck.uniform(0, 0.03),)),
    Hold: ("hold", "hold(%s, %s, 'look', 'report')", lambda luck: ()),
    Reject: ("finish", "reject(%s, %s, 'poisoned', 'report')", lambda luck: ()),
    Cancel: ("finish", "accept_cancel(%s, %s, 'not now', 'report')", lambda luck: ()),
}
"""By outcome: the verb at which a process may die, its call, and what is said beside the job and its lease."""


def _complete_all(speaker: Speaker, history: History, jobs: list[tuple[Any, ...]]) -> None:
    leases = {job: lease for job, lease, _ in jobs}
    ((accepted,),) = speaker.call(
        "finish",
        "SELECT {v1}.complete_many(%s::uuid[], %s::bigint[], on_stale => 'report')::text[]",
        list(leases),
        list(leases.values()),
    )
    history.note("ended", jobs=[(job, leases[job]) for job in accepted])


def operate_by_sql(task: Task) -> None:
    """Decide about random jobs, a few at a time, until SIGTERM; what was held is let go."""
    history = History(task.history)
    luck = random.Random(task.seed)
    ended = threading.Event()
    on_sigterm(ended.set)
    speaker = Speaker(task, history)
    history.note("ready")
    any_jobs = "ARRAY(SELECT id FROM {s}.job ORDER BY random() LIMIT 5)"
    decisions = [
        f"cancel('work', {any_jobs}, 'an operator')",
        f"hold_queued('work', {any_jobs}, 'an operator')",
        f"reschedule('work', {any_jobs}, 0.01)",
        f"reprioritise('work', {any_jobs}, 5)",
    ]
    let_go = "release_held('work', ARRAY(SELECT id FROM {s}.job WHERE state = 'held'))"
    while not ended.wait(0.002):
        for decision in (luck.choice(decisions), let_go):
            try:
                speaker.call("decide", f"SELECT job_id, outcome FROM {{v1}}.{decision}")
            except psycopg.Error as error:
                # With nothing to decide about, the list is empty.
                if error.sqlstate != "SQ003":
                    raise


def produce_by_sql(task: Task) -> None:
    """Enqueue one batch after the other, every fifth of them in a transaction that is rolled back."""
    history = History(task.history)
    luck = random.Random(task.seed)
    speaker = Speaker(task, history)
    history.note("ready")
    for first in range(0, task.jobs, task.batch_size):
        numbers = range(first, min(first + task.batch_size, task.jobs))
        payloads = [json.dumps({"n": n}) for n in numbers]
        keys = [f"{task.prefix}{n % task.keys}" for n in numbers] if task.keys else None
        query = "SELECT {v1}.enqueue_many('work', %s::jsonb[], ordering_keys => %s)"
        if first // task.batch_size % 5 == 4:
            with speaker.connection.transaction(force_rollback=True):
                ((undone,),) = speaker.call("enqueue", query, payloads, keys)
            history.note("rolled back", ids=[str(job) for job in undone])
        with speaker.connection.transaction():
            ((made,),) = speaker.call("enqueue", query, payloads, keys)
            threading.Event().wait(luck.uniform(0, task.hesitate))
        history.note("enqueued", ids=[str(job) for job in made])
