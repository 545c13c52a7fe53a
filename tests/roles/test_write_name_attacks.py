"""What a producer tries with the names of other users' writes by Spark, and with what they have staged."""

from collections.abc import Iterator
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from dagster_sqlqueue import QueueSpec, SqlQueue
from dagster_sqlqueue.db.permissions import Role
from tests.roles.support import Staff, colleague, staffed
from tests.support import Work, rows, value

WORK = QueueSpec("work", Work, bucket_count=1)


@pytest.fixture(scope="module")
def shop(any_server: str) -> Iterator[Staff]:
    """Users of a schema with one queue."""
    with staffed(any_server, WORK) as staff:
        yield staff


@pytest.fixture(scope="module")
def stream(shop: Staff) -> Iterator[SqlQueue]:
    """Another producer, who writes the batches of a stream."""
    with colleague(shop, Role.PRODUCER) as queue:
        yield queue


def _stage(shop: Staff, connection: "psycopg.Connection[Any]", jobs: int) -> tuple[UUID, UUID]:
    """Stage jobs, as Spark's tasks do; returns the ids of the write and of its attempt."""
    write, attempt = uuid4(), uuid4()
    connection.execute(
        shop.text("INSERT INTO {s}.staged_attempt (attempt, write_id) VALUES (%s, %s)"), (attempt, write)
    )
    connection.execute(
        shop.text(
            "INSERT INTO {s}.staged_job (attempt, row_no, id, named, hash, priority, unique_until_claim, tags, payload)"
            " SELECT %s, n, gen_random_uuid(), false, 1, 0, false, '{}', '{\"n\": 1}' FROM generate_series(1, %s) AS n"
        ),
        (attempt, jobs),
    )
    return write, attempt


def _write(shop: Staff, queue: SqlQueue, name: str, batch: int, jobs: int = 3) -> tuple[object, ...]:
    """Stage jobs and enqueue them, as Spark's driver does; returns whether it was repeated, and how many were inserted."""
    with queue.database.connection() as connection:
        write, attempt = _stage(shop, connection, jobs)
        call = "SELECT repeated, jobs FROM {s}.enqueue_staged(%s, 'work', %s, %s, ARRAY[%s::uuid], %s)"
        ((repeated, inserted),) = connection.execute(shop.text(call), (write, name, batch, attempt, jobs)).fetchall()
        return repeated, inserted


def test_a_producer_does_not_say_that_the_writes_of_another_were_done(shop: Staff, stream: SqlQueue) -> None:
    assert _write(shop, stream, "stream", 0) == (False, 3)
    call = "SELECT * FROM {s}.enqueue_staged(gen_random_uuid(), 'work', 'stream', %s, '{}', 0)"
    for batch in (0, 1, 9223372036854775807):
        with shop.connected(Role.PRODUCER) as connection:
            with pytest.raises(psycopg.errors.InsufficientPrivilege, match='writes named "stream" on queue "work"'):
                connection.execute(shop.text(call), (batch,))
            for query in (
                "UPDATE {s}.spark_write SET batch = 7",
                "DELETE FROM {s}.spark_write",
                "INSERT INTO {s}.spark_write (queue, name, batch, jobs, duplicates) VALUES ('work', 'mine', 7, 0, 0)",
            ):
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    connection.execute(shop.text(query))
    assert value(shop.owner, "SELECT repeats FROM {s}.spark_write WHERE name = 'stream'") == 0
    assert _write(shop, stream, "stream", 1) == (False, 3)
    assert _write(shop, stream, "stream", 1) == (True, 6)


def test_a_write_of_a_stream_is_done_also_by_who_has_its_users_rights(shop: Staff, stream: SqlQueue) -> None:
    assert _write(shop, stream, "shared", 0) == (False, 3)
    by = value(shop.owner, "SELECT put_by FROM {s}.spark_write WHERE name = 'shared'")
    with colleague(shop, Role.PRODUCER, rights_of=by) as member:
        assert _write(shop, member, "shared", 1) == (False, 3)
    assert _write(shop, shop.users[Role.OPERATOR], "shared", 2) == (False, 3)
    assert _write(shop, stream, "shared", 2) == (True, 9)


