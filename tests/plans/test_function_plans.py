"""What the SQL functions read, on 200,000 jobs: each call as a whole, and the statements in them with their generic plans.

A call is measured from outside: the pages that it touched, in whatever statement, and the rows of tables of jobs that were
read otherwise than by an index. The bounds are those of the statements (see test_claim_plans and test_job_plans), and for
each job of a claim the row once more, through the primary key. A call that was made before has its plans.
"""

import re
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import psycopg
import pytest

from dagster_sqlqueue import SqlQueue
from dagster_sqlqueue.db import statements
from dagster_sqlqueue.schema import functions
from tests.plans.explaining import BY_CLAIM, BY_ID, BY_PLACE, EVERYWHERE, LANES, SLACK, Fetched, Plan, due, running
from tests.plans.undoing import undone
from tests.support.few import few

FIXED = 400
"""Pages for settings, checks and the making of plans."""


class Calling:
    """Calls functions in a transaction that is undone, and says what that took."""

    def __init__(self, connection: "psycopg.Connection[Any]", schema: str) -> None:
        self._connection = connection
        self._schema = schema
        self._fetched = Fetched(connection, schema)

    def run(self, query: str, *parameters: object) -> list[tuple[Any, ...]]:
        text = query.replace("{s}", f'"{self._schema}"').replace("{v1}", f'"{self._schema}_v1"')
        cursor = psycopg.ClientCursor(self._connection).execute(text.encode(), parameters or None)
        return cursor.fetchall() if cursor.description else []

    def __call__(self, call: str, *parameters: object, rows: int | None = None) -> int:
        """The pages that a call touches; it reads tables of jobs by their indexes alone.

        Args:
            call: of a function of version 1.
            parameters: its own.
            rows: how many it returns.
        """
        before, fetched = self._read_whole(), self._fetched()
        ((plan,),) = self.run(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) SELECT * FROM {{v1}}.{call}", *parameters)
        found = Plan(plan, self._fetched() - fetched)
        assert self._read_whole() == before, "a table of jobs was read row by row"
        if rows is not None:
            assert found.root["Actual Rows"] == rows
        return found.buffers

    def _read_whole(self) -> int:
        ((scans,),) = self.run(
            "SELECT sum(seq_tup_read) FROM pg_stat_xact_all_tables WHERE schemaname = %s AND relname ~ '^job'",
            self._schema,
        )
        return int(scans)


@pytest.fixture
def calling(backlog: SqlQueue) -> Iterator[Calling]:
    with undone(backlog) as connection:
        yield Calling(connection, backlog.database.schema)


@pytest.mark.parametrize("limit", few([1, 2_000, 100], 2))
@pytest.mark.parametrize("strategy", ["round_robin", "fanout", "fifo"])
def test_claim(calling: Calling, strategy: str, limit: int) -> None:
    calling.run("UPDATE {s}.queue SET strategy = %s WHERE name = 'work'", strategy)
    each = {"round_robin": 35, "fanout": 45, "fifo": 35 + 45}[strategy]
    calling("claim('work', 'w', 1)")
    pages = calling("claim('work', 'w', %s)", limit, rows=limit)
    assert pages <= each * limit + 8 * LANES + FIXED


@pytest.mark.parametrize("limit", few([1, 500, 100], 2))
def test_claim_beside_a_limit(calling: Calling, limit: int) -> None:
    calling("claim('limited', 'w', 1)")
    # The thousand leases that count are looked at, through their own index.
    assert calling("claim('limited', 'w', %s)", limit, rows=limit) <= 35 * limit + 8 * LANES + 6 * 1_000 + FIXED


def test_claim_of_keys_in_turns(calling: Calling) -> None:
    calling.run(
        "UPDATE {s}.job SET available_at = now() - interval '1 second' WHERE queue = 'keyed' AND state = 'running'"
    )
    calling("claim('keyed', 'w', 1)")
    # Five hundred are looked at, whatever the limit; those that have no turn are parked.
    assert calling("claim('keyed', 'w', 10)") <= 500 * 75 + 8 * LANES + FIXED


def test_claim_where_nothing_is_due(calling: Calling) -> None:
    calling("claim('work', 'w', 100, buckets => '{20}')", rows=0)
    assert calling("claim('work', 'w', 100, buckets => '{20}')", rows=0) <= 8 * 10 + FIXED


@pytest.mark.parametrize("limit", [1, 100])
def test_claim_with_a_filter(calling: Calling, limit: int) -> None:
    """One of fifty fits: what is looked at is a scan's bound, not the backlog."""
    calling("claim('work', 'w', 1, with_tags => '{t7}')", rows=1)
    assert calling("claim('work', 'w', %s, with_tags => '{t7}')", limit, rows=limit) <= 2 * 10_000 + 45 * limit + FIXED


@pytest.mark.parametrize("count", few([1, 1_000, 100], 2))
def test_complete_many(calling: Calling, backlog: SqlQueue, count: int) -> None:
    ids = running(backlog, count + 1)
    calling("complete_many(%s::uuid[], '{1}')", ids[:1])
    assert calling("complete_many(%s::uuid[], %s::bigint[])", ids[1:], [1] * count) <= 35 * count + FIXED


OF_ONE = [
    "complete(%s, 1)",
    "fail(%s, 1, 'x')",
    "snooze(%s, 1, 60)",
    "release(%s, 1)",
    "hold(%s, 1, 'x')",
    "reject(%s, 1, 'x')",
    "accept_cancel(%s, 1)",
    "heartbeat(%s, 1)",
    "job(%s)",
]


