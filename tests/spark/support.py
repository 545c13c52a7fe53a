"""What the Spark tests share: rows put into the archive directly, with the moments that a test wants."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from dagster_sqlqueue import SqlQueue
from tests.core.support import rows

NOON = datetime(2013, 1, 1, 12, tzinfo=UTC)


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
