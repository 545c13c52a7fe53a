"""A table of live jobs, looked at by every plan test, changed by none: each explains in a transaction it undoes.

The numbers that these tests speak of are those of `make prove`; in `make test` it is about half of most.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from dagster_sqlqueue import QueueSpec, SqlQueue
from tests.gate.patience import FULL, PATIENCE, sized
from tests.plans.explaining import PLAN_MODES, Explainer
from tests.plans.filling import put
from tests.plans.undoing import undone, without_autovacuum
from tests.support import Work, rows

JOBS = sized(50_000, 100_000)
KEY_JOBS = sized(25_000, 50_000)
"""How many of the keyed queue's jobs have the key `big`; as many share the other keys."""
KEYS = 500
RUNNING = 2_000
LIMITED = 1_000


HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With the whole numbers every test of plans proves a promise."""
    for item in items:
        if FULL and item.path.parent == HERE:
            item.add_marker(pytest.mark.prove)


@pytest.fixture(scope="session")
def backlog(url: str) -> Iterator[SqlQueue]:
    """Four queues in one table.

    - `work`: 50,000 or 100,000 jobs in 16 buckets and ten priorities, a quarter of them for later, 2,000 running.
    - `keyed`: ordered, as many jobs, half of them of one key; nine of ten are parked, the head of each key runs.
    - `limited`: 5,000 jobs, 1,000 of them under leases that count towards its limit.
    - `other`: 5,000 jobs that nobody asks for.
    """
    with SqlQueue(url, schema="plans", connect_timeout=round(PATIENCE)) as queue:
        queue.migrate()
        for name, count in (("work", JOBS), ("other", 5_000)):
            queue.create_queue(QueueSpec(name, Work))
            put(
                queue,
                name,
                count,
                priority="n / 4 %% 10",
                run_at="CASE WHEN n %% 4 = 0 THEN now() + interval '1 day' ELSE now() - n %% 3000 * interval '1 s' END",
                tags="ARRAY['t' || n %% 50]",
                payload="jsonb_build_object('n', n, 'note', repeat('x', 100))",
            )
        _keyed(queue)
        queue.create_queue(QueueSpec("limited", Work, max_running=2 * LIMITED))
        put(queue, "limited", 5_000)
        queue.claim("limited", limit=LIMITED, lease_seconds=3_600, worker="w")
        for bucket in range(16):
            queue.claim("work", buckets=[bucket], limit=RUNNING // 16, lease_seconds=3_600, worker="w")
        without_autovacuum(queue)
        rows(queue, "VACUUM ANALYZE {s}.job")
        yield queue


def _keyed(queue: SqlQueue) -> None:
    queue.create_queue(QueueSpec("keyed", Work, ordered=True))
    put(
        queue,
        "keyed",
        2 * KEY_JOBS,
        ordering_key=f"CASE WHEN n %% 2 = 1 THEN 'big' ELSE 'key ' || n / 2 %% {KEYS} END",
        order_no="nextval('{s}.job_order')",
        run_at="now() - interval '1 hour'",
    )
    # As claims leave it behind: heads run or are due, and of the rest what they have met is parked.
    rows(
        queue,
        """
        UPDATE {s}.job AS j
        SET available_at = CASE WHEN j.order_no = head.order_no THEN now() + interval '1 hour' ELSE 'infinity' END,
            state = CASE WHEN j.order_no = head.order_no THEN 'running' ELSE 'queued' END,
            lease_no = 1, attempt = 1, claimed_by = 'w'
        FROM (
            SELECT ordering_key, min(order_no) AS order_no FROM {s}.job WHERE queue = 'keyed' GROUP BY ordering_key
        ) AS head
        WHERE j.queue = 'keyed' AND j.ordering_key = head.ordering_key
          AND (j.order_no = head.order_no OR mod(hashtext(j.id::text), 10) <> 0)
        """,
    )


@pytest.fixture(scope="session")
def revision(backlog: SqlQueue) -> int:
    """Of the settings of `work`."""
    return backlog.settings("work").revision


@pytest.fixture
def explained(backlog: SqlQueue) -> SqlQueue:
    """The queue whose statements are explained: a module may have one of its own."""
    return backlog


@pytest.fixture(params=PLAN_MODES)
def explain(explained: SqlQueue, request: pytest.FixtureRequest) -> Iterator[Explainer]:
    with undone(explained, request.param) as connection:
        yield Explainer(connection, explained.database.schema)
