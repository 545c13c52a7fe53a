"""Claiming and ending by SQL: strategies, limits, turns, fences; and what operators decide."""

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from dagster_sqlqueue import Backoff, NewJob, RateLimit, SqlQueue, Strategy
from dagster_sqlqueue.selection import Selection
from tests.api.conftest import SPEC, Caller
from tests.core.support import Work, make_due, rows, states, value

LOCKING = [Strategy.ROUND_ROBIN, Strategy.FANOUT, Strategy.FIFO]
TURNS = [{"ordered": True}, {"max_running_per_key": 1}]


def fill(line: SqlQueue, count: int = 10, **more: Any) -> None:
    line.enqueue_many(SPEC, [NewJob(Work(n=n), **more) for n in range(count)])


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
    assert 29 < (job.available_at - job.started_at).total_seconds() <= 30  # type: ignore[operator]
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
    told = sqlc.refused("SQ004", "SELECT * FROM {v1}.claim('work', 'sql')")
    assert told == f"queue 'work' has the strategy '{strategy}', which SQL functions cannot claim by"
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
            deadline = time.monotonic() + 30
            asked = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
            while value(line, asked) == 0:
                assert time.monotonic() < deadline
            released = value(line, "SELECT clock_timestamp()")
        waiting.join()
    assert value(line, "SELECT max(started_at) > %s FROM {s}.rate_start", released)
    assert value(line, "SELECT min(available_at) FROM {s}.job WHERE state = 'running'") < value(
        line, "SELECT max(available_at) FROM {s}.job WHERE state = 'running'"
    )
    assert value(line, "SELECT bool_and(started_at <= clock_timestamp()) FROM {s}.job WHERE state = 'running'")


@pytest.mark.parametrize("turns", TURNS)
@pytest.mark.parametrize("strategy", LOCKING)
def test_one_of_a_key_at_a_time_through_every_outcome(
    line: SqlQueue, sqlc: Caller, turns: dict[str, Any], strategy: Strategy
) -> None:
    line.create_queue(replace(SPEC, strategy=strategy, max_attempts=100, **turns))
    for n in range(12):
        sqlc.enqueue(n, "ordering_key => %s", f"k{n % 2}")
    outcomes = [
        ("{v1}.fail(%s, %s, 'x', 0)", False),
        ("{v1}.snooze(%s, %s, 0)", False),
        ("{v1}.release(%s, %s)", False),
        ("{v1}.complete(%s, %s)", True),
        ("{v1}.reject(%s, %s, 'x')", True),
        ("{v1}.accept_cancel(%s, %s)", True),
    ]
    ended: dict[int, list[int]] = {0: [], 1: []}
    step = 0
    while sum(map(len, ended.values())) < 12:
        jobs = sqlc.claim()
        assert 1 <= len(jobs) <= 2
        assert len({n % 2 for _, _, n in jobs}) == len(jobs)
        for job, lease, n in jobs:
            call, ends = outcomes[step % len(outcomes)]
            step += 1
            assert sqlc.value(f"SELECT {call}", job, lease)
            if ends:
                ended[n % 2].append(n)
    if "ordered" in turns:
        assert ended == {0: list(range(0, 12, 2)), 1: list(range(1, 12, 2))}
    assert line.depth("work").live == 0


def test_a_poisoned_head_stops_its_key_where_the_queue_says_so(line: SqlQueue, sqlc: Caller) -> None:
    line.create_queue(replace(SPEC, ordered=True, on_poison="stop", max_attempts=1))
    for n in range(4):
        sqlc.enqueue(n, "ordering_key => 'k'")
    assert [sqlc.value("SELECT {v1}.fail(%s, %s, 'bad')", *job[:2]) for job in sqlc.claim()] == ["held"]
    assert sqlc.claim() == []
    (held,) = [row for row in line.jobs("work") if row.state == "held"]
    assert sqlc.rows("SELECT outcome, because FROM {v1}.cancel('work', ARRAY[%s])", held.id) == [("changed", None)]
    ((second, lease, n),) = sqlc.claim()
    assert n == 1
    assert sqlc.value("SELECT {v1}.reject(%s, %s, 'never')", second, lease) == "held"
    assert sqlc.rows("SELECT outcome FROM {v1}.release_held('work', ARRAY[%s])", second) == [("changed",)]
    assert [job[2] for job in sqlc.claim()] == [1]


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


