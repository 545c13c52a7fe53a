"""What a session remembers of the heads of buckets: it spares the dead rows there, and hides nothing for long."""

import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from dagster_sqlqueue import NewJob, SqlQueue
from tests.api.conftest import SPEC, Caller
from tests.support import Work, rows
from tests.support.few import few

LONG_AGO = 0
"""The session searches from the beginning again."""
NEVER_AGAIN = 1 << 40
"""It does not, however long what follows takes."""


def pages(caller: Caller) -> int:
    """What a claim of a hundred touches."""
    ((plan,),) = caller.rows("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) SELECT * FROM {v1}.claim('work', 'w', 100)")
    root = plan[0]["Plan"]
    assert root["Actual Rows"] == 100
    return int(root["Shared Hit Blocks"] + root["Shared Read Blocks"])


def age(caller: Caller, swept: int) -> None:
    """Have the session remember that it looked at each bucket from the beginning at that second since 1970."""
    name = f"sqlqueue_heads.{caller.schema}__work"
    caller.rows(
        "SELECT set_config(%s, jsonb_set(current_setting(%s)::jsonb, '{{swept}}', swept)::text, false)"
        " FROM (SELECT jsonb_object_agg(n, %s::int8) AS swept FROM generate_series(0, 1023) AS n) AS made",
        name,
        name,
        swept,
    )


@pytest.mark.parametrize("limits", few([{}, {"max_running": 1_000}], 1))
def test_dead_rows_cost_nothing_while_an_old_snapshot_keeps_them(
    line: SqlQueue, sqlc: Caller, any_server: str, limits: dict[str, Any]
) -> None:
    line.create_queue(replace(SPEC, **limits))
    line.rebucket("work", 1)
    # Due in another order than they lie in the table: one after the other, as many pages as jobs.
    rows(line, "ALTER TABLE {s}.job SET (autovacuum_enabled = off)")
    now, luck = datetime.now(UTC), random.Random(1)
    line.enqueue_many(
        SPEC, [NewJob(Work(n=n), run_at=now - timedelta(seconds=luck.uniform(1, 3_600))) for n in range(9_000)]
    )
    # With these statistics for the table, whenever it was counted before: it is read through its index.
    rows(line, "VACUUM ANALYZE {s}.job")
    with psycopg.connect(any_server) as old, psycopg.connect(any_server, autocommit=True) as fresh:
        old.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        old.execute("SELECT 1 FROM pg_class LIMIT 1").fetchall()
        other = Caller(fresh, sqlc.schema)
        # What a first call reads of the catalogue is none of what is compared.
        line.create_queue(replace(SPEC, name="warm", **limits))
        other.rows("SELECT * FROM {v1}.claim('warm', 'w')")
        for _ in range(8):
            jobs = sqlc.claim(1_000)
            sqlc.value("SELECT {v1}.complete_many(%s, %s::bigint[])", [j[0] for j in jobs], [j[1] for j in jobs])
        age(sqlc, NEVER_AGAIN)
        remembering, forgetful = pages(sqlc), pages(other)
        assert remembering < 3_500
        assert forgetful > remembering + 5_000


@pytest.mark.parametrize("limits", [{}, {"max_running": 1_000}])
def test_a_session_that_began_when_the_queue_was_small_does_not_read_it_whole_when_it_has_grown(
    line: SqlQueue, sqlc: Caller, limits: dict[str, Any]
) -> None:
    """The server keeps a session's plans until it has counted the table again, a minute later by default."""
    line.create_queue(replace(SPEC, **limits))
    rows(line, "ALTER TABLE {s}.job SET (autovacuum_enabled = off)")
    line.enqueue_many(SPEC, [Work(n=n) for n in range(20)])
    rows(line, "VACUUM ANALYZE {s}.job")
    assert len(sqlc.claim(20)) == 20
    line.enqueue_many(SPEC, [Work(n=n) for n in range(9_000)])
    assert pages(sqlc) < 3_500


