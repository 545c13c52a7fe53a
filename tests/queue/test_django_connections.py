"""Enqueues in the transactions of Django."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import connections, transaction
from django.db.utils import ConnectionHandler

from dagster_sqlqueue import NewJob, QueueSpec, SqlQueue
from dagster_sqlqueue.errors import InvalidInput, InvalidPayload
from tests.support import Work, value
from tests.support.callers import django_connection

WAYS: dict[str, tuple[int, Callable[[SqlQueue, QueueSpec[Work], Any], object]]] = {
    "plain": (1, lambda queue, spec, theirs: queue.enqueue(spec, Work(n=1), connection=theirs)),
    "replace": (
        1,
        lambda queue, spec, theirs: queue.enqueue(
            spec, NewJob(Work(n=1), unique_key="u", tags=["a"]), on_conflict="replace", connection=theirs
        ),
    ),
    "many": (
        3_000,
        lambda queue, spec, theirs: queue.enqueue_many(spec, (Work(n=n) for n in range(3_000)), connection=theirs),
    ),
}


@pytest.fixture(params=[False, True], ids=["bound by the client", "bound by the server"])
def alias(url: str, request: pytest.FixtureRequest) -> Iterator[str]:
    """The name of one of Django's connections, as `transaction.atomic` takes it."""
    with django_connection(url, server_side_binding=request.param) as connection:
        connection.set_autocommit(True)
        connections["queues"] = connection
        yield "queues"
        del connections["queues"]


def count(queue: SqlQueue) -> int:
    return int(value(queue, "SELECT count(*) FROM {s}.job"))


@pytest.mark.parametrize("way", WAYS)
def test_jobs_are_there_if_and_only_if_the_block_is_committed(
    queue: SqlQueue, spec: QueueSpec[Work], alias: str, way: str
) -> None:
    jobs, enqueue = WAYS[way]
    theirs = connections[alias]
    with transaction.atomic(using=alias):
        enqueue(queue, spec, theirs)
        transaction.set_rollback(True, using=alias)
    assert count(queue) == 0
    with transaction.atomic(using=alias):
        with transaction.atomic(using=alias):
            enqueue(queue, spec, theirs)
            transaction.set_rollback(True, using=alias)
        with pytest.raises(InvalidPayload):
            queue.enqueue(spec, {"n": "x"}, connection=theirs)
        enqueue(queue, spec, theirs)
        with theirs.cursor() as cursor:
            cursor.execute(f"SELECT count(*) FROM {queue.database.schema}.job WHERE payload ? %s", ["n"])
            assert cursor.fetchone() == (jobs,)
        assert count(queue) == 0
    assert count(queue) == jobs


def test_a_connection_that_was_not_used_before_is_opened_and_outside_of_blocks_each_call_is_committed(
    queue: SqlQueue, spec: QueueSpec[Work], alias: str
) -> None:
    connections[alias].close()
    assert queue.enqueue(spec, Work(n=1), connection=connections[alias])
    assert count(queue) == 1


def test_a_pipeline_on_the_connection_in_it_is_refused(queue: SqlQueue, spec: QueueSpec[Work], alias: str) -> None:
    theirs: Any = connections[alias]
    theirs.ensure_connection()
    with theirs.connection.pipeline(), pytest.raises(InvalidInput, match="connection is in pipeline mode"):
        queue.enqueue_many(spec, [Work(n=1)], connection=theirs)
    assert count(queue) == 0


def test_the_proxy_of_the_default_connection_is_taken(queue: SqlQueue, spec: QueueSpec[Work], url: str) -> None:
    from django.utils.connection import ConnectionProxy

    with django_connection(url) as connection:
        handler = ConnectionHandler({"default": connection.settings_dict})
        handler["default"] = connection
        theirs: Any = ConnectionProxy(handler, "default")
        assert queue.enqueue(spec, Work(n=1), connection=theirs)
        connection.commit()
    assert count(queue) == 1


def test_a_connection_to_another_database_is_refused(queue: SqlQueue, spec: QueueSpec[Work], tmp_path: Path) -> None:
    other = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(tmp_path / "db.sqlite3")}
    theirs: Any = ConnectionHandler({"default": other})["default"]
    with pytest.raises(InvalidInput, match="connection is Django's to 'sqlite', and the queue is in PostgreSQL"):
        queue.enqueue(spec, Work(n=1), connection=theirs)
    assert count(queue) == 0
