"""Plans of a consumer that was there before the jobs: its session made them while the table was empty, and keeps them.

Each statement is prepared, and planned, on a connection of the library's own, and each function is called, beside an empty
table; then 100,000 jobs and more come, and nobody analyses. The bounds are those of the other plan tests: an empty table
must not have led to an index that is read from end to end, nor to rows that are compared each with each.

For the planner an empty table is not always the same: it expects something in one that nobody has looked at yet, and nothing
in one that was vacuumed.
"""

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple
from uuid import UUID, uuid4

import pytest

from dagster_sqlqueue import QueueSpec, SqlQueue
from dagster_sqlqueue.db.executors import Transaction
from tests.plans.explaining import CLAIM, EVERYWHERE, FROM_THE_BEGINNING, LANES, LEASE, SLACK, KeptExplainer, Plan
from tests.plans.filling import put
from tests.plans.test_function_plans import FIXED, Calling
from tests.plans.undoing import without_autovacuum
from tests.support import Work, drop, rows, take_time, until, value
from tests.support.few import few
from tests.support.pooler import pooler

JOBS = 100_000
KEYED = 20_000
KEYS = 500
RUNNING = 2_000

_numbers = itertools.count()

EMPTY = {
    "never looked at": [],
    "vacuumed": ["VACUUM ANALYZE {s}.job"],
    "worked off": [
        "INSERT INTO {s}.job (id, queue, bucket, priority, available_at, run_at, max_attempts, payload)"
        " SELECT gen_random_uuid(), 'work', 0, 0, now(), now(), 1, '{{}}' FROM generate_series(1, 20000)",
        "DELETE FROM {s}.job",
        "VACUUM (ANALYZE, TRUNCATE off) {s}.job",
    ],
}
"""What was done with the table before the consumer came."""


class Kept(NamedTuple):
    """A session that was there first, and the jobs that came after."""

    queue: SqlQueue
    owner: SqlQueue
    due: list[UUID]
    running: list[UUID]
    turning: list[UUID]


@pytest.fixture(scope="module", params=few(["vacuumed, behind a pooler", *EMPTY], 2))
def kept(url: str, request: pytest.FixtureRequest) -> Iterator[Kept]:
    empty, _, pooled = request.param.partition(", ")
    # In a random order it is set up more than once, and each time on tables that were never used.
    schema = f"plans_idle_{next(_numbers)}"
    with contextlib.ExitStack() as stack:
        owner = stack.enter_context(SqlQueue(url, schema=schema))
        stack.callback(drop, owner)
        theirs = stack.enter_context(pooler(url)) if pooled else url
        queue = stack.enter_context(SqlQueue(theirs, schema=schema, pool_size=1))
        owner.migrate()
        owner.create_queue(QueueSpec("work", Work))
        owner.create_queue(QueueSpec("keyed", Work, ordered=True))
        owner.create_queue(QueueSpec("limited", Work, max_running=2 * RUNNING))
        without_autovacuum(owner)
        for statement in EMPTY[empty]:
            rows(owner, statement)
        with undone(queue) as transaction:
            explainer = KeptExplainer(transaction.connection, schema)
            for verb, parameters in _statements(owner, [uuid4()], [uuid4()], [uuid4()], 1).items():
                explainer.keep(verb, parameters)
                # A function's own statements are planned as it runs.
                if verb in BY_FUNCTIONS:
                    for _ in range(6):
                        transaction.run(verb, parameters)
            calling = Calling(transaction.connection, schema)
            for call in _calls([uuid4()], [uuid4()]):
                # What is cached of a statement are five plans for it alone, and then one for all, where the mode allows.
                for _ in range(6):
                    calling.run("SAVEPOINT before")
                    with contextlib.suppress(Exception):
                        calling.run(f"SELECT * FROM {{v1}}.{call.text}", *call.parameters)
                    calling.run("ROLLBACK TO before")
        put(
            owner,
            "work",
            JOBS,
            priority="n / 4 %% 10",
            run_at="CASE WHEN n %% 4 = 0 THEN now() + interval '1 day' ELSE now() - n %% 3000 * interval '1 s' END",
        )
        put(owner, "limited", 2 * RUNNING)
        put(owner, "keyed", KEYED, ordering_key=f"'key ' || n %% {KEYS}", order_no="nextval('{s}.job_order')")
        for name in ("work", "limited"):
            owner.claim(name, limit=RUNNING, lease_seconds=3_600, worker="w")
        rows(
            owner,
            "UPDATE {s}.job SET available_at = 'infinity' WHERE queue = 'keyed' AND order_no NOT IN"
            " (SELECT min(order_no) FROM {s}.job WHERE queue = 'keyed' GROUP BY ordering_key)",
        )
        kept = Kept(queue, owner, *(_ids(owner, *which) for which in (DUE, RUN, TURNING)))
        # The first one steps over the rows that were claimed, and marks their entries dead: once nobody sees them any more.
        claimed = value(owner, "SELECT CAST(CAST(pg_current_xact_id() AS text) AS bigint)")
        until(lambda: value(owner, SEEN, claimed) == 0, "an end of what others in this database had open")
        explained(kept, "pick_round_robin", 1)
        yield kept


