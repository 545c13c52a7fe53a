"""What `doctor` finds."""

from dagster_sqlqueue import SqlQueue
from dagster_sqlqueue.doctor import examine
from dagster_sqlqueue.doctor.server_checks import Check


def findings(queue: SqlQueue) -> dict[str, Check]:
    return {check.name: check for check in examine(queue.database)}
