"""Making the roles, keeping their grants up to date, and what stands in the way."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql

from dagster_sqlqueue import QueueSpec, SqlQueue
from dagster_sqlqueue.db.permissions import Role
from dagster_sqlqueue.doctor.schema_checks import roles as doctor
from dagster_sqlqueue.doctor.server_checks import Verdict
from dagster_sqlqueue.errors import AccessRefused, InvalidInput, SchemaMissing
from dagster_sqlqueue.schema import migrations, roles
from dagster_sqlqueue.schema.migrations import Migration
from tests.roles.support import Staff, dropping_roles, staff_of, url_of
from tests.support import Work, rows, value
from tests.support.few import few
from tests.support.server_names import SERVERS


@pytest.fixture(scope="session", params=few(SERVERS, 1))
def any_server(request: pytest.FixtureRequest, servers: Callable[[str], str]) -> str:
    """The URL of each server in turn: what a role may grant to others differs between versions."""
    return servers(request.param)


@pytest.fixture
def owner(any_server: str, own_schema: str) -> Iterator[SqlQueue]:
    """The owner of a schema without roles."""
    with SqlQueue(any_server, schema=own_schema) as queue:
        queue.migrate()
        yield queue


def _roles(queue: SqlQueue) -> list[str]:
    return [
        name.removeprefix(f"{queue.database.schema}_")
        for (name,) in rows(
            queue, "SELECT rolname FROM pg_roles WHERE rolname LIKE %s ORDER BY 1", f"{queue.database.schema}%"
        )
    ]


FOUR = ["consumer", "observer", "operator", "producer"]


def test_a_schema_has_no_roles_unless_asked_for(owner: SqlQueue) -> None:
    assert _roles(owner) == []
    assert roles.examine(owner.database) is None
    assert owner.migrate() == []
    assert _roles(owner) == []


@pytest.mark.parametrize("any_server", SERVERS, indirect=True)
def test_installing_again_changes_nothing(owner: SqlQueue) -> None:
    first = owner.install_roles()
    assert [role.name for role in first] == [f"{owner.database.schema}_{name}" for name in FOUR]
    assert all(role.made for role in first)
    acl = "SELECT relname, relacl::text FROM pg_class WHERE relnamespace = %s::regnamespace ORDER BY 1"
    before = rows(owner, acl, f'"{owner.database.schema}"')
    again = owner.install_roles()
    assert [(role.name, role.made) for role in again] == [(role.name, False) for role in first]
    assert rows(owner, acl, f'"{owner.database.schema}"') == before
    assert not any(
        login
        for (login,) in rows(
            owner, "SELECT rolcanlogin FROM pg_roles WHERE rolname LIKE %s", f"{owner.database.schema}%"
        )
    )


def test_members_are_named(staff: Staff) -> None:
    found = {role.name: role.members for role in staff.owner.install_roles()}
    assert found == {f"{staff.schema}_{role}": (staff.user(role),) for role in Role}


def test_several_at_once(any_server: str, owner: SqlQueue) -> None:
    def install(_: int) -> int:
        with SqlQueue(any_server, schema=owner.database.schema) as queue:
            return sum(role.made for role in queue.install_roles())

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(install, range(4))) == 4
    assert roles.examine(owner.database) == roles.Differences((), (), ())


@pytest.mark.parametrize("name", few(["Odd$Name", "_", "public_2", "table_$1"], 1))
def test_names_that_have_to_be_quoted(any_server: str, name: str) -> None:
    schema = f"{name}{uuid4().hex[:8]}"
    spec = QueueSpec("work", Work)
    with dropping_roles(any_server, schema), SqlQueue(any_server, schema=schema) as queue:
        queue.migrate()
        queue.install_roles()
        queue.create_queue(spec)
        with staff_of(queue, any_server) as staff:
            staff.users[Role.PRODUCER].enqueue(spec, Work(n=1))
            assert staff.users[Role.OBSERVER].peek("work")
            assert len(staff.users[Role.CONSUMER].claim("work", limit=1, worker="w")) == 1
            assert staff.users[Role.OPERATOR].maintain().ran


def test_a_schema_with_too_long_a_name_has_no_roles(any_server: str) -> None:
    name = "s" * 22 + uuid4().hex
    assert len(roles.script_for_dba(name)) > 100
    with dropping_roles(any_server, f"{name}x"), SqlQueue(any_server, schema=f"{name}x") as queue:
        queue.migrate()
        with pytest.raises(InvalidInput, match=r"has 55 characters; .* it can have 54 at most"):
            queue.install_roles()
        assert queue.migrate() == []
        assert doctor(queue.database).verdict is Verdict.OK


def test_roles_come_after_tables(any_server: str, own_schema: str) -> None:
    with SqlQueue(any_server, schema=own_schema) as queue:
        with pytest.raises(SchemaMissing, match="sqlqueue migrate"):
            queue.install_roles()
        assert rows(queue, "SELECT 1 FROM pg_roles WHERE rolname LIKE %s", f"{own_schema}%") == []


@pytest.fixture
def lowly(any_server: str, own_schema: str, someone: str) -> Iterator[SqlQueue]:
    """An owner who may not make roles."""
    with SqlQueue(url_of(any_server, someone), schema=own_schema) as queue:
        queue.migrate()
        yield queue


def test_an_owner_who_may_not_make_roles_learns_what_a_dba_does(lowly: SqlQueue, any_server: str, someone: str) -> None:
    with pytest.raises(
        AccessRefused, match=f"user '{someone}' may not make the roles .*sqlqueue migrate --roles --print"
    ):
        lowly.install_roles()
    assert roles.examine(lowly.database) is None
    for _ in range(2):
        with psycopg.connect(any_server, autocommit=True) as dba:
            dba.execute(roles.script_for_dba(lowly.database.schema).encode())
    assert roles.examine(lowly.database) is None
    assert [role.made for role in lowly.install_roles()] == [False] * 4
    assert roles.examine(lowly.database) == roles.Differences((), (), ())
    with staff_of(lowly_as_dba(any_server, lowly), any_server) as staff:
        assert staff.users[Role.OBSERVER].queues() == []


@pytest.mark.parametrize("any_server", SERVERS, indirect=True)
def test_an_owner_who_may_make_roles_needs_nobody(lowly: SqlQueue, any_server: str, someone: str) -> None:
    with psycopg.connect(any_server, autocommit=True) as dba:
        dba.execute(sql.SQL("ALTER ROLE {} CREATEROLE").format(sql.Identifier(someone)))
    assert [(role.made, role.members) for role in lowly.install_roles()] == [(True, ())] * 4
    assert [(role.made, role.members) for role in lowly.install_roles()] == [(False, ())] * 4
    assert roles.examine(lowly.database) == roles.Differences((), (), ())
    schema = lowly.database.schema
    rows(lowly, f'CREATE ROLE "{schema}_shop" LOGIN')
    rows(lowly, f'GRANT "{schema}_producer" TO "{schema}_shop"')
    with SqlQueue(url_of(any_server, f"{schema}_shop"), schema=schema) as shop:
        assert shop.queues() == []
    assert lowly.install_roles()[3].members == (f"{schema}_shop",)


def lowly_as_dba(url: str, queue: SqlQueue) -> SqlQueue:
    """The same schema, as a superuser."""
    return SqlQueue(url, schema=queue.database.schema)


@pytest.mark.parametrize("role", few(list(Role), 1))
def test_who_does_not_own_the_schema_grants_nothing(staff: Staff, role: Role) -> None:
    rows(staff.owner, f'REVOKE SELECT ON {{s}}.schedule FROM "{staff.schema}_observer"')
    with pytest.raises(AccessRefused, match="run it as the user who owns the schema and its tables"):
        staff.users[role].install_roles()
    found = roles.examine(staff.owner.database)
    assert found is not None
    assert len(found.lacking) == 1


@pytest.mark.parametrize("made", few(["LOGIN", "NOLOGIN", "SUPERUSER"], 1))
def test_a_role_of_somebody_else_is_granted_nothing(owner: SqlQueue, made: str) -> None:
    name = f"{owner.database.schema}_observer"
    rows(owner, f'CREATE ROLE "{name}" {made}')
    if made == "SUPERUSER":
        mark = f"dagster-sqlqueue: observer of schema {owner.database.schema}"
        rows(owner, f"COMMENT ON ROLE \"{name}\" IS '{mark}'")
    with pytest.raises(InvalidInput, match=f"role '{name}' is there and is not one of this schema's"):
        owner.install_roles()
    assert _roles(owner) == ["observer"]
    assert roles.examine(owner.database) is None
    owner.migrate()
    assert value(owner, "SELECT has_schema_privilege(%s, %s, 'USAGE')", name, owner.database.schema) is (
        made == "SUPERUSER"
    )


def test_a_dba_can_say_that_a_role_is_the_schemas(owner: SqlQueue) -> None:
    name = f"{owner.database.schema}_observer"
    rows(owner, f'CREATE ROLE "{name}" NOLOGIN')
    with pytest.raises(InvalidInput) as caught:
        owner.install_roles()
    rows(owner, str(caught.value).split("says so with: ")[1])
    assert [role.made for role in owner.install_roles()] == [True, False, True, True]


@pytest.mark.parametrize("role", few(list(Role), 1))
def test_the_roles_of_one_schema_are_nobody_in_another(staff: Staff, any_server: str, role: Role) -> None:
    other = f"r_{uuid4().hex[:12]}"
    with dropping_roles(any_server, other), SqlQueue(any_server, schema=other) as owner:
        owner.migrate()
        owner.install_roles()
        stranger = SqlQueue(url_of(any_server, staff.user(role)), schema=other)
        with stranger, pytest.raises(AccessRefused, match=f'"{other}_observer", "{other}_producer"'):
            stranger.queues()


def test_a_migration_that_makes_a_table_anew_leaves_the_roles_what_they_need(
    staff: Staff, monkeypatch: pytest.MonkeyPatch
) -> None:
    again = (
        "CREATE TABLE sqlqueue.waiter_2 (LIKE sqlqueue.waiter INCLUDING ALL); DROP TABLE sqlqueue.waiter;"
        " ALTER TABLE sqlqueue.waiter_2 RENAME TO waiter; CREATE OR REPLACE VIEW sqlqueue.own_follower AS"
        " SELECT f.id, f.submitted_id, f.group_id FROM sqlqueue.follower AS f WHERE false"
    )
    _with_migration(monkeypatch, again)
    assert [migration.version for migration in staff.owner.migrate()] == [9999]
    assert roles.examine(staff.owner.database) == roles.Differences((), (), ())
    staff.users[Role.CONSUMER].database.run("waiter_register", {"queue": "work", "worker": "w", "seconds": 60.0})


def test_a_migration_that_fails_leaves_the_grants_as_they_were(staff: Staff, monkeypatch: pytest.MonkeyPatch) -> None:
    _with_migration(monkeypatch, "DROP TABLE sqlqueue.waiter; SELECT 1 / 0")
    with pytest.raises(psycopg.errors.DivisionByZero):
        staff.owner.migrate()
    assert roles.examine(staff.owner.database) == roles.Differences((), (), ())


def test_a_migration_of_a_schema_without_roles_makes_none(owner: SqlQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    _with_migration(monkeypatch, "SELECT 1")
    owner.migrate()
    assert _roles(owner) == []


def _with_migration(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    known = migrations.available()
    monkeypatch.setattr(migrations, "available", lambda: [*known, Migration(9999, "more", text)])


def test_migrate_grants_what_is_lacking_and_takes_nothing_away(staff: Staff) -> None:
    rows(staff.owner, f'REVOKE SELECT ON {{s}}.queue FROM "{staff.schema}_consumer"')
    rows(staff.owner, f'GRANT SELECT ON {{s}}.schedule TO "{staff.schema}_producer"')
    rows(staff.owner, f'REVOKE INSERT (payload) ON {{s}}.job FROM "{staff.schema}_producer"')
    check = doctor(staff.owner.database)
    lacking = f"lacking: {staff.schema}_consumer: SELECT on queue and 1 more"
    assert (check.verdict, check.found) == (Verdict.FAIL, lacking)
    with pytest.raises(AccessRefused):
        staff.users[Role.CONSUMER].queues()
    assert staff.owner.migrate() == []
    assert staff.users[Role.CONSUMER].queues()
    assert roles.examine(staff.owner.database) == roles.Differences((), (), ())


@pytest.mark.parametrize(
    "more",
    few(
        [
            'GRANT SELECT (payload) ON {s}.job TO "{r}_producer"',
            "GRANT EXECUTE ON FUNCTION {s}.stats_of_queue(text) TO PUBLIC",
            'GRANT SELECT ON {s}.schedule TO "{r}_producer"',
            'GRANT USAGE ON SEQUENCE {s}.job_order TO "{r}_observer"',
            "GRANT SELECT ON {s}.job TO PUBLIC",
            'GRANT CREATE ON SCHEMA {s} TO "{r}_operator"',
        ],
        2,
    ),
)
def test_doctor_warns_of_more_than_is_needed_and_installing_takes_it_away(staff: Staff, more: str) -> None:
    rows(staff.owner, more.replace("{r}", staff.schema))
    check = doctor(staff.owner.database)
    assert (check.verdict, check.name) == (Verdict.WARN, "roles")
    assert check.found.startswith("more than is needed: ")
    assert " and " not in check.found
    staff.owner.install_roles()
    assert doctor(staff.owner.database).verdict is Verdict.OK


def test_doctor_misses_a_role_that_is_gone(staff: Staff) -> None:
    rows(staff.owner, f'DROP OWNED BY "{staff.schema}_observer"')
    rows(staff.owner, f'DROP ROLE "{staff.schema}_observer"')
    check = doctor(staff.owner.database)
    assert (check.verdict, check.found) == (Verdict.FAIL, f"not there: {staff.schema}_observer")
    assert staff.owner.migrate() == []
    assert sum(role.made for role in staff.owner.install_roles()) == 1
    assert doctor(staff.owner.database).verdict is Verdict.OK


def test_a_grant_to_a_user_of_a_table_of_his_own_is_nobodys_business(staff: Staff) -> None:
    rows(staff.owner, "CREATE TABLE {s}.results (n integer)")
    rows(staff.owner, f'GRANT ALL ON {{s}}.results TO "{staff.schema}_consumer"')
    staff.owner.install_roles()
    assert value(staff.owner, f"SELECT has_table_privilege('{staff.schema}_consumer', '{{s}}.results', 'INSERT')")
    assert doctor(staff.owner.database).verdict is Verdict.OK


def test_dropping_the_schema_leaves_roles_that_can_be_dropped(staff: Staff) -> None:
    rows(staff.owner, "DROP SCHEMA {s} CASCADE")
    for role in Role:
        rows(staff.owner, f'DROP ROLE "{staff.user(role)}"')
        with staff.owner.database.connection() as connection:
            connection.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(f"{staff.schema}_{role}")))
