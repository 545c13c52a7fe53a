"""`sqlqueue doctor`: what is wrong with the database, or soon will be, and what to do about it."""

import enum
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import typer
from rich.text import Text

from dagster_sqlqueue import migrations
from dagster_sqlqueue.cli import render
from dagster_sqlqueue.cli.session import Session, command
from dagster_sqlqueue.database import Database
from dagster_sqlqueue.errors import SchemaMissing, SchemaTooNew, SchemaTooOld

_OLDEST_TRIED = 150_000
_OLDEST_POSSIBLE = 120_000
_CLOCK_SECONDS = 1.0
_PIN_WARN_SECONDS = 300.0
_PIN_FAIL_SECONDS = 3600.0
_DEAD_ROWS = 20_000
_DEAD_SHARE = 0.2
_DAYS_AHEAD = 3
_STRAYS = 10_000


class Verdict(enum.StrEnum):
    """How a check came out; `FAIL` makes the exit code 1."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


_STYLES = {Verdict.OK: "green", Verdict.WARN: "yellow", Verdict.FAIL: "bold red"}


@dataclass(frozen=True, slots=True)
class Check:
    """One thing looked at: what was found, and what to do unless it is well."""

    name: str
    verdict: Verdict
    found: str
    cure: str = ""


@dataclass(frozen=True, slots=True)
class Server:
    """The row of `doctor_server.sql`, and the client's clock around it."""

    version_number: int
    version: str
    clock: float
    isolation: str
    read_only: bool
    autovacuum: bool
    fsync: str
    synchronous_commit: str
    connections: int
    max_connections: int
    sees_all: bool
    asked_at: float
    answered_at: float


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app, panel="Look")(doctor)


def doctor(session: Session) -> None:
    """Look for what is wrong with the database, or soon will be, and say what to do about it.

    Changes nothing. Each check is ok, warn (works, but look after it) or fail (exit code 1).
    """
    with session.queue(checked=False) as queue:
        checks = list(examine(queue.database))
        where = f"schema {queue.database.schema} of {queue.database.where}"
    worst = max((check.verdict for check in checks), key=list(Verdict).index)
    if session.as_json:
        render.emit_json({"verdict": worst, "checks": [asdict(check) for check in checks]})
    else:
        render.say(where)
        render.table(
            ["check", "", "found", "what to do"],
            [[c.name, Text(c.verdict, style=_STYLES[c.verdict]), c.found, c.cure] for c in checks],
        )
    if worst is Verdict.FAIL:
        raise typer.Exit(1)


def examine(database: Database) -> Iterator[Check]:
    """Every check, in the order of the report.

    Raises:
        DatabaseUnavailable: there is nothing to examine.
    """
    schema = _schema(database)
    asked_at = time.time()
    row = database.run("doctor_server", {})[0]
    server = Server(*(*row, asked_at, time.time()))
    yield schema
    for check in (_version, _isolation, _durability, _clock, _connections):
        yield check(server)
    yield _autovacuum(server, database)
    yield _pins(server, database)
    yield _dead_rows(database)
    yield _indexes(database)
    if schema.verdict is not Verdict.FAIL:
        yield from _archive(database)


def _schema(database: Database) -> Check:
    try:
        return Check("schema", Verdict.OK, f"version {migrations.check(database)}, the one of this package")
    except (SchemaMissing, SchemaTooOld, SchemaTooNew) as error:
        found, _, cure = str(error).rpartition(". ")
        return Check("schema", Verdict.FAIL, found, cure)


def _version(server: Server) -> Check:
    found = f"PostgreSQL {server.version}"
    if server.version_number < _OLDEST_POSSIBLE:
        return Check("server", Verdict.FAIL, found, "move to PostgreSQL 15 or newer: the statements need 12 at least")
    if server.read_only:
        return Check("server", Verdict.FAIL, f"{found}, a read-only standby", "name the primary server in SQLQUEUE_URL")
    if server.version_number < _OLDEST_TRIED:
        return Check("server", Verdict.WARN, found, "move to PostgreSQL 15 or newer: older ones were not tried")
    return Check("server", Verdict.OK, found)


def _isolation(server: Server) -> Check:
    if server.isolation == "read committed":
        return Check("isolation", Verdict.OK, server.isolation)
    cure = "something between here and the server drops session settings: use a pooler in session mode"
    return Check("isolation", Verdict.WARN, f"{server.isolation}: correct, but claims will be retried a lot", cure)


def _durability(server: Server) -> Check:
    found = f"fsync {server.fsync}, synchronous_commit {server.synchronous_commit}"
    if server.fsync != "on":
        return Check("durability", Verdict.FAIL, found, "set fsync = on: a power cut can destroy the database")
    if server.synchronous_commit == "off":
        cure = "set synchronous_commit = on: a crash can lose jobs whose enqueue was acknowledged"
        return Check("durability", Verdict.WARN, found, cure)
    return Check("durability", Verdict.OK, found)


