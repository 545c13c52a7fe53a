"""The checks of `sqlqueue doctor` that read the schema."""

import re
import shlex
import time
from collections import Counter
from collections.abc import Iterator, Sequence

from dagster_sqlqueue import display
from dagster_sqlqueue.db import statements
from dagster_sqlqueue.db.database import Database
from dagster_sqlqueue.doctor.server_checks import Check, Server, Verdict
from dagster_sqlqueue.queue import stuck_keys
from dagster_sqlqueue.schema import functions, migrations
from dagster_sqlqueue.schema import roles as schema_roles

_COLLATION_VERSIONS_FROM = 150_000
_NAPTIME_SECONDS = 300
_PIN_WARN_SECONDS = 300.0
_PIN_FAIL_SECONDS = 3600.0
_PIN_BEHIND = 100_000
_DEAD_ROWS = 20_000
_DEAD_SHARE = 0.2
_SWOLLEN_BYTES = 64_000_000
_SWOLLEN_BYTES_PER_ENTRY = 400
_DAYS_AHEAD = 3
_STRAYS = 10_000
_GRACE_DAYS = 2
_STILL_SECONDS = 900.0
_UNMAINTAINED_SECONDS = 86_400.0
_OVERDUE_SECONDS = 60.0
_LEFT_SECONDS = 3_600.0
_BEYOND_SECONDS = 86_400.0
_LEASES = 1_000
_ATTEMPTS = 3
"""So often a batch of Spark's has to fail in a row before the check warns."""
_KEY_LENGTH = 60
_END_LEASE = "UPDATE \"{schema}\".job SET available_at = now() WHERE id = '{id}' AND state = 'running'"

_INDEX = re.compile(r"CREATE (UNIQUE )?INDEX (?:CONCURRENTLY )?(\w+)\s+ON sqlqueue\.(\w+)([^;]*);")
_INDEX_DROPPED = re.compile(r"DROP INDEX (?:CONCURRENTLY )?(?:IF EXISTS )?sqlqueue\.(\w+)")
_PARTITIONED = re.compile(r"CREATE TABLE sqlqueue\.(\w+) \([^;]*\) PARTITION BY")
_COMMENT = re.compile(r"--[^\n]*")

_CURES = {
    "transaction": "end it, or: SELECT pg_terminate_backend({})",
    "prepared transaction": "COMMIT PREPARED or ROLLBACK PREPARED '{}'",
    "replication slot": "bring its subscriber back, or drop it: SELECT pg_drop_replication_slot('{}')",
    "standby": "end the long query on {}, or set hot_standby_feedback = off there",
}


def server(database: Database) -> Server:
    """Read the server's settings and state.

    Raises:
        DatabaseUnavailable: nothing.
    """
    asked_at = time.time()
    row = database.run("doctor_server", {})[0]
    return Server(*(*row, asked_at, time.time()))


def collation(server: Server, database: Database) -> Check:
    """Check whether text still sorts as the indexes have it."""
    if server.version_number < _COLLATION_VERSIONS_FROM:
        return Check("collation", Verdict.OK, "this server does not say")
    name, recorded, actual = database.run("doctor_collation", {})[0]
    return judge_collation(name, recorded, actual)


def judge_collation(name: str, recorded: str | None, actual: str | None) -> Check:
    """The verdict on the versions of a database's collation."""
    if recorded is None or actual is None or recorded == actual:
        return Check("collation", Verdict.OK, "as it was when the indexes were built")
    found = f"the indexes were built under version {recorded}, the operating system has {actual}"
    cure = (
        f"REINDEX DATABASE CONCURRENTLY {name}, then ALTER DATABASE {name} REFRESH COLLATION VERSION: until then a unique"
        " key can be missed"
    )
    return Check("collation", Verdict.FAIL, found, cure)


