"""The plan of the check of deadlines, on 200,000 live jobs and 100,000 archived ones: by primary keys alone."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest

from dagster_sqlqueue import SqlQueue
from tests.gate.patience import sized
from tests.plans.explaining import SLACK, Explainer, due, running
from tests.plans.undoing import without_autovacuum
from tests.support import rows

ARCHIVED = sized(50_000, 100_000)
DAYS = 10
DAYS_READ = 4
"""Days of the archive that a check of two days reads, at the most: those, two of slack, and today."""


@pytest.fixture(scope="module")
def archive(backlog: SqlQueue) -> Iterator[SqlQueue]:
    """Ten days of `work`, each in a partition of its own; a tenth of it dead letters. The other tests count partitions."""
    there = partitions(backlog)
    for day in range(DAYS):
        rows(backlog, "SELECT {s}.make_archive_partition(CAST(timezone('UTC', now()) AS date) - %s)", day)
    rows(
        backlog,
        "INSERT INTO {s}.job_archive (id, queue, bucket, priority, state, lease_no, attempt, max_attempts, run_at,"
        " created_at, started_at, finished_at, region, tags, payload)"
        " SELECT gen_random_uuid(), 'work', n %% 16, 0, CASE WHEN n %% 10 = 0 THEN 'failed' ELSE 'succeeded' END, 1, 1, 5,"
        "  finished, finished, finished, finished, 'local', ARRAY[]::text[], jsonb_build_object('n', n)"
        " FROM (SELECT n, statement_timestamp() - n %% %s * interval '1 day' AS finished"
        "  FROM generate_series(1, %s) AS n) AS job",
        DAYS,
        ARCHIVED,
    )
    without_autovacuum(backlog)
    rows(backlog, "VACUUM ANALYZE {s}.job_archive")
    yield backlog
    rows(backlog, "TRUNCATE {s}.job_archive")
    for made in partitions(backlog) - there:
        rows(backlog, f"DROP TABLE {{s}}.{made}")


def partitions(queue: SqlQueue) -> set[str]:
    query = "SELECT CAST(relid AS regclass)::oid FROM pg_partition_tree('{s}.job_archive') WHERE level = 1"
    return {name for (name,) in rows(queue, "SELECT relname FROM pg_class WHERE oid IN (" + query + ")")}


@pytest.fixture
def explained(archive: SqlQueue) -> SqlQueue:
    return archive


def ended(queue: SqlQueue, count: int, state: str) -> list[UUID]:
    query = (
        "SELECT id FROM {s}.job_archive WHERE state = %s AND finished_at > now() - interval '30 hours'"
        " ORDER BY md5(id::text) LIMIT %s"
    )
    return [row[0] for row in rows(queue, query, state, count)]


@pytest.mark.parametrize("count", [4, 1_000])
def test_deadlines_missed(explain: Explainer, archive: SqlQueue, count: int) -> None:
    part = count // 4
    done = ended(archive, part, "succeeded")
    ids = [*done, *ended(archive, part, "failed"), *due(archive, part), *[uuid4() for _ in range(part)]]
    now = datetime.now(UTC)
    plan = explain(
        "deadlines_missed",
        queue="work",
        ids=ids,
        deadlines=[now + timedelta(hours=1)] * len(ids),
        since=now - timedelta(hours=60),
    )
    assert plan.root["Actual Rows"] == count - part, "what was done in time is not reported"
    assert plan.scans() == {("Index Scan", "job_pkey")}
    assert plan.rows_read <= part
    of_archive = [
        node
        for node in plan.nodes
        if "Scan" in node["Node Type"] and str(node.get("Relation Name", "")).startswith("job_archive")
    ]
    assert of_archive
    # A day of which nothing ended since then is known by the index of ends to be empty.
    by_id = [node for node in of_archive if str(node.get("Index Name")).endswith("_pkey")]
    assert all("Index Name" in node and not node["Actual Rows"] for node in of_archive if node not in by_id)
    assert by_id
    assert sum(node["Actual Rows"] * node["Actual Loops"] for node in of_archive) <= 2 * part
    # An id is a probe of the job table, and of each day since then, the one of tomorrow and the default one.
    assert plan.buffers <= 3 * count * (1 + DAYS_READ + 2) + 4 * count + SLACK


def test_a_check_of_running_jobs_reads_nothing_else(explain: Explainer, archive: SqlQueue) -> None:
    ids = running(archive, 500)
    now = datetime.now(UTC)
    plan = explain("deadlines_missed", queue="work", ids=ids, deadlines=[now] * 500, since=now - timedelta(hours=60))
    assert plan.root["Actual Rows"] == 500
    assert plan.rows_read == 500
