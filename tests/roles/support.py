"""Users with one role each, and what becomes of what they try."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import psycopg
from psycopg import sql
from sqlalchemy.engine import make_url

from dagster_sqlqueue import QueueSpec, SqlQueue
from dagster_sqlqueue.db.permissions import Role, role_name
from tests.support import rows


@dataclass(frozen=True)
class Staff:
    """The queues of one schema, as its owner and as a user of each role see them."""

    owner: SqlQueue
    url: str
    users: dict[Role, SqlQueue]

    @property
    def schema(self) -> str:
        """The schema."""
        return self.owner.database.schema

    def user(self, role: Role) -> str:
        """The name of the user who has that role."""
        return f"{self.schema}_u_{role}"

    @contextlib.contextmanager
    def connected(self, role: Role) -> "Iterator[psycopg.Connection[Any]]":
        """A connection of that user's own, as psql would have it."""
        with psycopg.connect(url_of(self.url, self.user(role)), autocommit=True) as connection:
            yield connection

    def text(self, query: str) -> bytes:
        """A query, with `{s}` for the schema."""
        return query.replace("{s}", f'"{self.schema}"').encode()


def url_of(url: str, user: str) -> str:
    """The URL of another user of the same database; the tests' servers ask for no password."""
    return make_url(url).set(username=user).render_as_string(hide_password=False)


@contextlib.contextmanager
def staff_of(owner: SqlQueue, url: str) -> Iterator[Staff]:
    """A user for each role of the owner's schema."""
    schema = owner.database.schema
    with contextlib.ExitStack() as stack, psycopg.connect(url, autocommit=True) as connection:
        users = {}
        for role in Role:
            name = f"{schema}_u_{role}"
            connection.execute(
                sql.SQL("CREATE ROLE {} LOGIN IN ROLE {}").format(
                    sql.Identifier(name), sql.Identifier(role_name(schema, role))
                )
            )
            users[role] = stack.enter_context(SqlQueue(url_of(url, name), schema=schema))
        yield Staff(owner, url, users)


@contextlib.contextmanager
def dropping_roles(url: str, *schemas: str) -> Iterator[None]:
    """Drop the schemas of the block, and every role that is named after one: roles outlive schemas."""
    try:
        yield
    finally:
        with psycopg.connect(url, autocommit=True) as connection:
            for schema in schemas:
                connection.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(schema)))
                like = schema.replace("_", r"\_") + r"\_%"
                for (name,) in connection.execute("SELECT rolname FROM pg_roles WHERE rolname LIKE %s", (like,)):
                    connection.execute(sql.SQL("DROP OWNED BY {} CASCADE").format(sql.Identifier(name)))
                    connection.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(name)))


@contextlib.contextmanager
def staffed(url: str, *specs: QueueSpec[Any]) -> Iterator[Staff]:
    """A fresh schema with these queues, and a user for each role."""
    schema = f"r_{uuid4().hex[:12]}"
    with dropping_roles(url, schema), SqlQueue(url, schema=schema) as owner:
        owner.migrate()
        owner.install_roles()
        for spec in specs:
            owner.create_queue(spec)
        with staff_of(owner, url) as staff:
            yield staff


@contextlib.contextmanager
def colleague(staff: Staff, *roles: Role, rights_of: str | None = None) -> Iterator[SqlQueue]:
    """One more user with these roles, and the rights of another user, if named."""
    name = f"{staff.schema}_c_{uuid4().hex[:8]}"
    granted = [role_name(staff.schema, role) for role in roles] + ([rights_of] if rights_of else [])
    with psycopg.connect(staff.url, autocommit=True) as connection:
        groups = sql.SQL(", ").join(map(sql.Identifier, granted))
        connection.execute(sql.SQL("CREATE ROLE {} LOGIN IN ROLE {}").format(sql.Identifier(name), groups))
    with SqlQueue(url_of(staff.url, name), schema=staff.schema) as queue:
        yield queue


def relations(staff: Staff) -> list[tuple[str, str]]:
    """The tables and views of the schema, each with one of its columns that is not computed."""
    return rows(
        staff.owner,
        "SELECT c.relname, min(a.attname) FROM pg_class AS c JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0"
        " WHERE c.relnamespace = %s::regnamespace AND c.relkind IN ('r', 'p', 'v') AND a.attgenerated = '' GROUP BY 1",
        f'"{staff.schema}"',
    )


def refused(attempt: Callable[[], object]) -> bool:
    """Whether the server refuses what is attempted; any other error is raised."""
    try:
        attempt()
    except psycopg.errors.InsufficientPrivilege:
        return True
    return False
