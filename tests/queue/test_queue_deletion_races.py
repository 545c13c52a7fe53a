"""A queue is deleted and made again, over and over, while jobs are put on it in every way: none is without its queue."""

import random
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql
from uuid_utils.compat import uuid7

from dagster_sqlqueue import Consumer, Done, NewJob, QueueSpec, SqlQueue
from dagster_sqlqueue.errors import QueueInUse, UnknownQueue
from dagster_sqlqueue.followers import Callback, Followers
from dagster_sqlqueue.queue import queue_admin
from dagster_sqlqueue.queue.selection import Selection
from dagster_sqlqueue.schedules import Schedules
from dagster_sqlqueue.schema.functions import pinned_schema
from dagster_sqlqueue.topics import Topics
from tests.gate.patience import PATIENCE, sized
from tests.support import Work, rows, until

TRIES = sized(25, 1_000)
DOOMED = QueueSpec("doomed", Work, bucket_count=2)
GONE = (UnknownQueue, psycopg.errors.ForeignKeyViolation)
"""What a producer is answered whose queue is not there, or goes."""

ROW = (
    "INSERT INTO {s}.job (id, queue, bucket, priority, available_at, run_at, max_attempts, payload)"
    " SELECT gen_random_uuid(), 'doomed', 0, 0, now(), now(), 1, '{{\"n\": 1}}' FROM generate_series(1, 3)"
)
DELETED = """
    SELECT FROM {s}.queue WHERE name = 'doomed' FOR UPDATE;
    DELETE FROM {s}.job WHERE queue = 'doomed';
    DELETE FROM {s}.follower WHERE queue = 'doomed';
    DELETE FROM {s}.bucket WHERE queue = 'doomed';
    DELETE FROM {s}.queue WHERE name = 'doomed'
"""


def _call(name: str, *arguments: str) -> Callable[[SqlQueue], object]:
    def call(queue: SqlQueue) -> object:
        return rows(queue, f"SELECT {pinned_schema(queue.database.schema)}.{name}({', '.join(arguments)})")

    return call


def _staged(queue: SqlQueue) -> object:
    attempt, write = uuid4(), uuid4()
    rows(queue, "INSERT INTO {s}.staged_attempt (attempt, write_id) VALUES (%s, %s)", attempt, write)
    rows(
        queue,
        "INSERT INTO {s}.staged_job (attempt, row_no, id, named, hash, priority, unique_until_claim, tags, payload)"
        " SELECT %s, n, gen_random_uuid(), false, n, 0, false, '{{}}', '{{}}' FROM generate_series(1, 5) AS n",
        attempt,
    )
    return rows(queue, "SELECT {s}.enqueue_staged(%s, 'doomed', NULL, NULL, ARRAY[%s], 5)", write, attempt)


def _redriven(queue: SqlQueue) -> object:
    id = uuid7()
    rows(
        queue,
        "INSERT INTO {s}.job_archive (id, queue, bucket, priority, state, lease_no, attempt, max_attempts, run_at,"
        " created_at, started_at, finished_at, region, tags, payload)"
        " VALUES (%s, 'doomed', 0, 0, 'failed', 1, 1, 1, now(), now(), now(), now(), 'local', '{{}}', '{{}}')",
        id,
    )
    return queue.redrive("doomed", Selection(ids=[id]))


def _called_back(queue: SqlQueue) -> object:
    """The end of a job of another queue puts one on this."""
    spec = QueueSpec("work", Work)
    id = queue.enqueue(spec, Work(n=1))
    assert id
    Followers(queue).follow(id, Callback("doomed"))
    return Consumer(queue, spec, lambda job: Done()).drain()


def _ticked(queue: SqlQueue) -> object:
    Schedules(queue).put(DOOMED, "s", Work(n=1), every=3_600, catch_up="one")
    rows(queue, "UPDATE {s}.schedule SET next_tick = next_tick - interval '1 day'")
    return Schedules(queue).tick()


def _published(queue: SqlQueue) -> object:
    Topics(queue).subscribe("topic", "name", "doomed")
    return Topics(queue).publish_many("topic", [{"n": n} for n in range(5)])


WAYS: dict[str, Callable[[SqlQueue], object]] = {
    "one": lambda queue: queue.enqueue(DOOMED, Work(n=1)),
    "one, by an id": lambda queue: queue.enqueue(DOOMED, NewJob(Work(n=1), id=uuid7())),
    "arrays": lambda queue: queue.enqueue_many(DOOMED, [NewJob(Work(n=n), unique_key=f"{n}") for n in range(20)]),
    "COPY": lambda queue: queue.enqueue_many(DOOMED, [Work(n=n) for n in range(300)]),
    "replacing": lambda queue: queue.enqueue_many(
        DOOMED, [NewJob(Work(n=n), unique_key=f"{n}") for n in range(20)], on_conflict="replace"
    ),
    "merging": lambda queue: Followers(queue).enqueue(DOOMED, NewJob(Work(n=1), unique_key="m")),
    "later": lambda queue: queue.enqueue_many(DOOMED, [NewJob(Work(n=1), ordering_key="k")] * 3),
    "rows of one's own": lambda queue: rows(queue, ROW),
    "SQL, one": _call("enqueue", "'doomed'", "'{{\"n\": 1}}'"),
    "SQL, many": _call("enqueue_many", "'doomed'", "CAST(ARRAY['{{}}', '{{}}'] AS jsonb[])"),
    "Spark": _staged,
    "redrive": _redriven,
    "callback": _called_back,
    "schedule": _ticked,
    "topic": _published,
}


