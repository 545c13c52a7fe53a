"""The SQL functions that decide about jobs, and those that read them."""

import sys
from dataclasses import replace
from uuid import uuid4

import psycopg
import pytest

from dagster_sqlqueue import SqlQueue
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.queue.selection import Selection
from tests.api.conftest import SPEC, Caller
from tests.support import rows


def test_operators_decide_as_in_python(line: SqlQueue, sqlc: Caller) -> None:
    jobs = [sqlc.enqueue(n) for n in range(5)]
    ((running, _, _),) = sqlc.claim(1)
    waiting = [job for job in jobs if job != running]
    decide = "SELECT job_id, outcome, because FROM {v1}."
    assert sqlc.rows(decide + "hold_queued('work', %s, 'wait')", [waiting[0], running]) == [
        (waiting[0], "changed", None),
        (running, "skipped", "it is running, or another transaction has it locked at this moment"),
    ]
    assert sqlc.rows(decide + "release_held('work', %s)", waiting[:2])[0] == (waiting[0], "changed", None)
    assert sqlc.rows(decide + "reschedule('work', %s, 3600)", waiting[:1]) == [(waiting[0], "changed", None)]
    assert line.depth("work").scheduled == 1
    assert sqlc.rows(decide + "reschedule('work', %s, until => '2001-01-01')", waiting[:1]) == [
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
    sqlc.enqueue(2)
    assert sqlc.value("SELECT {v1}.pause('work', now() + interval '1 hour')")
    assert sqlc.claim() == []
    rows(line, "UPDATE {s}.queue SET paused_until = statement_timestamp()")
    assert len(sqlc.claim()) == 1
    for passed in ("now() - interval '1 second'", "'infinity'"):
        with pytest.raises(psycopg.Error, match=r"until is .*give a moment in the future"):
            sqlc.value(f"SELECT {{v1}}.pause('work', {passed})")


def test_peeking(line: SqlQueue, sqlc: Caller) -> None:
    for n in range(5):
        sqlc.enqueue(n, "priority => %s", n)
    found = sqlc.rows("SELECT CAST(payload ->> 'n' AS int), state, priority FROM {v1}.peek('work', 3)")
    assert found == [(4, "queued", 4), (3, "queued", 3), (2, "queued", 2)]


BLANK = [character for character in map(chr, range(1, sys.maxunicode + 1)) if not character.strip()]
"""What Python sees as space."""


def test_what_is_blank_in_python_is_blank_here(line: SqlQueue, sqlc: Caller) -> None:
    assert len(BLANK) > 20
    job = sqlc.enqueue(1)
    ((running, lease, _),) = sqlc.claim()
    for blank in [*BLANK, "".join(BLANK)]:
        with pytest.raises(InvalidInput, match="the reason is"):
            line.cancel("work", Selection(ids=[job]), reason=blank)
        for call in ("cancel('work', ARRAY[%s], %s)", "hold_queued('work', ARRAY[%s], %s)"):
            assert "the reason is" in sqlc.refused("SQ003", f"SELECT * FROM {{v1}}.{call}", job, blank)
        for call in ("hold(%s, %s, %s)", "reject(%s, %s, %s)", "accept_cancel(%s, %s, %s)"):
            assert "the reason is" in sqlc.refused("SQ003", f"SELECT {{v1}}.{call}", running, lease, blank)
        for call in ("claim('work', %s)", "listen('work', %s)"):
            assert "worker is empty" in sqlc.refused("SQ003", f"SELECT {{v1}}.{call}", blank)
    assert line.job(job).state == "running"
    assert sqlc.value("SELECT {v1}.hold(%s, %s, %s)", running, lease, "\t\u200b") == "held"


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
        "lease_nos has more than one dimension": "complete_many(ARRAY[%s]::uuid[], '{{{{1}}}}')",
        "job_ids holds NULL": "cancel('work', ARRAY[%s, NULL]::uuid[])",
    }.items():
        assert said in sqlc.refused("SQ003", f"SELECT {{v1}}.{call}", job)
    for call in (
        "complete(NULL, 1)",
        "fail(NULL, 1, 'x')",
        "snooze(NULL, 1, 1)",
        "release(NULL, 1)",
        "hold(NULL, 1, 'x')",
        "reject(NULL, 1, 'x')",
        "accept_cancel(NULL, 1)",
    ):
        assert sqlc.refused("SQ003", f"SELECT {{v1}}.{call}").startswith("job_id is NULL; give the one that came with")
    for call in ("cancel('work', NULL)", "release_held('work', NULL)", "complete_many(NULL, '{{1}}')"):
        assert "job_ids is NULL" in sqlc.refused("SQ003", f"SELECT {{v1}}.{call}")
    assert "job_ids is empty" in sqlc.refused("SQ003", "SELECT {v1}.cancel('work', '{{}}')")
    assert "max_jobs is 0" in sqlc.refused("SQ003", "SELECT {v1}.peek('work', 0)")
    assert "cap is 0" in sqlc.refused("SQ003", "SELECT {v1}.depth('work', 0)")
    for call in ("cancel('nope', ARRAY[%s])", "retry('nope', ARRAY[%s])", "reschedule('nope', ARRAY[%s], 1)"):
        assert "there is no queue 'nope'" in sqlc.refused("SQ002", f"SELECT {{v1}}.{call}", job)
    claims = ("claim('nope', 'w')", "claim(NULL, 'w')")
    for call in ("pause('nope')", "resume(NULL)", "depth('nope')", "peek('nope')", *claims):
        assert "there is no queue" in sqlc.refused("SQ002", f"SELECT {{v1}}.{call}")