@pytest.mark.parametrize("turns", [{}, {"ordered": True}])
def test_a_spent_job_goes_to_the_dead_letter_and_the_next_is_handed_out(
    line: SqlQueue, sqlc: Caller, turns: dict[str, Any]
) -> None:
    line.create_queue(replace(SPEC, bucket_count=4, max_attempts=1, **turns))
    line.rebucket("work", 1)
    sqlc.enqueue(1, "ordering_key => 'k'")
    ((first, _, _),) = sqlc.claim(1)
    rows(line, "UPDATE {s}.job SET available_at = now() WHERE state = 'running'")
    sqlc.enqueue(2, "ordering_key => 'k'")
    assert [job[2] for job in sqlc.claim(1)] == [2]
    dead = line.job(first)
    assert (dead.state, dead.attempt) == ("failed", 1)
    assert dead.error == "the lease ran out on the last of 1 attempts: its consumer died or hung"


def test_a_spent_head_is_held_where_the_queue_stops(line: SqlQueue, sqlc: Caller) -> None:
    line.create_queue(replace(SPEC, ordered=True, on_poison="stop", max_attempts=1))
    sqlc.enqueue(1, "ordering_key => 'k'")
    sqlc.enqueue(2, "ordering_key => 'k'")
    sqlc.claim()
    make_due(line)
    assert sqlc.claim() == []
    assert sorted(states(line).values()) == ["held", "queued"]


def test_a_job_that_was_to_be_cancelled_is(line: SqlQueue, sqlc: Caller) -> None:
    job = sqlc.enqueue(1)
    ((_, lease, _),) = sqlc.claim()
    assert sqlc.value("SELECT {v1}.heartbeat(%s, %s)", job, lease) is False
    assert sqlc.rows("SELECT * FROM {v1}.cancel('work', ARRAY[%s])", job) == [(job, "requested", None)]
    assert sqlc.value("SELECT {v1}.heartbeat(%s, %s)", job, lease) is True
    assert sqlc.value("SELECT {v1}.fail(%s, %s, 'x', 0)", job, lease) == "queued"
    assert sqlc.claim() == []
    assert (line.job(job).state, line.job(job).error) == ("cancelled", "cancelled while it ran")


def test_backoff_follows_the_job_then_the_queue(line: SqlQueue, sqlc: Caller) -> None:
    line.create_queue(replace(SPEC, max_attempts=9, backoff=Backoff(100, 10, 5_000, jitter=0)))
    jobs = [sqlc.enqueue(1), sqlc.enqueue(2, "backoff => '{{7,2,60,0}}'"), sqlc.enqueue(3, "backoff => '{{1,1,60,1}}'")]
    waits: dict[UUID, list[float]] = {job: [] for job in jobs}
    for _ in range(4):
        make_due(line)
        for job, lease, _ in sqlc.claim():
            assert sqlc.value("SELECT {v1}.fail(%s, %s, 'x')", job, lease) == "queued"
            left = value(
                line, "SELECT EXTRACT(EPOCH FROM available_at - clock_timestamp()) FROM {s}.job WHERE id = %s", job
            )
            waits[job].append(float(left))
    assert waits[jobs[0]] == pytest.approx([100, 1_000, 5_000, 5_000], abs=2)
    assert waits[jobs[1]] == pytest.approx([7, 14, 28, 56], abs=2)
    assert all(wait <= 1 for wait in waits[jobs[2]])


def test_a_backoff_beyond_all_numbers_is_the_longest(line: SqlQueue, sqlc: Caller) -> None:
    line.create_queue(replace(SPEC, max_attempts=1_000_000))
    job = sqlc.enqueue(1, "backoff => '{{1,1000,50,0}}'")
    rows(line, "UPDATE {s}.job SET attempt = 900000")
    ((_, lease, _),) = sqlc.claim()
    sqlc.value("SELECT {v1}.fail(%s, %s, 'x')", job, lease)
    assert 48 < value(line, "SELECT EXTRACT(EPOCH FROM available_at - clock_timestamp()) FROM {s}.job") <= 50


