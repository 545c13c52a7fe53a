"""The SQL function claim: strategies, limits, filters, and what is refused."""

import threading
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from dagster_sqlqueue import NewJob, RateLimit, SqlQueue, Strategy
from tests.api.conftest import LOCKING, SPEC, Caller, fill
from tests.gate.patience import PATIENCE
from tests.support import Work, rows, until, value


@pytest.mark.parametrize("strategy", LOCKING)
@pytest.mark.parametrize("limits", [{}, {"max_running": 100}, {"ordered": True}, {"rate": RateLimit(100, 60)}])
def test_a_claim_takes_what_python_would_take(
    line: SqlQueue, sqlc: Caller, strategy: Strategy, limits: dict[str, Any]
) -> None:
    line.create_queue(replace(SPEC, strategy=strategy, **limits))
    fill(line, 10)
    line.enqueue(SPEC, NewJob(Work(n=10, note="x"), priority=9, tags=["eu"], unique_key="u", timeout_seconds=7))
    found = sqlc.rows("SELECT * FROM {v1}.claim('work', 'sql', 100)")
    assert len(found) == len({row[0] for row in found}) == 11
    row = next(row for row in found if row[2]["n"] == 10)
    job = line.job(row[0])
    assert row[1:13] == (
        *(1, {"n": 10, "note": "x"}, 1, 3, 9, None, "u", ["eu"], None, job.created_at, job.available_at, 7.0),
    )
    assert (job.state, job.claimed_by, job.lease_no) == ("running", "sql", 1)
    assert job.available_at
    assert 299 < (job.available_at - job.started_at).total_seconds() <= 300  # type: ignore[operator]
    assert sqlc.claim() == []
    assert line.claim("work", limit=100, worker="python") == []


@pytest.mark.parametrize("strategy", LOCKING)
def test_a_claim_steps_over_what_others_hold(line: SqlQueue, sqlc: Caller, strategy: Strategy, any_server: str) -> None:
    line.create_queue(replace(SPEC, strategy=strategy))
    fill(line, 30)
    with psycopg.connect(any_server) as other, other.transaction():
        first = Caller(other, sqlc.schema).claim(20)
        second = sqlc.claim(20)
        assert (len(first), len(second)) == (20, 10)
        assert not {row[0] for row in first} & {row[0] for row in second}


def test_fifo_takes_the_oldest_of_all_buckets(line: SqlQueue, sqlc: Caller) -> None:
    line.create_queue(replace(SPEC, strategy=Strategy.FIFO))
    with sqlc.connection.transaction():
        for n in range(40):
            sqlc.enqueue(n, "priority => %s", n % 2)
    seen = [row[2] for _ in range(8) for row in sqlc.claim(5)]
    assert seen == [*range(1, 40, 2), *range(0, 40, 2)]


@pytest.mark.parametrize("strategy", [Strategy.ASSIGN, Strategy.TOKEN])
def test_strategies_without_locks_are_refused(line: SqlQueue, sqlc: Caller, strategy: Strategy) -> None:
    line.create_queue(replace(SPEC, strategy=strategy))
    fill(line)
    message = sqlc.refused("SQ004", "SELECT * FROM {v1}.claim('work', 'sql')")
    assert message == f"queue 'work' has the strategy '{strategy}', which SQL functions cannot claim by"
    assert line.depth("work").ready == 10


@pytest.mark.parametrize("strategy", LOCKING)
def test_no_more_run_than_the_limit(line: SqlQueue, sqlc: Caller, strategy: Strategy) -> None:
    line.create_queue(replace(SPEC, strategy=strategy, max_running=3))
    fill(line)
    jobs = sqlc.claim()
    assert len(jobs) == 3
    assert sqlc.claim() == []
    sqlc.value("SELECT {v1}.complete(%s, %s)", *jobs[0][:2])
    assert len(sqlc.claim()) == 1


@pytest.mark.parametrize("strategy", LOCKING)
def test_no_more_begin_than_the_rate(line: SqlQueue, sqlc: Caller, strategy: Strategy) -> None:
    line.create_queue(replace(SPEC, strategy=strategy, rate=RateLimit(4, 3600)))
    fill(line)
    assert (len(sqlc.claim(3)), len(sqlc.claim(3)), len(sqlc.claim(3))) == (3, 1, 0)
    rows(line, "UPDATE {s}.rate_start SET started_at = started_at - interval '2 hours'")
    assert len(sqlc.claim()) == 4


def test_a_start_is_noted_when_the_lock_was_there_not_when_the_call_began(
    line: SqlQueue, sqlc: Caller, any_server: str
) -> None:
    """A call that waited for the limit's lock has begun its jobs after that, and noted it so."""
    line.create_queue(replace(SPEC, rate=RateLimit(4, 3600), max_running=100))
    fill(line)
    with psycopg.connect(any_server) as other:
        with other.transaction():
            Caller(other, sqlc.schema).claim(1)
            waiting = threading.Thread(target=sqlc.claim, args=(1,))
            waiting.start()
            asked = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
            until(lambda: value(line, asked), "the wait for the lock")
            released = value(line, "SELECT clock_timestamp()")
        waiting.join(PATIENCE)
    assert value(line, "SELECT max(started_at) > %s FROM {s}.rate_start", released)
    assert value(line, "SELECT min(available_at) FROM {s}.job WHERE state = 'running'") < value(
        line, "SELECT max(available_at) FROM {s}.job WHERE state = 'running'"
    )
    assert value(line, "SELECT bool_and(started_at <= clock_timestamp()) FROM {s}.job WHERE state = 'running'")


