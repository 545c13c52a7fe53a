"""What is installed where: the contract of version 1, whose schema it is, and with which rights it runs."""

import re
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from dagster_sqlqueue import QueueSpec, SqlQueue
from dagster_sqlqueue.db import statements
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.schema import functions
from tests.support import Work, drop, rows, value

CONTRACT = Path(__file__).with_name("v1.txt")

SIGNATURES = """
SELECT p.proname || '(' || pg_get_function_arguments(p.oid) || ') -> ' || pg_get_function_result(p.oid)
FROM pg_proc AS p
WHERE p.pronamespace = %s::regnamespace AND p.proname !~ '^_' AND p.proname = ANY (%s)
ORDER BY p.proname COLLATE "C"
"""


def test_version_1_is_what_it_was(queue: SqlQueue, schema: str) -> None:
    """What a version promises never changes: if this fails, make another version, or take the change back."""
    names = [
        row[0]
        for row in rows(queue, "SELECT proname FROM pg_proc WHERE pronamespace = %s::regnamespace", f"{schema}_v1")
    ]
    found = [row[0] for row in rows(queue, SIGNATURES, f"{schema}_v1", names)]
    assert found == CONTRACT.read_text().splitlines()


def test_the_queues_schema_has_the_newest(queue: SqlQueue, schema: str) -> None:
    names = list(functions.names())
    assert rows(queue, SIGNATURES, schema, names) == rows(queue, SIGNATURES, f"{schema}_v1", names)
    assert value(queue, "SELECT {s}.api_version()") == 1


def test_a_newest_function_of_another_shape_is_made_anew(queue: SqlQueue, schema: str) -> None:
    rows(queue, "DROP FUNCTION {s}.resume(text)")
    rows(queue, "CREATE FUNCTION {s}.resume(other text) RETURNS integer LANGUAGE sql AS 'SELECT 1'")
    rows(queue, "UPDATE {s}.function_set SET digest = 'of before'")
    queue.migrate()
    queue.pause("work")
    assert value(queue, "SELECT {s}.resume(queue => 'work')") is True


@pytest.mark.parametrize("home", ["{s}", "{v1}"])
def test_what_was_dropped_is_reported_and_made_again(queue: SqlQueue, schema: str, home: str) -> None:
    assert functions.state(queue.database).usable
    name = home.format(s=schema, v1=f"{schema}_v1")
    rows(queue, f"DROP FUNCTION {name}.claim")
    assert functions.state(queue.database).missing == (f"{name}.claim",)
    queue.migrate()
    assert functions.state(queue.database).usable


def test_every_file_says_what_it_is_for_and_includes_what_there_is() -> None:
    folder = statements.folder() / "api" / "v1"
    texts = {file.name: file.read_text(encoding="utf-8") for file in folder.iterdir()}
    for name, text in texts.items():
        function = name.removesuffix(".sql")
        assert text.startswith("-- "), name
        assert re.findall(r"FUNCTION sqlqueue_v1\.(\w+)\(", text) == [function], name
        if not function.startswith("_") and function != "api_version":
            assert "{{settings}}" in text, name
        # The time is that of the statement, not of the call: it is set before anything that goes by it.
        for included in re.findall(r"\{\{(\w+)\}\}", text):
            if included != "settings" and "statement_timestamp()" in statements.source(included):
                before = text[: text.index("{{" + included + "}}")]
                assert "clock := clock_timestamp();" in before or "clock timestamptz := clock_timestamp();" in before, (
                    name
                )
    assert "statement_timestamp()" not in functions.definitions()
    assert not re.search(r"(?<![:\w'\[a-z]):[a-z_]+\b(?!\])", "".join(texts.values()).replace("::", ""))


def test_an_empty_schema_that_somebody_made_is_taken(url: str, schema: str) -> None:
    with SqlQueue(url, schema=schema) as queue:
        rows(queue, f"CREATE SCHEMA {schema}_v1")
        queue.migrate()
        assert functions.state(queue.database).usable


@pytest.mark.parametrize("taken", ["a table", "of another queue"])
def test_a_schema_that_is_in_use_is_left_alone(url: str, schema: str, taken: str) -> None:
    with SqlQueue(url, schema=schema) as queue, SqlQueue(url, schema=f"{schema}_v1") as other:
        if taken == "a table":
            rows(queue, f"CREATE SCHEMA {schema}_v1 CREATE TABLE mine (n integer)")
        else:
            other.migrate()
        with pytest.raises(
            InvalidInput, match=rf"schema '{schema}_v1', where the SQL functions .* holds something else"
        ):
            queue.migrate()
        assert value(queue, "SELECT to_regclass(%s)", f"{schema}.job") is None
        drop(other)
        drop(queue)


