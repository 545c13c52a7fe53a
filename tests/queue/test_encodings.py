"""Text on connections whose client_encoding is not UTF8: stored as it is, or refused. And databases that are not UTF8."""

import asyncio
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from dagster_sqlqueue import Consumer, Mode, NewJob, QueueSpec, SqlQueue
from dagster_sqlqueue.doctor import examine
from dagster_sqlqueue.doctor.server_checks import Verdict
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.queue import Enqueued
from dagster_sqlqueue.schema import migrations
from tests.support import Work, caller, rows, value
from tests.support.callers import orm_session, sqlalchemy_connection

ANY = "naïve – € 日本"
OF_LATIN1 = "naïve"
_CALLERS = {"psycopg": caller, "SQLAlchemy connection": sqlalchemy_connection, "ORM session": orm_session}


@pytest.fixture
def latin1_url(url: str) -> str:
    return f"{url}{'&' if '?' in url else '?'}client_encoding=latin1"


@pytest.fixture(params=list(_CALLERS))
def latin1(latin1_url: str, request: pytest.FixtureRequest) -> Iterator[Any]:
    """The caller's own connection, in an encoding of few characters."""
    with _CALLERS[request.param](latin1_url) as connection:
        yield connection


def works(count: int, note: str) -> list[Work]:
    return [Work(n=n, note=note) for n in range(count)]


def notes(queue: SqlQueue) -> set[str]:
    return {note for (note,) in rows(queue, "SELECT payload ->> 'note' FROM {s}.job")}


@pytest.mark.parametrize("count", [1, 3, 300])
def test_text_is_stored_as_it_is_in_the_callers_encoding(
    queue: SqlQueue, spec: QueueSpec[Work], latin1: Any, count: int
) -> None:
    assert queue.enqueue_many(spec, works(count, OF_LATIN1), connection=latin1) == Enqueued(count, 0)
    queue.enqueue(spec, NewJob(Work(n=-1, note=OF_LATIN1), unique_key=OF_LATIN1), connection=latin1)
    latin1.commit()
    assert notes(queue) == {OF_LATIN1}
    assert value(queue, "SELECT count(*) FROM {s}.job") == count + 1


def test_what_the_callers_encoding_lacks_is_refused_and_his_transaction_goes_on(
    queue: SqlQueue, spec: QueueSpec[Work], latin1: Any
) -> None:
    words = "the character '–', which the connection cannot send: its client_encoding is LATIN1; connect with .*UTF8"
    with pytest.raises(InvalidInput, match=words):
        queue.enqueue(spec, Work(n=1, note=ANY), connection=latin1)
    with pytest.raises(InvalidInput, match=words):
        queue.enqueue_many(spec, [*works(299, OF_LATIN1), Work(n=1, note=ANY)], connection=latin1)
    queue.enqueue(spec, Work(n=2, note=OF_LATIN1), connection=latin1)
    latin1.commit()
    assert notes(queue) == {OF_LATIN1}


def test_so_it_is_on_an_awaited_connection(queue: SqlQueue, spec: QueueSpec[Work], latin1_url: str) -> None:
    async def work() -> None:
        async with await psycopg.AsyncConnection.connect(latin1_url) as connection:
            done = await queue.aenqueue_many(spec, works(300, OF_LATIN1), connection=connection)
            assert done == Enqueued(300, 0)
            with pytest.raises(InvalidInput, match="its client_encoding is LATIN1"):
                await queue.aenqueue(spec, Work(n=1, note=ANY), connection=connection)

    asyncio.run(work())
    assert notes(queue) == {OF_LATIN1}


@pytest.mark.parametrize("where", ["environment", "url", "role"])
@pytest.mark.parametrize("mode", list(Mode))
def test_our_own_connections_are_in_utf8(
    queue: SqlQueue,
    spec: QueueSpec[Work],
    url: str,
    latin1_url: str,
    where: str,
    mode: Mode,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if where == "environment":
        monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")
    with caller(url, autocommit=True) as admin:
        if where == "role":
            admin.execute("ALTER ROLE CURRENT_USER SET client_encoding = 'LATIN1'")
        try:
            with SqlQueue(latin1_url if where == "url" else url, schema=queue.database.schema) as other:
                other.enqueue_many(spec, works(300, ANY))
                other.enqueue(spec, Work(n=-1, note=ANY))
                assert notes(queue) == {ANY}
                seen: list[str] = []
                Consumer(other, spec, lambda job: seen.append(job.payload.note), mode=mode).drain()
                assert seen == [ANY] * 301
        finally:
            admin.execute("ALTER ROLE CURRENT_USER RESET client_encoding")


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII", "EUC_JP"])
def test_a_database_that_is_not_utf8_is_refused(url: str, encoding: str) -> None:
    name = f"in_{encoding.lower()}"
    with caller(url, autocommit=True) as admin:
        kind = f"ENCODING '{encoding}' TEMPLATE template0 LOCALE_PROVIDER libc LC_COLLATE 'C' LC_CTYPE 'C'"
        admin.execute(f"CREATE DATABASE {name} {kind}".encode())
        try:
            with SqlQueue(url.replace("/postgres?", f"/{name}?")) as queue:
                for call in (queue.migrate, lambda: migrations.pending(queue.database)):
                    with pytest.raises(
                        InvalidInput, match=f"its encoding is {encoding}, .*CREATE DATABASE … ENCODING 'UTF8'"
                    ):
                        call()
                found = {check.name: check for check in examine(queue.database)}
            assert (found["encoding"].verdict, found["schema"].verdict) == (Verdict.FAIL, Verdict.FAIL)
            assert f"{encoding}, which" in found["encoding"].found
        finally:
            admin.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())
