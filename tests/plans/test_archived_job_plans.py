"""Plans of what finds, moves and deletes archived jobs, beside 100,000 live jobs and 100,000 archived ones in ten days.

What asks for a queue reads no other one's rows; what asks for ids reads those. A probe of an index goes to every day, of
which there are 13.
"""

from datetime import datetime
from typing import Any
from uuid import UUID, uuid4

import pytest

from tests.plans.archived_days import PARTITIONS
from tests.plans.archived_days import explained as explained
from tests.plans.archived_days import kept as kept
from tests.plans.explaining import BY_ID, SLACK, Explainer
from tests.support.few import few


def ended(explain: Explainer, count: int) -> list[tuple[UUID, datetime]]:
    query = "SELECT id, finished_at FROM {s}.job_archive WHERE queue = 'events' ORDER BY md5(id::text) LIMIT %s"
    return [(row[0], row[1]) for row in explain.run(query, count)]


BY_IDS: dict[str, dict[str, Any]] = {
    "archived_rows": {"since": "-infinity", "until": "infinity"},
    "keys_of_ended": {"queue": "events", "since": "-infinity", "until": "infinity"},
    "locate_jobs": {},
}


@pytest.mark.parametrize("verb", list(BY_IDS))
@pytest.mark.parametrize("count", few([1, 1_000, 100], 2))
def test_ended_jobs_by_their_ids(explain: Explainer, verb: str, count: int) -> None:
    ids = [id for id, _ in ended(explain, count)]
    plan = explain(verb, ids=ids, **BY_IDS[verb])
    assert not plan.read_whole("job_archive")
    assert plan.rows_of("job_archive") <= count
    assert plan.scans() <= BY_ID
    assert plan.buffers <= 4 * count * PARTITIONS + 5 * PARTITIONS + SLACK


@pytest.mark.parametrize("count", few([1, 1_000, 100], 2))
def test_what_landed_though_the_answer_was_lost(explain: Explainer, count: int) -> None:
    ids = [id for id, _ in ended(explain, count)]
    plan = explain("completed_under_lease", ids=ids, lease_nos=[1] * count)
    assert plan.root["Actual Rows"] == count
    assert not plan.read_whole("job_archive")
    # Reported of each read on an average, with two decimals.
    assert plan.rows_of("job_archive") <= 1.05 * count
    assert plan.buffers <= 4 * count * PARTITIONS + 5 * PARTITIONS + SLACK


@pytest.mark.parametrize("count", few([1, 1_000, 100], 2))
def test_what_was_sent_again_after_its_end(explain: Explainer, count: int) -> None:
    ids = [*[id for id, _ in ended(explain, count // 2)], *[uuid4() for _ in range(count - count // 2)]]
    explain.run(
        "INSERT INTO {s}.job (id, queue, bucket, priority, available_at, run_at, max_attempts, payload)"
        " SELECT id, 'events', 0, 0, now(), now(), 3, '{}' FROM unnest(%s::uuid[]) AS new (id)",
        ids,
    )
    plan = explain("drop_already_finished", ids=ids)
    assert plan.root["Actual Rows"] == count // 2
    assert not plan.read_whole("job_archive")
    assert plan.scans() <= BY_ID
    assert plan.buffers <= 5 * count * (PARTITIONS + 2) + SLACK


@pytest.mark.parametrize(
    ("verb", "payload"),
    [("redrive", None), ("redrive", '{"n": 1}'), ("delete_ended", None)],
    ids=["redrive", "redrive with another payload", "delete_ended"],
)
@pytest.mark.parametrize("count", few([1, 1_000, 100], 2))
def test_taking_out_of_the_archive(explain: Explainer, verb: str, payload: str | None, count: int) -> None:
    chosen = ended(explain, count)
    plan = explain(
        verb,
        queue="events",
        ids=[id for id, _ in chosen],
        states=["succeeded", "failed"],
        since=min(at for _, at in chosen).isoformat(),
        until=max(at for _, at in chosen).isoformat(),
        payload=payload,
    )
    assert plan.root["Actual Rows"] == count
    assert not plan.read_whole("job_archive")
    # Each is looked at, locked, and deleted.
    assert plan.rows_of("job_archive") <= 3 * count
    assert plan.buffers <= 8 * count * PARTITIONS + 40 * count + SLACK


@pytest.mark.parametrize("verb", ["select_archived", "select_dead"])
@pytest.mark.parametrize("scan", [100, 1_000])
def test_searching_the_archive(explain: Explainer, verb: str, scan: int) -> None:
    ((at, row),) = explain.run(
        "SELECT finished_at::text, id FROM {s}.job_archive WHERE queue = 'events'"
        " ORDER BY finished_at DESC OFFSET 2000 LIMIT 1"
    )
    plan = explain(
        verb,
        queue="events",
        after_at=at,
        after_id=row,
        since=None,
        states=["succeeded", "failed"],
        tags=[],
        payload=None,
        ordering_key="key 7",
        error_contains=None,
        scan=scan,
    )
    assert not plan.read_whole("job_archive")
    assert plan.rows_of("job_archive") <= scan + PARTITIONS + 1
    assert plan.buffers <= 2 * scan + 5 * PARTITIONS + SLACK


@pytest.mark.parametrize("scan", [100, 1_000])
def test_searching_a_bucket(explain: Explainer, scan: int) -> None:
    plan = explain(
        "select_live",
        queue="events",
        bucket=3,
        after_priority=9,
        after_at="-infinity",
        after_id=UUID(int=0),
        states=["queued"],
        tags=[],
        payload=None,
        ordering_key=None,
        error_contains=None,
        since=None,
        before=None,
        scan=scan,
    )
    assert plan.scans() == {("Index Scan", "job_claim")}
    assert plan.rows_read <= scan + 10
    assert plan.buffers <= 2 * scan + SLACK


def test_maintenance_looks_at_the_catalog_and_the_default_partition(explain: Explainer) -> None:
    for verb, more in (
        ("archive_days_missing", {"days": 2, "strays": True}),
        ("archive_day_ahead", {}),
        ("doctor_archive", {"days": 2, "cap": 1_000}),
    ):
        plan = explain(verb, **more)
        # Pages of the catalog there are as many as all that is in the database needs.
        assert plan.rows_of("job_archive") == 0


def test_queues_that_keep_jobs_for_too_long(explain: Explainer) -> None:
    """One probe a queue, in each of the days that are overdue."""
    explain.run("UPDATE {s}.queue SET retention_days = 7")
    plan = explain("doctor_overdue", grace=1)
    assert plan.root["Actual Rows"] == 2
    assert not plan.read_whole("job_archive")
    assert plan.rows_of("job_archive") <= 2 * PARTITIONS
    assert plan.buffers <= 2 * 5 * PARTITIONS + SLACK
