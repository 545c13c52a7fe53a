"""The SQL functions that end and requeue jobs: turns, the dead letter, backoffs, fences."""

from collections.abc import Callable
from dataclasses import astuple, replace
from typing import Any
from uuid import UUID, uuid4

import pytest

from dagster_sqlqueue import Backoff, SqlQueue, Strategy
from dagster_sqlqueue.model.numbers import MAX_DELAY_SECONDS
from tests.api.conftest import LOCKING, SPEC, Caller, fill
from tests.gate.patience import PATIENCE
from tests.support import make_due, rows, states, value

TURNS = [{"ordered": True}, {"max_running_per_key": 1}]


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
    waits: dict[UUID, list[tuple[float, float]]] = {job: [] for job in jobs}
    for _ in range(4):
        make_due(line)
        for job, lease, _ in sqlc.claim():
            before = value(line, "SELECT clock_timestamp()")
            assert sqlc.value("SELECT {v1}.fail(%s, %s, 'x')", job, lease) == "queued"
            ((least, most),) = rows(
                line,
                "SELECT EXTRACT(EPOCH FROM available_at - clock_timestamp()), EXTRACT(EPOCH FROM available_at - %s)"
                " FROM {s}.job WHERE id = %s",
                before,
                job,
            )
            waits[job].append((least, most))
    for job, expected in ((jobs[0], [100, 1_000, 5_000, 5_000]), (jobs[1], [7, 14, 28, 56])):
        for (least, most), wait in zip(waits[job], expected, strict=True):
            assert least <= wait <= most
    assert all(least <= 1 and most >= 0 for least, most in waits[jobs[2]])


@pytest.mark.parametrize(
    "backoff",
    [
        "{1e300,10,1e300,0}",
        "{NaN,1,NaN,0}",
        "{Infinity,1,10,0}",
        "{1,NaN,10,0}",
        "{1,0,10,0}",
        "{-1,1,10,0}",
        "{1,1,10,2}",
        "{1}",
        "{}",
        "{NULL,1,1,0}",
        "{{1,1},{10,0}}",
    ],
)
def test_a_backoff_that_makes_no_sense_is_ignored(line: SqlQueue, sqlc: Caller, backoff: str) -> None:
    """A producer may write one by an INSERT of its own."""
    line.create_queue(replace(SPEC, backoff=Backoff.fixed(500)))
    job = sqlc.enqueue(1)
    rows(line, "UPDATE {s}.job SET backoff = CAST(%s AS float8[])", backoff)
    ((_, lease, _),) = sqlc.claim()
    assert sqlc.value("SELECT {v1}.fail(%s, %s, 'x')", job, lease) == "queued"
    waits = "SELECT available_at - started_at BETWEEN interval '500 s' AND interval '1 day' FROM {s}.job"
    assert value(line, waits) is True


BACKOFFS = [
    Backoff(0),
    Backoff(),
    Backoff(0.25, 1.5, 60),
    Backoff(100, 10, 5_000),
    Backoff(7_200, 2, 60),
    Backoff(1, 1e300, 1_000_000),
    Backoff(1, 1.0001, MAX_DELAY_SECONDS),
    Backoff(0, 1_000, 5_000),
    Backoff.fixed(30),
]


def test_fail_computes_the_same_backoff_as_python(line: SqlQueue, sqlc: Caller) -> None:
    line.create_queue(replace(SPEC, max_attempts=1_000_000))
    cases = [
        (replace(backoff, jitter=0), attempt) for backoff in BACKOFFS for attempt in (1, 2, 3, 7, 60, 1_000, 900_000)
    ]
    for n, (backoff, attempt) in enumerate(cases):
        numbers = [float(number) for number in astuple(backoff)]
        job = sqlc.enqueue(n, "backoff => %s::float8[]", numbers)
        rows(line, "UPDATE {s}.job SET attempt = %s WHERE id = %s", attempt - 1, job)
    claimed = sqlc.claim(len(cases))
    assert sorted(n for _, _, n in claimed) == list(range(len(cases)))
    for job, lease, n in claimed:
        backoff, attempt = cases[n]
        before = value(line, "SELECT clock_timestamp()")
        assert sqlc.value("SELECT {v1}.fail(%s, %s, 'x')", job, lease) == "queued"
        ((least, most),) = rows(
            line,
            "SELECT EXTRACT(EPOCH FROM available_at - clock_timestamp()), EXTRACT(EPOCH FROM available_at - %s)"
            " FROM {s}.job WHERE id = %s",
            before,
            job,
        )
        assert float(least) <= backoff(attempt) <= float(most), (backoff, attempt)


def test_a_backoff_beyond_all_numbers_is_the_longest(line: SqlQueue, sqlc: Caller) -> None:
    line.create_queue(replace(SPEC, max_attempts=1_000_000))
    job = sqlc.enqueue(1, "backoff => '{{1,1000,5000,0}}'")
    rows(line, "UPDATE {s}.job SET attempt = 900000")
    ((_, lease, _),) = sqlc.claim()
    sqlc.value("SELECT {v1}.fail(%s, %s, 'x')", job, lease)
    wait = value(line, "SELECT EXTRACT(EPOCH FROM available_at - clock_timestamp()) FROM {s}.job")
    assert 5_000 - PATIENCE < wait <= 5_000


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
    message = sqlc.refused("SQ001", f"SELECT {{v1}}.{call('')}", job, old)
    assert "the lease of 1 of 1 jobs is not current any more" in message
    assert str(job) in message
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
