"""Plans of claims, on 200,000 jobs: the index is used, and what is read is bounded by the batch, never by the backlog.

The bounds, for batches of `n` jobs. A probe of the claim index or the primary key descends three levels: with the page
of the table four buffers, five where the entry is the first of a page. What is written is counted by PostgreSQL too:

- claim: for each job the entry and the row in the search, once more for the lock, the row at its place, then the new
  version in the table and in each of its indexes: at most 25 buffers a job, and 160 empty lanes at 4 buffers.
- picks that merge buckets look at `n` entries in each of the 16, at the row of each of those, and lock `n`.
"""

from typing import Any, NamedTuple
from uuid import uuid4

import pytest

from dagster_sqlqueue import SqlQueue
from tests.plans.explaining import (
    BY_CLAIM,
    BY_ID,
    BY_PLACE,
    CLAIM,
    EVERYWHERE,
    FROM_THE_BEGINNING,
    LANES,
    LEASE,
    SIZES,
    SLACK,
    Explainer,
    changes_by_id,
    due,
    running,
)
from tests.support.few import few


def hints(at: str) -> list[str]:
    """The parameter of a claim of 16 buckets that begins everywhere at one moment."""
    return ["{" + ",".join([at] * 10) + "}"] * 16


class Choice(NamedTuple):
    """A statement that chooses jobs: its parameters beside those that all of them have, and its bounds."""

    name: str
    more: dict[str, Any]
    rows: int
    """How many rows it reads, for each job of its limit."""
    buffers: int
    """How many pages it touches, for each job of its limit."""
    rewrites: set[tuple[str, str | None]] = BY_ID
    """How it finds the rows that it changes."""


CHOICES = [
    Choice("claim_round_robin", CLAIM, 2, 25, BY_PLACE),
    Choice("claim_fanout", CLAIM, 2, 25, BY_PLACE),
    Choice("pick_round_robin", {}, 1, 4),
    Choice("pick_fanout", {}, 1, 4),
    Choice("pick_fifo", {}, 2 * 16, 35),
    Choice("list_executable", {}, 2 * 16, 30),
    Choice("mark_token", {**CLAIM, "token": uuid4()}, 2, 25),
]


@pytest.mark.parametrize("limit", few([1, 2_000, 100], 2))
@pytest.mark.parametrize("choice", CHOICES, ids=lambda choice: choice.name)
@pytest.mark.parametrize("begin", ["swept", "hinted", "at the heads"])
def test_choosing(explain: Explainer, revision: int, choice: Choice, limit: int, begin: str) -> None:
    plan = explain(
        choice.name,
        queue="work",
        revision=revision,
        buckets=EVERYWHERE,
        hints=hints("2000-01-01") if begin == "hinted" else FROM_THE_BEGINNING,
        from_head=EVERYWHERE if begin == "at the heads" else [],
        limit=limit,
        per_bucket=limit,
        **choice.more,
    )
    assert plan.scans() <= BY_CLAIM | choice.rewrites
    # One more of each lane, where a lane is read in two parts.
    assert plan.rows_read <= choice.rows * limit + LANES
    assert plan.buffers <= choice.buffers * limit + 7 * 16 + SLACK
    if choice.name == "mark_token":
        marked = explain.run("SELECT count(*) FROM {s}.job WHERE claim_token = %s", choice.more["token"])
        assert marked == [(limit,)]
    else:
        assert plan.root["Actual Rows"] == limit


@pytest.mark.parametrize("choice", CHOICES, ids=lambda choice: choice.name)
@pytest.mark.parametrize("where", ["other buckets", "hinted past it", "another revision"])
def test_choosing_where_nothing_is_due(explain: Explainer, revision: int, choice: Choice, where: str) -> None:
    plan = explain(
        choice.name,
        queue="work",
        revision=revision + (where == "another revision"),
        buckets=list(range(16, 32)) if where == "other buckets" else EVERYWHERE,
        hints=hints("2999-01-01") if where == "hinted past it" else FROM_THE_BEGINNING,
        from_head=[],
        limit=100,
        per_bucket=100,
        **choice.more,
    )
    assert plan.scans() <= BY_CLAIM | choice.rewrites
    assert plan.rows_read == 0
    assert plan.buffers <= (20 if where == "another revision" else 5 * LANES) + SLACK


