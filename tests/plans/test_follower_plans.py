"""Plans of following and of notifying: each goes to its jobs and followers alone, whatever else there is."""

from collections.abc import Iterator
from functools import cache
from typing import Any
from uuid import UUID

import psycopg
import pytest
from uuid_utils.compat import uuid7

from dagster_sqlqueue import QueueSpec, SqlQueue
from dagster_sqlqueue.followers import Callback, Followers, Groups, JobEnded
from dagster_sqlqueue.followers.follow import _columns
from dagster_sqlqueue.followers.model import FollowerRow, called_back
from tests.gate.patience import PATIENCE, sized
from tests.plans.explaining import PLAN_MODES, SLACK, Explainer, Plan
from tests.plans.filling import put
from tests.plans.undoing import undone, without_autovacuum
from tests.support import Work, rows, value
from tests.support.archived import archive
from tests.support.few import few

JOBS = sized(40_000, 100_000)
GROUPS = JOBS // 10
SIZES = few([1, 1_000, 100], 2)
ENDED = Callback("ended")


@pytest.fixture(scope="session")
def followed(url: str) -> Iterator[SqlQueue]:
    """100,000 jobs, each with a follower and a unique key, in groups of ten; and as many that have ended."""
    with SqlQueue(url, schema="plans_followers", connect_timeout=round(PATIENCE)) as queue:
        queue.migrate()
        queue.create_queue(QueueSpec("work", Work))
        queue.create_queue(QueueSpec("ended", JobEnded))
        archive(queue, value(queue, "SELECT CAST(timezone('UTC', now()) AS date)"), count=JOBS)
        put(queue, "work", JOBS, unique_key="'u' || n", followed="true")
        rows(
            queue,
            "INSERT INTO {s}.follower (id, job_id, states, queue)"
            " SELECT gen_random_uuid(), j.id, '{{succeeded,failed,cancelled}}', 'ended' FROM {s}.job AS j",
        )
        group = "CAST(lpad(to_hex(n), 32, '0') AS uuid)"
        rows(
            queue,
            "INSERT INTO {s}.job_group (id, queue, priority, members)"
            f" SELECT {group}, 'ended', 0, 10 FROM generate_series(1, %s) AS n",
            GROUPS,
        )
        rows(
            queue,
            "INSERT INTO {s}.follower (id, job_id, states, group_id)"
            f" SELECT gen_random_uuid(), j.id, '{{{{succeeded,failed,cancelled}}}}', {group}"
            " FROM (SELECT id, 1 + (row_number() OVER () - 1) / 10 AS n FROM {s}.job) AS j",
        )
        without_autovacuum(queue)
        for table in ("job", "follower", "job_group", "job_archive"):
            rows(queue, f"VACUUM ANALYZE {{s}}.{table}")
        yield queue


@pytest.fixture(params=PLAN_MODES)
def transaction(followed: SqlQueue, request: pytest.FixtureRequest) -> Iterator["psycopg.Connection[Any]"]:
    with undone(followed, request.param) as connection:
        yield connection


@pytest.fixture
def explain(transaction: "psycopg.Connection[Any]", followed: SqlQueue) -> Explainer:
    return Explainer(transaction, followed.database.schema)


@cache
def live(queue: SqlQueue, count: int) -> list[UUID]:
    return [row[0] for row in rows(queue, "SELECT id FROM {s}.job ORDER BY md5(id::text) LIMIT %s", count)]


@cache
def gone(queue: SqlQueue, count: int) -> list[UUID]:
    return [row[0] for row in rows(queue, "SELECT id FROM {s}.job_archive ORDER BY md5(id::text) LIMIT %s", count)]


def never_from_end_to_end(plan: Plan, *tables: str) -> None:
    for node in plan.nodes:
        if node.get("Relation Name", "").startswith(tables):
            # An empty partition may be looked at as a whole.
            assert node["Node Type"] != "Seq Scan" or node["Actual Rows"] == 0, node


@pytest.mark.parametrize("count", SIZES)
def test_following(explain: Explainer, followed: SqlQueue, count: int) -> None:
    ids = live(followed, count)
    plan = explain("follow", **_columns([called_back(ENDED, id, uuid7()) for id in ids]))
    assert plan.root["Actual Rows"] == count
    never_from_end_to_end(plan, "job", "follower")
    assert plan.rows_read <= 2 * count
    assert max(node["Actual Rows"] * node["Actual Loops"] for node in plan.nodes) <= 25 * count + count**2 // 4
    assert plan.buffers <= 60 * count + SLACK


@pytest.mark.parametrize("count", SIZES)
def test_following_what_has_ended(explain: Explainer, followed: SqlQueue, count: int) -> None:
    ids = gone(followed, count)
    plan = explain("follow_ended", **_columns([called_back(ENDED, id, uuid7()) for id in ids]))
    assert plan.root["Actual Rows"] == count
    never_from_end_to_end(plan, "job_archive", "follower")
    assert plan.buffers <= 90 * count + SLACK


