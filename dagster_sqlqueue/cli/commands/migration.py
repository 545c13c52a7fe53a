"""The command that creates and upgrades the schema: `migrate`."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from dagster_sqlqueue.cli.input import options
from dagster_sqlqueue.cli.output import render
from dagster_sqlqueue.cli.session import Session, command
from dagster_sqlqueue.errors import InvalidInput

if TYPE_CHECKING:
    from dagster_sqlqueue.db.database import Database
    from dagster_sqlqueue.schema.migrations import Migration


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app)(migrate)


Roles = Annotated[
    bool,
    typer.Option(
        "--roles",
        show_default=False,
        help="Also create the roles SCHEMA_producer, _consumer, _operator and _observer, if they are missing, and grant"
        " each only the privileges that it needs. Once they exist, every migrate grants what new tables need.",
    ),
]
Print = Annotated[
    bool,
    typer.Option(
        "--print",
        show_default=False,
        help="With --roles: only print the SQL that creates the roles, for a user who may run it (CREATEROLE). Needs no"
        " database.",
    ),
]
DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run",
        show_default=False,
        help="Change nothing; print the migrations that would be applied, the locks that they take on existing tables,"
        " and where to read their SQL and, with --roles, that of the roles (with --json, the SQL itself).",
    ),
]
LockTimeout = Annotated[
    str,
    typer.Option(
        "--lock-timeout",
        metavar="TIME",
        help="How long to wait for locks at a time, before trying again. No session waits behind migrate for longer.",
    ),
]
GiveUp = Annotated[
    str,
    typer.Option(
        "--give-up-after",
        metavar="TIME",
        help="How long to try in total, before migrate ends with exit code 10. It names what it waits for on standard"
        " error.",
    ),
]


def migrate(
    session: Session,
    roles: Roles = False,
    print_only: Print = False,
    dry_run: DryRun = False,
    lock_timeout: LockTimeout = "3s",
    give_up_after: GiveUp = "5min",
) -> None:
    """Create the schema, or upgrade it.

    Run it before anything else, and after each upgrade of the package. It is safe to repeat, also while producers and
    consumers run; concurrent calls wait for one another. It also creates the archive's partitions of the next days, as
    `sqlqueue maintain` does.

    Examples: sqlqueue migrate

    sqlqueue migrate --roles

    sqlqueue migrate --dry-run
    """
    from dagster_sqlqueue.schema import migrations

    if print_only:
        _print_roles(session, roles)
        return
    from dagster_sqlqueue.schema.lock_waits import LockWaits

    waits = LockWaits(
        options.seconds("--lock-timeout", lock_timeout),
        options.seconds("--give-up-after", give_up_after),
        notify=render.note,
    )
    with session.queue(checked=False) as queue:
        if dry_run:
            _print_pending(session, migrations.pending(queue.database), queue.database, roles)
            return
        applied = queue.migrate(waits)
        version = migrations.check(queue.database)
        installed = queue.install_roles() if roles else []
        schema = queue.database.schema
        if session.as_json:
            names = [{"version": m.version, "name": m.name} for m in applied]
            found = {"schema": schema, "version": version, "applied": names}
            render.emit_json({**found, "roles": [asdict(role) for role in installed]} if roles else found)
            return
        for migration in applied:
            render.say(f"applied {migration.version:04}_{migration.name}")
        done = "is ready" if applied else "was up to date"
        render.say(f"schema {schema} of {queue.database.where} {done}, at version {version}")
        for role in installed:
            members = f"; its members: {', '.join(role.members)}" if role.members else ""
            render.say(f"role {role.name} {'was created' if role.made else 'exists'} and has its privileges{members}")


def _print_pending(session: Session, pending: "list[Migration]", database: "Database", roles: bool) -> None:
    from dagster_sqlqueue.db.statements import in_schema
    from dagster_sqlqueue.schema.migration_files import LOCK_MODES
    from dagster_sqlqueue.schema.roles import script_for_dba

    if session.as_json:
        found = [
            {
                "version": migration.version,
                "name": migration.name,
                "transaction": migration.transactional,
                "serves_from": migration.serves_from,
                "locks": [{**lock._asdict(), "stops": LOCK_MODES[lock.mode]} for lock in migration.locks],
                "sql": in_schema(migration.text, database.schema),
            }
            for migration in pending
        ]
        shown: dict[str, object] = {"schema": database.schema, "pending": found}
        render.emit_json({**shown, "roles_sql": script_for_dba(database.schema)} if roles else shown)
        return
    render.say(
        f"schema {database.schema} of {database.where}: migrations to apply: {len(pending)}; nothing was changed"
    )
    for migration in pending:
        how = "in a transaction" if migration.transactional else "outside of a transaction, CONCURRENTLY"
        render.say(f"{migration.label}: {how}")
        render.say(f"  serves code from version {migration.serves_from} on")
        for lock in migration.locks:
            render.say(f"  locks {lock.table}: {lock.mode}")
            render.say(f"    blocks: {LOCK_MODES[lock.mode]}")
        if not migration.locks:
            render.say("  locks no existing table")
        render.say(f"  SQL: {migration.place}")
    if roles:
        render.say("afterwards the roles are created, or granted what they lack; SQL: sqlqueue migrate --roles --print")


def _print_roles(session: Session, roles: bool) -> None:
    if not roles:
        raise InvalidInput("--print was given without --roles; it prints the SQL that creates the roles")
    from dagster_sqlqueue.schema.roles import script_for_dba

    script = script_for_dba(session.schema_name)
    if session.as_json:
        render.emit_json({"schema": session.schema_name, "sql": script})
    else:
        render.say(script.rstrip())
