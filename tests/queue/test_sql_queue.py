"""What a `SqlQueue` is put together from, and how it is made."""

import inspect
from typing import Any

import pytest

from dagster_sqlqueue import Database, SqlQueue
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.queue.base import Verbs
from dagster_sqlqueue.queue.catalog import Catalog
from dagster_sqlqueue.queue.claim import Claims
from dagster_sqlqueue.queue.complete import FencedWrites
from dagster_sqlqueue.queue.decision import Decisions
from dagster_sqlqueue.queue.heads import Heads
from dagster_sqlqueue.queue.leases import Leases
from dagster_sqlqueue.queue.lock import Locks
from dagster_sqlqueue.queue.maintenance import Maintenance
from dagster_sqlqueue.queue.search import Search

URL = "postgresql://ada:secret@db.example:5432/app"


def test_the_classes_of_verbs_are_siblings() -> None:
    assert len(SqlQueue.__mro__) <= 8
    assert all(kind.__bases__ == (Verbs,) for kind in SqlQueue.__bases__)
    assert Verbs.__bases__ == (object,)


def test_people_meet_few_names() -> None:
    names = [name for name in dir(SqlQueue(URL)) if not name.startswith("_")]
    assert len(names) <= 47, names


@pytest.mark.parametrize(
    "part",
    [Catalog, Leases, Claims, Locks, Heads, FencedWrites, Search, Decisions, Maintenance],
    ids=lambda p: p.__name__,
)
def test_parts_are_put_together_and_inherit_nothing(part: type) -> None:
    assert part.__bases__ == (object,)


def test_it_takes_the_settings_of_a_database() -> None:
    taken, database = (
        [one for one in inspect.signature(kind).parameters.values() if one.kind is inspect.Parameter.KEYWORD_ONLY]
        for kind in (SqlQueue, Database)
    )
    # Silence is limited for ticks, by what is below.
    database = [one for one in database if one.name != "answer_seconds"]
    assert len(database) >= 5
    assert taken[: len(database)] == database


def test_what_it_is_given_goes_to_the_database(url: str) -> None:
    with SqlQueue(
        url, schema="mine", pool_size=3, application_name="shop", connect_timeout=70, statement_timeout=1.5
    ) as queue:
        assert (queue.database.schema, queue.database.connections.size()) == ("mine", 3)
        with queue.database.connection() as connection:
            shown = [
                connection.execute(f"SHOW {name}".encode()).fetchone()
                for name in ("application_name", "statement_timeout")
            ]
            assert shown == [("shop",), ("1500ms",)]
            assert connection.info.get_parameters()["connect_timeout"] == "70"
    with pytest.raises(InvalidInput, match="pool_size is 0"):
        SqlQueue(URL, pool_size=0)


def test_a_database_is_taken_as_it_is() -> None:
    database = Database(URL, schema="mine")
    assert SqlQueue(database).database is database
    for settings in ({"schema": "other"}, {"pool_size": 2}, {"statement_timeout": 1.0}, {"pooler": "session"}):
        (name,) = settings
        with pytest.raises(InvalidInput, match=rf"{name} is .* beside a Database.*Database\(url, {name}=…\)"):
            SqlQueue(database, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "words"),
    [(None, "is the environment variable that holds its URL set"), (object(), "of the type object; give a URL")],
)
def test_what_is_no_database_is_refused_at_once(given: Any, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        SqlQueue(given)
