"""Which schema is meant: the argument, else SQLQUEUE_SCHEMA, else `sqlqueue`, wherever it may be named."""

from collections.abc import Callable

import pytest

from dagster_sqlqueue import Database, SqlQueue
from dagster_sqlqueue.cli.session import Session
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.orchestration import SqlQueueResource

_URL = "postgresql://nobody@example.invalid/db"


def _of_command_line(schema: str | None = None) -> str:
    return Session(schema=schema).schema_name


def _of_database(schema: str | None = None) -> str:
    return (Database(_URL, schema=schema) if schema else Database(_URL)).schema


def _of_queues(schema: str | None = None) -> str:
    return (SqlQueue(_URL, schema=schema) if schema else SqlQueue(_URL)).database.schema


def _of_resource(schema: str | None = None) -> str:
    return (SqlQueueResource(url=_URL, schema_name=schema) if schema else SqlQueueResource(url=_URL)).schema_name


@pytest.mark.parametrize("named", [_of_command_line, _of_database, _of_queues, _of_resource])
def test_the_argument_goes_before_the_variable_and_that_before_the_name(
    named: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SQLQUEUE_SCHEMA", raising=False)
    assert named() == "sqlqueue"
    for unset in ("", "theirs"):
        monkeypatch.setenv("SQLQUEUE_SCHEMA", unset)
        assert named() == (unset or "sqlqueue")
        assert named("ours") == "ours"


def test_a_schema_that_the_variable_names_is_checked_as_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SQLQUEUE_SCHEMA", 'x"; DROP')
    with pytest.raises(InvalidInput, match="is not usable"):
        Database(_URL)


@pytest.mark.parametrize("nothing", ["", None])
def test_an_argument_that_names_nothing_is_a_mistake_and_not_the_variable(
    nothing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SQLQUEUE_SCHEMA", "theirs")
    with pytest.raises(InvalidInput, match="is not usable"):
        Database(_URL, schema=nothing)
    with pytest.raises(InvalidInput, match="is not usable"):
        SqlQueue(_URL, schema=nothing)