def autovacuum(server: Server, database: Database) -> Check:
    """Check whether dead rows are removed by themselves."""
    if not server.autovacuum:
        cure = "set autovacuum = on and track_counts = on: a queue without it slows down within hours"
        return Check("autovacuum", Verdict.FAIL, "off on this server", cure)
    tables = [name for (name,) in database.run("doctor_autovacuum", {})]
    if tables:
        cure = "; ".join(f"ALTER TABLE {table} RESET (autovacuum_enabled)" for table in tables)
        return Check("autovacuum", Verdict.FAIL, f"off for {', '.join(tables)}", cure)
    if server.naptime_seconds > _NAPTIME_SECONDS:
        found = f"on, but it runs only every {display.duration(server.naptime_seconds)}"
        return Check("autovacuum", Verdict.WARN, found, "set autovacuum_naptime = '1min', or shorter")
    return Check("autovacuum", Verdict.OK, "on")


def pins(server: Server, database: Database) -> Check:
    """Check whether a transaction keeps dead rows from being removed."""
    rows = database.run("doctor_pins", {"seconds": _PIN_WARN_SECONDS, "behind": _PIN_BEHIND, "limit": 5})
    blind = "" if server.sees_all else " (other users' sessions are hidden: grant this one pg_read_all_stats)"
    if not rows:
        return Check("long transactions", Verdict.OK, f"none older than {display.duration(_PIN_WARN_SECONDS)}{blind}")
    worst = max((seconds for _, _, seconds, _ in rows if seconds is not None), default=0.0)
    found = "; ".join(
        f"{kind} {name} ({detail})" + ("" if seconds is None else f" for {display.duration(seconds)}")
        for kind, name, seconds, detail in rows
    )
    cure = "; ".join(_CURES[kind].format(name.replace("'", "''")) for kind, name, _, _ in rows)
    verdict = Verdict.FAIL if worst >= _PIN_FAIL_SECONDS else Verdict.WARN
    later = "until then dead rows stay and slow claims (against the next one: idle_in_transaction_session_timeout)"
    return Check("long transactions", verdict, f"{found}{blind}", f"{cure}; {later}")


def dead_rows(database: Database) -> Check:
    """Check whether the table of live jobs is full of dead rows."""
    rows = database.run("doctor_job_table", {})
    if not rows:
        return Check("dead rows", Verdict.OK, "no job table")
    live, dead, vacuumed_at = rows[0]
    vacuumed = f"last vacuumed {display.moment(vacuumed_at)}" if vacuumed_at else "never vacuumed yet"
    found = f"about {dead:,} dead to {live:,} live rows in the job table, {vacuumed}"
    if dead > _DEAD_ROWS + _DEAD_SHARE * live:
        cure = f'check for long transactions; then: VACUUM "{database.schema}".job'
        return Check("dead rows", Verdict.WARN, found, cure)
    return Check("dead rows", Verdict.OK, found)


def indexes(database: Database) -> Check:
    """Check whether every index is there, used, and no larger than it needs to be."""
    rows = database.run("doctor_indexes", {})
    present = {name for name, *_ in rows}
    known = known_indexes(migrations.standing(database).schema)
    missing = [name for name in known if name not in present]
    if missing:
        cure = "; ".join(statements.in_schema(known[name], database.schema) for name in missing)
        return Check("indexes", Verdict.FAIL, f"missing: {', '.join(missing)}", cure)
    broken = [quoted for _, quoted, usable, _, _ in rows if not usable]
    if broken:
        cure = "; ".join(f"REINDEX INDEX CONCURRENTLY {name}" for name in broken)
        return Check("indexes", Verdict.FAIL, f"not valid: {', '.join(broken)}", cure)
    swollen = [(quoted, size) for _, quoted, _, size, entries in rows if _is_swollen(size, entries)]
    if swollen:
        sizes = ", ".join(f"{name} ({size / 1e6:,.0f} MB)" for name, size in swollen)
        cure = "; ".join(f"REINDEX INDEX CONCURRENTLY {name}" for name, _ in swollen)
        return Check("indexes", Verdict.WARN, f"much larger than their entries: {sizes}", cure)
    total = sum(size or 0 for _, _, _, size, _ in rows)
    return Check("indexes", Verdict.OK, f"all {len(present)} there and valid, {total / 1e6:,.0f} MB")


