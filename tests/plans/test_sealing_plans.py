"""Plans of what seals, holds, publishes and gives up a batch, beside 100,000 batches that were published, and of what ends
its jobs: what goes by the batch's key or id reads its row, what goes by its jobs reads those.
"""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import pytest

from dagster_sqlqueue import SqlQueue
from tests.gate.patience import sized
from tests.plans.conftest import JOBS
from tests.plans.explaining import BY_ID, SLACK, Explainer, Plan, due
from tests.support import rows
from tests.support.few import few

KEYS = sized(400, 1_000)
DAYS = 100
PUBLISHED = KEYS * DAYS
OUTCOMES = sized(40_000, 100_000)
SIZE = 2_000
"""Jobs of a batch: half of them were reported about."""
IN_BUCKET = JOBS / 16
OTHER, OTHER_DUE = 5_000, 3_750
"""Jobs of the queue `other`, and those of them that are due."""
FEW = 20
"""Rows of queues, buckets and the like that are read whichever way."""


@pytest.fixture(scope="module")
def published(backlog: SqlQueue) -> Iterator[SqlQueue]:
    """A batch each day of a thousand keys, for a hundred days; and reports of other batches."""
    rows(
        backlog,
        "INSERT INTO {s}.batch (id, key, queue, state, lease_until, owner, output, created_at, published_at)"
        " SELECT gen_random_uuid(), 'asset/' || n %% %s, 'work', 'published', at, 'w', '{{}}', at, at"
        " FROM (SELECT n, now() - n / %s * interval '1 day' AS at FROM generate_series(1, %s) AS n) AS made",
        KEYS,
        KEYS,
        PUBLISHED,
    )
    rows(
        backlog,
        "INSERT INTO {s}.batch_outcome (batch_id, job_id, state, spent)"
        " SELECT CAST(md5(CAST(n / 1000 AS text)) AS uuid), gen_random_uuid(), 'failed', true"
        " FROM generate_series(1, %s) AS n",
        OUTCOMES,
    )
    rows(backlog, "VACUUM ANALYZE {s}.batch, {s}.batch_outcome")
    yield backlog
    rows(backlog, "TRUNCATE {s}.batch, {s}.batch_outcome")


@pytest.fixture
def explained(published: SqlQueue) -> SqlQueue:
    return published


def opened(explain: Explainer, state: str = "sealing", mode: str = "leased", lease: str = "1 minute") -> UUID:
    batch = uuid4()
    explain.run(
        "INSERT INTO {s}.batch (id, key, queue, state, lease_until, owner, mode)"
        " VALUES (%s, 'mine', 'work', %s, now() + CAST(%s AS interval), 'w', %s)",
        batch,
        state,
        lease,
        mode,
    )
    return batch


def leased(explain: Explainer, state: str = "sealed", lease: str = "1 minute") -> UUID:
    """A batch of 2,000 jobs, half of which were reported about."""
    batch = opened(explain, state, lease=lease)
    explain.run(
        "UPDATE {s}.job SET state = 'running', available_at = 'infinity', attempt = 1, batch_id = %s WHERE id IN"
        " (SELECT id FROM {s}.job WHERE queue = 'work' AND state = 'queued' AND available_at <= now()"
        "  ORDER BY md5(id::text) LIMIT %s)",
        batch,
        SIZE,
    )
    explain.run(
        "INSERT INTO {s}.batch_outcome (batch_id, job_id, state, spent)"
        " SELECT batch_id, id, CASE WHEN bucket %% 2 = 0 THEN 'failed' ELSE 'queued' END, true"
        " FROM {s}.job WHERE batch_id = %s ORDER BY id LIMIT %s",
        batch,
        SIZE // 2,
    )
    return batch


def read_whole(explain: Explainer) -> int:
    """Rows that were read otherwise than by an index, in this transaction, in whatever function."""
    ((count,),) = explain.run(
        "SELECT sum(seq_tup_read) FROM pg_stat_xact_all_tables WHERE schemaname = %s AND relname ~ '^(job|batch)'",
        explain.schema,
    )
    return int(count)


def touched(plan: Plan) -> set[str]:
    """The tables that were read, and how."""
    return {f"{node['Node Type']} {node['Relation Name']}" for node in plan.nodes if "Relation Name" in node}


