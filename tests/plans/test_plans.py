"""Query plans, run on 100,000 jobs: the index is used, and what is read is bounded by the batch, never by the backlog.

The bounds, for batches of `n` jobs. A probe of the claim index or the primary key descends three levels: with the page
of the table four buffers, five where the entry is the first of a page. What is written is counted by PostgreSQL too:

- claim: for each job the entry and the row in the search, once more for the lock, the row through the primary key, then
  the new version in the table and in five indexes: at most 40 buffers a job, and 160 empty lanes at 4 buffers.
- finish: the row through the primary key, its deletion, the new row and its four index entries in the archive.
- requeue and heartbeat: the row through the primary key, the new version and its five index entries.
- heads and depth: one probe for each of 16 x 10 lanes; depth then reads entries, and rows, up to its cap twice.
- enqueue: the row, five index entries, and the check of the queue's row.
- batch_seal reads one bucket through the index and, as it has no limit, every due job in it.
"""

import json
from collections.abc import Iterator
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from dagster_sqlqueue import SqlQueue, statements
from tests.core.support import rows
from tests.plans.conftest import JOBS

LANES = 16 * 10

PLAN_MODES = ["force_custom_plan", "force_generic_plan", "auto"]


class Plan:
    """What EXPLAIN said: the nodes of the plan, flattened."""

    def __init__(self, text: Any) -> None:
        self.root: dict[str, Any] = text[0]["Plan"]
        self.nodes = list(self._flat(self.root))

    def _flat(self, node: dict[str, Any]) -> Iterator[dict[str, Any]]:
        yield node
        for child in node.get("Plans", []):
            yield from self._flat(child)

    @property
    def buffers(self) -> int:
        """Pages touched, whether they were in memory or not."""
        return int(self.root["Shared Hit Blocks"]) + int(self.root["Shared Read Blocks"])

    @property
    def rows_read(self) -> int:
        """Rows that scans of the table of live jobs looked at, with those that a filter threw away."""
        return sum(
            round((node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"])
            for node in self.nodes
            if node.get("Relation Name") == "job" and "Scan" in node["Node Type"]
        )

    def scans(self) -> set[tuple[str, str | None]]:
        """The ways in which the table of live jobs, or an index of it, was read."""
        return {
            (node["Node Type"], node.get("Index Name"))
            for node in self.nodes
            if node.get("Relation Name") == "job" and "Scan" in node["Node Type"]
        } | {("Bitmap", node["Index Name"]) for node in self.nodes if node["Node Type"] == "Bitmap Index Scan"}


class Explainer:
    """Explains the library's statements, prepared on the server as the driver prepares them."""

    def __init__(self, connection: "psycopg.Connection[Any]", schema: str) -> None:
        self._connection = connection
        self._schema = schema

    def __call__(self, name: str, parameters: dict[str, Any], types: str) -> Plan:
        text = statements.load(name, self._schema)
        for number, parameter in enumerate(parameters, 1):
            for form in ("s", "b"):
                text = text.replace(f"%({parameter}){form}", f"${number}")
        self._connection.execute(f"PREPARE verb ({types}) AS {text.replace('%%', '%')}".encode())
        try:
            places = ", ".join(["%s"] * len(parameters))
            query = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE verb ({places})"
            ((found,),) = psycopg.ClientCursor(self._connection).execute(query.encode(), list(parameters.values()))
            return Plan(found)
        finally:
            self._connection.execute("DEALLOCATE verb")


@pytest.fixture(params=PLAN_MODES)
def explain(backlog: SqlQueue, request: pytest.FixtureRequest) -> Iterator[Explainer]:
    with backlog.database.connection() as connection, connection.transaction(force_rollback=True):
        connection.execute(f"SET LOCAL plan_cache_mode = {request.param}".encode())
        yield Explainer(connection, backlog.database.schema)


def held(queue: SqlQueue, count: int) -> list[UUID]:
    return [
        row[0]
        for row in rows(queue, "SELECT id FROM {s}.job WHERE state = 'running' ORDER BY claimed_by, id LIMIT %s", count)
    ]


def claim_parameters(limit: int) -> dict[str, Any]:
    return {"queue": "work", "buckets": list(range(16)), "limit": limit, "lease_seconds": 60.0, "worker": "w"}


@pytest.mark.parametrize("limit", [1, 100, 1_000, 10_000])
def test_claim(explain: Explainer, limit: int) -> None:
    plan = explain("claim_round_robin", claim_parameters(limit), "text, smallint[], bigint, float8, text")
    assert plan.scans() <= {
        ("Index Scan", "job_claim"),
        ("Index Scan", "job_pkey"),
        ("Bitmap Heap Scan", None),
        ("Bitmap", "job_pkey"),
    }
    assert plan.rows_read <= 2 * limit
    assert plan.buffers <= 40 * limit + 4 * LANES


def test_claim_with_nothing_due_probes_every_lane_once(explain: Explainer, backlog: SqlQueue) -> None:
    parameters = {**claim_parameters(100), "buckets": list(range(16, 32))}
    plan = explain("claim_round_robin", parameters, "text, smallint[], bigint, float8, text")
    assert plan.scans() <= {
        ("Index Scan", "job_claim"),
        ("Index Scan", "job_pkey"),
        ("Bitmap Heap Scan", None),
        ("Bitmap", "job_pkey"),
    }
    assert plan.rows_read == 0
    assert plan.buffers <= 4 * LANES


BY_ID = {("Index Scan", "job_pkey"), ("Bitmap Heap Scan", None), ("Bitmap", "job_pkey")}


@pytest.mark.parametrize("count", [1, 100, 1_000])
def test_finish(explain: Explainer, backlog: SqlQueue, count: int) -> None:
    parameters = {
        "ids": held(backlog, count),
        "lease_nos": [1] * count,
        "states": ["succeeded"] * count,
        "results": [None] * count,
        "errors": [None] * count,
    }
    plan = explain("finish", parameters, "uuid[], bigint[], text[], text[], text[]")
    assert plan.root["Actual Rows"] == count
    assert plan.scans() <= BY_ID
    assert plan.rows_read <= count
    assert plan.buffers <= 40 * count + 50


@pytest.mark.parametrize("count", [1, 100, 1_000])
def test_requeue(explain: Explainer, backlog: SqlQueue, count: int) -> None:
    parameters = {
        "ids": held(backlog, count),
        "lease_nos": [1] * count,
        "delays": [1.0] * count,
        "errors": ["x"] * count,
        "spent": [True] * count,
    }
    plan = explain("requeue", parameters, "uuid[], bigint[], float8[], text[], boolean[]")
    assert plan.root["Actual Rows"] == count
    assert plan.scans() <= BY_ID
    assert plan.rows_read <= count
    assert plan.buffers <= 40 * count + 50


@pytest.mark.parametrize("count", [1, 100, 1_000])
def test_heartbeat(explain: Explainer, backlog: SqlQueue, count: int) -> None:
    parameters = {"ids": held(backlog, count), "lease_nos": [1] * count, "lease_seconds": 60.0}
    plan = explain("heartbeat", parameters, "uuid[], bigint[], float8")
    assert plan.root["Actual Rows"] == count
    assert plan.scans() <= BY_ID
    assert plan.rows_read <= count
    assert plan.buffers <= 40 * count + 50


def test_heads(explain: Explainer) -> None:
    plan = explain("heads", {"queue": "work"}, "text")
    assert plan.root["Actual Rows"] == LANES
    assert {index for _, index in plan.scans()} == {"job_claim"}
    assert not any("Bitmap" in kind for kind, _ in plan.scans())
    assert plan.rows_read <= LANES + 1
    assert plan.buffers <= 5 * (LANES + 1) + 5


@pytest.mark.parametrize("cap", [100, 10_000])
def test_depth(explain: Explainer, cap: int) -> None:
    plan = explain("depth", {"queue": "work", "cap": cap}, "text, integer")
    assert {index for _, index in plan.scans()} == {"job_claim"}
    assert not any("Bitmap" in kind for kind, _ in plan.scans())
    assert plan.rows_read <= 4 * (cap + 1)
    assert plan.buffers <= 4 * cap + 4 * 4 * LANES


def test_peek(explain: Explainer) -> None:
    plan = explain("peek", {"queue": "work", "limit": 20}, "text, integer")
    assert plan.root["Actual Rows"] == 20
    assert {index for _, index in plan.scans()} == {"job_claim"}
    assert plan.rows_read <= 16 * 20 + 1
    assert plan.buffers <= 16 * 20 + 5 * 17


def test_enqueue_one(explain: Explainer) -> None:
    parameters = {
        "queue": "work",
        "id": uuid4(),
        "hash": 7,
        "priority": 0,
        "run_at": None,
        "max_attempts": None,
        "unique_key": "u",
        "ordering_key": None,
        "payload": '{"n": 1}',
    }
    types = "text, uuid, integer, smallint, timestamptz, integer, text, text, text"
    plan = explain("enqueue", parameters, types)
    assert plan.scans() == set()
    assert plan.buffers <= 40


@pytest.mark.parametrize("count", [10, 2_000])
def test_enqueue_many(explain: Explainer, count: int) -> None:
    parameters = {
        "queue": "work",
        "ids": [uuid4() for _ in range(count)],
        "hashes": list(range(count)),
        "priorities": [0] * count,
        "run_ats": [None] * count,
        "max_attempts": [None] * count,
        "unique_keys": [f"u{n}" for n in range(count)],
        "ordering_keys": [None] * count,
        "payloads": ['{"n": 1}'] * count,
    }
    types = "text, uuid[], integer[], smallint[], timestamptz[], integer[], text[], text[], text[]"
    plan = explain("enqueue_many", parameters, types)
    assert plan.root["Actual Rows"] == count
    assert plan.scans() == set()
    assert plan.buffers <= 30 * count + 40


def test_seal(explain: Explainer, backlog: SqlQueue) -> None:
    batch = uuid4()
    explain._connection.execute(
        f"INSERT INTO {backlog.database.schema}.batch (id, key, queue, state, lease_until, owner)"
        " VALUES (%s, 'k', 'work', 'sealing', now() + interval '1 minute', 'w')".encode(),
        (batch,),
    )
    parameters = {
        "batch_id": batch,
        "token": 1,
        "queue": "work",
        "bucket": 3,
        "filter": json.dumps({"note": "x" * 100}),
        "worker": "w",
    }
    plan = explain("batch_seal", parameters, "uuid, bigint, text, smallint, text, text")
    sealed = explain._connection.execute(
        f"SELECT count(*) FROM {backlog.database.schema}.job WHERE batch_id = %s".encode(), (batch,)
    ).fetchall()[0][0]
    assert JOBS / 16 / 2 < sealed < JOBS / 16
    assert not any(kind == "Seq Scan" for kind, _ in plan.scans())
    assert ("job_claim") in {index for _, index in plan.scans()}
    # One bucket, the later jobs in it stepped over in the index, and each sealed job once more through the primary key.
    assert plan.rows_read <= 2 * JOBS / 16 * 1.1
    assert plan.buffers <= 40 * sealed