SEEN = """
    SELECT count(*)
    FROM (
        SELECT least(CAST(CAST(backend_xmin AS text) AS bigint), CAST(CAST(backend_xid AS text) AS bigint))
        FROM pg_stat_activity
        WHERE datname = current_database() AND pid <> pg_backend_pid()
        UNION ALL
        SELECT CAST(CAST(pg_snapshot_xmin(pg_current_snapshot()) AS text) AS bigint)
    ) AS oldest (number)
    WHERE oldest.number <= %s
"""
"""Who may see what a transaction has deleted; the next reader, while a transaction of any database is open that is older.
(A server of tests is young: its transactions' numbers have no epoch.)"""
DUE = ("work", "state = 'queued' AND available_at <= now()")
RUN = ("work", "state = 'running'")
TURNING = ("keyed", "available_at < 'infinity'")


def _ids(queue: SqlQueue, name: str, condition: str) -> list[UUID]:
    found = rows(queue, f"SELECT id FROM {{s}}.job WHERE queue = %s AND {condition} ORDER BY md5(id::text)", name)
    return [row[0] for row in found[:1_000]]


@contextlib.contextmanager
def undone(queue: SqlQueue) -> Iterator[Transaction]:
    """A transaction of the library's that is undone; its session, and what that has prepared, stays."""
    with contextlib.suppress(_Undone), queue.database.transaction() as transaction:
        # The driver forgets what a session has prepared when a transaction is undone; it is to have prepared nothing itself.
        transaction.connection.prepare_threshold = None
        take_time(transaction)
        yield transaction
        raise _Undone


class _Undone(Exception):
    pass


