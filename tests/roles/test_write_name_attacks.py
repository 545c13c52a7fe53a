"""What a producer tries with the names of other users' writes by Spark."""

from collections.abc import Iterator
from uuid import uuid4

import psycopg
import pytest

from dagster_sqlqueue import QueueSpec, SqlQueue
from dagster_sqlqueue.db.permissions import Role
from tests.roles.support import Staff, colleague, staffed
from tests.support import Work, value

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


def _write(shop: Staff, queue: SqlQueue, name: str, batch: int, jobs: int = 3) -> tuple[object, ...]:
    """Stage jobs and enqueue them, as Spark's driver does; returns whether it was repeated, and how many were inserted."""
    write, attempt = uuid4(), uuid4()
    with queue.database.connection() as connection:
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
