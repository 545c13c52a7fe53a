"""The SQL functions enqueue, enqueue_many and publish, compared with Python's verbs."""

import json
import threading
import uuid
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest

from dagster_sqlqueue import Backoff, NewJob, SqlQueue
from dagster_sqlqueue.queue import validation
from dagster_sqlqueue.topics import SubscriptionMode, Topics
from tests.api.conftest import OWN, SPEC, Caller
from tests.gate.patience import PATIENCE
from tests.support import Work, rows, value

LATER = datetime(2037, 1, 31, 8, tzinfo=UTC)
COLUMNS = (
    "queue, bucket, priority, state, lease_no, attempt, max_attempts, unique_key, unique_until_claim, ordering_key,"
    " order_no IS NULL, region, timeout_seconds, backoff, tags, payload, error"
)


def test_a_job_is_the_one_that_python_makes(line: SqlQueue, sqlc: Caller) -> None:
    job = NewJob(
        Work(n=1, note='"ünï\\{},NULL'),
        run_at=LATER,
        priority=7,
        ordering_key="a key",
        unique_key="u",
        unique_until="claim",
        max_attempts=9,
        timeout_seconds=12.5,
        backoff=Backoff(1, 3, 60, 0.5),
        tags=["eu", 'a "quoted\\ {tag}', "null"],
        region="local",
        id=OWN,
    )
    line.enqueue(SPEC, job)
    ((*python, run_at),) = rows(line, f"SELECT {COLUMNS}, run_at = available_at FROM {{s}}.job")
    rows(line, "DELETE FROM {s}.job")
    made = sqlc.value(
        "SELECT {v1}.enqueue('work', %s, run_at => %s, priority => 7, ordering_key => 'a key', unique_key => 'u',"
        " max_attempts => 9, timeout_seconds => 12.5, backoff => '{{1,3,60,0.5}}', tags => %s, region => 'local', id => %s,"
        " unique_until => 'claim')",
        json.dumps({"n": 1, "note": '"ünï\\{},NULL'}),
        LATER,
        list(job.tags),
        OWN,
    )
    assert made == OWN
    assert rows(line, f"SELECT {COLUMNS}, run_at = available_at FROM {{s}}.job") == [(*python, run_at)]
    assert value(line, "SELECT run_at FROM {s}.job") == LATER


def test_what_is_not_said_is_the_queues(line: SqlQueue, sqlc: Caller) -> None:
    line.enqueue(SPEC, NewJob(Work(n=1), id=OWN))
    python = rows(line, f"SELECT {COLUMNS} FROM {{s}}.job")
    rows(line, "DELETE FROM {s}.job")
    sqlc.value('SELECT {v1}.enqueue(\'work\', \'{{"n": 1, "note": ""}}\', id => %s)', OWN)
    assert rows(line, f"SELECT {COLUMNS} FROM {{s}}.job") == python
    assert sqlc.claim() == [(OWN, 1, 1)]


@pytest.mark.parametrize("key", [None, "a", "ünïcode", "x" * 1_000, "🙂"])
def test_buckets_are_chosen_as_in_python(sqlc: Caller, key: str | None) -> None:
    for _ in range(20):
        job = uuid.uuid4()
        assert sqlc.value("SELECT {s}.bucket_hash(%s, %s)", job, key) == validation.bucket_hash(job, key)


def test_ids_are_of_version_7_by_the_databases_clock_and_in_order(sqlc: Caller) -> None:
    with sqlc.connection.transaction():
        now = sqlc.value("SELECT now()")
        ids = [sqlc.enqueue(n) for n in range(50)]
        ids += sqlc.value(
            "SELECT {v1}.enqueue_many('work', ARRAY(SELECT jsonb_build_object('n', n) FROM generate_series(1, 500) AS n))"
        )
        ids += [sqlc.enqueue(n) for n in range(50)]
    assert {(job.version, job.variant) for job in ids} == {(7, uuid.RFC_4122)}
    moments = [datetime.fromtimestamp((job.int >> 80) / 1000, UTC) for job in ids]
    assert all(timedelta(milliseconds=-1) <= moment - now < timedelta(seconds=PATIENCE) for moment in moments)
    assert ids == sorted(ids)