@pytest.mark.parametrize("limits", [{}, {"max_running": 1_000}])
def test_what_came_late_is_found_within_five_seconds(line: SqlQueue, sqlc: Caller, limits: dict[str, Any]) -> None:
    line.create_queue(replace(SPEC, **limits))
    line.rebucket("work", 1)
    line.enqueue_many(SPEC, [Work(n=n) for n in range(10)])
    assert [row[2] for _ in range(3) for row in sqlc.claim(1)] == [0, 1, 2]
    age(sqlc, NEVER_AGAIN)
    sqlc.enqueue(99, "run_at => now() - interval '1 day'")
    assert [row[2] for row in sqlc.claim(1)] == [3]
    age(sqlc, LONG_AGO)
    assert [row[2] for row in sqlc.claim(1)] == [99]


@pytest.mark.parametrize("named", [True, False], ids=["named", "all"])
@pytest.mark.parametrize(
    ("kind", "filter"),
    [
        ({}, ""),
        ({"max_running": 1_000_000}, ""),
        ({"strategy": "fanout"}, ""),
        ({"strategy": "fanout", "max_running": 1_000_000}, ""),
        ({"ordered": True}, ""),
        ({"max_running_per_key": 5}, ""),
        ({}, "with_tags => '{{}}'"),
        ({"ordered": True}, "with_payload => '{{}}'"),
    ],
    ids=str,
)
def test_each_bucket_is_looked_at_behind_a_backlog(
    line: SqlQueue, sqlc: Caller, kind: dict[str, Any], filter: str, *, named: bool
) -> None:
    """Each claim is filled by the one bucket that it begins at."""
    line.create_queue(replace(SPEC, **kind))
    line.rebucket("work", 16)
    line.enqueue_many(SPEC, [NewJob(Work(n=n), ordering_key=f"{n}") for n in range(16 * 20)])
    turns = [[(begin + n) % 16 for n in range(16)] if named else None for begin in range(16)]

    def go_round() -> set[int]:
        return {row[2] for turn in turns for row in sqlc.claim(5, turn, filter)}

    go_round()
    late = set(range(10_000, 10_032))
    for n in sorted(late):
        sqlc.enqueue(n, "run_at => now() - interval '1 day', ordering_key => %s", str(n))
    number = "CAST(payload ->> 'n' AS integer)"
    rows(line, f"UPDATE {{s}}.job SET bucket = {number} %% 16 WHERE {number} >= %s", 10_000)
    age(sqlc, LONG_AGO)
    assert go_round() >= late


def test_a_claim_that_finds_too_few_looks_from_the_beginning(line: SqlQueue, sqlc: Caller) -> None:
    line.rebucket("work", 1)
    line.enqueue_many(SPEC, [Work(n=n) for n in range(10)])
    assert [row[2] for row in sqlc.claim(4)] == [0, 1, 2, 3]
    sqlc.enqueue(99, "run_at => now() - interval '1 day'")
    assert sorted(row[2] for row in sqlc.claim(100)) == [4, 5, 6, 7, 8, 9, 99]


def test_each_priority_has_its_place(line: SqlQueue, sqlc: Caller) -> None:
    line.rebucket("work", 1)
    line.enqueue_many(SPEC, [NewJob(Work(n=n), priority=n % 3) for n in range(30)])
    seen = [row[2] for _ in range(30) for row in sqlc.claim(1)]
    assert seen == [n for priority in (2, 1, 0) for n in range(30) if n % 3 == priority]


def test_a_claim_that_is_rolled_back_hides_nothing(line: SqlQueue, sqlc: Caller) -> None:
    line.rebucket("work", 1)
    line.enqueue_many(SPEC, [Work(n=n) for n in range(10)])
    assert [row[2] for row in sqlc.claim(1)] == [0]
    with sqlc.connection.transaction(force_rollback=True):
        assert len(sqlc.claim(5)) == 5
    assert [row[2] for row in sqlc.claim(2)] == [1, 2]


def test_a_session_that_changes_how_it_writes_times(line: SqlQueue, sqlc: Caller) -> None:
    line.rebucket("work", 1)
    line.enqueue_many(SPEC, [Work(n=n) for n in range(6)])
    seen = []
    for style, zone in (("ISO, DMY", "UTC"), ("German", "Asia/Tokyo"), ("SQL, MDY", "America/New_York")) * 2:
        sqlc.rows(f"SET DateStyle = '{style}'")
        sqlc.rows(f"SET TimeZone = '{zone}'")
        seen += [row[2] for row in sqlc.claim(1)]
    assert seen == list(range(6))
