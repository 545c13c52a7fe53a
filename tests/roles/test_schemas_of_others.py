"""The queue makes its tables in no schema that is PostgreSQL's, or somebody else's."""

import psycopg
import pytest

from dagster_sqlqueue import SqlQueue
from dagster_sqlqueue.cli.exit_codes import Code
from dagster_sqlqueue.errors import InvalidInput
from tests.cli.support import Cli


@pytest.mark.parametrize(
    "schema", ["information_schema", "INFORMATION_SCHEMA", "pg_catalog", "pg_toast", "PG_CATALOG", "pg_temp", "pg_mine"]
)
def test_a_schema_of_the_server_is_refused(any_server: str, schema: str) -> None:
    wanted = rf"schema '{schema}' is not usable: .*PostgreSQL's own; choose another name"
    with pytest.raises(InvalidInput, match=wanted):
        SqlQueue(any_server, schema=schema).migrate()
    refused = Cli({"SQLQUEUE_URL": any_server}).run("--schema", schema, "migrate")
    assert refused.exit_code == Code.INPUT
    assert "PostgreSQL's own" in " ".join(refused.stderr.split())
    with psycopg.connect(any_server) as connection:
        made = "SELECT nspname FROM pg_namespace WHERE nspname ILIKE %s OR nspname LIKE 'pg\\_%%\\_v1'"
        assert connection.execute(made, (f"{schema}\\_v1",)).fetchall() == []


@pytest.mark.parametrize(
    ("makes", "named"),
    [
        ("CREATE TABLE {}.job (id integer)", "the table job"),
        ("CREATE TABLE {}.orders (id integer)", "the table orders"),
        ("CREATE TABLE {}.schema_version (version text PRIMARY KEY)", "the table schema_version"),
        ("CREATE TABLE {}.parts (n integer) PARTITION BY RANGE (n)", "the table parts"),
        ("CREATE VIEW {}.report AS SELECT 1 AS n", "the view report"),
        ("CREATE MATERIALIZED VIEW {}.kept AS SELECT 1 AS n", "the view kept"),
        ("CREATE SEQUENCE {}.numbers", "the sequence numbers"),
        ("CREATE FUNCTION {}.claim() RETURNS integer LANGUAGE sql AS 'SELECT 1'", "the function claim"),
        (
            "CREATE TABLE {0}.a (n integer); CREATE TABLE {0}.b (n integer); CREATE TABLE {0}.c (n integer);"
            " CREATE TABLE {0}.d (n integer); CREATE VIEW {0}.e AS SELECT 1 AS n",
            "the table a, the table b, the table c and 2 more",
        ),
        (
            "CREATE TABLE {0}.schema_version (version integer, name text, serves_from integer, applied_at timestamptz);"
            " CREATE TABLE {0}.queue (name text)",
            "the table queue",
        ),
    ],
)
def test_a_schema_with_something_of_somebody_elses_is_refused(
    any_server: str, own_schema: str, makes: str, named: str
) -> None:
    with psycopg.connect(any_server, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {own_schema}; {makes.format(own_schema)}".encode())
        held = "SELECT relname FROM pg_class WHERE relnamespace = %s::regnamespace ORDER BY 1"
        before = connection.execute(held, (own_schema,)).fetchall()
        with SqlQueue(any_server, schema=own_schema) as owner, pytest.raises(InvalidInput) as refused:
            owner.migrate()
        assert f"schema '{own_schema}' of" in str(refused.value)
        assert f"it holds {named}, and not the queue's tables" in str(refused.value)
        assert "choose a name that is free" in str(refused.value)
        by_command = Cli({"SQLQUEUE_URL": any_server, "SQLQUEUE_SCHEMA": own_schema}).run("migrate", "--roles")
        assert by_command.exit_code == Code.INPUT
        assert named in " ".join(by_command.stderr.split())
        assert connection.execute(held, (own_schema,)).fetchall() == before
        assert connection.execute("SELECT to_regnamespace(%s)", (f"{own_schema}_v1",)).fetchone() == (None,)


def test_an_empty_schema_one_with_an_extension_and_the_queues_own_are_taken(any_server: str, own_schema: str) -> None:
    with psycopg.connect(any_server, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {own_schema}".encode())
        available = connection.execute("SELECT FROM pg_available_extensions WHERE name = 'pgstattuple'").fetchone()
        if available is not None:
            connection.execute(f"CREATE EXTENSION IF NOT EXISTS pgstattuple SCHEMA {own_schema}".encode())
        with SqlQueue(any_server, schema=own_schema) as owner:
            assert owner.migrate()
            connection.execute(f"CREATE TABLE {own_schema}.results (n integer)".encode())
            assert owner.migrate() == []