def _lost(queue: SqlQueue) -> list[tuple[Any, ...]]:
    return rows(queue, "SELECT id, queue FROM {s}.job_without_queue")


@pytest.mark.parametrize("way", WAYS)
def test_no_job_without_its_queue(queue: SqlQueue, way: str) -> None:
    """And nobody waits in a circle: that would be an error of its own."""
    put = WAYS[way]
    answers: Counter[str] = Counter()
    deleted, enough = threading.Event(), threading.Event()

    def produce() -> None:
        for _ in range(TRIES):
            try:
                put(queue)
                answers["put"] += 1
            except GONE:
                answers["gone"] += 1
            except psycopg.Error as error:
                if error.sqlstate != "SQ002":
                    raise
                answers["gone"] += 1

    def delete() -> None:
        while not enough.is_set():
            queue.create_queue(DOOMED)
            # Each by itself: who makes a subscription has the queue first, who makes a schedule has it last.
            rows(queue, "DELETE FROM {s}.subscription")
            rows(queue, "DELETE FROM {s}.schedule")
            try:
                with queue.database.connection() as connection, connection.transaction():
                    connection.execute(sql.SQL(DELETED).format(s=sql.Identifier(queue.database.schema)))
                deleted.set()
            except psycopg.errors.ForeignKeyViolation as error:
                # A subscription or a schedule was made meanwhile: no job keeps a queue whose row is locked.
                if error.diag.table_name not in ("subscription", "schedule"):
                    raise
            assert _lost(queue) == []

    with ThreadPoolExecutor(3) as pool:
        deleting = pool.submit(delete)
        producing: list[Future[None]] = [pool.submit(produce) for _ in range(2)]
        try:
            for done in producing:
                done.result(PATIENCE * 10)
            # On a busy machine a subscription or a schedule may have been in the way each time.
            until(lambda: deleted.is_set() or deleting.done(), "a deletion")
        finally:
            enough.set()
        deleting.result(PATIENCE)
    assert deleted.is_set()
    assert _lost(queue) == []
    assert sum(answers.values()) == 2 * TRIES


def test_reply_queues_that_go_while_jobs_come(queue: SqlQueue) -> None:
    """As maintenance removes them: it steps over those on which somebody is putting jobs."""
    rows(queue, "DELETE FROM {s}.queue WHERE name = 'doomed'")
    enough = threading.Event()
    made = QueueSpec("doomed", Work, bucket_count=1)
    removed = 0

    def produce() -> None:
        while not enough.is_set():
            for put in ("one", "COPY", "arrays", "rows of one's own"):
                try:
                    WAYS[put](queue)
                except GONE:
                    continue

    with ThreadPoolExecutor(2) as pool:
        producing = [pool.submit(produce) for _ in range(2)]
        try:
            for _ in range(TRIES):
                queue.database.run(
                    "reply_queue_put", {"queue": "doomed", "seconds": timedelta(hours=1).total_seconds()}
                )
                queue.create_queue(made)
                removed += bool(queue.database.run("reply_queue_remove", {"queue": "doomed", "expired": False})[0][0])
                assert _lost(queue) == []
        finally:
            enough.set()
        for done in producing:
            done.result(PATIENCE)
    assert removed > 0
    assert _lost(queue) == []


def test_queues_that_are_deleted_by_the_verb_while_jobs_come(queue: SqlQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes only between the jobs, and nobody waits in a circle."""
    monkeypatch.setattr(queue_admin, "_LATE_SECONDS", 0.02)
    enough = threading.Event()
    answers: Counter[str] = Counter()

    def produce() -> None:
        while not enough.is_set():
            for put in ("one", "COPY", "arrays", "rows of one's own"):
                try:
                    WAYS[put](queue)
                    answers["put"] += 1
                except GONE:
                    answers["gone"] += 1
                enough.wait(random.uniform(0, 0.05))

    with ThreadPoolExecutor(1) as pool:
        producing = pool.submit(produce)
        try:
            while answers["deleted"] < TRIES and not producing.done():
                queue.create_queue(DOOMED)
                queue.delete("doomed", Selection(all=True), states=["queued"])
                try:
                    queue.delete_queue("doomed")
                    answers["deleted"] += 1
                except QueueInUse:
                    answers["refused"] += 1
                assert _lost(queue) == []
        finally:
            enough.set()
        producing.result(PATIENCE)
    assert answers["put"] > 0
