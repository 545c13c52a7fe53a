"""The five published queue designs as their articles describe them, traps included, in PostgreSQL's SQL.

They are the control of the crowd tests: a crowd that does not find the double claims of these would prove nothing about
code without any. Each keeps its own table; one job counts as taken whenever a consumer begins it.

- Fan-out view (Pachot, for YugabyteDB): a view that starts at a random id and wraps around, locked as a whole.
- Bucketed merge view (Thangamani, for YugabyteDB): the first of the buckets' heads, locked through the view.
- Hash-sharded round robin (Goodman, for CockroachDB): its reaper judges by the time for which a job was planned.
- Manager and worker: compare-and-set on the time of the last update, at the resolution of a second, as `DATETIME` has it.
- Marking with a token (the MySQL message-queue series): a random number of 24 bits for each claim.
"""

import itertools
import random
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import psycopg

from tests.gate.patience import PATIENCE

CONSUMERS = 16
JOBS = 400
Connection: TypeAlias = "psycopg.Connection[Any]"
Begin: TypeAlias = Callable[[object], None]
Consume: TypeAlias = Callable[[Connection, Begin], None]

WORK = "SELECT pg_sleep(0.003)"
"""What a job takes, inside the transaction, as the articles' own examples have it."""


@dataclass(frozen=True)
class Published:
    """A form to run.

    Attributes:
        setup: makes the table, in the schema that is on the search path.
        fill: puts the jobs there, when every consumer is ready.
        consume: takes jobs until there are none, telling each that it begins.
        beside: runs beside the consumers until there are no jobs.
        consumers: how many of them at a time.
    """

    setup: str
    fill: str
    consume: Consume
    beside: Consume | None = None
    consumers: int = CONSUMERS


def taken(url: str, schema: str, form: Published) -> Counter[object]:
    """Run the form; returns how often each job was begun."""
    begun: Counter[object] = Counter()
    lock = threading.Lock()
    failures: list[BaseException] = []

    def begin(job: object) -> None:
        with lock:
            begun[job] += 1

    def run(consume: Consume) -> None:
        try:
            with psycopg.connect(url, autocommit=True, options=f"-c search_path={schema}") as connection:
                together.wait(PATIENCE)
                consume(connection, begin)
        except BaseException as error:
            failures.append(error)
            together.abort()

    crowd = [form.consume] * form.consumers + ([form.beside] if form.beside else [])
    with psycopg.connect(url, autocommit=True) as owner:
        owner.execute(f"CREATE SCHEMA {schema}".encode())
        owner.execute(f"SET search_path = {schema}".encode())
        owner.execute(form.setup.encode())
        together = threading.Barrier(len(crowd), action=lambda: owner.execute(form.fill.encode()))
        threads = [threading.Thread(target=run, args=(consume,)) for consume in crowd]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if failures:
        raise failures[0]
    return begun


def _fanout(connection: Connection, begin: Begin) -> None:
    while True:
        with connection.transaction():
            row = connection.execute("SELECT id FROM job_fanout LIMIT 1 FOR UPDATE SKIP LOCKED").fetchone()
            if row is None:
                return
            begin(row[0])
            connection.execute(WORK)
            connection.execute("DELETE FROM job_queue WHERE id = %s", row)


FANOUT = Published(
    """
    CREATE TABLE job_queue (id text PRIMARY KEY DEFAULT gen_random_uuid(), payload jsonb);
    CREATE VIEW job_fanout AS
    WITH fanout AS (
        SELECT CAST(gen_random_uuid() AS text) AS id
    ), queue AS (
        SELECT * FROM job_queue WHERE id >= (SELECT fanout.id FROM fanout)
        UNION ALL
        SELECT * FROM job_queue WHERE id < (SELECT fanout.id FROM fanout)
    )
    SELECT * FROM queue
    """,
    f"INSERT INTO job_queue (payload) SELECT to_jsonb(n) FROM generate_series(1, {JOBS}) AS n",
    _fanout,
)


def _merge(connection: Connection, begin: Begin) -> None:
    while True:
        with connection.transaction():
            row = connection.execute(
                """
                UPDATE jobs SET status = 'Running'
                WHERE id = (SELECT id FROM jobqueue LIMIT 1 FOR UPDATE SKIP LOCKED)
                RETURNING id
                """
            ).fetchone()
            if row is None:
                return
            begin(row[0])
            connection.execute(WORK)


MERGE = Published(
    """
    CREATE TABLE jobs (
        id bigint PRIMARY KEY, create_ts timestamp NOT NULL, status text NOT NULL DEFAULT 'Queued', bucket smallint NOT NULL
    );
    CREATE INDEX ON jobs (bucket, status, create_ts) INCLUDE (id);
    CREATE VIEW jobqueue AS
    (SELECT id, create_ts FROM jobs WHERE bucket = 0 AND status = 'Queued' ORDER BY create_ts)
    UNION ALL
    (SELECT id, create_ts FROM jobs WHERE bucket = 1 AND status = 'Queued' ORDER BY create_ts)
    UNION ALL
    (SELECT id, create_ts FROM jobs WHERE bucket = 2 AND status = 'Queued' ORDER BY create_ts)
    UNION ALL
    (SELECT id, create_ts FROM jobs WHERE bucket = 3 AND status = 'Queued' ORDER BY create_ts)
    ORDER BY create_ts
    """,
    f"""
    INSERT INTO jobs (id, create_ts, bucket)
    SELECT n, localtimestamp - make_interval(mins => {JOBS} - n), n % 4 FROM generate_series(1, {JOBS}) AS n;
    """,
    _merge,
)

