"""Rows that no producer of ours writes: functions that claim go on with the others, on every server."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from dagster_sqlqueue import RateLimit, SqlQueue
from tests.api.conftest import SPEC, Caller
from tests.support import rows
from tests.support.few import few
from tests.support.odd_rows import ODD, bring_back, constraints, fill, good, loosen, others

SETTINGS: list[dict[str, Any]] = [
    {"strategy": "round_robin"},
    {"ordered": True},
    {"max_running": 50},
    {"strategy": "fifo"},
    {"strategy": "fanout"},
    {"rate": RateLimit(1_000, 60)},
]


@pytest.fixture
def all_constraints(line: SqlQueue) -> Iterator[list[tuple[str, str]]]:
    """They are as they were afterwards: what the next test finds is no other schema."""
    found = constraints(line)
    yield found
    rows(line, "DELETE FROM {s}.job")
    loosen(line, found)
    bring_back(line, found)


def work_off(sqlc: Caller) -> None:
    """Claim and complete until nothing is due any more."""
    while claimed := sqlc.rows("SELECT job_id, lease_no, CAST(created_at AS text) FROM {v1}.claim('work', 'sql', 7)"):
        for job, lease_no, _ in claimed:
            sqlc.rows("SELECT {v1}.complete(%s, %s)", job, lease_no)


@pytest.mark.parametrize(
    "settings", few(SETTINGS, 3), ids=lambda settings: " ".join(str(part) for part in settings.values())
)
@pytest.mark.parametrize("came_later", [False, True], ids=["without constraints", "with constraints that came later"])
def test_odd_rows_keep_no_claim_from_the_others(
    line: SqlQueue, sqlc: Caller, all_constraints: list[tuple[str, str]], settings: dict[str, Any], came_later: bool
) -> None:
    spec = replace(SPEC, **settings)
    line.create_queue(spec)
    loosen(line, all_constraints)
    fill(line, spec, list(ODD))
    if came_later:
        bring_back(line, all_constraints)
    work_off(sqlc)
    line.maintain()
    work_off(sqlc)
    assert good(line) == dict.fromkeys(range(20), ("succeeded", 1))
    found = others(line)
    assert len(found) == len(ODD)
    assert {state for state, _ in found} <= {"succeeded", "cancelled", "held", "failed"}
    assert all(error for state, error in found if state != "succeeded")
    # The views show them as well.
    assert sqlc.rows("SELECT ready, oldest_ready_seconds FROM {s}.queue_stats") == [(0, None)]


def test_odd_rows_are_seen_in_the_views(line: SqlQueue, sqlc: Caller, all_constraints: list[tuple[str, str]]) -> None:
    loosen(line, all_constraints)
    fill(line, SPEC, list(ODD))
    assert sqlc.value("SELECT count(*) FROM {s}.stray_job") == 5
    assert sqlc.value("SELECT ready FROM {s}.queue_stats") >= len(ODD)
    assert sqlc.value("SELECT max(due_seconds) < 'infinity' FROM {s}.bucket_heads")