def test_jobs_of_one_key_keep_their_order_whoever_puts_them_in(line: SqlQueue, sqlc: Caller) -> None:
    ordered = replace(SPEC, ordered=True)
    line.create_queue(ordered)
    for n in range(0, 40, 4):
        line.enqueue(ordered, NewJob(Work(n=n), ordering_key="k"))
        sqlc.enqueue(n + 1, "ordering_key => 'k'")
        line.enqueue_many(ordered, [NewJob(Work(n=n + 2), ordering_key="k")])
        sqlc.value(
            "SELECT {v1}.enqueue_many('work', ARRAY[jsonb_build_object('n', %s::int)], ordering_keys => '{{k}}')", n + 3
        )
    assert value(line, "SELECT count(DISTINCT bucket) FROM {s}.job") == 1
    seen = []
    while (
        jobs := sqlc.claim(1)
        if len(seen) % 2
        else [
            (job.id, job.lease_no, json.loads(job.payload)["n"])
            for job in line.claim("work", limit=10, worker="python")
        ]
    ):
        assert len(jobs) == 1
        seen.append(jobs[0][2])
        sqlc.value("SELECT {v1}.complete(%s, %s)", *jobs[0][:2])
    assert seen == list(range(40))


def test_an_enqueue_is_part_of_the_callers_transaction(line: SqlQueue, sqlc: Caller) -> None:
    with sqlc.connection.transaction(force_rollback=True):
        sqlc.enqueue(1)
        assert sqlc.value("SELECT count(*) FROM {s}.job") == 1
        assert line.depth("work").live == 0
    assert line.depth("work").live == 0


def test_a_unique_key_is_ignored_or_replaced(line: SqlQueue, sqlc: Caller) -> None:
    first = sqlc.enqueue(1, "unique_key => 'u', priority => 3")
    assert sqlc.enqueue(2, "unique_key => 'u'") is None
    assert sqlc.enqueue(3, "unique_key => 'u', on_duplicate => 'replace', tags => '{{x}}'") == first
    assert rows(line, "SELECT payload ->> 'n', priority, tags FROM {s}.job") == [("3", 0, ["x"])]
    assert sqlc.claim() == [(first, 1, 3)]
    assert sqlc.enqueue(4, "unique_key => 'u', on_duplicate => 'replace'") is None
    second = sqlc.enqueue(5, "unique_key => 'v', on_duplicate => 'replace'")
    assert second not in (None, first)


@pytest.mark.parametrize("turns", [{}, {"ordered": True}])
def test_many_who_replace_at_once_leave_one_job(
    line: SqlQueue, sqlc: Caller, any_server: str, turns: dict[str, Any]
) -> None:
    line.create_queue(replace(SPEC, **turns))
    said: list[UUID | None] = []
    begin = threading.Barrier(8, timeout=PATIENCE)

    def submit(mine: int) -> None:
        with psycopg.connect(any_server, autocommit=True) as connection:
            caller = Caller(connection, sqlc.schema)
            begin.wait()
            for n in range(25):
                more = "unique_key => %s, ordering_key => 'k', on_duplicate => 'replace'"
                said.append(caller.enqueue(100 * mine + n, more, f"u{n}"))

    submitters = [threading.Thread(target=submit, args=(n,)) for n in range(8)]
    for submitter in submitters:
        submitter.start()
    for submitter in submitters:
        submitter.join()
    live = {job for (job,) in rows(line, "SELECT id FROM {s}.job")}
    assert len(live) == 25
    assert Counter(said) == dict.fromkeys(live, 8)


def test_a_replaced_job_makes_room_in_its_keys_line(line: SqlQueue, sqlc: Caller) -> None:
    line.create_queue(replace(SPEC, max_running_per_key=1))
    sqlc.enqueue(1, "ordering_key => 'k', unique_key => 'u'")
    sqlc.enqueue(2, "ordering_key => 'k'")
    (first,) = sqlc.claim()
    assert sqlc.value("SELECT {v1}.fail(%s, %s, 'x')", *first[:2]) == "queued"
    assert sqlc.enqueue(1, "unique_key => 'u', on_duplicate => 'replace', run_at => %s", LATER) == first[0]
    assert [job[2] for job in sqlc.claim()] == [2]


