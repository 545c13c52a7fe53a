"""Plans of human work beside 100,000 tasks: what is taken, listed and decided about is read, and no more."""

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest

from dagster_sqlqueue import QueueSpec, SqlQueue
from dagster_sqlqueue.people import HumanWork
from tests.gate.patience import PATIENCE, sized
from tests.plans.explaining import SLACK, Explainer, Plan
from tests.plans.filling import put
from tests.plans.undoing import without_autovacuum
from tests.support import Work, rows
from tests.support.cleared import own_schema
from tests.support.few import few

TASKS = sized(40_000, 100_000)
PEOPLE = 50


@pytest.fixture(scope="module")
def tasks(url: str) -> Iterator[SqlQueue]:
    """100,000 tasks of one queue: a tenth open, of which half for later or on hold; the others are shared by 50 people, a
    third of them in review. As many events, 1,000 held jobs without a task, and 20,000 jobs that wait.
    """
    with own_schema(url, "people_plans", connect_timeout=round(PATIENCE)) as queue:
        queue.create_queue(QueueSpec("work", Work))
        put(queue, "work", TASKS + 21_000)
        # One after the other, as they were held: not where producers have put them.
        rows(
            queue,
            "UPDATE {s}.job SET state = 'held', available_at = 'infinity', error = 'hard'"
            " WHERE CAST(payload ->> 'n' AS integer) < %s",
            TASKS + 1_000,
        )
        rows(
            queue,
            """
            INSERT INTO {s}.human_task (
                job_id, queue, stage, assignee, done_by, review, four_eyes, on_hold, available_at, opened_at, revision
            )
            SELECT
                made.id, 'work', made.stage, CASE WHEN made.stage <> 'open' THEN 'p' || made.n %% 50 END,
                CASE WHEN made.stage = 'in_review' THEN 'p' || made.n %% 50 END, true, true, made.n %% 40 = 0,
                CASE WHEN made.n %% 20 = 0 AND made.n %% 40 <> 0 THEN now() + interval '1 day'
                    ELSE now() - make_interval(secs => made.n) END,
                now(), 1
            FROM (
                SELECT
                    j.id, CAST(j.payload ->> 'n' AS integer) AS n,
                    CASE
                        WHEN CAST(j.payload ->> 'n' AS integer) %% 10 = 0 THEN 'open'
                        WHEN CAST(j.payload ->> 'n' AS integer) %% 3 = 0 THEN 'in_review'
                        ELSE 'assigned'
                    END AS stage
                FROM {s}.job AS j WHERE CAST(j.payload ->> 'n' AS integer) < %s
            ) AS made
            """,
            TASKS,
        )
        rows(
            queue,
            "INSERT INTO {s}.job_event (job_id, no, queue, actor, action, details)"
            " SELECT job_id, 1, queue, 'boss', 'hand over', '{{\"review\": true, \"four_eyes\": true}}' FROM {s}.human_task",
        )
        HumanWork(queue).set_rule("work", automatic_percent=50, always_people={"n": 1})
        without_autovacuum(queue)
        for table in ("job", "human_task", "job_event"):
            rows(queue, f"VACUUM ANALYZE {{s}}.{table}")
        yield queue


@pytest.fixture
def explained(tasks: SqlQueue) -> SqlQueue:
    return tasks