def _statements(
    queue: SqlQueue, due: list[UUID], running: list[UUID], turning: list[UUID], limit: int
) -> dict[str, dict[str, Any]]:
    """What a consumer runs, by verb."""
    fences = {"ids": running, "lease_nos": [1] * len(running)}
    ends = {"states": ["succeeded"] * len(due), "results": [None] * len(due), "errors": [None] * len(due)}
    back = {"delays": [1.0] * len(due), "moments": [None] * len(due), "errors": ["x"] * len(due)}
    claim = {"buckets": EVERYWHERE, "hints": FROM_THE_BEGINNING, "from_head": EVERYWHERE}
    claim |= {"limit": limit, "per_bucket": limit}
    work = {"queue": "work", "revision": _revision(queue, "work"), **claim}
    limited = {"queue": "limited", "revision": _revision(queue, "limited"), **claim}
    keys = [f"key {n}" for n in range(min(limit, KEYS))]
    return {
        "claim_round_robin": {**work, **CLAIM},
        "claim_fanout": {**work, **CLAIM},
        "claim_limited": {**limited, **CLAIM},
        "limit_allowance": limited,
        "mark_token": {**work, **CLAIM, "token": uuid4()},
        "pick_round_robin": work,
        "pick_fanout": work,
        "pick_fifo": work,
        "pick_ids": {"ids": due, "limit": limit},
        "list_executable": work,
        "grant": {"ids": due, "limited": False, "alone": False, **LEASE},
        "grant_assign": {**work, "ids": due, "lease_nos": [0] * len(due), "limited": False, "alone": False, **LEASE},
        "complete_plain": {"ids": running, "lease_no": 1, "in_line": False},
        "complete": {**fences, **ends, "in_line": False},
        "succeed_leased": {"ids": running, "lease_no": 1, "in_line": False},
        "end_leased": {**fences, **ends, "in_line": False},
        "requeue": {**fences, **back, "spent": [True] * len(due), "in_line": False},
        "hold_running": {**fences, "reasons": ["x"] * len(running), "in_line": False},
        "heartbeat": {**fences, "lease_seconds": 60.0},
        "lock_leased": fences,
        "complete_plain_locked": {"ids": due, "worker": "w"},
        "complete_locked": {"ids": due, **ends, "worker": "w"},
        "succeed_locked": {"ids": due, "worker": "w"},
        "end_locked": {"ids": due, **ends, "worker": "w"},
        "return_locked": {"ids": due, "states": ["queued"] * len(due), **back, "spent": [True] * len(due)},
        "key_turns": {"queue": "keyed", "ids": turning},
        "park_waiting": {"queue": "keyed", "ids": turning},
        "key_promote": {"queue": "keyed", "keys": keys},
        "waiter_poll": {"queue": "work", "buckets": None, "open": []},
        "waiter_poll_hinted": {"queue": "work", "buckets": None, "open": []},
    }


def _revision(queue: SqlQueue, name: str) -> int:
    return int(value(queue, "SELECT revision FROM {s}.queue WHERE name = %s", name))


CHOOSING = {
    "claim_round_robin": 25,
    "claim_fanout": 25,
    "claim_limited": 60,
    "mark_token": 25,
    "pick_round_robin": 4,
    "pick_fanout": 4,
    "pick_fifo": 35,
    "list_executable": 30,
}
"""How many pages each touches for a job of its limit: see test_claim_plans."""
BY_IDS = [
    "grant", "grant_assign", "complete_plain", "complete", "requeue", "hold_running", "heartbeat", "lock_leased",
    "complete_plain_locked", "complete_locked", "return_locked", "pick_ids",
]  # fmt: skip
BY_FUNCTIONS = ["succeed_leased", "end_leased", "succeed_locked", "end_locked"]
KEYED_BY = ["key_turns", "park_waiting", "key_promote"]
SIZES = few([1, 1_000, 100], 2)


def explained(kept: Kept, verb: str, count: int) -> Plan:
    parameters = _statements(kept.owner, kept.due[:count], kept.running[:count], kept.turning[:count], count)[verb]
    with undone(kept.queue) as transaction:
        plan = KeptExplainer(transaction.connection, kept.queue.database.schema)(verb, **parameters)
    assert not plan.read_whole("job")
    return plan


def compares_few(plan: Plan, count: int) -> None:
    assert plan.compared <= 10 * count + SLACK


@pytest.mark.parametrize("count", SIZES)
@pytest.mark.parametrize("verb", list(CHOOSING))
def test_choosing(kept: Kept, verb: str, count: int) -> None:
    plan = explained(kept, verb, count)
    leases = RUNNING if verb == "claim_limited" else 0
    assert {index for _, index in plan.scans()} - {None} <= {"job_claim", "job_pkey", "job_limited"}
    assert plan.rows_read <= (2 * 16 if verb in ("pick_fifo", "list_executable") else 3) * count + leases + LANES
    assert plan.buffers <= CHOOSING[verb] * count + 2 * leases + 7 * LANES + SLACK
    compares_few(plan, count)