@pytest.mark.parametrize("count", SIZES)
def test_merging(explain: Explainer, followed: SqlQueue, count: int) -> None:
    found = explain("taken_unique_keys", queue="work", unique_keys=[f"u{n * 7}" for n in range(count)])
    assert found.root["Actual Rows"] == count
    assert {index for _, index in found.scans()} - {None} == {"job_unique_key"}
    assert found.rows_read <= count
    ids = live(followed, count)
    locked = explain("merge_lock", ids=ids)
    assert locked.root["Actual Rows"] == count
    assert locked.buffers <= 25 * count + SLACK
    assert explain.read_whole("job") == 0
    own = [uuid7() for _ in ids]
    assert explain("merge_note", ids=own, job_ids=ids).buffers <= 20 * count + SLACK
    known = explain("submitted", ids=[*own, *ids])
    assert known.root["Actual Rows"] == 2 * count
    never_from_end_to_end(known, "job_archive")
    assert known.rows_read <= count


@pytest.mark.parametrize("count", [1, 100])
def test_noting_and_leaving(explain: Explainer, followed: SqlQueue, count: int) -> None:
    found = rows(followed, "SELECT id FROM {s}.follower WHERE group_id IS NULL ORDER BY md5(id::text) LIMIT %s", count)
    ids = [row[0] for row in found]
    for plan in (
        explain("follow_sent", ids=ids, submitted_ids=ids),
        explain("group_known", ids=ids),
        explain("unfollow", ids=ids),
    ):
        never_from_end_to_end(plan, "follower")
        assert plan.buffers <= 30 * count + SLACK


def test_groups(explain: Explainer, followed: SqlQueue) -> None:
    group = UUID(int=77)
    nil = UUID(int=0)
    for plan, most in (
        (explain("group", id=group), 4),
        (explain("group_join", id=group), 10),
        (explain("group_close", id=group), 40),
        (explain("groups", limit=50), 60),
        (explain("group_members", id=group, states=None, after=nil, limit=100), 40),
        (explain("followers_of", id=live(followed, 1)[0]), 10),
    ):
        never_from_end_to_end(plan, "job_group", "follower")
        assert plan.buffers <= most + SLACK


@pytest.mark.parametrize("limit", [1, 1_000])
def test_notifying_those_who_were_left_out(explain: Explainer, limit: int) -> None:
    plan = explain("notify_missed_followers", after=UUID(int=0), limit=limit)
    never_from_end_to_end(plan, "job", "follower")
    assert plan.scans() == {("Index Only Scan", "job_pkey")}
    assert plan.rows_read <= limit
    followers = [node for node in plan.nodes if node.get("Index Name") == "follower_job"]
    assert 0 < sum(node["Actual Rows"] * node["Actual Loops"] for node in followers) <= 2 * limit
    assert plan.buffers <= 10 * limit + SLACK


COUNTS = b"""
    SELECT relname, seq_tup_read, idx_tup_fetch FROM pg_stat_xact_user_tables WHERE schemaname = 'plans_followers'
"""


def read(transaction: "psycopg.Connection[Any]") -> dict[str, tuple[int, int]]:
    """How many rows of each table were read, from end to end and through indexes, as the server has counted and not yet
    handed on: between transactions it does, within one it does not.
    """
    return {name: (by_scan, by_index) for name, by_scan, by_index in transaction.execute(COUNTS)}


@pytest.mark.parametrize("count", few([1, 1_000, 100], 2))
def test_notifying_and_counting(
    transaction: "psycopg.Connection[Any]", explain: Explainer, followed: SqlQueue, count: int
) -> None:
    """What the triggers do when followed jobs end: the server counts it."""
    ids = live(followed, count)
    before = read(transaction)
    explain("complete_plain_locked", ids=ids, worker="w")
    transaction.execute(b"SET CONSTRAINTS ALL IMMEDIATE")
    after = read(transaction)
    seen = {name: tuple(a - b for a, b in zip(after[name], before[name], strict=True)) for name in after}
    archived = [counts for name, counts in seen.items() if name.startswith("job_archive")]
    assert sum(by_scan for by_scan, _ in archived) == 0
    assert sum(by_index for _, by_index in archived) <= 2 * count
    assert seen["job"][0] == 0
    assert seen["job"][1] <= 2 * count
    assert seen["follower"][0] == 0
    assert seen["follower"][1] <= 8 * count
    assert seen["job_group"][0] == 0
    assert seen["job_group"][1] <= 4 * count
    assert seen["group_tally"][0] <= 4 * count
    assert explain.run("SELECT count(*) FROM {s}.job WHERE queue = 'ended'") == [(count,)]
    assert explain.run("SELECT sum(succeeded) FROM {s}.job_group") == [(count,)]


def test_a_group_of_many_members_is_counted_in_one_row(
    transaction: "psycopg.Connection[Any]", explain: Explainer, followed: SqlQueue
) -> None:
    group = Groups(followed).open()
    ids = live(followed, 500)
    explain("follow", **_columns([FollowerRow(uuid7(), id, group_id=group) for id in ids]))
    explain("complete_plain_locked", ids=ids, worker="w")
    assert len(explain.run("SELECT 1 FROM {s}.group_tally WHERE group_id = %s", group)) == 1
    transaction.execute(b"SET CONSTRAINTS ALL IMMEDIATE")
    assert explain.run("SELECT members, succeeded FROM {s}.job_group WHERE id = %s", group) == [(500, 500)]
    assert explain.run("SELECT 1 FROM {s}.group_tally") == []
    assert Followers(followed).of(ids[0])
