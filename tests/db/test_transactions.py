"""Enqueue inside the caller's own transaction: rolled back means never enqueued, committed means there."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from psycopg.rows import dict_row, namedtuple_row
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from dagster_sqlqueue import QueueSpec, SqlQueue
from dagster_sqlqueue.errors import InvalidInput, InvalidPayload, SchemaMissing, UnknownQueue
from tests.support import Work, caller, value
from tests.support.callers import engine_of, orm_session, sqlalchemy_connection


@dataclass
class Caller:
    """A connection of the caller's, and how its transaction ends and runs SQL."""

    connection: Any
    commit: Callable[[], object]
    rollback: Callable[[], object]
    execute: Callable[[str], object]


@contextlib.contextmanager
def _psycopg(url: str, **settings: Any) -> Iterator[Caller]:
    with caller(url, **settings) as connection:
        yield Caller(connection, connection.commit, connection.rollback, connection.execute)


@contextlib.contextmanager
def _psycopg_autocommit(url: str) -> Iterator[Caller]:
    """In autocommit the transaction is a block: here it is begun and ended by hand."""
    with caller(url, autocommit=True) as connection:
        connection.execute("BEGIN")
        yield Caller(
            connection, lambda: connection.execute("COMMIT"), lambda: connection.execute("ROLLBACK"), connection.execute
        )


@contextlib.contextmanager
def _sqlalchemy(url: str) -> Iterator[Caller]:
    with sqlalchemy_connection(url) as connection:
        yield Caller(connection, connection.commit, connection.rollback, connection.exec_driver_sql)


@contextlib.contextmanager
def _session(url: str) -> Iterator[Caller]:
    with orm_session(url) as session:
        yield Caller(session, session.commit, session.rollback, lambda text: session.execute(sa.text(text)))


@contextlib.contextmanager
def _scoped_session(url: str) -> Iterator[Caller]:
    with engine_of(url) as made:
        sessions = scoped_session(sessionmaker(made))
        yield Caller(sessions, sessions.commit, sessions.rollback, lambda text: sessions.execute(sa.text(text)))
        sessions.remove()


CALLERS = {
    "psycopg": _psycopg,
    "psycopg with dictionaries": lambda url: _psycopg(url, row_factory=dict_row),
    "psycopg with named tuples": lambda url: _psycopg(url, row_factory=namedtuple_row),
    "psycopg binding on the client": lambda url: _psycopg(url, cursor_factory=psycopg.ClientCursor),
    "psycopg with numbered parameters": lambda url: _psycopg(url, cursor_factory=psycopg.RawCursor),
    "psycopg in autocommit": _psycopg_autocommit,
    "SQLAlchemy connection": _sqlalchemy,
    "ORM session": _session,
    "scoped ORM session": _scoped_session,
}


@pytest.fixture(params=list(CALLERS))
def theirs(url: str, request: pytest.FixtureRequest) -> Iterator[Caller]:
    with CALLERS[request.param](url) as made:
        yield made


def count(queue: SqlQueue) -> int:
    return int(value(queue, "SELECT count(*) FROM {s}.job"))


def put_one(queue: SqlQueue, spec: QueueSpec[Work], connection: Any) -> None:
    assert queue.enqueue(spec, Work(n=1), connection=connection)


def put_many(queue: SqlQueue, spec: QueueSpec[Work], connection: Any) -> None:
    queue.enqueue_many(spec, (Work(n=n) for n in range(2_001)), connection=connection)


PUTS = [(put_one, 1), (put_many, 2_001)]


@pytest.mark.parametrize(("put", "number"), PUTS)
def test_rolled_back_means_never_enqueued(
    queue: SqlQueue, spec: QueueSpec[Work], theirs: Caller, put: Callable[..., None], number: int
) -> None:
    put(queue, spec, theirs.connection)
    theirs.rollback()
    assert count(queue) == 0


@pytest.mark.parametrize(("put", "number"), PUTS)
def test_committed_means_there_and_not_before(
    queue: SqlQueue, spec: QueueSpec[Work], theirs: Caller, put: Callable[..., None], number: int
) -> None:
    put(queue, spec, theirs.connection)
    assert count(queue) == 0
    theirs.commit()
    assert count(queue) == number


