"""A schema with roles, and for each role a user who can log in and has that role alone."""

import contextlib
from collections.abc import Callable, Iterator
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql

from dagster_sqlqueue import QueueSpec, SqlQueue
from dagster_sqlqueue.db.permissions import Role
from tests.roles.support import Staff, dropping_roles, staff_of
from tests.support import Work
from tests.support.server_names import SERVERS


@pytest.fixture(
    scope="session",
    params=[pytest.param(name, marks=pytest.mark.prove if place else ()) for place, name in enumerate(SERVERS)],
)
def any_server(request: pytest.FixtureRequest, servers: Callable[[str], str]) -> str:
    """The URL of the first server; in `make prove`, of each in turn."""
    return servers(request.param)


@pytest.fixture
def own_schema(any_server: str) -> Iterator[str]:
    """A schema name that no role of any server was named after; its roles and users are dropped at the end."""
    schema = f"r_{uuid4().hex[:12]}"
    with dropping_roles(any_server, schema):
        yield schema


@pytest.fixture(scope="session")
def shared(any_server: str) -> Iterator[Staff]:
    """A schema with roles for the tests that leave it as they find it."""
    schema = f"r_{uuid4().hex[:12]}"
    with dropping_roles(any_server, schema), SqlQueue(any_server, schema=schema) as owner:
        owner.migrate()
        owner.install_roles()
        owner.create_queue(QueueSpec("work", Work))
        with staff_of(owner, any_server) as staff:
            yield staff


@pytest.fixture
def staff(any_server: str, own_schema: str, spec: QueueSpec[Work]) -> Iterator[Staff]:
    """The users of a fresh schema with the queue of `spec`."""
    with SqlQueue(any_server, schema=own_schema) as owner:
        owner.migrate()
        owner.install_roles()
        owner.create_queue(spec)
        with staff_of(owner, any_server) as staff:
            yield staff


@pytest.fixture(params=list(Role))
def role(request: pytest.FixtureRequest) -> Role:
    """Each role in turn."""
    found: Role = request.param
    return found


@pytest.fixture
def someone(any_server: str, own_schema: str) -> Iterator[str]:
    """A user who may make schemas, and no roles; returns its name."""
    name = f"{own_schema}_someone"
    with psycopg.connect(any_server, autocommit=True) as connection:
        database = connection.info.dbname
        connection.execute(sql.SQL("CREATE ROLE {} LOGIN").format(sql.Identifier(name)))
        connection.execute(
            sql.SQL("GRANT CREATE ON DATABASE {} TO {}").format(sql.Identifier(database), sql.Identifier(name))
        )
    yield name
    with contextlib.suppress(psycopg.Error), psycopg.connect(any_server, autocommit=True) as connection:
        connection.execute(sql.SQL("DROP OWNED BY {} CASCADE").format(sql.Identifier(name)))