def test_queues_do_not_move_in_with_functions(queue: SqlQueue, url: str, schema: str) -> None:
    with (
        SqlQueue(url, schema=f"{schema}_v1") as other,
        pytest.raises(InvalidInput, match=f"it holds the functions of the queues in schema {schema}: version 1"),
    ):
        other.migrate()
    assert value(queue, "SELECT to_regclass(%s)", f"{schema}_v1.schema_version") is None
    assert functions.state(queue.database).usable


def test_long_names_have_room_for_the_version() -> None:
    assert functions.pinned_schema("x" * 63) == "x" * 60 + "_v1"
    assert functions.pinned_schema("sqlqueue") == "sqlqueue_v1"


def test_functions_run_with_the_callers_rights(queue: SqlQueue, url: str, schema: str) -> None:
    others = "SELECT count(*) FROM pg_proc WHERE pronamespace = %s::regnamespace AND prosecdef AND proname = ANY (%s)"
    assert value(queue, others, schema, list(functions.names())) == 0
    every = "SELECT count(*) FROM pg_proc WHERE pronamespace = %s::regnamespace AND prosecdef"
    assert value(queue, every, f"{schema}_v1") == 0
    role = f"nobody_{schema}"
    rows(queue, f"CREATE ROLE {role}")
    try:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(f"SET ROLE {role}".encode())
            call = f"SELECT {schema}_v1.enqueue('work', '{{}}')".encode()
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(call)
            rows(queue, f"GRANT USAGE ON SCHEMA {{s}}, {schema}_v1 TO {role}")
            with pytest.raises(psycopg.errors.InsufficientPrivilege, match="table"):
                connection.execute(call)
            assert queue.depth("work").live == 0
    finally:
        rows(queue, f"DROP OWNED BY {role}")
        rows(queue, f"DROP ROLE {role}")


def test_a_callers_search_path_means_nothing(queue: SqlQueue, url: str, schema: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA trap_{schema}".encode())
        connection.execute(
            f"CREATE FUNCTION trap_{schema}.now() RETURNS timestamptz"
            " LANGUAGE sql AS $$SELECT timestamptz 'infinity'$$".encode()
        )
        connection.execute(f"SET search_path = trap_{schema}, pg_catalog".encode())
        connection.execute(f"SELECT {schema}_v1.enqueue('work', '{{\"n\": 1}}')".encode())
        assert len(connection.execute(f"SELECT * FROM {schema}_v1.claim('work', 'w')".encode()).fetchall()) == 1
        assert connection.execute(b"SHOW search_path").fetchone() == (f"trap_{schema}, pg_catalog",)
        connection.execute(f"DROP SCHEMA trap_{schema} CASCADE".encode())


def test_a_database_may_have_every_check_of_plpgsql_as_an_error(url: str, schema: str, spec: QueueSpec[Work]) -> None:
    strict = f"{url}&options=-c%20plpgsql.extra_errors%3Dall"
    with SqlQueue(strict, schema=schema) as queue, psycopg.connect(strict, autocommit=True) as connection:
        queue.migrate()
        queue.create_queue(replace(spec, ordered=True, max_attempts=1, on_poison="dead_letter"))
        v1 = f"{schema}_v1"
        job = connection.execute(
            f"SELECT {v1}.enqueue('work', '{{}}', ordering_key => 'k', tags => '{{a}}')"
        ).fetchone()
        for more in ("", ", with_tags => '{a}'"):
            claimed = connection.execute(f"SELECT job_id, lease_no FROM {v1}.claim('work', 'w'{more})").fetchone()
            assert claimed is not None
            connection.execute(f"SELECT {v1}.fail(%s, %s, 'broken')", claimed)
            again = connection.execute(f"SELECT outcome FROM {v1}.retry('work', %s)", ([claimed[0]],)).fetchone()
            assert (claimed[0], again) == (job and job[0], ("changed",))
        drop(queue)


def test_python_and_sql_meet_on_one_queue(queue: SqlQueue, spec: object) -> None:
    job = queue.enqueue(spec, Work(n=1))  # type: ignore[arg-type]
    assert rows(queue, "SELECT job_id, attempt FROM {s}.claim('work', 'w', 5)") == [(job, 1)]