def test_what_becomes_of_attempts_errors_and_results(line: SqlQueue, sqlc: Caller) -> None:
    for n in range(6):
        sqlc.enqueue(n)
    by_n = {n: (job, lease) for job, lease, n in sqlc.claim()}
    assert sqlc.value("SELECT {v1}.complete(%s, %s, '{{\"a\": [1]}}')", *by_n[0]) == "succeeded"
    assert sqlc.value("SELECT {v1}.fail(%s, %s, 'no', 60)", *by_n[1]) == "queued"
    assert sqlc.value("SELECT {v1}.snooze(%s, %s, until => now() + interval '1 hour')", *by_n[2]) == "queued"
    assert sqlc.value("SELECT {v1}.hold(%s, %s, 'look')", *by_n[3]) == "held"
    assert sqlc.value("SELECT {v1}.reject(%s, %s, 'never')", *by_n[4]) == "failed"
    assert sqlc.value("SELECT {v1}.accept_cancel(%s, %s, 'left')", *by_n[5]) == "cancelled"
    found = {n: line.job(by_n[n][0]) for n in by_n}
    assert [(found[n].state, found[n].attempt, found[n].error) for n in range(6)] == [
        ("succeeded", 1, None),
        ("queued", 1, "no"),
        ("queued", 0, None),
        ("held", 0, "look"),
        ("failed", 1, "never"),
        ("cancelled", 1, "left"),
    ]
    assert found[0].result == '{"a": [1]}'
    assert sqlc.rows("SELECT state, result, attempt FROM {v1}.job(%s)", by_n[0][0]) == [("succeeded", {"a": [1]}, 1)]
    assert sqlc.rows("SELECT * FROM {v1}.depth('work')") == [(0, 0, 2, 1)]
    assert sqlc.rows("SELECT * FROM {v1}.job(%s)", uuid4()) == []


LATE: list[Callable[[str], str]] = [
    lambda more: f"complete(%s, %s{more})",
    lambda more: f"fail(%s, %s, 'x'{more})",
    lambda more: f"snooze(%s, %s, 0{more})",
    lambda more: f"release(%s, %s{more})",
    lambda more: f"hold(%s, %s, 'x'{more})",
    lambda more: f"reject(%s, %s, 'x'{more})",
    lambda more: f"accept_cancel(%s, %s{more})",
    lambda more: f"heartbeat(%s, %s{more})",
    lambda more: f"complete_many(ARRAY[%s]::uuid[], ARRAY[%s]::bigint[]{more})",
]


@pytest.mark.parametrize("call", LATE, ids=lambda call: call("").partition("(")[0])
@pytest.mark.parametrize("turns", [{}, {"ordered": True}, {"max_running": 5}])
def test_a_late_write_is_refused(
    line: SqlQueue, sqlc: Caller, call: Callable[[str], str], turns: dict[str, Any]
) -> None:
    line.create_queue(replace(SPEC, **turns))
    job = sqlc.enqueue(1, "ordering_key => 'k'")
    ((_, old, _),) = sqlc.claim()
    make_due(line)
    ((_, new, _),) = sqlc.claim()
    before = rows(line, "SELECT to_jsonb(j) FROM {s}.job AS j")
    told = sqlc.refused("SQ001", f"SELECT {{v1}}.{call('')}", job, old)
    assert "the lease of 1 of 1 jobs is not current any more" in told
    assert str(job) in told
    assert value(line, "SELECT count(*) FROM {s}.stale_write") == 0
    assert sqlc.value(f"SELECT {{v1}}.{call(', on_stale => $$report$$')}", job, old) in (None, [])
    assert rows(line, "SELECT to_jsonb(j) FROM {s}.job AS j") == before
    assert rows(line, "SELECT queue, writes FROM {s}.stale_write") == [("work", 1)]
    assert "on_stale is 'x'" in sqlc.refused("SQ003", f"SELECT {{v1}}.{call(', on_stale => $$x$$')}", job, new)
    assert sqlc.value(f"SELECT {{v1}}.{call('')}", job, new) is not None