@pytest.mark.parametrize("call", OF_ONE)
@pytest.mark.parametrize("queue", ["work", "keyed", "limited"])
def test_what_is_said_of_one(calling: Calling, backlog: SqlQueue, call: str, queue: str) -> None:
    first, second = running(backlog, 2, queue)
    calling(call, first)
    assert calling(call, second) <= 100 + FIXED


DECISIONS = [
    "cancel('{q}', %s)",
    "hold_queued('{q}', %s, 'x')",
    "reschedule('{q}', %s, 60)",
    "reprioritise('{q}', %s, 9)",
]


@pytest.mark.parametrize("call", DECISIONS)
@pytest.mark.parametrize("queue", ["work", "keyed"])
@pytest.mark.parametrize("count", [1, 1_000])
def test_what_operators_decide(calling: Calling, backlog: SqlQueue, call: str, queue: str, count: int) -> None:
    jobs = due(backlog, count + 1, queue)
    call = call.replace("{q}", queue)
    calling(call, jobs[:1], rows=1)
    assert calling(call, jobs[1:], rows=count) <= 60 * count + FIXED


@pytest.mark.parametrize("queue", ["work", "keyed"])
def test_replacing_a_payload(calling: Calling, backlog: SqlQueue, queue: str) -> None:
    first, second = due(backlog, 2, queue)
    calling(f"replace_payload('{queue}', %s, '{{}}')", first, rows=1)
    assert calling(f"replace_payload('{queue}', %s, '{{}}')", second, rows=1) <= 100 + FIXED


@pytest.mark.parametrize("more", ["", ", ordering_key => 'big'", ", unique_key => 'u'", ", id => gen_random_uuid()"])
@pytest.mark.parametrize("queue", ["work", "keyed"])
def test_enqueue(calling: Calling, queue: str, more: str) -> None:
    call = f"enqueue('{queue}', '{{}}'{more})"
    calling(call)
    assert calling(call) <= 100 + FIXED


@pytest.mark.parametrize("on_duplicate", ["ignore", "replace"])
@pytest.mark.parametrize("count", [1, 1_000])
def test_enqueue_many(calling: Calling, on_duplicate: str, count: int) -> None:
    call = (
        "enqueue_many('work', ARRAY(SELECT jsonb_build_object('n', n) FROM generate_series(1, %s) AS n),"
        " unique_keys => ARRAY(SELECT 'u' || n FROM generate_series(1, %s) AS n), on_duplicate => %s)"
    )
    calling(call, 1, 1, on_duplicate)
    assert calling(call, count, count, on_duplicate) <= 90 * count + FIXED


@pytest.mark.parametrize("call", ["peek('work', 100)", "depth('work', 1000)"])
def test_reads(calling: Calling, call: str) -> None:
    calling(call)
    assert calling(call) <= 4_000 + 14 * LANES + FIXED


CHOICES = ["claim_round_robin", "claim_limited", "pick_round_robin", "pick_fanout", "pick_fifo"]


def explained(backlog: SqlQueue, name: str, **given: object) -> Plan:
    """The generic plan of a statement as the functions hold it, with a parameter for the time."""
    text = statements.in_schema(functions.included(name), backlog.database.schema)
    names = list(dict.fromkeys(re.findall(r"param\.([a-z_]+)", text)))
    for number, parameter in enumerate(names, 1):
        text = re.sub(rf"param\.{parameter}\b", f"${number}", text)
    types = {"clock": "timestamptz", "queue": "text", "revision": "bigint", "limit": "integer", "per_bucket": "integer"}
    types |= {"buckets": "smallint[]", "hints": "text[]", "lease_seconds": "float8", "worker": "text", "ids": "uuid[]"}
    types |= {"lease_nos": "bigint[]", "suspects": "boolean", "single": "boolean", "from_head": "smallint[]"}
    with undone(backlog, "force_generic_plan") as connection:
        ((clock,),) = connection.execute("SELECT clock_timestamp()").fetchall()
        values = [{**given, "clock": clock}[parameter] for parameter in names]
        connection.execute(f"PREPARE verb ({', '.join(types[parameter] for parameter in names)}) AS {text}".encode())
        fetched = Fetched(connection, backlog.database.schema)
        try:
            query = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE verb ({', '.join(['%s'] * len(names))})"
            before = fetched()
            ((plan,),) = psycopg.ClientCursor(connection).execute(query.encode(), values)
            return Plan(plan, fetched() - before)
        finally:
            connection.execute("DEALLOCATE verb")


@pytest.mark.parametrize("limit", few([1, 2_000, 100], 2))
@pytest.mark.parametrize("name", CHOICES)
def test_choosing_by_a_time_that_is_a_parameter(backlog: SqlQueue, name: str, limit: int) -> None:
    plan = explained(
        backlog,
        name,
        queue="work",
        revision=backlog.settings("work").revision,
        buckets=EVERYWHERE,
        hints=[],
        from_head=[],
        limit=limit,
        per_bucket=limit,
        lease_seconds=60.0,
        worker="w",
        suspects=True,
        single=True,
    )
    assert {scan for scan in plan.scans() if scan[1] != "job_limited"} <= BY_CLAIM | BY_ID | BY_PLACE
    assert plan.rows_read <= (32 if name == "pick_fifo" else 2) * limit + 16


@pytest.mark.parametrize("count", few([1, 1_000, 100], 2))
@pytest.mark.parametrize("name", ["leased", "granted"])
def test_what_is_known_of_leases(backlog: SqlQueue, name: str, count: int) -> None:
    ids: list[UUID] = running(backlog, count)
    plan = explained(backlog, name, ids=ids, lease_nos=[1] * count)
    assert plan.root["Actual Rows"] == count
    assert plan.scans() <= BY_ID
    assert plan.rows_read <= count
    assert plan.buffers <= 8 * count + SLACK