@pytest.mark.parametrize("needs", [{"ordered": True}, {"max_running": 5}])
@pytest.mark.parametrize("isolation", [psycopg.IsolationLevel.REPEATABLE_READ, psycopg.IsolationLevel.SERIALIZABLE])
def test_what_needs_to_see_others_is_refused_under_an_old_snapshot(
    line: SqlQueue, sqlc: Caller, needs: dict[str, Any], isolation: psycopg.IsolationLevel
) -> None:
    line.create_queue(replace(SPEC, **needs))
    sqlc.enqueue(1, "ordering_key => 'k'")
    sqlc.enqueue(2, "ordering_key => 'k'")
    ((job, lease, _), *_) = sqlc.claim(1)
    sqlc.connection.autocommit = False
    sqlc.connection.isolation_level = isolation
    calls: list[tuple[Any, ...]] = [
        ("SELECT * FROM {v1}.claim('work', 'sql')",),
        ("SELECT {v1}.heartbeat(%s, %s)", job, lease),
    ]
    if "ordered" in needs:
        calls += [
            ("SELECT {v1}.complete(%s, %s)", job, lease),
            ("SELECT * FROM {v1}.cancel('work', ARRAY[%s])", job),
            ("SELECT * FROM {v1}.retry('work', ARRAY[%s])", job),
        ]
    for call in calls:
        assert "and this transaction is" in sqlc.refused("SQ004", *call)
        sqlc.connection.rollback()
    sqlc.enqueue(3, "ordering_key => 'k'")
    sqlc.connection.commit()


def test_a_filter_finds_what_lies_behind_a_long_backlog(line: SqlQueue, sqlc: Caller) -> None:
    with sqlc.connection.transaction():
        sqlc.value(
            "SELECT count(*) FROM (SELECT {v1}.enqueue_many('work', ARRAY(SELECT jsonb_build_object('n', n)"
            " FROM generate_series(1, 12000) AS n))) AS x"
        )
        sqlc.enqueue(-1, "tags => '{{eu,x}}'")
        sqlc.enqueue(-2, "tags => '{{eu}}'")
    found = "SELECT CAST(payload ->> 'n' AS int) FROM {v1}.claim('work', 'sql', 5, "
    assert sqlc.rows(found + "with_tags => '{{eu,x}}')") == [(-1,)]
    assert sqlc.rows(found + "with_payload => '{{\"n\": -2}}')") == [(-2,)]
    assert sqlc.rows(found + "with_payload => '{{\"n\": 12000}}')") == [(12000,)]
    assert sqlc.rows(found + "with_tags => '{{us}}')") == []


def test_only_some_buckets(line: SqlQueue, sqlc: Caller) -> None:
    fill(line, 100)
    count = value(line, "SELECT count(*) FROM {s}.job WHERE bucket = 2")
    assert len(sqlc.rows("SELECT job_id FROM {v1}.claim('work', 'sql', 100, buckets => '{{2}}')")) == count


def test_buckets_of_a_larger_count_are_worked_off(line: SqlQueue, sqlc: Caller) -> None:
    fill(line, 40)
    line.rebucket("work", 1)
    assert len(sqlc.claim()) == 40


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("'work', NULL", "worker is empty"),
        ("'work', ' '", "worker is empty"),
        ("'work', 'w', 0", "max_jobs is 0; a claim takes 1 to 10,000 jobs"),
        ("'work', 'w', 10001", "max_jobs is 10001"),
        ("'work', 'w', NULL", "max_jobs is NULL"),
        ("'work', 'w', lease_seconds => 0", "lease_seconds is 0"),
        ("'work', 'w', lease_seconds => 'Infinity'", "at most a hundred years"),
        ("'work', 'w', buckets => '{{}}'", "name at least one, each 0 to 1023"),
        ("'work', 'w', buckets => '{{1024}}'", "each 0 to 1023"),
        ("'work', 'w', buckets => '{{NULL}}'", "each 0 to 1023"),
        ("'work', 'w', with_tags => ARRAY['eu', NULL]", "with_tags holds NULL; give tags, or NULL for any"),
        ("'work', 'w', with_tags => ARRAY[[NULL]]", "with_tags holds NULL"),
        ("'work', 'w', with_payload => '[]'", "with_payload is no JSON object"),
    ],
)
def test_a_claim_that_is_not_usable(sqlc: Caller, arguments: str, said: str) -> None:
    assert said in sqlc.refused("SQ003", f"SELECT * FROM {{v1}}.claim({arguments})")


def test_locks_of_keys_and_limits_are_really_taken(line: SqlQueue, sqlc: Caller) -> None:
    """The locks that guard turns and limits are those of the Python verbs: the same numbers, held until the commit."""
    line.create_queue(replace(SPEC, ordered=True, max_running=9))
    for n in range(64):
        sqlc.enqueue(n, "ordering_key => %s", f"k{n % 8}")
    held = "SELECT classid::bigint, objid::int FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()"
    line.database.transact(lambda executor: executor.run("limit_lock", {"queue": "work"}))
    with sqlc.connection.transaction():
        jobs = sqlc.claim()
        claiming = set(sqlc.rows(held))
    assert len(jobs) == 8
    with sqlc.connection.transaction():
        sqlc.value("SELECT {v1}.complete_many(%s, %s::bigint[])", [j[0] for j in jobs], [j[1] for j in jobs])
        ending = set(sqlc.rows(held))
    with line.database.transaction() as ours:
        ours.run("limit_lock", {"queue": "work"})
        ours.run("key_wait", {"queue": "work", "keys": [f"k{n}" for n in range(8)]})
        python = set(ours.connection.execute(held.encode()).fetchall())
    assert claiming == python
    assert ending == {lock for lock in python if lock[1] != -1 and lock[1] != 2**32 - 1}