_SHARDS = 4


def _round_robin(connection: Connection, begin: Begin) -> None:
    empty = 0
    for shard in itertools.cycle(range(_SHARDS)):
        rows = connection.execute(
            """
            UPDATE tasks SET status = 'locked'
            WHERE id IN (
                SELECT id FROM tasks WHERE status = 'available' AND exec_time < now() AND shard = %s
                ORDER BY exec_time, id LIMIT 10 FOR UPDATE SKIP LOCKED
            )
            RETURNING id
            """,
            (shard,),
        ).fetchall()
        empty = 0 if rows else empty + 1
        if empty == _SHARDS:
            return
        for row in rows:
            begin(row[0])
            connection.execute(WORK)
            connection.execute("DELETE FROM tasks WHERE id = %s", row)


def _reap(connection: Connection, _: Begin) -> None:
    for shard in itertools.cycle(range(_SHARDS)):
        connection.execute(
            """
            UPDATE tasks SET status = 'available'
            WHERE id IN (
                SELECT id FROM tasks
                WHERE status = 'locked' AND exec_time < now() - interval '30 seconds' AND shard = %s LIMIT 50
            )
            """,
            (shard,),
        )
        if not connection.execute("SELECT FROM tasks LIMIT 1").rowcount:
            return
        connection.execute(WORK)


ROUND_ROBIN = Published(
    """
    CREATE TABLE tasks (
        id text PRIMARY KEY, exec_time timestamptz NOT NULL, status text NOT NULL, shard smallint NOT NULL
    );
    CREATE INDEX ON tasks (shard, exec_time DESC, id)
    """,
    f"""
    INSERT INTO tasks (id, exec_time, status, shard)
    SELECT CAST(n AS text), now() - interval '1 hour', 'available', n % {_SHARDS} FROM generate_series(1, {JOBS}) AS n;
    """,
    _round_robin,
    beside=_reap,
)


def _manage(connection: Connection, begin: Begin) -> None:
    luck = random.Random()
    while True:
        listed = connection.execute(
            "SELECT id, last_updated FROM tasks WHERE status = 'queued' OR (status = 'executing' AND expiry <= now())"
        ).fetchall()
        if not listed:
            return
        luck.shuffle(listed)
        for task in listed:
            granted = connection.execute(
                """
                UPDATE tasks
                SET status = 'executing', operator_id = %s, expiry = now() + interval '10 minutes',
                    last_updated = date_trunc('second', now())
                WHERE id = %s AND last_updated = %s
                """,
                (str(connection.info.backend_pid), *task),
            )
            if granted.rowcount:
                begin(task[0])


MANAGER = Published(
    """
    CREATE TABLE tasks (
        id serial PRIMARY KEY, details text, status text NOT NULL, operator_id text, expiry timestamptz,
        created timestamptz NOT NULL DEFAULT now(), last_updated timestamptz NOT NULL
    )
    """,
    # At the beginning of a second, so that the grants fall into the same one.
    f"""
    SELECT pg_sleep(1 - mod(CAST(EXTRACT(EPOCH FROM clock_timestamp()) AS numeric), 1));
    INSERT INTO tasks (status, last_updated)
    SELECT 'queued', date_trunc('second', clock_timestamp()) FROM generate_series(1, {JOBS});
    """,
    _manage,
)


OUTSTANDING = 20_000
"""Claims that are out at a time. (At 5,000, every second run has a collision; at 20,000 there are twelve to be expected.)"""


def _token(connection: Connection, begin: Begin) -> None:
    luck = random.Random()
    for _ in range(OUTSTANDING // 40):
        with connection.pipeline():
            claims = [_mark(connection, luck.randrange(2**24)) for _ in range(40)]
        for claim in claims:
            for row in claim.fetchall():
                begin(row[0])


def _mark(connection: Connection, token: int) -> "psycopg.Cursor[Any]":
    connection.execute(
        """
        UPDATE queue_test SET transaction_unique = %s
        WHERE id = (SELECT id FROM queue_test WHERE transaction_unique IS NULL ORDER BY id LIMIT 1 FOR UPDATE)
        """,
        (token,),
    )
    return connection.execute("SELECT id FROM queue_test WHERE transaction_unique = %s", (token,))


# Each claim is one message and stays out, as slow consumers have it. It is the numbers that meet, not the processes: one
# connection draws them for all.
TOKEN = Published(
    """
    CREATE TABLE queue_test (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, transaction_unique integer, payload text);
    CREATE INDEX ON queue_test (transaction_unique);
    CREATE INDEX ON queue_test (id) WHERE transaction_unique IS NULL
    """,
    f"INSERT INTO queue_test (payload) SELECT 'x' FROM generate_series(1, {OUTSTANDING})",
    _token,
    consumers=1,
)