def _is_swollen(size: int | None, entries: float | None) -> bool:
    return size is not None and entries is not None and size > _SWOLLEN_BYTES + _SWOLLEN_BYTES_PER_ENTRY * entries


def known_indexes(version: int) -> dict[str, str]:
    """Return the indexes that the migrations make up to a version of the schema, each with the statement that makes it
    again.
    """
    known: dict[str, str] = {}
    partitioned: set[str] = set()
    for migration in migrations.available():
        if migration.version > version:
            break
        text = _COMMENT.sub("", migration.text)
        partitioned.update(_PARTITIONED.findall(text))
        for unique, name, table, rest in _INDEX.findall(text):
            online = "" if table in partitioned else "CONCURRENTLY "
            columns = " ".join(rest.split())
            known[name] = f"CREATE {unique}INDEX {online}{name} ON sqlqueue.{table} {columns}"
        for name in _INDEX_DROPPED.findall(text):
            known.pop(name, None)
    return known


def sql_functions(database: Database) -> Check:
    """Check whether the SQL functions are there, as this package has them."""
    state = functions.state(database)
    if state.missing:
        return Check("functions", Verdict.FAIL, f"missing: {', '.join(state.missing)}", "sqlqueue migrate")
    if not state.current:
        found = f"made by version {state.installed_by}, of another text than this package's"
        return Check("functions", Verdict.WARN, found, "sqlqueue migrate")
    return Check("functions", Verdict.OK, f"all there in {state.pinned}, made by version {state.installed_by}")


def archive(database: Database) -> Iterator[Check]:
    """Check whether the coming days have their partitions, and what went into the default one."""
    missing, strays = database.run("doctor_archive", {"days": _DAYS_AHEAD, "cap": _STRAYS})[0]
    if missing:
        yield Check(
            "archive partitions",
            Verdict.WARN,
            f"none for {', '.join(missing)}",
            "make them with: sqlqueue maintain (run it daily); until then finished jobs go to the default partition",
        )
    else:
        yield Check("archive partitions", Verdict.OK, f"there for today and the {_DAYS_AHEAD} days after it")
    if strays:
        yield Check(
            "archive default",
            Verdict.WARN,
            f"{display.count(strays, _STRAYS)} rows in the default partition",
            "move them to partitions of their own with: sqlqueue maintain (run it daily); nothing is lost",
        )
    else:
        yield Check("archive default", Verdict.OK, "empty")


def retention(database: Database) -> Check:
    """Check whether finished jobs are dropped when their time has come."""
    rows = database.run("doctor_overdue", {"grace": _GRACE_DAYS})
    if rows:
        found = "; ".join(f"queue {queue} still holds jobs that finished on {oldest}" for queue, oldest in rows)
        return Check("retention", Verdict.WARN, found, "drop them with: sqlqueue maintain (run it daily)")
    return Check("retention", Verdict.OK, "nothing is kept for longer than its queue says")


def maintenance(database: Database) -> Check:
    """Check whether maintenance of the schema is done when it is due."""
    rows = database.run("doctor_maintenance", {})
    done, by, late, at_it = rows[0] if rows else (None, None, 0.0, None)
    found = "never done yet" if done is None else f"last done {display.duration(done)} ago by {by}"
    found += f"; {at_it} does it now" if at_it else ""
    if late >= _UNMAINTAINED_SECONDS:
        cure = "run a consumer without --no-maintain, or sqlqueue maintain once a day: nothing expired is removed meanwhile"
        return Check("maintenance", Verdict.WARN, f"{found}; due for {display.duration(late)}", cure)
    return Check("maintenance", Verdict.OK, found)