def test_the_allowance_of_a_limit(kept: Kept) -> None:
    plan = explained(kept, "limit_allowance", 1)
    assert {index for _, index in plan.scans()} - {None} == {"job_limited"}
    assert plan.rows_read <= RUNNING
    assert plan.buffers <= 2 * RUNNING + SLACK


@pytest.mark.parametrize("verb", ["waiter_poll", "waiter_poll_hinted"])
def test_the_poll_of_a_waiter(kept: Kept, verb: str) -> None:
    # It reads the head of every lane, where the entries of what other tests undid stay until somebody has met them.
    explained(kept, verb, 1)
    plan = explained(kept, verb, 1)
    assert {index for _, index in plan.scans()} - {None} == {"job_claim"}
    assert plan.rows_read <= 3 * LANES
    assert plan.buffers <= 16 * LANES + SLACK


@pytest.mark.parametrize("count", SIZES)
@pytest.mark.parametrize("verb", BY_IDS)
def test_by_ids(kept: Kept, verb: str, count: int) -> None:
    plan = explained(kept, verb, count)
    assert plan.root["Actual Rows"] == count
    assert {index for _, index in plan.scans()} - {None} == {"job_pkey"}
    assert plan.rows_read <= count
    assert plan.buffers <= 25 * count + SLACK
    compares_few(plan, count)


@pytest.mark.parametrize("count", SIZES)
@pytest.mark.parametrize("verb", BY_FUNCTIONS)
def test_by_ids_in_functions(kept: Kept, verb: str, count: int) -> None:
    """The plan shows a call; what its statements read is counted by the server."""
    parameters = _statements(kept.owner, kept.due[:count], kept.running[:count], kept.turning[:count], count)[verb]
    with undone(kept.queue) as transaction:
        explainer = KeptExplainer(transaction.connection, kept.queue.database.schema)
        before = explainer.read_whole("job")
        plan = explainer(verb, **parameters)
        assert explainer.read_whole("job") == before
    assert plan.root["Actual Rows"] == count
    assert plan.buffers <= 25 * count + SLACK


@pytest.mark.parametrize("count", few([1, KEYS, 100], 2))
@pytest.mark.parametrize("verb", KEYED_BY)
def test_turns_of_keys(kept: Kept, verb: str, count: int) -> None:
    plan = explained(kept, verb, count)
    assert {index for _, index in plan.scans()} - {None} <= {"job_pkey", "job_key", "job_key_running", "job_parked"}
    assert plan.rows_read <= 4 * count
    assert plan.buffers <= 40 * count + SLACK
    compares_few(plan, count)


class Call(NamedTuple):
    """A call of a function, and how many pages it may touch for each of its jobs."""

    text: str
    parameters: list[Any]
    pages: int


def _calls(running: list[UUID], turning: list[UUID]) -> list[Call]:
    count = len(running)
    ids = [running, [1] * count]
    return [
        Call("claim('work', 'w', %s)", [count], 35),
        Call("claim('limited', 'w', %s)", [count], 35),
        Call("complete_many(%s::uuid[], %s::bigint[])", ids, 35),
        Call("heartbeat(%s, 1)", running[:1], 100),
        Call("fail(%s, 1, 'x')", running[:1], 100),
        Call("release(%s, 1)", running[:1], 100),
        Call("claim('keyed', 'w', %s)", [min(count, len(turning))], 500 * 75),
    ]


@pytest.mark.parametrize("count", [1, 100])
@pytest.mark.parametrize("place", range(len(_calls([uuid4()], [uuid4()]))))
def test_functions(kept: Kept, place: int, count: int) -> None:
    call = _calls(kept.running[:count], kept.turning)[place]
    with undone(kept.queue) as transaction:
        pages = Calling(transaction.connection, kept.queue.database.schema)(call.text, *call.parameters)
    leases = RUNNING if "limited" in call.text else 0
    assert pages <= call.pages * count + 6 * leases + 8 * LANES + FIXED
