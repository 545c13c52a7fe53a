"""What the Spark tests share: rows put into the archive directly, with the moments that a test wants."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from psycopg import sql
from pyspark.sql import DataFrame

from dagster_sqlqueue import QueueSpec, SqlQueue
from tests.support import Work, rows
from tests.support.cleared import cleared

NOON = datetime(2013, 1, 1, 12, tzinfo=UTC)
_TABLES = "SELECT tablename FROM pg_tables WHERE schemaname = %s"
_own: dict[str, set[str]] = {}
"""The tables of each schema as it was made."""


def emptied(queue: SqlQueue, spec: QueueSpec[Work]) -> SqlQueue:
    """The same queues with nothing in them but the queue of `spec`, and without the tables that tests made beside theirs."""
    schema = queue.database.schema
    there = {name for (name,) in rows(queue, _TABLES, schema)}
    own = _own.setdefault(schema, there)
    today = f"job_archive_{datetime.now(UTC):%Y%m%d}"
    for name in there - own:
        # Maintenance makes partitions of past days for rows without one. With them retention drops days, instead of rows.
        if not name.startswith("job_archive_") or name < today:
            drop = sql.SQL("DROP TABLE IF EXISTS {} CASCADE").format(sql.Identifier(schema, name))
            with queue.database.connection() as connection:
                connection.execute(drop)
    return cleared(queue, spec)


@dataclass
class Done:
    """A finished job."""

    payload: Any = field(default_factory=dict)
    result: Any = None
    at: datetime = NOON
    state: str = "succeeded"
    error: str | None = None


def archive(queue: SqlQueue, jobs: Iterable[Done], name: str = "work") -> None:
    """Put finished jobs into the archive."""
    everything = [
        (uuid4(), name, job.state, job.at, json.dumps(job.payload), json.dumps(job.result), job.error) for job in jobs
    ]
    rows(
        queue,
        "INSERT INTO {s}.job_archive (id, queue, bucket, priority, state, lease_no, attempt, max_attempts, run_at,"
        " created_at, started_at, finished_at, region, tags, payload, result, error)"
        " SELECT id, queue, 1, 5, state, 1, 1, 3, at - interval '1 hour', at - interval '1 hour', at - interval '1 minute',"
        " at, 'local', '{{}}',"
        " CAST(payload AS jsonb), NULLIF(CAST(result AS jsonb), 'null'), error"
        " FROM unnest(%s::uuid[], %s::text[], %s::text[], %s::timestamptz[], %s::text[], %s::text[], %s::text[])"
        " AS t (id, queue, state, at, payload, result, error)",
        *(list(column) for column in zip(*everything, strict=True)),
    )


def listed(frame: DataFrame) -> list[Any]:
    return sorted((tuple(row) for row in frame.collect()), key=repr)
