"""Backlogs for the plan tests, enqueued with one statement each."""

from dagster_sqlqueue import SqlQueue
from tests.support import rows

_DUE = "now() - n * interval '1 us'"
FIRST = 1_000
"""So many jobs, with every priority among them, note that of their queue and wake who waits; as in an enqueue of many, the
others leave that to them: two triggers for each take longer than the insert.
"""


def put(queue: SqlQueue, name: str, count: int, **columns: str) -> None:
    """Put jobs on a queue as producers do, numbered from 0.

    Args:
        queue: where there is a queue of that name.
        name: of the queue.
        count: of the jobs.
        columns: what else is said of each in SQL, where `n` is the number, and `id` is there.
    """
    said = {
        "run_at": _DUE,
        "priority": "0",
        "ordering_key": "NULL",
        "payload": "jsonb_build_object('n', n, 'note', '')",
        "queue_kept": f"n >= {FIRST}",
        "wakes": f"n < {FIRST}",
    }
    said = {**said, "available_at": columns.get("run_at", _DUE), **columns}
    rows(
        queue,
        f"""
        INSERT INTO {{s}}.job (id, queue, bucket, max_attempts, {", ".join(said)})
        SELECT id, name, {{s}}.bucket_hash(id, made.ordering_key) %% bucket_count, max_attempts,
            {", ".join(f"made.{column}" for column in said)}
        FROM (
            SELECT id, {", ".join(f"{value} AS {column}" for column, value in said.items())}
            FROM (
                SELECT n, {{s}}.uuid_at(now() - interval '1 minute' + n * interval '0.1 ms', %s || n) AS id
                FROM generate_series(0, %s - 1) AS n
                ORDER BY n
            ) AS numbered
        ) AS made
        CROSS JOIN {{s}}.queue AS q
        WHERE q.name = %s
        """,
        name,
        count,
        name,
    )
