"""What it costs to wake somebody, and to be woken: the rows of one's own and of the next one, however many there are."""

import pytest

from tests.plans.explaining import BESIDE, LANES, SLACK, Explainer, Fetched, Plan

CHOOSY = 20
CALLS = 6
LEFT = "SELECT count(*) FROM {s}.armed_waiter WHERE queue = 'work' AND expires_at > now()"


@pytest.fixture
def crowded(explain: Explainer) -> Explainer:
    """Many who are armed, for this queue and another one, as many whose time is up, and a few who choose."""
    explain.run(
        "INSERT INTO {s}.armed_waiter (queue, expires_at, backend, buckets, choosy)"
        " SELECT which.queue, now() + which.moment * interval '1 hour' + n * interval '1 ms', n, NULL, false"
        " FROM generate_series(1, %s) AS n, (VALUES ('work', 1), ('work', -1), ('other', 1)) AS which (queue, moment)",
        BESIDE,
    )
    explain.run(
        "INSERT INTO {s}.armed_waiter (queue, expires_at, backend, buckets, choosy)"
        " SELECT 'work', now() + interval '1 hour', -n, '{3}', true FROM generate_series(1, %s) AS n",
        CHOOSY,
    )
    return explain


def _again(explain: Explainer, verb: str, **given: object) -> Plan:
    """The plan of a call of a function that was called before, so that its own plans are made."""
    for _ in range(CALLS):
        explain(verb, **given)
    return explain(verb, **given)


def test_waiter_pass(crowded: Explainer) -> None:
    plan = _again(crowded, "waiter_pass", queue="work", buckets=[5])
    assert plan.buffers <= 10 * CHOOSY + SLACK
    assert crowded.read_whole("armed_waiter") == 0
    # One each time, and none of those who choose: they want other buckets.
    assert crowded.run(LEFT) == [(BESIDE + CHOOSY - CALLS - 1,)]


def test_a_job_that_wakes(crowded: Explainer) -> None:
    insert = (
        "INSERT INTO {s}.job (id, queue, bucket, priority, available_at, run_at, max_attempts, payload)"
        " VALUES (gen_random_uuid(), %s, 3, 0, now(), now(), 1, '{}')"
    )
    fetched = Fetched(crowded._connection, crowded.schema)
    crowded.run("SET CONSTRAINTS ALL IMMEDIATE")
    pages = []
    for _ in range(CALLS + 1):
        # So that each is the first of its bucket.
        crowded.run("SELECT set_config('dagster_sqlqueue.woken_3', '', true)")
        before = fetched()
        crowded.run(insert, "work")
        pages.append(fetched() - before)
    assert min(pages) <= 10 * CHOOSY + SLACK
    assert crowded.read_whole("armed_waiter") == 0
    assert crowded.run(LEFT) == [(BESIDE - CALLS - 1,)]


def test_arming_and_disarming(crowded: Explainer) -> None:
    armed = _again(crowded, "waiter_arm", queue="work", buckets=None, choosy=False, seconds=60.0)
    assert armed.buffers <= SLACK
    disarmed = _again(crowded, "waiter_disarm", queue="work")
    assert disarmed.buffers <= SLACK
    assert crowded.read_whole("armed_waiter") == 0


@pytest.mark.parametrize("verb", ["waiter_poll", "waiter_poll_hinted"])
@pytest.mark.parametrize("buckets", [None, [3, 5]])
def test_polling(explain: Explainer, verb: str, buckets: "list[int] | None") -> None:
    plan = explain(verb, queue="work", buckets=buckets, open=[])
    assert plan.root["Actual Rows"] == 1
    assert plan.buffers <= 2 * 8 * LANES + SLACK
    assert {index for _, index in plan.scans()} == {"job_claim"}
    assert plan.rows_read <= 3 * LANES
