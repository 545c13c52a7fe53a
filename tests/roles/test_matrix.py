"""The matrix of grants: every object of the schema is decided about for every role, and every statement for every role."""

import re

import psycopg

from dagster_sqlqueue.db import statements
from dagster_sqlqueue.db.permissions import Role, role_name, roles_of
from dagster_sqlqueue.schema import functions, roles
from dagster_sqlqueue.schema.roles import Grant
from tests.roles.support import Staff
from tests.support import rows

_UTILITIES = {"enqueue_copy", "stage_copy", "snapshot", "waiter_listen", "prepare_schema", "roles_make", "roles_grant"}
_UTILITIES |= {"merge_begin", "merge_again", "merge_end", "spark_keep_archive", "spark_keep_live"}
"""What cannot be prepared: transactions of the verbs are tried instead, or it is the owner's."""

_NOTHING = re.compile(r"^-- nothing on (.*): (.*)$", re.MULTILINE)


def _text() -> str:
    return statements.source("roles_grant")


def _present(staff: Staff) -> set[tuple[str, str]]:
    relations = rows(
        staff.owner,
        "SELECT CASE relkind WHEN 'S' THEN 'SEQUENCE' ELSE 'TABLE' END, relname FROM pg_class"
        " WHERE relnamespace = %s::regnamespace AND relkind IN ('r', 'p', 'v', 'm', 'f', 'S')"
        " AND relname !~ '^job_archive_[0-9]{{8}}$'",
        f'"{staff.schema}"',
    )
    own = rows(
        staff.owner,
        # The SQL functions that people call are for everybody, with the caller's own rights.
        "SELECT 'FUNCTION', proname || '(' || oidvectortypes(proargtypes) || ')' FROM pg_proc"
        " WHERE pronamespace = %s::regnamespace AND (prosecdef OR proname <> ALL (%s))",
        f'"{staff.schema}"',
        list(functions.names()),
    )
    return {(kind, name) for kind, name in [*relations, *own]} | {("SCHEMA", staff.schema)}


def test_the_matrix_takes_everything_away_before_it_grants(shared: Staff) -> None:
    assert set(roles.objects(shared.schema)) == _present(shared)


def test_every_object_is_decided_about_for_every_role(shared: Staff) -> None:
    granted = {(grant.object, grant.role) for grant in roles.matrix(shared.schema)}
    refused = {
        (name, role_name(shared.schema, role))
        for objects, names in _NOTHING.findall(_text())
        for name in re.findall(r"\w+(?:\([^)]*\))?", objects)
        for role in re.findall(r"sqlqueue_(\w+)", names)
    }
    assert not granted & refused
    everything = {(name, role_name(shared.schema, role)) for _, name in _present(shared) for role in Role}
    assert everything - granted - refused == set()
    assert (granted | refused) - everything == set()


def test_what_the_matrix_says_is_what_was_granted(shared: Staff) -> None:
    assert roles.examine(shared.owner.database) == roles.Differences((), (), ())
    assert Grant(f"{shared.schema}_producer", "TABLE", "job", "payload", "INSERT") in roles.matrix(shared.schema)
    assert Grant(f"{shared.schema}_observer", "TABLE", "job", None, "SELECT") in roles.matrix(shared.schema)


def test_nobody_may_truncate_refer_or_grant(shared: Staff) -> None:
    assert {grant.privilege for grant in roles.matrix(shared.schema)} == {
        *("USAGE", "SELECT", "INSERT", "UPDATE", "DELETE", "EXECUTE")
    }
    assert not rows(
        shared.owner,
        "SELECT 1 FROM pg_class, aclexplode(relacl) AS given JOIN pg_roles AS r ON r.oid = given.grantee"
        " WHERE relnamespace = %s::regnamespace AND given.is_grantable AND r.rolname LIKE %s",
        f'"{shared.schema}"',
        f"{shared.schema}%",
    )


def _names() -> list[str]:
    return statements.names()


def test_every_statement_is_decided_about() -> None:
    assert all(isinstance(roles_of(name), tuple) for name in _names())


def test_every_statement_as_every_role(shared: Staff, role: Role) -> None:
    """The server checks rights when it begins to run a plan, which EXPLAIN does."""
    with shared.connected(role) as connection:
        connection.execute("SET plan_cache_mode = force_generic_plan")
        allowed = {name for name in _names() if name not in _UTILITIES and _may(connection, name, shared.schema)}
    expected = {name for name in _names() if role in roles_of(name) and name not in _UTILITIES}
    assert allowed - expected == set()
    assert expected - allowed == set()


def _may(connection: "psycopg.Connection[object]", name: str, schema: str) -> bool:
    text = statements.load(name, schema)
    parameters = list(dict.fromkeys(re.findall(r"%\((\w+)\)[sb]", text)))
    for number, parameter in enumerate(parameters, 1):
        text = re.sub(rf"%\({parameter}\)[sb]", f"${number}", text)
    try:
        connection.execute(f"PREPARE verb AS {text.replace('%%', '%')}".encode())
    except psycopg.errors.InsufficientPrivilege:
        return False
    try:
        nulls = f"({', '.join(['NULL'] * len(parameters))})" if parameters else ""
        connection.execute(f"EXPLAIN EXECUTE verb {nulls}".encode())
    except psycopg.errors.InsufficientPrivilege:
        return False
    finally:
        connection.execute("DEALLOCATE verb")
    return True


def test_nothing_of_the_default_schema_is_left_in_a_script() -> None:
    for name in ("roles_grant", "roles_make"):
        text = re.sub(r"--.*", "", statements.script(name, "other")).replace("dagster-sqlqueue: ", "")
        assert "sqlqueue" not in text
        assert "other" in text
    assert '"other_producer"' in statements.script("roles_grant", "other")
