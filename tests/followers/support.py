"""What the tests of followers share."""

from dagster_sqlqueue import SqlQueue
from dagster_sqlqueue.followers import GroupEnded, JobEnded
from tests.support import rows


def ended_jobs(queue: SqlQueue, name: str = "ended") -> list[JobEnded]:
    """The callbacks about jobs on a queue, in the order of their ids."""
    found = rows(queue, "SELECT CAST(payload AS text) FROM {s}.job WHERE queue = %s ORDER BY id", name)
    return [JobEnded.model_validate_json(row[0]) for row in found]


def ended_groups(queue: SqlQueue, name: str = "ended") -> list[GroupEnded]:
    """The callbacks about groups on a queue, in the order of their ids."""
    found = rows(queue, "SELECT CAST(payload AS text) FROM {s}.job WHERE queue = %s ORDER BY id", name)
    return [GroupEnded.model_validate_json(row[0]) for row in found]
