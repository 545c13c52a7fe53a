"""A queue that is worked off by a handler of the test's own, and what is left of it in the archive."""

import time
from collections.abc import Callable
from typing import Any

from dagster_sqlqueue import Consumer, DrainSummary, Job, QueueSpec, SqlQueue
from tests.support import Work, rows

Handler = Callable[[Job[Work]], Any]


class Clock:
    """In the place of a module's `time`: one that a test moves on."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead


def drain(queue: SqlQueue, spec: QueueSpec[Work], handler: Handler, **settings: Any) -> DrainSummary:
    return Consumer(queue, spec, handler, **settings).drain()


def archive(queue: SqlQueue) -> dict[int, tuple[Any, ...]]:
    """State, result, error and attempt of each job that ended, by the number in its payload."""
    found = rows(queue, "SELECT (payload ->> 'n')::integer, state, result, error, attempt FROM {s}.job_archive")
    return {row[0]: row[1:] for row in found}
