"""Callers that know SQL alone: psql, triggers, Node.js; and what an upgrade does to those that are connected."""

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from dagster_sqlqueue import SqlQueue, __version__
from dagster_sqlqueue.errors import SchemaTooNew
from tests.api.conftest import SPEC
from tests.api.programs import NodeCaller, installed_once, psql
from tests.gate.patience import PATIENCE
from tests.support import Work, numbers, rows, value

PROJECT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def node_modules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    own = tmp_path_factory.getbasetemp()
    return installed_once((own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "node")


@pytest.fixture
def node(node_modules: Path, url: str, queue: SqlQueue) -> Iterator[NodeCaller]:
    caller = NodeCaller(node_modules, url)
    yield caller
    caller.close()


def test_psql_puts_in_takes_out_and_ends(queue: SqlQueue, url: str, schema: str) -> None:
    output = psql(
        url,
        """
        SELECT sqlqueue.api_version(), sqlqueue_v1.api_version();
        SELECT sqlqueue.enqueue('work', '{"n": 1}', priority => 5) IS NOT NULL;
        SELECT job_id AS job, lease_no AS lease FROM sqlqueue.claim('work', 'psql') \\gset
        SELECT sqlqueue.complete(:'job', :lease, '{"seen": true}');
        SELECT state, result FROM sqlqueue.job(:'job');
        """,
        schema=schema,
    )
    assert output.split() == ["1|1", "t", "succeeded", 'succeeded|{"seen":', "true}"]
    assert queue.archived("work", since_seconds=3_600) == {"succeeded": 1}


def test_psql_shows_the_named_error(queue: SqlQueue, url: str, schema: str) -> None:
    output = psql(
        url,
        "\\set ON_ERROR_STOP 0\nSELECT sqlqueue.enqueue('nope', '{}');\n"
        "\\echo :LAST_ERROR_SQLSTATE\n\\echo :LAST_ERROR_MESSAGE",
        schema=schema,
    )
    assert output.splitlines() == ["SQ002", f"there is no queue 'nope' in schema {schema} (there are: work)"]


def test_who_listens_is_woken(queue: SqlQueue, url: str, schema: str) -> None:
    with psycopg.connect(url, autocommit=True) as waiting, psycopg.connect(url, autocommit=True) as other:
        queue.enqueue(SPEC, Work(n=0))
        listen = f"SELECT {schema}_v1.listen('work', 'w')".encode()
        other.execute(f"SELECT {schema}_v1.enqueue('work', '{{}}', run_at => now() + interval '1 hour')".encode())
        for put in (
            lambda: other.execute(f"SELECT {schema}_v1.enqueue('work', '{{}}')".encode()),
            lambda: queue.enqueue(SPEC, Work(n=1)),
        ):
            ((channel,),) = waiting.execute(listen).fetchall()
            assert channel == f"{schema}_waiter_{waiting.info.backend_pid}"
            # Once: the second finds nobody who waits.
            put()
            put()
            waiting.execute("SELECT pg_notify(%s, 'mark')", (channel,))
            notes = list(waiting.notifies(timeout=PATIENCE, stop_after=2))
            assert [(note.channel, note.payload) for note in notes] == [(channel, "work"), (channel, "mark")]
        # What may have made many due notifies all.
        other.execute(f"SELECT {schema}_v1.pause('work'), {schema}_v1.resume('work')".encode())
        notes = list(waiting.notifies(timeout=PATIENCE, stop_after=1))
        assert [(note.channel, note.payload) for note in notes] == [(schema, "work")]
        for call, state in (
            ("'nope', 'w'", "SQ002"),
            ("'work', ''", "SQ003"),
            ("'work', 'w', 0", "SQ003"),
            ("'work', 'w', NULL", "SQ003"),
        ):
            with pytest.raises(psycopg.Error) as caught:
                waiting.execute(f"SELECT {schema}_v1.listen({call})".encode())
            assert caught.value.sqlstate == state


TRIGGER = """
CREATE TABLE {s}.orders (id integer PRIMARY KEY, customer text NOT NULL);
CREATE FUNCTION {s}.on_order() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM {v1}.enqueue('work', jsonb_build_object('n', NEW.id), unique_key => 'order/' || NEW.id);
    RETURN NULL;
END $$;
CREATE TRIGGER on_order AFTER INSERT ON {s}.orders FOR EACH ROW EXECUTE FUNCTION {s}.on_order();
"""


def application(queue: SqlQueue) -> None:
    """A table whose trigger enqueues."""
    schema = queue.database.schema
    names = {"s": sql.Identifier(schema), "v1": sql.Identifier(f"{schema}_v1")}
    with queue.database.connection() as connection:
        connection.execute(sql.SQL(TRIGGER).format(**names))


def test_a_trigger_enqueues_in_the_applications_transaction(queue: SqlQueue, url: str, schema: str) -> None:
    application(queue)
    insert = f"INSERT INTO {schema}.orders SELECT n, 'ada' FROM generate_series(%s::int, %s) AS n".encode()
    with psycopg.connect(url) as connection:
        connection.execute(insert, (1, 3))
        connection.rollback()
        assert queue.depth("work").live == 0
        connection.execute(insert, (1, 3))
        with pytest.raises(psycopg.errors.UniqueViolation), connection.transaction():
            connection.execute(insert, (2, 5))
        connection.commit()
    assert sorted(numbers(queue.claim("work", limit=10, worker="w"))) == [1, 2, 3]


def test_a_refused_job_takes_the_row_with_it(queue: SqlQueue, url: str, schema: str) -> None:
    application(queue)
    rows(queue, "DELETE FROM {s}.bucket")
    rows(queue, "DELETE FROM {s}.queue")
    with psycopg.connect(url, autocommit=True) as connection:
        with pytest.raises(psycopg.Error) as caught:
            connection.execute(f"INSERT INTO {schema}.orders VALUES (1, 'ada')".encode())
        assert caught.value.sqlstate == "SQ002"
    assert value(queue, "SELECT count(*) FROM {s}.orders") == 0


def test_node_puts_in_takes_out_and_ends(queue: SqlQueue, node: NodeCaller, schema: str) -> None:
    v1 = f"{schema}_v1"
    ((made,),) = [
        row.values() for row in node.call(f"SELECT {v1}.enqueue($1, $2, tags => $3)", "work", {"n": 1}, ["eu"])
    ]
    queue.enqueue(SPEC, Work(n=2))
    claim = f"SELECT job_id, lease_no, payload, tags, attempt FROM {v1}.claim($1, $2, $3)"
    jobs = {job["payload"]["n"]: job for job in node.call(claim, "work", "node", 10)}
    assert jobs[1] == {"job_id": made, "lease_no": "1", "payload": {"n": 1}, "tags": ["eu"], "attempt": 1}
    assert jobs.keys() == {1, 2}
    assert node.call(claim, "work", "node", 10) == []
    complete = f"SELECT {v1}.complete($1, $2, $3) AS state"
    first = (jobs[1]["job_id"], jobs[1]["lease_no"])
    assert node.call(complete, *first, {"done": "here"}) == [{"state": "succeeded"}]
    code, message = node.call(complete, *first, None)
    assert (code, "the lease of 1 of 1 jobs is not current any more" in message) == ("SQ001", True)
    second = (jobs[2]["job_id"], jobs[2]["lease_no"])
    assert node.call(f"SELECT {v1}.fail($1, $2, $3, $4) AS state", *second, "no", 0) == [{"state": "queued"}]
    assert numbers(queue.claim("work", limit=10, worker="python")) == [2]
    assert queue.job(made).result == '{"done": "here"}'


def test_node_commits_its_effect_with_the_end(queue: SqlQueue, node: NodeCaller, schema: str) -> None:
    v1 = f"{schema}_v1"
    rows(queue, "CREATE TABLE {s}.effect (n integer)")
    queue.enqueue(SPEC, Work(n=7))
    ((job, lease),) = [row.values() for row in node.call(f"SELECT job_id, lease_no FROM {v1}.claim('work', 'node')")]
    for given, ends in ((str(int(lease) + 1), "ROLLBACK"), (lease, "COMMIT")):
        node.call("BEGIN")
        node.call(f"INSERT INTO {schema}.effect VALUES ($1)", given)
        node.call(f"SELECT {v1}.complete($1, $2)", job, given)
        node.call(ends)
    assert rows(queue, "SELECT n FROM {s}.effect") == [(1,)]


def later_library(directory: Path, version: str, *, migrated: bool) -> Path:
    """A copy of the library as a later one might be: of a higher version, and with a migration that renames a column of both
    tables that every verb goes by.
    """
    shutil.copytree(PROJECT / "dagster_sqlqueue", directory / "dagster_sqlqueue")
    shutil.copytree(PROJECT / "sql", directory / "sql")
    about = directory / "dagster_sqlqueue" / "__about__.py"
    about.write_text(f'"""The version."""\n\n__version__ = "{version}"\n')
    folder = directory / "sql" / "postgresql"
    version_file = folder / "api" / "v1" / "complete.sql"
    version_file.write_text(version_file.read_text().replace("'succeeded' END;", "'succeeded' END; -- later"))
    if migrated:
        for file in [*folder.glob("*/*.sql"), *folder.glob("api/v1/*.sql")]:
            file.write_text(file.read_text().replace("claimed_by", "consumer"))
        (folder / "migrations" / "9000_consumer.sql").write_text(
            "ALTER TABLE sqlqueue.job RENAME COLUMN claimed_by TO consumer;\n"
            "ALTER TABLE sqlqueue.job_archive RENAME COLUMN claimed_by TO consumer;\n"
        )
    return directory


def migrate(library: Path, url: str, schema: str) -> str:
    """What `sqlqueue migrate` of that library says."""
    done = subprocess.run(
        [sys.executable, "-m", "dagster_sqlqueue.cli", "--url", url, "--schema", schema, "migrate", "--json"],
        env={"PYTHONPATH": str(library), "PATH": ""},
        cwd=library,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_callers_that_are_connected_survive_a_migration(
    queue: SqlQueue, node: NodeCaller, url: str, schema: str, tmp_path: Path
) -> None:
    v1 = f"{schema}_v1"
    application(queue)
    enqueue = f"SELECT {v1}.enqueue('work', jsonb_build_object('n', $1::int)) AS id"
    claim = f"SELECT job_id, lease_no FROM {v1}.claim('work', 'node', 1)"
    complete = f"SELECT {v1}.complete($1, $2) AS state"

    def round_trip() -> None:
        assert len(node.call(enqueue, 1)) == 1
        ((job, lease),) = [row.values() for row in node.call(claim)]
        assert node.call(complete, job, lease) == [{"state": "succeeded"}]

    connection = psycopg.connect(url, autocommit=True)
    trigger = f"INSERT INTO {schema}.orders SELECT 1 + max(COALESCE(id, 0)), 'ada' FROM {schema}.orders".encode()
    connection.execute(f"INSERT INTO {schema}.orders VALUES (0, 'ada')".encode(), prepare=True)
    held = connection.execute(
        f"SELECT job_id, lease_no FROM {v1}.claim('work', 'psycopg')".encode(), prepare=True
    ).fetchall()
    for _ in range(7):
        round_trip()
    before = rows(
        queue,
        "SELECT proname, proargnames, proargtypes, prorettype FROM pg_proc AS p"
        " WHERE pronamespace = %s::regnamespace ORDER BY 1",
        v1,
    )
    report = json.loads(migrate(later_library(tmp_path, "0.2.0", migrated=True), url, schema))
    assert [migration["version"] for migration in report["applied"]] == [9000]
    assert (
        value(
            queue,
            "SELECT count(*) FROM information_schema.columns WHERE table_schema = %s"
            " AND table_name = 'job' AND column_name = 'claimed_by'",
            schema,
        )
        == 0
    )
    round_trip()
    ended = connection.execute(f"SELECT {v1}.complete(%s, %s)".encode(), held[0], prepare=True).fetchall()
    assert ended == [("succeeded",)]
    connection.execute(trigger, prepare=True)
    assert len(node.call(claim)) == 1
    after = rows(
        queue,
        "SELECT proname, proargnames, proargtypes, prorettype FROM pg_proc AS p"
        " WHERE pronamespace = %s::regnamespace ORDER BY 1",
        v1,
    )
    assert after == before
    assert value(queue, "SELECT consumer FROM {s}.job WHERE state = 'running'") == "node"
    connection.close()
    with pytest.raises(SchemaTooNew):
        queue.migrate()


def test_only_a_call_in_flight_may_meet_a_migration(queue: SqlQueue, url: str, schema: str, tmp_path: Path) -> None:
    """Callers that never pause: nothing fails but, at the most, the one call of each that the migration met; nothing of that
    call stays, and the same connection goes on.
    """
    v1 = f"{schema}_v1"
    stop = threading.Event()
    refused: list[list[str | None]] = [[] for _ in range(4)]
    made: list[int] = [0] * 4

    def work(mine: int) -> None:
        with psycopg.connect(url, autocommit=True) as connection:
            while not stop.is_set():
                try:
                    connection.execute(f"SELECT {v1}.enqueue('work', '{{\"n\": 1}}')".encode(), prepare=True)
                    made[mine] += 1
                    for job in connection.execute(
                        f"SELECT job_id, lease_no FROM {v1}.claim('work', 'w', 10)".encode(), prepare=True
                    ).fetchall():
                        connection.execute(f"SELECT {v1}.complete(%s, %s)".encode(), job, prepare=True)
                except psycopg.Error as error:
                    refused[mine].append(error.sqlstate)

    callers = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    library = later_library(tmp_path, "0.2.0", migrated=True)
    for caller in callers:
        caller.start()
    try:
        migrate(library, url, schema)
        done = sum(made)
        while sum(made) < done + 200 and all(caller.is_alive() for caller in callers):
            stop.wait(0.01)
    finally:
        stop.set()
        for caller in callers:
            caller.join()
    assert all(len(mine) <= 1 for mine in refused), refused
    assert {state for mine in refused for state in mine} <= {"42703"}
    ended = value(queue, "SELECT (SELECT count(*) FROM {s}.job) + (SELECT count(*) FROM {s}.job_archive)")
    assert ended == sum(made)


def test_an_older_library_leaves_newer_functions_alone(queue: SqlQueue, url: str, schema: str, tmp_path: Path) -> None:
    body = (
        "SELECT prosrc LIKE '%%-- later%%' FROM pg_proc WHERE proname = 'complete' AND pronamespace = %s::regnamespace"
    )
    assert value(queue, body, f"{schema}_v1") is False
    migrate(later_library(tmp_path, "0.2.0", migrated=False), url, schema)
    assert value(queue, body, f"{schema}_v1") is True
    assert queue.migrate() == []
    assert value(queue, body, f"{schema}_v1") is True
    assert value(queue, "SELECT library FROM {s}.function_set") == "0.2.0"


def test_another_text_of_the_same_version_is_installed(queue: SqlQueue, url: str, schema: str, tmp_path: Path) -> None:
    body = (
        "SELECT prosrc LIKE '%%-- later%%' FROM pg_proc WHERE proname = 'complete' AND pronamespace = %s::regnamespace"
    )
    migrate(later_library(tmp_path, __version__, migrated=False), url, schema)
    assert value(queue, body, f"{schema}_v1") is True
    queue.migrate()
    assert value(queue, body, f"{schema}_v1") is False