def test_choosing_steps_over_what_is_running_and_later(explain: Explainer, backlog: SqlQueue, revision: int) -> None:
    """Leases and later jobs lie past the end of what is due: a claim does not see them."""
    explain.run("UPDATE {s}.job SET available_at = now() + interval '1 hour' WHERE queue = 'work' AND bucket = 3")
    plan = explain("claim_round_robin", **claiming(revision, 100), buckets=[3], hints=FROM_THE_BEGINNING)
    assert plan.rows_read == 0


def claiming(revision: int, limit: int) -> dict[str, Any]:
    return {"queue": "work", "revision": revision, "limit": limit, **CLAIM}


@pytest.mark.parametrize("limit", [10_000])
def test_the_largest_claim(explain: Explainer, revision: int, limit: int) -> None:
    plan = explain("claim_round_robin", **claiming(revision, limit), buckets=EVERYWHERE, hints=FROM_THE_BEGINNING)
    assert plan.scans() <= BY_CLAIM | BY_PLACE
    # It returns the rows in the order in which it finds them: one after the other, as they were taken.
    assert [child["Node Type"] for child in plan.root["Plans"][-1]["Plans"]] == ["CTE Scan", "Tid Scan"]
    assert plan.root["Plans"][-1]["Node Type"] == "Nested Loop"
    assert plan.rows_read <= 2 * limit
    assert plan.buffers <= 25 * limit + 4 * LANES + SLACK


WIDE = 1_024
WIDE_QUEUE = """
    INSERT INTO {s}.queue (name, bucket_count, strategy, ordered, on_poison, lease_seconds, max_attempts, backoff_seconds,
        backoff_factor, backoff_max_seconds, backoff_jitter)
    SELECT 'wide', %s, strategy, ordered, on_poison, lease_seconds, max_attempts, backoff_seconds,
        backoff_factor, backoff_max_seconds, backoff_jitter
    FROM {s}.queue WHERE name = 'work'
"""
ONLY_JOB = """
    INSERT INTO {s}.job (id, queue, bucket, priority, available_at, run_at, max_attempts, payload)
    VALUES (gen_random_uuid(), 'wide', %s, 0, now(), now(), 1, '{}')
"""


@pytest.mark.parametrize("choice", CHOICES, ids=lambda choice: choice.name)
def test_a_queue_of_one_priority_costs_a_probe_a_bucket(explain: Explainer, choice: Choice) -> None:
    explain.run(WIDE_QUEUE, WIDE)
    explain.run(ONLY_JOB, WIDE - 1)
    plan = explain(
        choice.name,
        queue="wide",
        revision=1,
        buckets=list(range(WIDE)),
        hints=FROM_THE_BEGINNING,
        from_head=[],
        limit=1,
        per_bucket=1,
        **choice.more,
    )
    assert plan.scans() <= BY_CLAIM | choice.rewrites
    # The fan-out reads the first and the last of each.
    assert plan.buffers <= (2 if choice.name.endswith("_fanout") else 1) * 4 * WIDE + SLACK
    chosen = "SELECT count(*) FROM {s}.job WHERE queue = 'wide' AND claim_token IS NOT NULL"
    assert explain.run(chosen) == [(1,)] if choice.name == "mark_token" else plan.root["Actual Rows"] == 1


def test_reading_the_heads_of_a_queue_of_one_priority_costs_a_probe_a_bucket(explain: Explainer) -> None:
    explain.run(WIDE_QUEUE, WIDE)
    explain.run("INSERT INTO {s}.bucket (queue, bucket) SELECT 'wide', generate_series(0, %s - 1)", WIDE)
    explain.run(ONLY_JOB, WIDE - 1)
    for verb, given in {"heads": {}, "depth": {"cap": 100, "others": 100}}.items():
        plan = explain(verb, queue="wide", **given)
        assert plan.scans() <= BY_CLAIM
        # What is due, and what is not, are two reads.
        assert plan.buffers <= (2 if verb == "depth" else 1) * 4 * WIDE + SLACK


@pytest.mark.parametrize("count", SIZES)
def test_pick_ids(explain: Explainer, backlog: SqlQueue, count: int) -> None:
    plan = explain("pick_ids", ids=due(backlog, count), limit=count)
    assert plan.root["Actual Rows"] == count
    assert plan.scans() <= BY_ID
    assert plan.rows_read <= count
    assert plan.buffers <= 8 * count + SLACK


