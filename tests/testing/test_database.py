"""The queues of a test: on which database, and what is left of them."""

import importlib.util
from uuid import uuid4

import psycopg
import pytest
from sqlalchemy.engine import make_url

from dagster_sqlqueue import QueueSpec
from dagster_sqlqueue.errors import EmbeddedServerError, InvalidInput, SchemaBusy
from dagster_sqlqueue.schema.functions import pinned_schema
from dagster_sqlqueue.testing import database, queue_for_test
from tests.support import Work

WORK = QueueSpec("work", Work)


def test_a_database_that_is_named_is_used_and_nothing_is_left_on_it(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def schemas() -> set[str]:
        with psycopg.connect(url) as connection:
            return {name for (name,) in connection.execute("SELECT nspname FROM pg_namespace").fetchall()}

    before = schemas()
    monkeypatch.setenv("SQLQUEUE_TEST_URL", url)

    def use() -> None:
        with queue_for_test(WORK) as queue:
            assert {spec.name for spec in queue.queues()} == {"work"}
            assert len(schemas() - before) == 2
            raise KeyError("the test fails")

    with pytest.raises(KeyError, match="the test fails"):
        use()
    assert schemas() == before


def test_what_is_no_queue_is_refused_before_anything_is_connected() -> None:
    for wrong in ("emails", [WORK]):
        with (
            pytest.raises(InvalidInput, match="give its declaration"),
            queue_for_test(wrong, url="postgresql://nobody@127.0.0.1:1/none"),  # type: ignore[arg-type]
        ):
            pass


def test_a_transaction_that_is_open_at_the_end_is_named_and_masks_no_failure(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "_PATIENCE_SECONDS", 1)
    left: list[str] = []

    def use(failure: Exception | None) -> None:
        with queue_for_test(WORK, url=url) as queue:
            left.append(queue.database.schema)
            queue.enqueue(WORK, Work(n=1), connection=connection)
            if failure:
                raise failure

    with psycopg.connect(url) as connection:
        with pytest.raises(SchemaBusy, match="a transaction that has used its queues is open"):
            use(None)
        connection.rollback()
        with pytest.raises(KeyError, match="the test fails") as failed:
            use(KeyError("the test fails"))
        assert "a transaction that has used its queues is open" in failed.value.__notes__[0]
        connection.rollback()
        for schema in left:
            connection.execute(f"DROP SCHEMA {schema}, {pinned_schema(schema)} CASCADE".encode())


def test_a_database_that_has_gone_masks_no_failure(url: str) -> None:
    name = f"gone_{uuid4().hex[:12]}"
    gone = make_url(url).set(database=name).render_as_string(hide_password=False)

    def use() -> None:
        with queue_for_test(WORK, url=gone):
            server.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())
            raise KeyError("the test fails")

    with psycopg.connect(url, autocommit=True) as server:
        server.execute(f"CREATE DATABASE {name}".encode())
        with pytest.raises(KeyError, match="the test fails") as failed:
            use()
    assert name in failed.value.__notes__[0]


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the wheel hidden from the import system, as if it were not installed."""
    find_spec = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *rest: None if "pgserver" in name else find_spec(name))
    monkeypatch.setattr(database, "_started", [])
    monkeypatch.delenv("SQLQUEUE_TEST_URL", raising=False)
    with pytest.raises(EmbeddedServerError) as raised, queue_for_test(WORK):
        pass
    assert "pip install 'dagster-sqlqueue[embedded]'" in str(raised.value)
    assert "set SQLQUEUE_TEST_URL to a server of yours" in str(raised.value)