@pytest.mark.parametrize("on_duplicate", ["ignore", "replace"])
def test_a_job_that_is_sent_again_lands_once(line: SqlQueue, sqlc: Caller, on_duplicate: str) -> None:
    call = "unique_key => 'u', on_duplicate => %s, id => %s"
    assert sqlc.enqueue(1, call, on_duplicate, OWN) == OWN
    again = sqlc.enqueue(1, call, on_duplicate, OWN)
    assert again is None
    ((job, lease, _),) = sqlc.claim()
    sqlc.value("SELECT {v1}.complete(%s, %s)", job, lease)
    assert sqlc.enqueue(1, call, on_duplicate, OWN) is None
    assert line.depth("work").live == 0


def test_one_that_was_replaced_since_is_not_brought_back(line: SqlQueue, sqlc: Caller) -> None:
    live = sqlc.enqueue(1, "unique_key => 'u'")
    assert sqlc.enqueue(2, "unique_key => 'u', on_duplicate => 'replace', id => %s", OWN) == live
    assert sqlc.enqueue(3, "unique_key => 'u', on_duplicate => 'replace'") == live
    assert sqlc.enqueue(2, "unique_key => 'u', on_duplicate => 'replace', id => %s", OWN) is None
    assert value(line, "SELECT payload ->> 'n' FROM {s}.job") == "3"


def test_an_id_that_is_known_was_sent_before_whatever_its_unique_key(line: SqlQueue, sqlc: Caller) -> None:
    sqlc.enqueue(1, "unique_key => 'a', id => %s", OWN)
    made = sqlc.value(
        "SELECT {v1}.enqueue_many('work', ARRAY[jsonb '{{\"n\": 2}}', '{{\"n\": 3}}'], unique_keys => '{{b,c}}',"
        " ids => ARRAY[gen_random_uuid(), %s], on_duplicate => 'replace')",
        OWN,
    )
    assert (made[0] is not None, made[1]) == (True, None)
    assert rows(line, "SELECT unique_key, payload ->> 'n' FROM {s}.job ORDER BY 1") == [("a", "1"), ("b", "2")]


def test_many_jobs(line: SqlQueue, sqlc: Caller) -> None:
    line.create_queue(replace(SPEC, ordered=True))
    sqlc.enqueue(0, "unique_key => 'u1'")
    made = sqlc.value(
        "SELECT {v1}.enqueue_many('work', ARRAY(SELECT jsonb_build_object('n', n) FROM generate_series(1, 4) AS n),"
        " run_ats => ARRAY[NULL, NULL, %s::timestamptz, NULL], priorities => '{{1,2,3,4}}',"
        " ordering_keys => '{{a,NULL,a,b}}', unique_keys => '{{u1,u2,NULL,NULL}}', tags => '{{x,y}}',"
        " max_attempts => 8, timeout_seconds => 5,"
        " backoff => '{{1,2,3,0}}')",
        LATER,
    )
    assert made[0] is None
    found = rows(
        line,
        "SELECT id, priority, run_at = %s, ordering_key, unique_key, tags, max_attempts, timeout_seconds, backoff"
        " FROM {s}.job WHERE payload ->> 'n' <> '0' ORDER BY priority",
        LATER,
    )
    same = (["x", "y"], 8, 5.0, [1.0, 2.0, 3.0, 0.0])
    assert found == [
        (made[1], 2, False, None, "u2", *same),
        (made[2], 3, True, "a", None, *same),
        (made[3], 4, False, "b", None, *same),
    ]


def test_many_replace_and_insert_in_one_call(line: SqlQueue, sqlc: Caller) -> None:
    first = sqlc.enqueue(1, "unique_key => 'u1'")
    sqlc.enqueue(2, "unique_key => 'u2', priority => 9")
    ((running, _, _),) = sqlc.claim(1)
    made = sqlc.value(
        "SELECT {v1}.enqueue_many('work', ARRAY(SELECT jsonb_build_object('n', n * 10) FROM generate_series(1, 4) AS n),"
        " unique_keys => '{{u1,u2,u3,NULL}}', on_duplicate => 'replace')"
    )
    runs = value(line, "SELECT unique_key FROM {s}.job WHERE id = %s", running)
    assert (made[0], made[1]) == ((None, made[1]) if runs == "u1" else (first, None))
    assert None not in made[2:]
    waiting = rows(line, "SELECT (payload ->> 'n')::int FROM {s}.job WHERE state = 'queued' ORDER BY 1")
    assert [n for (n,) in waiting] == ([20, 30, 40] if runs == "u1" else [10, 30, 40])


