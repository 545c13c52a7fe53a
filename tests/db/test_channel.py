"""Statements that are sent now and whose result is received later, in sessions of the library and behind a pooler."""

from collections.abc import Iterator
from datetime import UTC, datetime
from uuid import UUID, uuid4

import psycopg
import pytest

from dagster_sqlqueue import SqlQueue
from dagster_sqlqueue.db import odd_values, statements
from dagster_sqlqueue.db.channel import Channel
from dagster_sqlqueue.db.database import Database
from dagster_sqlqueue.db.execution import Step
from dagster_sqlqueue.db.session_settings import Pooler
from dagster_sqlqueue.db.uuid_arrays import UuidArray
from dagster_sqlqueue.errors import SchemaMissing
from tests.support import rows, until, value

STATEMENTS = {
    "test_divide": "SELECT 100 %% CAST(%(by)s AS integer), CAST(%(by)s AS integer) / 0 * 0 WHERE %(by)s = 0"
    " UNION ALL SELECT 100 %% CAST(%(by)s AS integer), 2 WHERE %(by)s <> 0",
    "test_values": "SELECT CAST(%(ids)b AS uuid[]), %(nothing)s::text, %(text)s::text, CAST(%(moment)s AS timestamptz),"
    " jsonb_build_object('n', 1), CAST(%(ids)b AS uuid[])",
    "test_odd": "SELECT CAST('infinity' AS timestamptz), CAST('0044-03-15 BC' AS date)",
    "test_touch": "UPDATE {s}.queue SET paused_at = paused_at WHERE name = ANY (%(names)s)",
    "test_pause": "UPDATE {s}.queue SET paused_at = now() WHERE name = %(name)s",
    "test_pid": "SELECT pg_backend_pid()",
    "test_session": "SELECT current_setting('transaction_isolation'), current_setting('TimeZone'),"
    " current_setting('plan_cache_mode')",
}


@pytest.fixture(params=[Pooler.SESSION, Pooler.TRANSACTION])
def database(
    url: str, queue: SqlQueue, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Database]:
    load = statements.load
    own = {name: text.replace("{s}", f'"{queue.database.schema}"') for name, text in STATEMENTS.items()}
    monkeypatch.setattr(statements, "load", lambda name, *rest: own.get(name) or load(name, *rest))
    opened = Database(url, schema=queue.database.schema, pooler=request.param)
    yield opened
    opened.close()


@pytest.fixture
def channel(database: Database) -> Iterator[Channel]:
    opened = Channel(database)
    yield opened
    opened.close()


def answer(channel: Channel, statement: str, /, **parameters: object) -> list[tuple[object, ...]]:
    channel.send((statement, parameters))
    (received,) = channel.receive()
    return list(received.rows())


def test_it_is_committed_before_its_result_is_received(channel: Channel, queue: SqlQueue) -> None:
    channel.send(("test_pause", {"name": "work"}))
    until(lambda: value(queue, "SELECT paused_at IS NOT NULL FROM {s}.queue WHERE name = 'work'"), "the commit")
    (changed,) = channel.receive()
    assert changed.rowcount == 1


def test_statements_sent_at_once_are_committed_together(channel: Channel, queue: SqlQueue) -> None:
    channel.send(("test_pause", {"name": "work"}), ("test_pid", {}), ("test_divide", {"by": 7}))
    until(lambda: value(queue, "SELECT paused_at IS NOT NULL FROM {s}.queue WHERE name = 'work'"), "the commit")
    changed, pid, divided = channel.receive()
    assert (changed.rowcount, len(pid.rows()), divided.rows()) == (1, 1, [(2, 2)])
    assert answer(channel, "test_pid") == pid.rows()