def test_the_effect_and_the_end_stand_or_fall_together(line: SqlQueue, sqlc: Caller) -> None:
    rows(line, "CREATE TABLE {s}.effect (n integer)")
    job = sqlc.enqueue(1)
    ((_, lease, _),) = sqlc.claim()
    sqlc.rows("BEGIN")
    sqlc.rows("INSERT INTO {s}.effect VALUES (1)")
    sqlc.refused("SQ001", "SELECT {v1}.complete(%s, %s)", job, lease + 1)
    sqlc.rows("COMMIT")
    with sqlc.connection.transaction():
        sqlc.rows("INSERT INTO {s}.effect VALUES (2)")
        sqlc.rows("SELECT {v1}.complete(%s, %s)", job, lease)
    assert rows(line, "SELECT n FROM {s}.effect") == [(2,)]


def test_many_end_at_once_and_late_ones_are_counted(line: SqlQueue, sqlc: Caller) -> None:
    fill(line, 6)
    jobs = sqlc.claim()
    leases = [lease + (n == 3) for n, (_, lease, _) in enumerate(jobs)]
    ids = [job for job, _, _ in jobs]
    call = "SELECT {v1}.complete_many(%s, %s::bigint[], results => %s::jsonb[], on_stale => 'report')"
    accepted = sqlc.value(call, ids, leases, [f'{{"r": {n}}}' for n in range(6)])
    assert sorted(accepted) == sorted(set(ids) - {ids[3]})
    assert line.job(ids[5]).result == '{"r": 5}'
    assert value(line, "SELECT writes FROM {s}.stale_write") == 1
    assert "another length" in sqlc.refused("SQ003", call, ids, leases, ["{}"])


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
        ("'work', 'w', with_payload => '[]'", "with_payload is no JSON object"),
    ],
)
def test_a_claim_that_is_not_usable(sqlc: Caller, arguments: str, said: str) -> None:
    assert said in sqlc.refused("SQ003", f"SELECT * FROM {{v1}}.claim({arguments})")


def test_other_input_that_is_not_usable(sqlc: Caller) -> None:
    job = uuid4()
    for said, call in {
        "error is NULL": "fail(%s, 1, NULL)",
        "retry_after_seconds is -1": "fail(%s, 1, 'x', -1)",
        "either seconds or until": "snooze(%s, 1)",
        "one of the two": "snooze(%s, 1, 1, now())",
        "seconds is -1": "snooze(%s, 1, -1)",
        "until is infinity": "snooze(%s, 1, until => 'infinity')",
        "the reason is ''": "hold(%s, 1, '')",
        "the reason is NULL": "reject(%s, 1, NULL)",
        "lease_no is NULL": "complete(%s, NULL)",
        "job_id or lease_no is NULL": "heartbeat(%s, NULL)",
        "lease_seconds is -1": "heartbeat(%s, 1, -1)",
        "priority is 10": "reprioritise('work', ARRAY[%s]::uuid[], 10)",
        "states is {succeeded}": "retry('work', ARRAY[%s]::uuid[], '{{succeeded}}')",
        "job_ids holds NULL": "cancel('work', ARRAY[%s, NULL]::uuid[])",
    }.items():
        assert said in sqlc.refused("SQ003", f"SELECT {{v1}}.{call}", job)
    assert "job_ids is empty" in sqlc.refused("SQ003", "SELECT {v1}.cancel('work', '{{}}')")
    assert "max_jobs is 0" in sqlc.refused("SQ003", "SELECT {v1}.peek('work', 0)")
    assert "cap is 0" in sqlc.refused("SQ003", "SELECT {v1}.depth('work', 0)")
    for call in ("cancel('nope', ARRAY[%s])", "retry('nope', ARRAY[%s])", "delay('nope', ARRAY[%s], 1)"):
        assert "there is no queue 'nope'" in sqlc.refused("SQ002", f"SELECT {{v1}}.{call}", job)
    for call in ("pause('nope')", "resume(NULL)", "depth('nope')", "peek('nope')", "claim('nope', 'w')"):
        assert "there is no queue" in sqlc.refused("SQ002", f"SELECT {{v1}}.{call}")