def test_arrays_may_begin_with_another_number_than_one(line: SqlQueue, sqlc: Caller) -> None:
    ids = [uuid.UUID(int=OWN.int + n) for n in range(3)]
    again = (
        "SELECT {v1}.enqueue_many('work', CAST(%s AS jsonb[]), ids => CAST(%s AS uuid[]),"
        " unique_keys => CAST(%s AS text[]), on_duplicate => 'replace')"
    )
    payloads = [json.dumps({"n": n}) for n in range(3)]
    given = [f"[0:2]={{{','.join(each)}}}" for each in (map(json.dumps, payloads), map(str, ids), "abc")]
    assert sqlc.value(again, *given) == ids
    assert sqlc.value(again, *given) == [None] * 3
    assert value(line, "SELECT count(*) FROM {s}.job") == 3
    with sqlc.connection.transaction():
        sqlc.rows("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        assert "has an id of its own" in sqlc.refused(
            "SQ004", "SELECT {v1}.enqueue_many('work', ARRAY[jsonb '{{}}'], ids => %s)", f"[0:0]={{{ids[0]}}}"
        )


def test_none_at_all(sqlc: Caller) -> None:
    assert sqlc.value("SELECT {v1}.enqueue_many('work', '{{}}')") == []
    sqlc.refused("SQ002", "SELECT {v1}.enqueue_many('nope', '{{}}')")


def test_a_message_becomes_what_python_makes_of_it(line: SqlQueue, sqlc: Caller) -> None:
    topics = Topics(line)
    topics.subscribe("orders", "all", "work", priority=4)
    for name in ("a", "b", "c"):
        topics.subscribe("orders", name, "work", mode=SubscriptionMode.MOVE)
    found = sqlc.rows(
        "SELECT subscription, queue, job_id, inserted FROM {v1}.publish('orders', '{{\"n\": 1}}', ordering_key => 'k',"
        " tags => '{{x}}', id => %s) ORDER BY 1",
        OWN,
    )
    assert [row[0] for row in found].count("all") == 1
    assert [row[3] for row in found] == [True, True]
    before = rows(line, f"SELECT id, {COLUMNS} FROM {{s}}.job ORDER BY id")
    again = sqlc.rows("SELECT job_id, inserted FROM {v1}.publish('orders', '{{\"n\": 1}}', id => %s)", OWN)
    assert sorted(again) == sorted((row[2], False) for row in found)
    rows(line, "DELETE FROM {s}.job")
    topics.publish("orders", {"n": 1}, ordering_key="k", tags=["x"], id=OWN)
    assert rows(line, f"SELECT id, {COLUMNS} FROM {{s}}.job ORDER BY id") == before


def test_a_message_without_a_key_goes_where_python_puts_it(line: SqlQueue, sqlc: Caller) -> None:
    topics = Topics(line)
    topics.subscribe("orders", "all", "work")
    sqlc.rows("SELECT * FROM {v1}.publish('orders', '{{\"n\": 1}}', id => %s)", OWN)
    before = rows(line, f"SELECT id, {COLUMNS} FROM {{s}}.job")
    rows(line, "DELETE FROM {s}.job")
    topics.publish("orders", {"n": 1}, id=OWN)
    assert rows(line, f"SELECT id, {COLUMNS} FROM {{s}}.job") == before


def test_a_message_nobody_wants_is_nothing_and_a_bad_one_is_refused(sqlc: Caller) -> None:
    assert sqlc.rows("SELECT * FROM {v1}.publish('nobody', '{{}}')") == []
    assert "topic '1a' is not usable" in sqlc.refused("SQ003", "SELECT * FROM {v1}.publish('1a', '{{}}')")
    assert "topic NULL" in sqlc.refused("SQ003", "SELECT * FROM {v1}.publish(NULL, '{{}}')")
    for priority in (12, 70_000):
        call = "SELECT * FROM {v1}.publish('a', '{{}}', priority => %s)"
        assert f"priority is {priority}" in sqlc.refused("SQ003", call, priority)