@pytest.mark.parametrize(("put", "number"), PUTS)
def test_the_callers_own_writes_stand_or_fall_with_the_jobs(
    queue: SqlQueue, spec: QueueSpec[Work], theirs: Caller, put: Callable[..., None], number: int
) -> None:
    schema = queue.database.schema
    theirs.execute(f"CREATE TABLE IF NOT EXISTS {schema}.orders (n integer)")
    theirs.commit()
    if theirs.connection.__class__ is psycopg.Connection and theirs.connection.autocommit:
        theirs.execute("BEGIN")
    theirs.execute(f"INSERT INTO {schema}.orders VALUES (1)")
    put(queue, spec, theirs.connection)
    theirs.execute(f"INSERT INTO {schema}.orders VALUES (2)")
    theirs.rollback()
    assert (count(queue), value(queue, "SELECT count(*) FROM {s}.orders")) == (0, 0)


def test_a_refused_batch_leaves_the_callers_transaction_usable(
    queue: SqlQueue, spec: QueueSpec[Work], theirs: Caller
) -> None:
    put_one(queue, spec, theirs.connection)
    jobs: list[Any] = [Work(n=n) for n in range(2_500)]
    jobs[2_400] = {"n": "x"}
    with pytest.raises(InvalidPayload, match="row 2400"):
        queue.enqueue_many(spec, jobs, connection=theirs.connection)
    with pytest.raises(UnknownQueue):
        queue.enqueue(QueueSpec("missing", Work), Work(n=1), connection=theirs.connection)
    put_one(queue, spec, theirs.connection)
    theirs.commit()
    assert count(queue) == 2


@pytest.mark.parametrize("jobs", [1, 2_500])
def test_in_autocommit_without_a_transaction_a_call_is_its_own(
    queue: SqlQueue, spec: QueueSpec[Work], url: str, jobs: int
) -> None:
    settings = {"isolation_level": "AUTOCOMMIT"}
    with caller(url, autocommit=True) as connection, engine_of(url, **settings) as engine, engine.connect() as theirs:
        queue.enqueue_many(spec, [Work(n=n) for n in range(jobs)], connection=connection)
        assert count(queue) == jobs
        queue.enqueue_many(spec, [Work(n=n) for n in range(jobs)], connection=theirs)
        assert count(queue) == 2 * jobs
        bad: list[Any] = [*[Work(n=n) for n in range(jobs)], {"n": "x"}]
        for kind in (connection, theirs):
            with pytest.raises(InvalidPayload):
                queue.enqueue_many(spec, bad, connection=kind)
        assert count(queue) == 2 * jobs


def test_inside_a_block_of_the_callers_it_is_the_blocks(queue: SqlQueue, spec: QueueSpec[Work], url: str) -> None:
    with caller(url, autocommit=True) as connection:
        with connection.transaction(force_rollback=True):
            put_many(queue, spec, connection)
        assert count(queue) == 0
        with connection.transaction():
            put_many(queue, spec, connection)
        assert count(queue) == 2_001


def test_the_callers_savepoint_may_undo_it(queue: SqlQueue, spec: QueueSpec[Work], url: str) -> None:
    with caller(url) as connection:
        put_one(queue, spec, connection)
        with connection.transaction(force_rollback=True):
            put_many(queue, spec, connection)
        connection.commit()
    assert count(queue) == 1


def test_a_pipeline_is_refused_before_anything_is_written(queue: SqlQueue, spec: QueueSpec[Work], url: str) -> None:
    with caller(url, autocommit=True) as connection, connection.pipeline():
        for put in (put_one, put_many):
            with pytest.raises(InvalidInput, match="pipeline mode"):
                put(queue, spec, connection)
    assert count(queue) == 0


@pytest.mark.parametrize("wrong", ["postgresql://x", object(), 7])
def test_something_else_is_refused_by_its_name(queue: SqlQueue, spec: QueueSpec[Work], wrong: Any) -> None:
    for put in (put_one, put_many):
        with pytest.raises(InvalidInput, match=rf"connection is a {type(wrong).__name__}; give a psycopg\.Connection"):
            put(queue, spec, wrong)


def test_a_connection_of_another_driver_is_refused(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    engine = sa.create_engine("sqlite://")
    with engine.connect() as connection, Session(engine) as session:
        for other in (connection, session):
            with pytest.raises(InvalidInput, match=r"uses the driver 'pysqlite'.*postgresql\+psycopg://"):
                queue.enqueue(spec, Work(n=1), connection=other)
    engine.dispose()


def test_without_the_schema_the_callers_connection_has_the_same_error(
    url: str, theirs: Caller, spec: QueueSpec[Work]
) -> None:
    with SqlQueue(url, schema="nowhere") as queue:
        for put in (put_one, put_many):
            with pytest.raises(SchemaMissing, match="sqlqueue migrate"):
                put(queue, spec, theirs.connection)
            theirs.rollback()
            if theirs.connection.__class__ is psycopg.Connection and theirs.connection.autocommit:
                theirs.execute("BEGIN")