def test_operators_decide_as_in_python(line: SqlQueue, sqlc: Caller) -> None:
    jobs = [sqlc.enqueue(n) for n in range(5)]
    ((running, _, _),) = sqlc.claim(1)
    waiting = [job for job in jobs if job != running]
    decide = "SELECT job_id, outcome, because FROM {v1}."
    assert sqlc.rows(decide + "hold_queued('work', %s, 'wait')", [waiting[0], running]) == [
        (waiting[0], "changed", None),
        (running, "skipped", "it is running, or somebody else is at it at this moment"),
    ]
    assert sqlc.rows(decide + "release_held('work', %s)", waiting[:2])[0] == (waiting[0], "changed", None)
    assert sqlc.rows(decide + "delay('work', %s, 3600)", waiting[:1]) == [(waiting[0], "changed", None)]
    assert line.depth("work").scheduled == 1
    assert sqlc.rows(decide + "delay('work', %s, until => '2001-01-01')", waiting[:1]) == [
        (waiting[0], "changed", None)
    ]
    assert line.depth("work").scheduled == 0
    assert sqlc.rows(decide + "reprioritise('work', %s, 7)", [running]) == [(running, "changed", None)]
    assert line.job(running).priority == 7
    stranger = uuid4()
    ended = sqlc.rows(decide + "cancel('work', %s, 'gone')", [waiting[1], stranger, waiting[1]])
    assert ended[0] == (waiting[1], "changed", None)
    assert ended[1][:2] == (stranger, "skipped")
    assert "there is no such job" in ended[1][2]
    assert line.job(waiting[1]).error == "gone"
    assert sqlc.rows(decide + "retry('work', %s)", [waiting[1]]) == [(waiting[1], "skipped", "it ended as cancelled")]
    assert sqlc.rows(decide + "retry('work', %s, '{{cancelled}}')", [waiting[1]]) == [(waiting[1], "changed", None)]
    assert len(line.jobs("work", Selection(state="queued"))) == 4


def test_a_redrive_waits_for_the_unique_key(line: SqlQueue, sqlc: Caller) -> None:
    job = sqlc.enqueue(1, "unique_key => 'u'")
    sqlc.rows("SELECT * FROM {v1}.cancel('work', ARRAY[%s])", job)
    sqlc.enqueue(2, "unique_key => 'u'")
    assert sqlc.rows("SELECT outcome, because FROM {v1}.retry('work', ARRAY[%s], '{{cancelled}}')", job) == [
        ("skipped", "a live job of the queue has the same id or unique key")
    ]


def test_cancelling_the_head_of_a_key_lets_the_next_in(line: SqlQueue, sqlc: Caller) -> None:
    line.create_queue(replace(SPEC, ordered=True))
    jobs = [sqlc.enqueue(n, "ordering_key => 'k'") for n in range(4)]
    ((head, lease, _),) = sqlc.claim()
    assert sqlc.value("SELECT {v1}.snooze(%s, %s, 3600)", head, lease) == "queued"
    assert sqlc.claim() == []
    sqlc.rows("SELECT * FROM {v1}.cancel('work', %s)", jobs[:2])
    assert [n for _, _, n in sqlc.claim()] == [2]


def test_a_paused_queue_hands_out_nothing(line: SqlQueue, sqlc: Caller) -> None:
    sqlc.enqueue(1)
    assert (sqlc.value("SELECT {v1}.pause('work')"), sqlc.value("SELECT {v1}.pause('work')")) == (True, False)
    assert sqlc.claim() == []
    assert (sqlc.value("SELECT {v1}.resume('work')"), sqlc.value("SELECT {v1}.resume('work')")) == (True, False)
    assert len(sqlc.claim()) == 1


def test_a_look_ahead(line: SqlQueue, sqlc: Caller) -> None:
    for n in range(5):
        sqlc.enqueue(n, "priority => %s", n)
    found = sqlc.rows("SELECT CAST(payload ->> 'n' AS int), state, priority FROM {v1}.peek('work', 3)")
    assert found == [(4, "queued", 4), (3, "queued", 3), (2, "queued", 2)]


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