NAMED: dict[str, dict[str, Any]] = {
    "batch_find": {"queue": "work", "filter": "{}"},
    "batch_owner": {},
    "batch_last": {"limit": 10},
    "batch_moved": {"owner": "me/1"},
    "batch_moving": {"owner": "me/1"},
}


@pytest.mark.parametrize("verb", list(NAMED))
@pytest.mark.parametrize("key", ["mine", "asset/7"])
def test_a_batch_by_its_key(explain: Explainer, verb: str, key: str) -> None:
    opened(explain)
    plan = explain(verb, key=key, **NAMED[verb])
    assert "Seq Scan batch" not in touched(plan)
    # Of a key that was published a hundred times the latest are chosen from all.
    assert plan.rows_of("batch") <= DAYS
    assert plan.buffers <= DAYS + SLACK


@pytest.mark.parametrize("keys", [["new"], ["new", "asset/7", "asset/9"], [f"asset/{n}" for n in range(200)]])
def test_batches_by_their_keys(explain: Explainer, keys: list[str]) -> None:
    asked: dict[str, Any] = {"queue": "work", "owner": "w", "mode": "leased", "backoff": [30.0, 2.0, 3600.0]}
    these = {"ids": [uuid4() for _ in keys], "keys": keys, "filters": ["{}"] * len(keys)}
    made = explain("batch_open", lease_seconds=60.0, **asked, **these)
    assert made.root["Actual Rows"] == len(keys)
    assert "Seq Scan batch" not in touched(made)
    # The last of each, looked up before and after.
    assert made.rows_of("batch") <= 2 * len(keys)
    assert made.buffers <= 60 * len(keys) + SLACK
    unmoved = explain("batch_unmoved", keys=keys)
    assert "Seq Scan batch" not in touched(unmoved)
    assert unmoved.rows_of("batch") == 0
    assert unmoved.buffers <= 4 * len(keys) + SLACK
    sealed = explain("batch_sealed", ids=these["ids"], tokens=[1] * len(keys))
    assert sealed.root["Actual Rows"] == len(keys)
    assert not {"Seq Scan batch", "Seq Scan job"} & touched(sealed)
    assert sealed.buffers <= 40 * len(keys) + SLACK


IDENTIFIED: dict[str, dict[str, Any]] = {
    "batch_close": {"token": 1, "error": "x"},
    "batch_extend": {"token": 1, "lease_seconds": 60.0},
    "batch_published": {"token": 1},
    "batch_publish": {"token": 1, "output": "{}", "unmoved": True, "job_count": None},
    "batch_to_lease": {"token": 1, "lease_seconds": 60.0},
    "batch_reopen": {
        "queue": "work",
        "owner": "w",
        "mode": "leased",
        "filter": "{}",
        "backoff": [30.0, 2.0, 3600.0],
        "lease_seconds": 60.0,
    },
}


@pytest.mark.parametrize("verb", list(IDENTIFIED))
def test_a_batch_by_its_id(explain: Explainer, verb: str) -> None:
    batch = opened(explain, "sealed" if verb == "batch_publish" else "sealing")
    plan = explain(verb, batch_id=batch, id=batch, **IDENTIFIED[verb])
    assert not {"Seq Scan batch", "Seq Scan batch_outcome", "Seq Scan job"} & touched(plan)
    assert plan.rows_of("batch") <= 2
    assert plan.buffers <= SLACK


def test_an_operator_gives_up_a_batch_and_forgets_it(explain: Explainer) -> None:
    batch = leased(explain)
    before = read_whole(explain)
    plan = explain("batch_give_up", batch_id=batch, error="x", held=True, dry_run=False)
    assert plan.buffers <= 60 * SIZE + SLACK
    removed = explain("batch_remove", batch_id=batch, unmoved=False)
    assert removed.buffers <= SLACK
    assert read_whole(explain) == before
    assert explain.run("SELECT count(*) FROM {s}.batch WHERE id = %s", batch) == [(0,)]


def test_stats_of_batches_cost_those_of_a_day(explain: Explainer) -> None:
    """Of a hundred days."""
    leased(explain)
    plan = explain("batch_stats")
    assert "Seq Scan batch" not in touched(plan)
    assert plan.rows_of("batch") <= 1.1 * PUBLISHED / 100 + FEW
    assert plan.buffers <= 2 * PUBLISHED / 100 + SLACK


