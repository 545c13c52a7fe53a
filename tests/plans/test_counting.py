"""What the bounds of the plan tests are compared with: every page of tables and indexes is counted, and no other."""

import psycopg

from dagster_sqlqueue import SqlQueue
from tests.plans.explaining import Fetched, Plan, running
from tests.plans.undoing import undone
from tests.support import value


def explained(connection: "psycopg.Connection[object]", schema: str, query: str) -> Plan:
    fetched = Fetched(connection, schema)
    before = fetched()
    text = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {query.replace('{s}', schema)}"
    ((found,),) = connection.execute(text.encode()).fetchall()  # type: ignore[misc]
    return Plan(found, fetched() - before)


def test_a_table_that_is_read_whole_is_counted_whole(backlog: SqlQueue) -> None:
    pages = value(backlog, "SELECT relpages FROM pg_class WHERE oid = CAST('{s}.job' AS regclass)")
    assert pages > 1_000
    for workers in (0, 2):
        with undone(backlog) as connection:
            connection.execute(f"SET LOCAL max_parallel_workers_per_gather = {workers}".encode())
            plan = explained(connection, backlog.database.schema, "SELECT count(payload) FROM {s}.job")
        assert plan.buffers >= pages


def test_what_is_written_is_counted(backlog: SqlQueue) -> None:
    ids = ", ".join(f"'{id}'" for id in running(backlog, 1_000))
    with undone(backlog) as connection:
        update = f"UPDATE {{s}}.job SET available_at = now() WHERE id IN ({ids})"
        plan = explained(connection, backlog.database.schema, update)
    assert plan.buffers >= 5 * 1_000


def test_what_a_function_reads_is_counted(backlog: SqlQueue) -> None:
    with undone(backlog) as connection:
        plan = explained(connection, backlog.database.schema, "SELECT * FROM {s}.claim('work', 'w', 1000)")
    assert plan.root["Actual Rows"] == 1_000
    assert plan.buffers >= 5 * 1_000


def test_the_catalogue_is_not_counted(backlog: SqlQueue) -> None:
    with undone(backlog) as connection:
        # With workers, EXPLAIN's own count is taken: and the catalogue grows with every schema of the tests before.
        connection.execute("SET LOCAL max_parallel_workers_per_gather = 0")
        plan = explained(connection, backlog.database.schema, "SELECT count(*) FROM pg_attribute")
    assert plan.buffers == 0
