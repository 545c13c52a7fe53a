"""How a migration waits for locks: a little at a time, so that nobody waits behind it for long, and not for ever.

A session that requests a lock on a table waits behind those that requested one before it, also behind a migration that
waits for one open transaction. So a migration gives up after `lock_timeout_seconds`, pauses, and tries again.
"""

import contextlib
import logging
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import psycopg
import tenacity
from psycopg import sql

from dagster_sqlqueue import display
from dagster_sqlqueue.db.database import Database
from dagster_sqlqueue.db.execution import Row
from dagster_sqlqueue.db.executors import Transaction
from dagster_sqlqueue.errors import InvalidInput, QueueError, SchemaBusy
from dagster_sqlqueue.schema.migration_files import LOCK_MODES, Migration

logger = logging.getLogger("dagster_sqlqueue")

T = TypeVar("T")

LOCK_TIMEOUT_SECONDS = 3.0
GIVE_UP_SECONDS = 300.0

_POLL_SECONDS = 0.5
_PAUSES = 5.0
"""The longest pause between two attempts, in lock time-outs: that long the others are by themselves."""
_LINE = 100
_IN_THE_WAY = (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected)
_HIDDEN = re.compile(
    r"""(?P<comment>--[^\n]*|/\*.*?(?:\*/|\Z))
    | (?P<name>"(?:""|[^"])*(?:"|\Z))
    | (?P<literal>\$(?P<tag>\w*)\$.*?(?:\$(?P=tag)\$|\Z)
        | \b[eE]'(?:\\.|''|[^'\\])*(?:'|\Z)
        | '(?:''|[^'])*(?:'|\Z)
        | \b\d[\d.]*)""",
    re.DOTALL | re.VERBOSE,
)


@dataclass(slots=True)
class LockWaits:
    """How one migration waits.

    Attributes:
        lock_timeout_seconds: how long at a time, for all the locks of a transaction together: nobody is kept waiting by it
            for longer.
        give_up_seconds: how long in all, the pauses included; an attempt that has begun is ended.
        notify: called with a text that says which sessions it waits for, when that changes; also from another thread.

    Raises:
        InvalidInput: a time is not positive.
    """

    lock_timeout_seconds: float = LOCK_TIMEOUT_SECONDS
    give_up_seconds: float = GIVE_UP_SECONDS
    notify: Callable[[str], None] = logger.warning
    _blockers: str = field(default="", init=False)

    def __post_init__(self) -> None:
        for name in ("lock_timeout_seconds", "give_up_seconds"):
            if not 0.001 <= getattr(self, name) < 1_000_000:
                raise InvalidInput(f"{name} is {getattr(self, name)}; it must be a positive number of seconds")

    def patiently(self, work: Callable[[], T]) -> T:
        """What `work` returns; called again while other transactions are in its way.

        Raises:
            SchemaBusy: they were for too long; what `work` does is undone.
        """
        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(_IN_THE_WAY),
            wait=tenacity.wait_random_exponential(
                multiplier=self.lock_timeout_seconds / 2, max=self.lock_timeout_seconds * _PAUSES
            ),
            stop=tenacity.stop_after_delay(self.give_up_seconds),
            reraise=True,
        )
        try:
            return retrying(work)
        except _IN_THE_WAY:
            raise self.given_up() from None

    def given_up(self) -> SchemaBusy:
        """The error that says that it waited for too long, and on whom."""
        return SchemaBusy(
            f"the migration did not get its locks within {display.duration(self.give_up_seconds)}, and nothing of this step"
            f" was done: {self._blockers or 'who held them is not known'}. End what is in the way, or wait, and run again:"
            " sqlqueue migrate"
        )

    def begin(self, at: Transaction) -> int:
        """Bound the waits of a transaction; returns the process id of its session."""
        return int(self._bound(at, self.lock_timeout_seconds))

    def take(self, at: Transaction, schema: str, pending: Sequence[Migration]) -> None:
        """Lock what the migrations are going to lock, and so wait before they have done anything, not in the middle."""
        order = list(LOCK_MODES)
        wanted: dict[str, str] = {}
        for table, mode in (lock for migration in pending for lock in migration.locks):
            wanted[table] = max(wanted.get(table, mode), mode, key=order.index)
        until = time.monotonic() + self.lock_timeout_seconds
        for table, mode in wanted.items():
            if at.run("migration_table", {"name": table}):
                self._bound(at, until - time.monotonic())
                lock = sql.SQL("LOCK TABLE {} IN {} MODE")
                at.connection.execute(lock.format(sql.Identifier(schema, table), sql.SQL(mode)))
        self._bound(at, until - time.monotonic())

    @contextlib.contextmanager
    def watched(
        self,
        database: Database,
        *,
        pid: int | None = None,
        mark: str = "",
        give_up: Callable[[], None] | None = None,
    ) -> Iterator[None]:
        """Report which sessions a session waits for while the block runs.

        Args:
            database: where it is; a connection of its own is opened once there is a wait.
            pid: the session's process.
            mark: if that is not known, the beginning of the statement that it runs.
            give_up: called when it has waited for too long.
        """
        ended = threading.Event()
        parameters = {"pid": pid, "mark": mark}
        watch = threading.Thread(
            target=self._watch, args=(database, parameters, ended, give_up), name="sqlqueue-migrate", daemon=True
        )
        watch.start()
        try:
            yield
        finally:
            ended.set()
            watch.join()

    def _watch(
        self,
        database: Database,
        parameters: dict[str, Any],
        ended: threading.Event,
        give_up: Callable[[], None] | None,
    ) -> None:
        pause = min(_POLL_SECONDS, self.lock_timeout_seconds / 3)
        until = time.monotonic() + self.give_up_seconds
        if ended.wait(pause):
            return
        # Who cannot be asked is not named: the migration goes on all the same.
        with (
            contextlib.suppress(QueueError, psycopg.Error),
            contextlib.closing(database.apart()) as connection,
        ):
            while True:
                if rows := Transaction(connection, database).run("migration_blockers", parameters):
                    blockers = "; ".join(map(_described, rows))
                    if blockers != self._blockers:
                        self._blockers = blockers
                        self.notify(blockers)
                    if give_up is not None and time.monotonic() >= until:
                        give_up()
                if ended.wait(pause):
                    return

    def _bound(self, at: Transaction, seconds: float) -> Any:
        milliseconds = max(round(seconds * 1000), 50)
        return at.run("migration_patience", {"milliseconds": str(milliseconds)})[0][0]


def _described(row: Row) -> str:
    pid, since, idle, query = row
    if query is None:
        doing = "its statement is hidden from this user"
    else:
        doing = f"{'idle after' if idle else 'running'}: {shown(query)}"
    return f"it waits for process {pid}, in a transaction since {display.moment(since)}, {doing}"


def shown(query: str) -> str:
    """The first line of a statement, with nothing of its values or comments."""
    text = _HIDDEN.sub(lambda found: found[0] if found["name"] else " " if found["comment"] is not None else "?", query)
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return display.printable(line if len(line) <= _LINE else line[:_LINE] + "…")