def test_a_name_that_is_taken_first_is_refused_to_others_and_not_taken_for_done(shop: Staff, stream: SqlQueue) -> None:
    """Cannot be prevented: a name is whose it was first. No write is left out for that, it fails."""
    assert _write(shop, shop.users[Role.PRODUCER], "guessed", 7, 1) == (False, 1)
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match='writes named "guessed" on queue "work"'):
        _write(shop, stream, "guessed", 0)


def test_what_another_has_staged_is_neither_seen_nor_taken(shop: Staff) -> None:
    """Also by a user of two roles, with a function of its own that the planner would rather call first."""
    with shop.connected(Role.PRODUCER) as connection:
        write, attempt = _stage(shop, connection, 1)
        taking = shop.text("SELECT jobs FROM {s}.enqueue_staged(%s, 'work', NULL, 0, %s, %s)")
        with colleague(shop, Role.PRODUCER, Role.CONSUMER) as thief, thief.database.connection() as theirs:
            assert _seen(shop, theirs, "staged_long_ago", "attempt") == []
            assert _seen(shop, theirs, "staged_job_long_ago", "attempt") == []
            with pytest.raises(psycopg.errors.NoDataFound):
                theirs.execute(taking, (uuid4(), [attempt], 1))
            assert theirs.execute(shop.text("SELECT {s}.drop_staged(%s)"), (write,)).fetchall() == [(0,)]
        assert connection.execute(taking, (write, [uuid4(), attempt], 1)).fetchall() == [(1,)]
        assert value(shop.owner, "SELECT count(*) FROM {s}.staged_attempt WHERE write_id = %s", write) == 0


_HIDDEN = {
    "staged_long_ago": "INSERT INTO {s}.staged_attempt (attempt, write_id) VALUES (gen_random_uuid(), gen_random_uuid())",
    "write_long_ago": "INSERT INTO {s}.spark_write VALUES ('work', 'secret', 0, 1, 0)",
    "group_long_ago": "INSERT INTO {s}.job_group (id, priority, closed_at, ended_at)"
    " VALUES (gen_random_uuid(), 0, now(), now())",
    "wait_long_ago": "INSERT INTO {s}.follower (id, job_id, states, notify)"
    " VALUES (gen_random_uuid(), gen_random_uuid(), ARRAY['failed'], true)",
    "job_replaced_long_ago": "INSERT INTO {s}.job_replaced (id) VALUES (gen_random_uuid())",
}


@pytest.mark.parametrize("view", _HIDDEN)
def test_a_view_of_what_is_over_shows_no_function_what_is_not(shop: Staff, view: str) -> None:
    with shop.owner.database.connection() as connection:
        connection.execute(shop.text(_HIDDEN[view]))
    with shop.connected(Role.CONSUMER) as connection:
        column = {"staged_long_ago": "attempt", "write_long_ago": "name"}.get(view, "id")
        assert _seen(shop, connection, view, column) == []


def test_views_that_hide_rows_hide_them_from_functions_too(shop: Staff) -> None:
    """Each that a role may read or change without the right to read its table."""
    bare = rows(
        shop.owner,
        "SELECT c.relname FROM pg_class AS c WHERE c.relnamespace = %s::regnamespace AND c.relkind = 'v'"
        " AND NOT COALESCE('security_barrier=true' = ANY (c.reloptions), false) ORDER BY 1",
        f'"{shop.schema}"',
    )
    everything = {"bucket_heads", "job_all", "job_without_queue", "lane", "live_bucket", "live_job", "packed_job"}
    # What is shown of these jobs, or priorities, their readers may read of all.
    shown = {"doubled_priority", "queue_stats", "replaceable_job", "stray_job", "taken_unique_key"}
    assert {name for (name,) in bare} == everything | shown


def _seen(shop: Staff, connection: "psycopg.Connection[Any]", view: str, column: str) -> list[str]:
    """What a function of the caller's own is told about a view's rows."""
    seen: list[str] = []
    connection.add_notice_handler(lambda notice: seen.append(str(notice.message_primary)))
    connection.execute(
        "CREATE OR REPLACE FUNCTION pg_temp.told(x text) RETURNS boolean LANGUAGE plpgsql COST 0.00001"
        " AS $$ BEGIN RAISE NOTICE 'told %', x; RETURN true; END $$"
    )
    connection.execute("SET enable_indexscan = off; SET enable_bitmapscan = off")
    connection.execute(shop.text(f"SELECT FROM {{s}}.{view} WHERE pg_temp.told({column}::text)"))
    return [line for line in seen if line.startswith("told")]
