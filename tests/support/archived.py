"""What the tests of the archive share: jobs that ended on a day, the days that have a partition, what is kept."""

from datetime import date, datetime, timedelta

from dagster_sqlqueue import SqlQueue
from tests.support import rows, value


def ahead(today: date, *days: int) -> tuple[date, ...]:
    return tuple(today + timedelta(days=day) for day in days)


def days_with_partitions(queue: SqlQueue) -> list[date]:
    found = rows(
        queue,
        "SELECT right(c.relname, 8) FROM pg_inherits AS i JOIN pg_class AS c ON c.oid = i.inhrelid"
        " WHERE i.inhparent = CAST(%s AS regclass) AND c.relname ~ '[0-9]{{8}}$' ORDER BY 1",
        f"{queue.database.schema}.job_archive",
    )
    return [datetime.strptime(name, "%Y%m%d").date() for (name,) in found]


def archive(queue: SqlQueue, day: date, *, name: str = "work", count: int = 3) -> None:
    """Jobs of a queue that ended at noon of a day, in UTC."""
    rows(
        queue,
        "INSERT INTO {s}.job_archive (id, queue, bucket, priority, state, lease_no, attempt, max_attempts, run_at,"
        " created_at, finished_at, region, tags, payload)"
        " SELECT gen_random_uuid(), %s, 0, 0, 'succeeded', 1, 1, 5, ended, ended, ended, 'local', ARRAY[]::text[], '0'"
        " FROM (SELECT timezone('UTC', %s + interval '12 hours') AS ended FROM generate_series(1, %s)) AS job",
        name,
        day,
        count,
    )


def kept(queue: SqlQueue) -> dict[tuple[str, date], int]:
    """How many rows of each queue and day there are in the archive."""
    found = rows(
        queue, "SELECT queue, CAST(timezone('UTC', finished_at) AS date), count(*) FROM {s}.job_archive GROUP BY 1, 2"
    )
    return {(name, day): count for name, day, count in found}


def strays(queue: SqlQueue) -> int:
    count: int = value(queue, "SELECT count(*) FROM {s}.job_archive_default")
    return count
