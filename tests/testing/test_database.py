"""The queues of a test: on which database, and what is left of them."""

import importlib.util

import psycopg
import pytest

from dagster_sqlqueue import QueueSpec
from dagster_sqlqueue.errors import EmbeddedServerError
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