def read(plan: Plan, table: str) -> int:
    """Rows of a table that scans looked at, with those that a filter threw away."""
    return sum(
        round((node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"])
        for node in plan.nodes
        if node.get("Relation Name") == table and "Scan" in node["Node Type"]
    )


def indexes(plan: Plan) -> set[str]:
    scanned = {node["Relation Name"] for node in plan.nodes if node["Node Type"] == "Seq Scan"}
    # What is small, or has no rows, is read whole once it has been analysed.
    assert not scanned & {"job", "human_task", "job_event"}
    return {str(node["Index Name"]) for node in plan.nodes if "Index Name" in node}


def some(tasks: SqlQueue, stage: str, count: int) -> tuple[list[UUID], list[int]]:
    query = "SELECT job_id, revision FROM {s}.human_task WHERE stage = %s ORDER BY md5(job_id::text) LIMIT %s"
    found = rows(tasks, query, stage, count)
    return [row[0] for row in found], [row[1] for row in found]


@pytest.mark.parametrize("limit", [1, 100])
def test_take(explain: Explainer, limit: int) -> None:
    plan = explain("task_take", queue="work", operator="anna", reason=None, limit=limit)
    assert plan.root["Actual Rows"] == limit
    assert {"human_task_next", "job_pkey"} <= indexes(plan)
    # Found, locked, changed, and looked at for the answer.
    assert read(plan, "human_task") <= 2 * limit
    assert read(plan, "job") <= 3 * limit
    assert plan.buffers <= 60 * limit + SLACK


@pytest.mark.parametrize("limit", [1, 100])
def test_the_lists(explain: Explainer, limit: int) -> None:
    for stage in ("open", "assigned", "in_review"):
        plan = explain("tasks_of_stage", queue="work", stage=stage, limit=limit)
        assert plan.root["Actual Rows"] == limit
        assert {"human_task_stage", "job_pkey"} <= indexes(plan)
        assert read(plan, "human_task") <= limit
        assert plan.buffers <= 10 * limit + SLACK
    for queue in (None, "work"):
        plan = explain("tasks_of_operator", operator="p7", queue=queue, limit=limit)
        assert plan.root["Actual Rows"] == limit
        assert {"human_task_assignee", "job_pkey"} <= indexes(plan)
        assert read(plan, "human_task") <= limit
        assert plan.buffers <= 10 * limit + SLACK


@pytest.mark.parametrize("count", [1, 1_000])
def test_by_their_ids(explain: Explainer, tasks: SqlQueue, count: int) -> None:
    ids, revisions = some(tasks, "assigned", count)
    for statement in ("tasks_by_id", "task_lock"):
        plan = explain(statement, ids=ids)
        assert plan.root["Actual Rows"] == count
        assert read(plan, "human_task") == count
        assert plan.buffers <= 30 * count + SLACK
    common: dict[str, Any] = {"ids": ids, "revisions": revisions, "actor": "boss", "reason": None, "details": "{}"}
    step = explain(
        "task_step",
        **common,
        action="assign",
        stages=["assigned"] * count,
        assignees=["anna"] * count,
        done_bys=[None] * count,
        results=[None] * count,
        on_holds=[False] * count,
        available_ats=[rows(tasks, "SELECT now()")[0][0]] * count,
    )
    end = explain("task_end", **{**common, "revisions": [revision + 1 for revision in revisions]}, action="give back")
    for plan in (step, end):
        assert plan.root["Actual Rows"] == count
        assert "human_task_pkey" in indexes(plan)
        assert read(plan, "human_task") == count
        assert plan.buffers <= 40 * count + SLACK


@pytest.mark.parametrize("count", [1, 1_000])
def test_opening(explain: Explainer, count: int) -> None:
    (lost,) = explain.run(
        "SELECT array_agg(id) FROM (SELECT id FROM {s}.job WHERE state = 'queued' LIMIT %s) AS j", count
    )
    plan = explain(
        "task_open",
        ids=lost[0],
        queue="work",
        actor="boss",
        action="hand over",
        reason="hard",
        review=None,
        four_eyes=None,
        anew=True,
    )
    assert plan.root["Actual Rows"] == count
    assert "job_event_pkey" in indexes(plan)
    assert read(plan, "job_event") <= count
    assert plan.buffers <= 60 * count + SLACK


def test_what_is_known_of_one_job(explain: Explainer, tasks: SqlQueue) -> None:
    ids, _ = some(tasks, "open", 100)
    history = explain("job_history", id=ids[0])
    assert history.root["Actual Rows"] == 1
    assert history.buffers <= SLACK
    rule = explain("automation_of_job", id=ids[0], queue="work")
    assert {"job_pkey", "job_event_pkey"} <= indexes(rule)
    assert rule.buffers <= SLACK


def test_the_rule_of_a_queue(explain: Explainer) -> None:
    known = explain("automation_rule", queue="work")
    changed = explain(
        "automation_rule_set", queue="work", automatic_percent=7.0, always_people=None, review=True, four_eyes=False
    )
    for plan in (known, changed):
        assert plan.root["Actual Rows"] == 1
        assert plan.buffers <= SLACK


AT_FIRST = {"after_priority": 9, "after_at": "-infinity", "after_id": UUID(int=0)}


@pytest.mark.parametrize("scan", [100, 1_000])
def test_held_jobs_without_a_task(explain: Explainer, scan: int) -> None:
    """A page of what nobody claims in a bucket is read, and no job that waits."""
    pages = 0
    place, scanned = AT_FIRST, scan
    missing: set[UUID] = set()
    while scanned == scan and pages < 100:
        parameters = {"queue": "work", "bucket": 3, "scan": scan, **place}
        if pages < 2:
            plan = explain("tasks_missing", **parameters)
            assert {"job_claim", "human_task_pkey"} <= indexes(plan)
            assert read(plan, "job") <= scan
            assert plan.buffers <= 6 * scan + SLACK
        ids, scanned, priority, last = explain.answer("tasks_missing", **parameters)
        missing |= set(ids)
        place = {"after_priority": priority, "after_id": last}
        pages += 1
    query = (
        "SELECT count(*) FROM {s}.job WHERE bucket = 3 AND state = 'held'"
        " AND id NOT IN (SELECT job_id FROM {s}.human_task)"
    )
    ((expected,),) = explain.run(query)
    assert len(missing) == expected > 0


@pytest.mark.parametrize("scan", [100, 1_000])
@pytest.mark.parametrize("always", [None, f'{{"n": {TASKS + 500}}}'])
def test_queued_jobs_that_a_rule_gives_to_people(explain: Explainer, scan: int, always: str | None) -> None:
    place = {**AT_FIRST, "queue": "work", "bucket": 3, "scan": scan}
    plan = explain("tasks_of_rule", always_people=always, only_always=False, **place)
    assert {"job_claim", "job_event_pkey"} <= indexes(plan)
    assert read(plan, "job") <= scan
    assert read(plan, "job_event") == 0
    # The jobs lie wherever there was room, and each of them is looked up among the events.
    assert plan.buffers <= 8 * scan + SLACK


@pytest.mark.parametrize("limit", [100, 1_000])
def test_tasks_whose_jobs_are_not_held(explain: Explainer, limit: int) -> None:
    explain.run("DELETE FROM {s}.job WHERE id IN (SELECT job_id FROM {s}.human_task WHERE stage = 'in_review')")
    plan = explain("tasks_withdraw", queue="work", actor="clerk", after_id=UUID(int=0), limit=limit)
    assert {"human_task_queue", "human_task_pkey", "job_pkey"} <= indexes(plan)
    # Found, looked at and locked, and deleted; of a third of them an event is written.
    assert read(plan, "human_task") <= 3 * limit
    assert read(plan, "job") <= limit
    assert plan.buffers <= 60 * limit + SLACK


def test_completing(explain: Explainer, tasks: SqlQueue) -> None:
    ids, _ = some(tasks, "in_review", 100)
    plan = explain("complete_held", ids=ids, named=ids, results=['{"paid": true}'] * 100, workers=["anna"] * 100)
    assert plan.root["Actual Rows"] == 100
    assert "job_pkey" in indexes(plan)
    assert plan.rows_read <= 100
    assert plan.buffers <= 25 * 100 + SLACK


@pytest.mark.parametrize("limit", [100, 1_000])
def test_trimming_what_people_did(explain: Explainer, limit: int) -> None:
    explain.run("UPDATE {s}.queue SET retention_days = 1 WHERE name = 'work'")
    explain.run("UPDATE {s}.job_event SET at = at - interval '5 days'")
    # Half of the jobs are gone.
    explain.run("DELETE FROM {s}.job WHERE id IN (SELECT job_id FROM {s}.human_task WHERE stage = 'assigned')")
    place = {"after_at": "-infinity", "after_id": UUID(int=0), "after_no": 0}
    before = [explain.read_whole(table) for table in ("job_event", "job")]
    plan = explain("event_trim", queue="work", limit=limit, **place)
    assert [explain.read_whole(table) for table in ("job_event", "job")] == before
    # Found, and once more for its deletion.
    assert plan.buffers <= 80 * limit + SLACK


@pytest.mark.parametrize("count", few([1, 1_000, 100], 2))
def test_deleting_what_is_kept_beside_jobs(explain: Explainer, count: int) -> None:
    ids = [row[0] for row in explain.run("SELECT job_id FROM {s}.human_task ORDER BY job_id LIMIT %s", count)]
    explain.run("DELETE FROM {s}.job WHERE id = ANY (%s)", ids)
    plan = explain("delete_traces", ids=ids)
    assert {"human_task_pkey", "job_event_pkey", "job_pkey"} <= indexes(plan)
    for table in ("human_task", "job_event"):
        assert read(plan, table) <= 2 * count
    assert plan.buffers <= 80 * count + SLACK