def _clock(server: Server) -> Check:
    ahead = server.clock - (server.asked_at + server.answered_at) / 2
    unsure = (server.answered_at - server.asked_at) / 2
    off = max(abs(ahead) - unsure, 0.0)
    found = f"the server is {abs(ahead):.3f} s {'ahead of' if ahead > 0 else 'behind'} this machine (± {unsure:.3f} s)"
    if off > _CLOCK_SECONDS:
        cure = "run NTP on both; leases are safe (the server's clock decides), times that a client sets are off by this"
        return Check("clock", Verdict.WARN, found, cure)
    return Check("clock", Verdict.OK, found)


def _connections(server: Server) -> Check:
    found = f"{server.connections} of {server.max_connections} in use"
    share = server.connections / max(server.max_connections, 1)
    cure = "close idle ones, lower pool_size, put a pooler in front, or raise max_connections"
    if share >= 0.95:
        return Check("connections", Verdict.FAIL, found, cure)
    return Check("connections", Verdict.WARN if share >= 0.8 else Verdict.OK, found, cure if share >= 0.8 else "")


def _autovacuum(server: Server, database: Database) -> Check:
    if not server.autovacuum:
        cure = "set autovacuum = on and track_counts = on: a queue without it slows down within hours"
        return Check("autovacuum", Verdict.FAIL, "off on this server", cure)
    rows = database.run("doctor_job_table", {})
    if rows and not rows[0][3]:
        cure = f'ALTER TABLE "{database.schema}".job SET (autovacuum_enabled = true)'
        return Check("autovacuum", Verdict.FAIL, "off for the job table", cure)
    return Check("autovacuum", Verdict.OK, "on")


def _pins(server: Server, database: Database) -> Check:
    rows = database.run("doctor_pins", {"seconds": _PIN_WARN_SECONDS, "limit": 5})
    blind = "" if server.sees_all else " (other users' sessions are hidden: grant this one pg_read_all_stats)"
    if not rows:
        return Check("long transactions", Verdict.OK, f"none older than {render.duration(_PIN_WARN_SECONDS)}{blind}")
    worst = max((seconds for _, _, seconds, _ in rows if seconds is not None), default=0.0)
    found = "; ".join(
        f"{kind} {name} ({detail})" + ("" if seconds is None else f" for {render.duration(seconds)}")
        for kind, name, seconds, detail in rows
    )
    cure = {
        "transaction": f"end it, or: SELECT pg_terminate_backend({rows[0][1]})",
        "prepared transaction": "COMMIT PREPARED or ROLLBACK PREPARED it",
        "replication slot": "bring its subscriber back, or drop it: SELECT pg_drop_replication_slot('…')",
    }[rows[0][0]]
    verdict = Verdict.FAIL if worst >= _PIN_FAIL_SECONDS else Verdict.WARN
    return Check("long transactions", verdict, f"{found}{blind}", f"{cure}; until then dead rows stay and slow claims")


def _dead_rows(database: Database) -> Check:
    rows = database.run("doctor_job_table", {})
    if not rows:
        return Check("dead rows", Verdict.OK, "no job table to look at")
    live, dead, vacuumed_at, _ = rows[0]
    vacuumed = f"last vacuumed {render.moment(vacuumed_at)}" if vacuumed_at else "never vacuumed yet"
    found = f"about {dead:,} dead to {live:,} live rows in the job table, {vacuumed}"
    if dead > _DEAD_ROWS + _DEAD_SHARE * live:
        cure = f'look for long transactions; then: VACUUM "{database.schema}".job'
        return Check("dead rows", Verdict.WARN, found, cure)
    return Check("dead rows", Verdict.OK, found)


def _indexes(database: Database) -> Check:
    names = [name for (name,) in database.run("doctor_indexes", {})]
    if names:
        cure = "; ".join(f"REINDEX INDEX CONCURRENTLY {name}" for name in names)
        return Check("indexes", Verdict.FAIL, f"not valid: {', '.join(names)}", cure)
    return Check("indexes", Verdict.OK, "all valid")


def _archive(database: Database) -> Iterator[Check]:
    missing, strays = database.run("doctor_archive", {"days": _DAYS_AHEAD, "cap": _STRAYS})[0]
    if missing:
        yield Check(
            "archive partitions",
            Verdict.WARN,
            f"none for {', '.join(missing)}",
            "make them with: sqlqueue init (run it daily); until then finished jobs go to the default partition",
        )
    else:
        yield Check("archive partitions", Verdict.OK, f"there for today and the {_DAYS_AHEAD} days after it")
    if strays:
        yield Check(
            "archive default",
            Verdict.WARN,
            f"{render.count(strays, _STRAYS)} rows in the default partition",
            "nothing is lost, but their days cannot be trimmed by dropping a partition; run sqlqueue init in time",
        )
    else:
        yield Check("archive default", Verdict.OK, "empty")