@pytest.mark.parametrize("fails_first", [True, False])
def test_statements_sent_at_once_are_rolled_back_together(channel: Channel, queue: SqlQueue, fails_first: bool) -> None:
    steps: list[Step] = [("test_pause", {"name": "work"}), ("test_divide", {"by": 0})]
    # Behind a pooler the driver may have the error before it has sent the next one.
    with pytest.raises(psycopg.errors.DivisionByZero):  # noqa: PT012
        channel.send(*(reversed(steps) if fails_first else steps))
        channel.receive()
    assert value(queue, "SELECT paused_at IS NULL FROM {s}.queue WHERE name = 'work'")
    assert answer(channel, "test_divide", by=7) == [(2, 2)]


@pytest.mark.parametrize("kind", [list, UuidArray])
@pytest.mark.parametrize("count", [0, 1, 100])
def test_values_go_there_and_come_back(channel: Channel, kind: type[list[UUID]], count: int) -> None:
    ids = [uuid4() for _ in range(count)]
    moment = datetime(2031, 5, 6, 7, 8, 9, 123456, UTC)
    for text in ("a", "it's 100 %s", "%"):
        assert answer(channel, "test_values", ids=kind(ids), nothing=None, text=text, moment=moment) == [
            (ids, None, text, moment, {"n": 1}, ids)
        ]


def test_what_python_cannot_represent_is_replaced(channel: Channel) -> None:
    (row,) = answer(channel, "test_odd")
    assert row == (odd_values.LAST, odd_values.FIRST.date())


def test_it_is_replaced_also_after_the_connection_is_gone(channel: Channel) -> None:
    channel.send(("test_odd", {}))
    (received,) = channel.receive()
    channel.close()
    assert received.rows() == [(odd_values.LAST, odd_values.FIRST.date())]


def test_rows_that_a_statement_changed_are_counted(channel: Channel) -> None:
    channel.send(("test_touch", {"names": ["work", "other"]}))
    (changed,) = channel.receive()
    assert (changed.rowcount, list(changed.rows())) == (1, [])


def test_sessions_are_set_up(channel: Channel) -> None:
    assert answer(channel, "test_session") == [("read committed", "UTC", "force_generic_plan")]


def test_it_works_again_after_an_error(channel: Channel) -> None:
    for by in (7, 0, 7, 0, 0, 8):
        if by:
            assert answer(channel, "test_divide", by=by) == [(100 % by, 2)]
        else:
            with pytest.raises(psycopg.errors.DivisionByZero) as raised:
                answer(channel, "test_divide", by=by)
            assert raised.value.diag.message_primary == "division by zero"


def test_it_works_again_after_its_connection_was_lost(channel: Channel, queue: SqlQueue) -> None:
    ((pid,),) = answer(channel, "test_pid")
    rows(queue, "SELECT pg_terminate_backend(%s, 60000)", pid)
    with pytest.raises(psycopg.OperationalError):
        answer(channel, "test_pid")
    assert answer(channel, "test_pid") != [(pid,)]


def test_a_statement_that_is_ended_with_its_connection_raises(
    channel: Channel, queue: SqlQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = statements.load
    sleeping = "SELECT pg_backend_pid(), pg_sleep(%(seconds)s) AS {}"
    name = f"sleeping_{uuid4().hex}"
    monkeypatch.setattr(
        statements, "load", lambda one, *rest: sleeping.format(name) if one == name else load(one, *rest)
    )
    channel.send((name, {"seconds": 600}))
    found = "SELECT max(pid) FROM pg_stat_activity WHERE query LIKE %s AND pid <> pg_backend_pid() AND state = 'active'"
    until(lambda: value(queue, found, f"%{name}%") is not None, "the statement")
    rows(queue, "SELECT pg_terminate_backend(%s, 60000)", value(queue, found, f"%{name}%"))
    with pytest.raises(psycopg.OperationalError):
        channel.receive()
    assert answer(channel, "test_divide", by=7) == [(2, 2)]


def test_a_schema_that_is_not_there_is_named(url: str) -> None:
    database = Database(url, schema="not_there")
    channel = Channel(database)
    with pytest.raises(SchemaMissing, match="not_there"):
        answer(channel, "queue_lock", name="work")
    database.close()
