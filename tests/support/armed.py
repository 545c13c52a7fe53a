"""Sessions that wait to be woken, as consumers do that have nothing to do."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import psycopg

from dagster_sqlqueue import SqlQueue
from dagster_sqlqueue.db import statements
from tests.gate.patience import PATIENCE
from tests.support import caller


class Armed:
    """One session that listens, and can have itself woken by the jobs of the queue `work`."""

    def __init__(self, queue: SqlQueue, connection: "psycopg.Connection[Any]") -> None:
        self.connection = connection
        self._schema = queue.database.schema
        ((self.channel,),) = self.run("waiter_listen")

    def run(self, name: str, **parameters: object) -> list[tuple[Any, ...]]:
        return self.connection.execute(statements.load(name, self._schema).encode(), parameters or None).fetchall()

    def arm(
        self, *, buckets: Sequence[int] | None = None, choosy: bool = False, queue: str = "work", seconds: float = 3_600
    ) -> int:
        """Returns how many are armed for all jobs of the queue now."""
        ((others,),) = self.run("waiter_arm", queue=queue, buckets=buckets, choosy=choosy, seconds=seconds)
        return int(others)

    def notifications(self) -> list[tuple[str, str]]:
        """What came since the last call: the channel, `own` for the session's, and the payload."""
        self.connection.execute("SELECT pg_notify(%s, 'mark')", (self.channel,))
        found: list[tuple[str, str]] = []
        for note in self.connection.notifies(timeout=PATIENCE):
            if note.payload == "mark":
                return found
            found.append(("own" if note.channel == self.channel else note.channel, note.payload))
        raise AssertionError("the mark did not come")


@contextmanager
def armed(queue: SqlQueue, url: str, count: int, /, **how: Any) -> Iterator[list[Armed]]:
    """So many sessions, each armed."""
    with ExitStack() as stack:
        sessions = [Armed(queue, stack.enter_context(caller(url, autocommit=True))) for _ in range(count)]
        for session in sessions:
            session.arm(**how)
        yield sessions


def wakes(sessions: Sequence[Armed]) -> list[int]:
    """How often each was woken since the last call, the most first; nothing else came."""
    notifications = [session.notifications() for session in sessions]
    assert {note for notes in notifications for note in notes} <= {("own", "work")}
    return sorted((len(notes) for notes in notifications), reverse=True)