def queues(database: Database) -> Check:
    """Check whether due jobs wait that no consumer claims."""
    found, cures = [], []
    for queue, paused, due, moving in database.run("doctor_queues", {"seconds": _STILL_SECONDS}):
        waiting = "" if due is None else f", with jobs due for {display.duration(due)}"
        if paused is not None:
            found.append(f"{queue} is paused for {display.duration(paused)}{waiting}")
            cures.append(f"resume it with: sqlqueue resume {queue}")
        elif not moving:
            found.append(f"{queue} stands still{waiting}")
            cures.append(f"check whether a consumer of {queue} runs")
    if found:
        return Check("queues", Verdict.WARN, "; ".join(found), "; ".join(cures))
    return Check(
        "queues", Verdict.OK, f"none has stood still for {display.duration(_STILL_SECONDS)} with jobs that are due"
    )


def leases(database: Database) -> Check:
    """Check whether leases end later than the queue's settings can make them: nobody else gets their jobs until then."""
    found, cures = [], []
    for queue, jobs, id in database.run("doctor_leases", {"seconds": _BEYOND_SECONDS, "limit": _LEASES}):
        those = f"that of job {id}" if jobs == 1 else f"those of {jobs:,} jobs, such as {id}"
        found.append(f"queue {queue}: {those}")
        statement = _END_LEASE.format(schema=database.schema, id=id)
        cures.append(f"check who works on it: sqlqueue show {id}; if nobody, end its lease: {statement}")
    if found:
        return Check(
            "leases",
            Verdict.WARN,
            "leases end never, or more than a day later than one of their queue can that begins now: "
            + "; ".join(found),
            "; ".join(cures) + " (a consumer with a lease_seconds of its own may hold longer ones on purpose)",
        )
    return Check("leases", Verdict.OK, "each ends within a day and the queue's lease")


def strays(database: Database) -> Check:
    """Check whether jobs are where some consumers, or all, do not read: in buckets that their queue never had, which only
    consumers of all buckets claim from; of priorities that do not exist; or of queues that do not exist.
    """
    moving: list[str] = []
    lost: list[str] = []
    for queue, jobs, known in database.run("doctor_strays", {"limit": _STRAYS}):
        (moving if known else lost).append(f"{display.count(jobs, _STRAYS)} of queue {queue}")
    if not moving and not lost:
        return Check("strays", Verdict.OK, "each job is in a bucket of its queue")
    found: list[str] = []
    cures: list[str] = []
    if moving:
        found.append(
            "jobs are where sensors and consumers of some buckets do not search, in buckets that their queue never had, or"
            f" have priorities that are not recorded: {', '.join(moving)}"
        )
        cures.append("move them with: sqlqueue maintain (run it daily); a producer that computes buckets does it wrong")
    if lost:
        found.append(f"jobs are on queues that do not exist: {', '.join(lost)}")
        cures.append(
            "make the queue, and they are claimed: sqlqueue create; or delete them as the owner of the table job;"
            " somebody wrote them around its triggers"
        )
    return Check("strays", Verdict.WARN, "; ".join(found), "; ".join(cures))


def keys(database: Database) -> Check:
    """Check whether jobs wait for others of their ordering key that will not promote them."""
    counts: Counter[str] = Counter()
    examples: dict[str, str] = {}
    for stuck in stuck_keys.stuck_keys(database):
        for queue, names in stuck.items():
            counts[queue] += len(names)
            examples.setdefault(queue, display.shortened(repr(names[0]), _KEY_LENGTH))
    if not counts:
        return Check("keys", Verdict.OK, "none waits for a turn that no other job gives it")
    found = "; ".join(
        f"jobs of {count:,} {'key' if count == 1 else 'keys'} of queue {queue}, {'' if count == 1 else 'such as '}"
        f"{examples[queue]}, wait for a turn that no other job gives them"
        for queue, count in counts.items()
    )
    return Check("keys", Verdict.WARN, found, "promote them with: sqlqueue maintain (run it daily)")