@pytest.mark.parametrize("count", SIZES)
def test_grant(explain: Explainer, backlog: SqlQueue, count: int) -> None:
    plan = explain("grant", ids=due(backlog, count), limited=True, alone=False, **LEASE)
    changes_by_id(plan, count)


@pytest.mark.parametrize("count", SIZES)
def test_grant_assign(explain: Explainer, backlog: SqlQueue, revision: int, count: int) -> None:
    plan = explain(
        "grant_assign",
        queue="work",
        revision=revision,
        ids=due(backlog, count),
        lease_nos=[0] * count,
        limited=False,
        alone=False,
        **LEASE,
    )
    changes_by_id(plan, count)


@pytest.mark.parametrize("count", SIZES)
def test_marked_by_token(explain: Explainer, backlog: SqlQueue, count: int) -> None:
    token = uuid4()
    explain.run("UPDATE {s}.job SET claim_token = %s WHERE id = ANY (%s)", token, running(backlog, count))
    plan = explain("marked_by_token", token=token)
    assert plan.root["Actual Rows"] == count
    assert {index for _, index in plan.scans()} - {None} == {"job_claim_token"}
    assert plan.rows_read <= count
    assert plan.buffers <= 3 * count + SLACK


@pytest.mark.parametrize("scan", [100, 10_000])
@pytest.mark.parametrize("tag", ["t7", "nobody has it"])
def test_a_filter_looks_at_no_more_than_its_bound(explain: Explainer, revision: int, scan: int, tag: str) -> None:
    plan = explain("scan_fitting", **scanning(revision, scan, tag))
    assert {index for _, index in plan.scans()} == {"job_claim"}
    assert plan.rows_read <= scan
    assert plan.buffers <= 2 * scan + 4 * LANES + SLACK


def test_a_filter_looks_no_further_than_it_finds_enough(explain: Explainer, revision: int) -> None:
    plan = explain("scan_fitting", **{**scanning(revision, 10_000, "nobody has it"), "tags": [], "limit": 100})
    assert {index for _, index in plan.scans()} == {"job_claim"}
    assert plan.rows_read <= 100
    assert plan.buffers <= 2 * 100 + 4 * LANES + SLACK


def test_a_filter_goes_on_where_it_ended(explain: Explainer, backlog: SqlQueue, revision: int) -> None:
    ((bucket, priority, at, job),) = explain.run(
        "SELECT bucket, priority, available_at, id FROM {s}.job"
        " WHERE queue = 'work' AND bucket = 9 AND priority = 5 AND available_at < now()"
        " ORDER BY available_at, id OFFSET 200 LIMIT 1"
    )
    after = {"buckets": EVERYWHERE[bucket:], "after_priorities": [priority], "after_ats": [at], "after_ids": [job]}
    plan = explain("scan_fitting", **{**scanning(revision, 1_000, "nobody has it"), **after})
    assert {index for _, index in plan.scans()} == {"job_claim"}
    assert plan.rows_read <= 1_000
    assert plan.buffers <= 2 * 1_000 + 4 * LANES + SLACK


def scanning(revision: int, scan: int, tag: str) -> dict[str, Any]:
    return {
        "queue": "work",
        "revision": revision,
        "buckets": EVERYWHERE,
        "tags": [tag],
        "payload": "{}",
        "scan": scan,
        "limit": 10,
        "after_priorities": [],
        "after_ats": [],
        "after_ids": [],
    }


@pytest.mark.parametrize("dead", [0, 1, 3])
def test_what_consumers_that_died_may_have_had(explain: Explainer, backlog: SqlQueue, dead: int) -> None:
    explain.run(
        "INSERT INTO {s}.transactional_consumer (worker, queue, batch_size, backend, believed_until)"
        " SELECT 'w' || n, 'work', 100, 1, now() - interval '1 hour' FROM generate_series(1, %s) AS n",
        dead,
    )
    plan = explain("transactional_suspects", queue="work", worker="me")
    jobs = plan.root["Actual Rows"]
    assert jobs == 1
    assert {scan for scan in plan.scans() if scan[1]} <= BY_CLAIM | BY_ID
    assert plan.rows_of("job") <= (2 * LANES * 100 if dead else 0) + LANES