def test_holding_a_transactional_batch(published: SqlQueue) -> None:
    """The first statement of its transaction."""
    with published.database.connection() as connection:
        made = Explainer(connection, published.database.schema)
        with connection.transaction(force_rollback=True):
            plan = made("batch_hold", batch_id=uuid4(), token=1)
    assert plan.scans() == set()
    assert plan.rows_of("batch") == 0
    assert plan.buffers <= SLACK


def test_the_buckets_to_seal(explain: Explainer) -> None:
    batch = leased(explain, "sealing")
    plan = explain("batch_buckets", queue="work", batch_id=batch)
    assert plan.root["Actual Rows"] == 16
    assert plan.rows_read <= 2 * 16 + 1
    assert plan.buffers <= 16 * 10 + SLACK


def test_counting_what_was_sealed(explain: Explainer) -> None:
    batch = leased(explain, "sealing")
    plan = explain("batch_sealed", ids=[batch], tokens=[1])
    assert "job_batch" in {index for _, index in plan.scans()}
    assert plan.rows_read <= SIZE
    assert plan.buffers <= 3 * SIZE + SLACK


def test_leasing_again_what_a_batch_holds(explain: Explainer) -> None:
    batch = leased(explain, "sealing")
    plan = explain("batch_renew", batch_id=batch, token=1, bucket=3, worker="w")
    ((held,),) = explain.run("SELECT count(*) FROM {s}.job WHERE batch_id = %s AND bucket = 3", batch)
    assert held > SIZE / 32
    assert {index for _, index in plan.scans()} - {None} == {"job_batch"}
    assert not any(kind == "Seq Scan" for kind, _ in plan.scans())
    assert plan.rows_read <= held
    assert plan.buffers <= 25 * held + SLACK


def test_the_jobs_that_a_read_of_batches_is_shared_out_by(explain: Explainer) -> None:
    batches = [leased(explain), uuid4()]
    plan = explain("spark_batch_buckets", batch_ids=batches)
    assert plan.root["Actual Rows"] == 16
    assert {index for _, index in plan.scans()} - {None} == {"job_batch"}
    assert plan.rows_read <= SIZE
    assert plan.buffers <= 3 * SIZE + SLACK


def test_where_a_read_of_batches_is_cut(explain: Explainer) -> None:
    plan = explain("spark_batch_cuts", batch_ids=[leased(explain), uuid4()], step=100)
    assert plan.root["Actual Rows"] == SIZE / 100
    assert {index for _, index in plan.scans()} - {None} == {"job_batch"}
    assert plan.rows_read <= SIZE
    assert plan.buffers <= 3 * SIZE + SLACK