def roles(database: Database) -> Check:
    """Check whether the roles of the schema have what they need, and nothing else."""
    found = schema_roles.examine(database)
    if found is None:
        return Check("roles", Verdict.OK, "none; sqlqueue migrate --roles makes them")
    cure = "have the owner of the schema run: sqlqueue migrate --roles"
    if found.absent:
        return Check("roles", Verdict.FAIL, f"not there: {', '.join(found.absent)}", cure)
    if found.lacking:
        return Check("roles", Verdict.FAIL, f"lacking: {_first_of(found.lacking)}", cure)
    if found.surplus:
        cure += " (which revokes it), unless it was granted on purpose"
        return Check("roles", Verdict.WARN, f"more than is needed: {_first_of(found.surplus)}", cure)
    return Check("roles", Verdict.OK, "each has what it needs, and nothing else")


def _first_of(grants: Sequence[schema_roles.Grant]) -> str:
    more = f" and {len(grants) - 1} more" if len(grants) > 1 else ""
    return f"{grants[0]}{more}"


def batches(database: Database) -> Check:
    """Check whether batches of Spark's are left behind, unmoved or failing."""
    found, cures = [], []
    for queue, left, left_key, unmoved, unmoved_key, failing, key, error in database.run(
        "doctor_batches", {"seconds": _LEFT_SECONDS, "attempts": _ATTEMPTS}
    ):
        if left:
            found.append(f"{queue}: {_keys(left_key, left)} left by the driver for an hour or more, with its jobs")
            cures.append("release the jobs with: sqlqueue maintain")
        if unmoved:
            found.append(f"{queue}: the files of {_keys(unmoved_key, unmoved)} not in their place for an hour or more")
            cures.append("run the key again, or its asset, where the directory is accessible: it moves them first")
        if failing:
            found.append(f"{queue}: {_keys(key, failing)} abandoned {_ATTEMPTS} times in a row or more: {error}")
            cures.append("correct what fails; its jobs have spent no attempt by it")
    if found:
        return Check("batches", Verdict.WARN, "; ".join(found), "; ".join(dict.fromkeys(cures)))
    return Check("batches", Verdict.OK, "none is left behind, and the files of all are in their place")


def _keys(first: str, count: int) -> str:
    return f"{first} is" if count == 1 else f"{first} and {count - 1} more are"


def schedules(database: Database) -> Check:
    """Check whether schedules tick, and their jobs are claimed."""
    found, cures = [], []
    for queue, ticking, overdue, late, first, paused, failed, name, error in database.run(
        "doctor_schedules", {"seconds": _OVERDUE_SECONDS}
    ):
        if overdue:
            those = f"{queue}/{first} is" if overdue == 1 else f"{queue}/{first} and {overdue - 1} more are"
            found.append(f"{those} overdue by {display.duration(late)}: no scheduler runs")
            cures.append("start one, or more, with: sqlqueue schedule run")
        if paused:
            coming = "a schedule goes" if ticking == 1 else f"{ticking} schedules go"
            found.append(f"{queue} is paused, and {coming} on enqueuing jobs on it")
            cures.append(f"resume it with: sqlqueue resume {queue}; or: sqlqueue schedule pause {queue} NAME")
        if failed:
            others = "" if failed == 1 else f", and {failed - 1} more of the queue"
            found.append(f"{queue}/{name}{others} was paused by a scheduler: {error}")
            cures.append(f"correct it; then: sqlqueue schedule resume {queue} {shlex.quote(name)}")
    if found:
        return Check("schedules", Verdict.WARN, "; ".join(found), "; ".join(dict.fromkeys(cures)))
    return Check("schedules", Verdict.OK, f"no tick is due for longer than {display.duration(_OVERDUE_SECONDS)}")
