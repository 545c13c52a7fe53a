"""The commands that prepare: `init`, `create`."""

import math
from dataclasses import asdict
from typing import Annotated, Any, TypeVar

import typer

from dagster_sqlqueue import migrations
from dagster_sqlqueue.cli import render
from dagster_sqlqueue.cli.session import Session, command
from dagster_sqlqueue.cli.write import AnyObject
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.settings import Backoff, QueueSettings, QueueSpec, check_queue_name

_LARGEST = 2**31 - 1
_NEW = QueueSpec("new", AnyObject)

Number = TypeVar("Number", int, float)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    command(app)(init)
    command(app)(create)


def init(session: Session) -> None:
    """Make the tables, or bring them up to date. Safe to run again.

    Run it once before anything else, again after each upgrade of the package, and from time to time: it also makes the
    archive's partitions for the coming days.
    """
    with session.queue(checked=False) as queue:
        applied = queue.init()
        version = migrations.check(queue.database)
        schema = queue.database.schema
        if session.as_json:
            names = [{"version": m.version, "name": m.name} for m in applied]
            render.emit_json({"schema": schema, "version": version, "applied": names})
            return
        for migration in applied:
            render.say(f"applied {migration.version:04}_{migration.name}")
        done = "is ready" if applied else "was up to date"
        render.say(f"schema {schema} of {queue.database.where} {done}, at version {version}")


def create(
    session: Session,
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Lower-case letters, digits and _, beginning with a letter.")
    ],
    buckets: Annotated[
        int | None,
        typer.Option(
            show_default=False,
            help="Independent lanes, 1 to 1024: so many consumers work without meeting each other."
            f" Default: {_NEW.bucket_count}.",
        ),
    ] = None,
    lease: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            show_default=False,
            help=f"How long a claim holds when its consumer falls silent. Default: {_NEW.lease_seconds:g}.",
        ),
    ] = None,
    max_attempts: Annotated[
        int | None,
        typer.Option(
            show_default=False, help=f"Runs a job gets before it becomes a dead letter. Default: {_NEW.max_attempts}."
        ),
    ] = None,
    backoff: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            show_default=False,
            help=f"The wait after the first failed attempt. Default: {_NEW.backoff.seconds:g}.",
        ),
    ] = None,
    backoff_factor: Annotated[
        float | None,
        typer.Option(
            metavar="FACTOR",
            show_default=False,
            help=f"Each further wait is so many times longer; 1 for a fixed wait. Default: {_NEW.backoff.factor:g}.",
        ),
    ] = None,
    backoff_max: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS", show_default=False, help=f"The longest wait. Default: {_NEW.backoff.max_seconds:g}."
        ),
    ] = None,
) -> None:
    """Make a queue, or change the settings of one.

    Of a queue that exists, what is not named here stays, and so does its number of buckets in any case.

    Example: sqlqueue create orders --lease 30 --max-attempts 3
    """
    check_queue_name(name)
    with session.queue() as queue:
        before = next((known for known in queue.queues() if known.name == name), None)
        old: QueueSettings | QueueSpec[AnyObject] = before or _NEW
        pause = old.backoff if isinstance(old.backoff, Backoff) else Backoff()
        spec = QueueSpec(
            name,
            AnyObject,
            bucket_count=_finite("--buckets", buckets, old.bucket_count),
            lease_seconds=_finite("--lease", lease, old.lease_seconds),
            max_attempts=_finite("--max-attempts", max_attempts, old.max_attempts),
            backoff=Backoff(
                _finite("--backoff", backoff, pause.seconds),
                _finite("--backoff-factor", backoff_factor, pause.factor),
                _finite("--backoff-max", backoff_max, pause.max_seconds),
                pause.jitter,
            ),
            strategy=old.strategy,
            ordered=old.ordered,
            on_poison=old.on_poison,
            timeout_seconds=old.timeout_seconds,
            max_running=old.max_running,
            max_running_per_key=old.max_running_per_key,
            rate=old.rate,
            retention_days=old.retention_days,
        )
        settings = queue.create_queue(spec)
    if session.as_json:
        render.emit_json(_flat(settings))
        return
    render.say(
        f"queue {settings.name} {'is as follows' if before else 'was made'}: {settings.bucket_count} buckets,"
        f" lease {settings.lease_seconds:g} s, {settings.max_attempts} attempts, backoff {settings.backoff.seconds:g} s"
        f" × {settings.backoff.factor:g} up to {settings.backoff.max_seconds:g} s"
    )
    if buckets not in (None, settings.bucket_count):
        render.say(
            f"(an existing queue keeps its {settings.bucket_count} buckets; --buckets {buckets} was not applied)"
        )


def _finite(option: str, given: Number | None, default: Number) -> Number:
    if given is not None and not (math.isfinite(given) and abs(given) <= _LARGEST):
        raise InvalidInput(f"{option} is {given}; it must be a finite number, at most {_LARGEST:,}")
    return default if given is None else given


def _flat(settings: QueueSettings) -> dict[str, Any]:
    values = asdict(settings)
    backoff = values.pop("backoff")
    return {**values, **{f"backoff_{name}": backoff[name] for name in ("seconds", "factor", "max_seconds")}}