def test_where_a_read_of_a_transactional_batch_is_cut(explain: Explainer) -> None:
    """All due jobs of a queue, as when they are counted."""
    plan = explain("batch_cuts", queue="other", sealed_at=datetime.now(UTC), filter="{}", step=100)
    assert plan.root["Actual Rows"] == -(-OTHER_DUE // 100)
    assert plan.buffers <= 2 * OTHER + SLACK


def test_batches_that_are_over_are_looked_up_by_their_ids(explain: Explainer) -> None:
    ((over,),) = explain.run("SELECT id FROM {s}.batch LIMIT 1")
    mine = str(leased(explain))
    before = read_whole(explain)
    for token, wrong in ((None, 2), ("1", 2), ("2", 3)):
        asked = {mine: token, str(over): None, str(uuid4()): None}
        plan = explain("spark_batches_over", held=json.dumps(asked))
        assert plan.root["Actual Rows"] == wrong
        assert plan.buffers <= 6 * len(asked) + SLACK
    assert read_whole(explain) <= before + FEW


def test_burying_the_spent_jobs_of_a_bucket(explain: Explainer) -> None:
    """The due jobs of the bucket are looked at, and of these the spent ones once more."""
    spent = explain.run(
        "UPDATE {s}.job SET attempt = max_attempts WHERE id IN (SELECT id FROM {s}.job WHERE queue = 'work' AND bucket = 3"
        " AND state = 'queued' AND available_at <= now() LIMIT 100) RETURNING 1"
    )
    plan = explain("bury_spent", queue="work", buckets=[3])
    assert "job_claim" in {index for _, index in plan.scans()}
    assert not any(kind == "Seq Scan" for kind, _ in plan.scans())
    assert plan.rows_read <= IN_BUCKET + 2 * len(spent)
    assert plan.buffers <= 3 * IN_BUCKET + 25 * len(spent) + SLACK


ENDINGS: dict[str, tuple[dict[str, Any], int]] = {
    "succeeded": ({"error": None}, 0),
    "queued": ({"error": "the run failed"}, 0),
    "running": ({"error": None}, SIZE // 2),
}
"""What becomes of the jobs that nothing was reported about, and how many the batch still has."""


@pytest.mark.parametrize("rest", list(ENDINGS))
def test_settling(explain: Explainer, rest: str) -> None:
    batch = leased(explain)
    more, left = ENDINGS[rest]
    before = read_whole(explain)
    plan = explain("batch_settle", batch_id=batch, rest=rest, **more)
    assert read_whole(explain) <= before + FEW
    assert plan.buffers <= 60 * SIZE + SLACK
    assert explain.run("SELECT count(*) FROM {s}.job WHERE batch_id = %s", batch) == [(left,)]


def test_sweeping(explain: Explainer) -> None:
    batch = leased(explain, lease="-1 day")
    before = read_whole(explain)
    plan = explain("batch_sweep", queue=None, grace_seconds=0.0)
    assert explain.run("SELECT count(*) FROM {s}.job WHERE batch_id = %s", batch) == [(0,)]
    assert plan.buffers <= 60 * SIZE + SLACK
    nothing = explain("batch_sweep", queue=None, grace_seconds=0.0)
    assert nothing.buffers <= SLACK
    assert read_whole(explain) <= before + FEW


@pytest.mark.parametrize("least", [10, 1_000])
def test_choosing_the_mode_of_a_batch(explain: Explainer, least: int) -> None:
    """No more entries than are asked for, and for each bucket and priority a few."""
    before = read_whole(explain)
    plan = explain("batch_suits", queue="work", least=least)
    assert plan.rows_of("job") <= least + 16 * 10 * 11
    assert plan.buffers <= 4 * least + 16 * 10 * 25 + SLACK
    assert read_whole(explain) <= before + FEW


def test_forgetting_batches(explain: Explainer) -> None:
    """Of a queue that keeps jobs for a month; all are looked at, and for each old one whether its key has a later one."""
    explain.run("UPDATE {s}.queue SET retention_days = 30 WHERE name = 'work'")
    before = explain.run("SELECT count(*) FROM {s}.batch")[0][0]
    plan = explain("batch_forget", queue=None)
    gone = before - explain.run("SELECT count(*) FROM {s}.batch")[0][0]
    assert 0.5 * PUBLISHED < gone < PUBLISHED
    assert plan.buffers <= 20 * PUBLISHED


def test_counting_the_jobs_of_a_transactional_batch(explain: Explainer) -> None:
    """All due jobs of a queue: where that is half of the table, it may as well be read in its own order."""
    plan = explain("batch_count", queue="other", sealed_at=datetime.now(UTC), filter="{}")
    assert plan.buffers <= 2 * OTHER + SLACK


@pytest.mark.parametrize("count", few([1, 1_000, 100], 2))
def test_reports_within_a_transactional_batch(explain: Explainer, published: SqlQueue, count: int) -> None:
    batch = opened(explain, mode="transactional")
    ids = due(published, count)
    each: dict[str, Any] = {"states": ["failed"], "spent": [True], "errors": ["x"]}
    none = dict.fromkeys(("afters", "moments", "results"), [None] * count)
    put = explain(
        "batch_outcome_put", batch_id=batch, ids=ids, **{name: given * count for name, given in each.items()}, **none
    )
    assert put.buffers <= 8 * count + SLACK
    listed = explain("batch_outcomes", batch_id=batch)
    assert listed.root["Actual Rows"] == count
    assert listed.rows_of("batch_outcome") <= count
    assert listed.buffers <= 2 * count + SLACK
    asked = {"batch_id": batch, "queue": "work", "filter": json.dumps({}), "worker": "w"}
    plan = explain("batch_lease_reported", sealed_at=datetime.now(UTC), **asked)
    assert explain.run("SELECT count(*) FROM {s}.job WHERE batch_id = %s", batch) == [(count,)]
    assert plan.scans() <= BY_ID
    assert plan.rows_read <= count
    assert plan.rows_of("batch_outcome") <= count
    assert plan.buffers <= 30 * count + SLACK
