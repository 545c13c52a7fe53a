"""The commands that create, change and list queues: `create`, `queues`."""

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
from dagster_sqlqueue.worker.handlers import import_from_working_directory, load_spec

if TYPE_CHECKING:
    from dagster_sqlqueue.queue import SqlQueue

_NEW = QueueSpec("new", AnyObject)
_TRIES = "Leases and retries (TIME: seconds, or 500ms, 5m, 2h, 7d)"
_LIMITS = f"Limits ({options.NONE} removes one)"


def register(app: typer.Typer) -> None:
    """Add the commands."""
    command(app)(create)
    command(app)(queues)


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
            f"How long a job may run before its lease is no longer extended; {options.NONE}: ten leases,"
            " unless the consumer sets another time.",
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
        import_from_working_directory()
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
