"""The checks of `sqlqueue doctor` of a server's settings and state. No I/O."""

import enum
from dataclasses import dataclass

_OLDEST_TRIED = 150_000
_OLDEST_POSSIBLE = 120_000
_CLOCK_SECONDS = 1.0
_XIDS_WARN = 500_000_000
_XIDS_FAIL = 1_500_000_000


class Verdict(enum.StrEnum):
    """How a check came out; `FAIL` makes the exit code 1."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Check:
    """One check: what was found, and what to do unless it is well."""

    name: str
    verdict: Verdict
    found: str
    cure: str = ""


@dataclass(frozen=True, slots=True)
class Server:
    """The row of `doctor_server.sql`, and the client's clock around it, in seconds since 1970."""

    version_number: int
    version: str
    clock: float
    isolation: str
    default_isolation: str
    read_only: bool
    autovacuum: bool
    naptime_seconds: int
    fsync: str
    synchronous_commit: str
    connections: int
    max_connections: int
    sees_all: bool
    xid_age: int
    encoding: str
    asked_at: float
    answered_at: float


def version(server: Server) -> Check:
    """Check whether the server is one that the statements work on."""
    found = f"PostgreSQL {server.version}"
    if server.version_number < _OLDEST_POSSIBLE:
        return Check("server", Verdict.FAIL, found, "move to PostgreSQL 15 or newer: the statements need 12 at least")
    if server.read_only:
        return Check("server", Verdict.FAIL, f"{found}, a read-only standby", "name the primary server in SQLQUEUE_URL")
    if server.version_number < _OLDEST_TRIED:
        return Check("server", Verdict.WARN, found, "move to PostgreSQL 15 or newer: older ones were not tried")
    return Check("server", Verdict.OK, found)


def encoding(server: Server) -> Check:
    """Check whether the database can store every text."""
    if server.encoding != "UTF8":
        cure = "move to a database made with: CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0"
        return Check("encoding", Verdict.FAIL, f"{server.encoding}, which cannot hold every text of a payload", cure)
    return Check("encoding", Verdict.OK, server.encoding)


def isolation(server: Server) -> Check:
    """Check whether transactions run under READ COMMITTED: ours, and those of callers that enqueue in their own."""
    wanted = "read committed"
    if server.isolation != wanted:
        cure = "something between here and the server drops session settings: use a pooler in session mode"
        return Check("isolation", Verdict.WARN, f"{server.isolation}: correct, but claims will be retried a lot", cure)
    if server.default_isolation != wanted:
        found = f"{wanted} in our sessions, {server.default_isolation} by default here"
        cure = (
            "nothing, unless you enqueue jobs with ids of your own, or claim, in transactions of your own: begin those with"
            " ISOLATION LEVEL READ COMMITTED, or"
            f" ALTER ROLE … SET default_transaction_isolation = '{wanted}'"
        )
        return Check("isolation", Verdict.WARN, found, cure)
    return Check("isolation", Verdict.OK, wanted)


def durability(server: Server) -> Check:
    """Check whether what was acknowledged is on disk."""
    found = f"fsync {server.fsync}, synchronous_commit {server.synchronous_commit}"
    if server.fsync != "on":
        return Check("durability", Verdict.FAIL, found, "set fsync = on: a power cut can destroy the database")
    if server.synchronous_commit == "off":
        cure = "set synchronous_commit = on: a crash can lose jobs whose enqueue was acknowledged"
        return Check("durability", Verdict.WARN, found, cure)
    return Check("durability", Verdict.OK, found)


def clock(server: Server) -> Check:
    """Check whether the server and this machine agree on the time."""
    ahead = server.clock - (server.asked_at + server.answered_at) / 2
    unsure = (server.answered_at - server.asked_at) / 2
    off = max(abs(ahead) - unsure, 0.0)
    found = f"the server is {abs(ahead):.3f} s {'ahead of' if ahead > 0 else 'behind'} this machine (± {unsure:.3f} s)"
    if off > _CLOCK_SECONDS:
        cure = "run NTP on both; leases are safe (the server's clock decides), times that a client sets are off by this"
        return Check("clock", Verdict.WARN, found, cure)
    return Check("clock", Verdict.OK, found)


def connections(server: Server) -> Check:
    """Check whether the server takes more sessions."""
    found = f"{server.connections} of {server.max_connections} in use"
    share = server.connections / max(server.max_connections, 1)
    cure = "close idle ones, lower pool_size, put a pooler in front, or raise max_connections"
    if share >= 0.95:
        return Check("connections", Verdict.FAIL, found, cure)
    return Check("connections", Verdict.WARN if share >= 0.8 else Verdict.OK, found, cure if share >= 0.8 else "")


def transaction_ids(server: Server) -> Check:
    """Check whether the server gets round to freezing old rows, before it runs out of transaction numbers."""
    found = f"the oldest is {server.xid_age:,} transactions old, of 2,147,483,647 at most"
    cure = "VACUUM the whole database, after what the checks of autovacuum and long transactions name is mended"
    if server.xid_age >= _XIDS_FAIL:
        return Check("transaction ids", Verdict.FAIL, found, f"{cure}: at the end the server takes no more writes")
    if server.xid_age >= _XIDS_WARN:
        return Check("transaction ids", Verdict.WARN, found, cure)
    return Check("transaction ids", Verdict.OK, found)
