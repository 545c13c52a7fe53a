"""The commands that set up the schema and the queues: `migrate`, `create`, `queues`."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dagster_sqlqueue import display
from dagster_sqlqueue.cli.commands.enqueue import AnyObject
from dagster_sqlqueue.cli.input import options
from dagster_sqlqueue.cli.input.options import OneQueue
from dagster_sqlqueue.cli.output import render, views
from dagster_sqlqueue.cli.session import Session, command
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.model.backoff import Backoff
from dagster_sqlqueue.model.queue import QueueSettings, QueueSpec, check_queue_name
from dagster_sqlqueue.worker.handlers import load_spec, look_here

if TYPE_CHECKING:
    from dagster_sqlqueue.db.database import Database
    from dagster_sqlqueue.queue import SqlQueue
    from dagster_sqlqueue.schema.migrations import Migration

_NEW = QueueSpec("new", AnyObject)
_TRIES = "Leases and retries (TIME: seconds, or 500ms, 5m, 2h, 7d)"
_LIMITS = f"Limits ({options.NONE} removes one)"


def register(app: typer.Typer) -> None:
    """Add the commands."""
    command(app)(migrate)
    command(app)(create)
    command(app)(queues)


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
        " and where to read their SQL (with --json, the SQL itself).",
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
            _print_pending(session, migrations.pending(queue.database), queue.database)
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


def _print_pending(session: Session, pending: "list[Migration]", database: "Database") -> None:
    from dagster_sqlqueue.db.statements import in_schema
    from dagster_sqlqueue.schema.migration_files import LOCK_MODES

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
        render.emit_json({"schema": database.schema, "pending": found})
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


def _print_roles(session: Session, roles: bool) -> None:
    if not roles:
        raise InvalidInput("--print was given without --roles; it prints the SQL that creates the roles")
    from dagster_sqlqueue.schema.roles import script_for_dba

    script = script_for_dba(session.schema_name)
    if session.as_json:
        render.emit_json({"schema": session.schema_name, "sql": script})
    else:
        render.say(script.rstrip())


def _option(help_text: str, metavar: str, default: object = None, panel: str | None = None) -> Any:
    shown = f" Default: {default}." if default is not None else ""
    return typer.Option(metavar=metavar, show_default=False, help=help_text + shown, rich_help_panel=panel)


def create(
    session: Session,
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME|MODULE:SPEC",
            help="Name of the queue: 1 to 63 lower-case letters, digits and _, beginning with a letter. Or a QueueSpec"
            " of your code, or a handler bound to one: its settings are applied to the queue.",
        ),
    ],
    buckets: Annotated[
        str | None,
        _option(
            "Number of buckets, 1 to 1024: as many consumers can claim without meeting each other. Only for a new"
            " queue; see: sqlqueue rebucket.",
            "N",
            _NEW.bucket_count,
        ),
    ] = None,
    strategy: Annotated[
        str | None,
        _option(
            "How a claim chooses jobs. round_robin: one bucket after another. fifo: one order across all buckets."
            " fanout: from random points, for many consumers. assign: a manager assigns them. token: marked, then read;"
            " not for ordered or limited queues. Can be changed while consumers run.",
            "NAME",
            _NEW.strategy,
        ),
    ] = None,
    ordered: Annotated[
        bool,
        typer.Option(
            "--ordered",
            show_default=False,
            help="Run jobs with the same ordering key one at a time, in the order in which they were enqueued.",
        ),
    ] = False,
    unordered: Annotated[
        bool, typer.Option("--unordered", show_default=False, help="The opposite of --ordered; the default.")
    ] = False,
    on_poison: Annotated[
        str | None,
        _option(
            "What an ordered queue does when the first job of a key has failed permanently. dead_letter: the key"
            " continues without it. stop: the job is held, and the key stops.",
            "NAME",
            _NEW.on_poison,
        ),
    ] = None,
    retention_days: Annotated[
        str | None,
        _option("Number of days for which ended jobs are kept; 0: for ever.", "DAYS", _NEW.retention_days),
    ] = None,
    lease: Annotated[
        str | None,
        _option("How long a claim lasts without a heartbeat.", "TIME", f"{_NEW.lease_seconds:g}", _TRIES),
    ] = None,
    timeout: Annotated[
        str | None,
        _option(
            f"How long a job may run before its lease is no longer extended; {options.NONE}: what the consumer sets.",
            "TIME",
            options.NONE,
            _TRIES,
        ),
    ] = None,
    max_attempts: Annotated[
        str | None, _option("Attempts of a job before it becomes a dead letter.", "N", _NEW.max_attempts, _TRIES)
    ] = None,
    backoff: Annotated[
        str | None, _option("Backoff after the first failed attempt.", "TIME", f"{Backoff().seconds:g}", _TRIES)
    ] = None,
    backoff_factor: Annotated[
        float | None,
        _option(
            "Factor by which each further backoff is longer; 1 for a fixed backoff.",
            "X",
            f"{Backoff().factor:g}",
            _TRIES,
        ),
    ] = None,
    backoff_max: Annotated[
        str | None, _option("Longest backoff.", "TIME", f"{Backoff().max_seconds:g}", _TRIES)
    ] = None,
    backoff_jitter: Annotated[
        float | None,
        _option("Random share of each backoff, 0 to 1.", "X", f"{Backoff().jitter:g}", _TRIES),
    ] = None,
    max_running: Annotated[
        str | None,
        _option("Maximum number of jobs of the queue that run at the same time.", "N", options.NONE, _LIMITS),
    ] = None,
    max_running_per_key: Annotated[
        str | None,
        _option("Maximum number of jobs of one ordering key that run at the same time.", "N", options.NONE, _LIMITS),
    ] = None,
    rate: Annotated[
        str | None,
        _option(
            "Maximum number of jobs claimed within any interval: 100/60s, 5/s, 1000/h.", "N/TIME", options.NONE, _LIMITS
        ),
    ] = None,
) -> None:
    """Create a queue, or change the settings of an existing one while it runs.

    Settings of an existing queue that are not given stay as they are, and its number of buckets always does. A QueueSpec
    sets all of them, except the number of buckets of an existing queue.

    Examples: sqlqueue create handlers:emails

    sqlqueue create orders --lease 30 --max-attempts 3

    sqlqueue create mails --rate 100/60s --max-running 8 --retention-days 90
    """
    if ":" in name:
        texts = (buckets, strategy, on_poison, retention_days, lease, timeout, max_attempts, backoff, backoff_max)
        limits = (max_running, max_running_per_key, rate)
        if ordered or unordered or any(said is not None for said in (*texts, *limits, backoff_factor, backoff_jitter)):
            raise InvalidInput(f"options cannot be combined with {name}; set them in the code")
        look_here()
        spec = load_spec(name)
        with session.queue() as queue:
            _create(session, queue, spec, _found(queue, spec.name), buckets_named=True)
        return
    check_queue_name(name)
    if ordered and unordered:
        raise InvalidInput("--ordered and --unordered were both given; give one of them")
    with session.queue() as queue:
        before = _found(queue, name)
        old: QueueSettings | QueueSpec[AnyObject] = before or _NEW
        pause = old.backoff if isinstance(old.backoff, Backoff) else Backoff()
        changed = QueueSpec(
            name,
            AnyObject,
            bucket_count=options.kept("--buckets", buckets, old.bucket_count, options.whole),
            lease_seconds=options.kept("--lease", lease, old.lease_seconds, options.seconds),
            max_attempts=options.kept("--max-attempts", max_attempts, old.max_attempts, options.whole),
            backoff=Backoff(
                options.kept("--backoff", backoff, pause.seconds, options.seconds),
                pause.factor if backoff_factor is None else backoff_factor,
                options.kept("--backoff-max", backoff_max, pause.max_seconds, options.seconds),
                pause.jitter if backoff_jitter is None else backoff_jitter,
            ),
            strategy=strategy or old.strategy,
            ordered=(old.ordered or ordered) and not unordered,
            on_poison=on_poison or old.on_poison,
            timeout_seconds=options.removable("--timeout", timeout, old.timeout_seconds, options.seconds),
            max_running=options.removable("--max-running", max_running, old.max_running, options.whole),
            max_running_per_key=options.removable(
                "--max-running-per-key", max_running_per_key, old.max_running_per_key, options.whole
            ),
            rate=options.removable("--rate", rate, old.rate, options.rate),
            retention_days=options.kept("--retention-days", retention_days, old.retention_days, options.whole),
        )
        _create(session, queue, changed, before, buckets_named=buckets is not None)


def _found(queue: "SqlQueue", name: str) -> QueueSettings | None:
    return next((known for known in queue.queues() if known.name == name), None)


def _create(
    session: Session, queue: "SqlQueue", spec: QueueSpec[Any], before: QueueSettings | None, *, buckets_named: bool
) -> None:
    settings = queue.create_queue(spec)
    if session.as_json:
        render.emit_json(views.settings_json(settings))
        return
    changed = "was changed" if before and settings.revision != before.revision else "is unchanged"
    render.say(f"queue {spec.name} {changed if before else 'was created'}")
    render.pairs(views.settings_rows(settings))
    if before and buckets_named and spec.bucket_count != settings.bucket_count:
        render.say(
            f"(an existing queue keeps its {settings.bucket_count} buckets; change them with: sqlqueue rebucket {spec.name}"
            f" {spec.bucket_count})"
        )


def queues(
    session: Session,
    queue: OneQueue = None,
) -> None:
    """List the queues and their settings.

    Examples: sqlqueue queues

    sqlqueue queues orders
    """
    with session.queue() as source:
        found = [source.settings(queue)] if queue else source.queues()
    if session.as_json:
        render.emit_json([views.settings_json(settings) for settings in found])
        return
    if not found:
        render.say("there is no queue yet; create one with: sqlqueue create NAME")
    elif queue:
        render.say(f"queue {queue}")
        render.pairs(views.settings_rows(found[0]))
    else:
        render.table(
            ["queue", "buckets", "strategy", "order", "lease", "attempts", "limits", "kept", "paused"],
            [
                [
                    settings.name,
                    settings.bucket_count,
                    settings.strategy,
                    "ordered" if settings.ordered else "–",
                    views.length(settings.lease_seconds),
                    settings.max_attempts,
                    views.limits(settings) or "–",
                    f"{settings.retention_days} days" if settings.retention_days else "for ever",
                    display.span(settings.paused_at, settings.paused_until) if settings.paused_at else "–",
                ]
                for settings in found
            ],
            right=["buckets", "attempts"],
        )
