"""`sqlqueue work`: consumers outside of Dagster."""

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from dagster_sqlqueue.cli.commands.metrics import ADDRESS, metrics_package
from dagster_sqlqueue.cli.exit_codes import Code
from dagster_sqlqueue.cli.input import options
from dagster_sqlqueue.cli.output.worker_log import DEFAULT_EVERY_SECONDS, Progress, log, screen
from dagster_sqlqueue.cli.session import Session, command
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.model.job import Mode
from dagster_sqlqueue.worker.handlers import QueueHandler, load, look_here
from dagster_sqlqueue.worker.shutdown import GRACE_SECONDS, CutOff, Signals, Stopper

if TYPE_CHECKING:
    from dagster_sqlqueue.queue import SqlQueue
    from dagster_sqlqueue.worker.stats import Figures
    from dagster_sqlqueue.worker.supervisor import Assignment
    from dagster_sqlqueue.worker.worker import WorkOptions

_SHORTEST_SECONDS = 0.1
_METRICS = "Metrics"

Scraped: TypeAlias = "Callable[[Callable[[], list[Figures]], Progress], AbstractContextManager[None]]"
"""Serves the figures of a worker while a block runs."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app)(work)


def work(
    session: Session,
    handlers: Annotated[
        list[str],
        typer.Argument(
            metavar="MODULE:HANDLER[=WEIGHT]",
            help="Functions that were bound to their queues with @handles(spec), or Dagster's queue_consumers. Several"
            " take turns, each with its share of the jobs by weight, 1 unless it is given.",
        ),
    ],
    batch: Annotated[
        str | None,
        typer.Option(
            metavar="N",
            show_default=False,
            help="Jobs for each claim, 1 to 10000. Default: as many as are handled in a tenth of a second, 1 to 1000; 100 in"
            " transactional mode.",
        ),
    ] = None,
    mode: Annotated[
        str,
        typer.Option(
            metavar="MODE",
            show_default=False,
            help="leased (the default), or transactional: each batch in one transaction, for quick handlers.",
        ),
    ] = Mode.LEASED.value,
    lease: Annotated[
        str | None,
        typer.Option(metavar="TIME", show_default=False, help="How long a claim holds, instead of the queue's lease."),
    ] = None,
    processes: Annotated[
        str | None,
        typer.Option(
            metavar="N",
            show_default=False,
            help="So many processes, each replaced when it dies. Without it, this process works by itself.",
        ),
    ] = None,
    drain: Annotated[
        bool, typer.Option("--drain", show_default=False, help="End when nothing is due any more.")
    ] = False,
    budget: Annotated[
        str | None,
        typer.Option(metavar="TIME", show_default=False, help="Begin no new batch after that long, and end."),
    ] = None,
    drain_timeout: Annotated[
        str,
        typer.Option(
            metavar="TIME",
            show_default=False,
            help="How long jobs that run may take to finish once this is to stop, or none for no limit. Default: 30.",
        ),
    ] = "30",
    grace: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            show_default=False,
            help="How long a handler that was interrupted may take to leave, before its process ends without it."
            f" Default: {GRACE_SECONDS:g}.",
        ),
    ] = None,
    no_maintain: Annotated[
        bool,
        typer.Option(
            "--no-maintain",
            show_default=False,
            help="Never maintain the schema: else this worker does so, beside its work, when that is due.",
        ),
    ] = False,
    no_create: Annotated[
        bool,
        typer.Option(
            "--no-create",
            show_default=False,
            help="Refuse to begin if a queue does not exist. Without it, it is created as the code declares it; an"
            " existing one is never changed.",
        ),
    ] = False,
    every: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            show_default=False,
            help=f"The time between two lines of figures. Default: {DEFAULT_EVERY_SECONDS:g}; in a terminal 1.",
        ),
    ] = None,
    metrics_port: Annotated[
        str | None,
        typer.Option(
            metavar="N",
            show_default=False,
            rich_help_panel=_METRICS,
            help="Serve what this worker does to Prometheus on this port; 0 takes a free one. It needs"
            " prometheus_client, which the package's extra `metrics` brings.",
        ),
    ] = None,
    metrics_address: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            show_default=False,
            rich_help_panel=_METRICS,
            help=f"Of the interface to listen on. Default: {ADDRESS}, which only this machine reaches.",
        ),
    ] = None,
) -> None:
    """Run a consumer with your functions as handlers, until stopped: for systemd, a container, or a terminal.

    SIGTERM or Ctrl-C: jobs that run are finished, those that were claimed and not begun are given back at once, exit code
    0. When the drain time-out is over, or with a second signal, running handlers are interrupted and their jobs given
    back, exit code 7. Jobs of a process that was killed are due again when their leases end. It waits for a
    database that becomes unavailable.

    In a terminal the figures are drawn anew; else each line stands by itself, with --json as a JSON object.

    Examples: sqlqueue work handlers:send_email

    sqlqueue work handlers:send_email=3 handlers:write_report=1 --processes 4

    sqlqueue work handlers:send_email --drain --mode transactional

    sqlqueue work handlers:send_email --metrics-port 9188
    """
    from dagster_sqlqueue.consumer.start import ensure_queue
    from dagster_sqlqueue.worker.supervisor import Assignment
    from dagster_sqlqueue.worker.worker import POOL_SIZE, WorkOptions, check_handlers

    chosen = WorkOptions(
        batch_size=None if batch is None else options.whole("--batch", batch),
        mode=_mode(mode),
        lease_seconds=None if lease is None else options.seconds("--lease", lease),
        drain=drain,
        budget_seconds=None if budget is None else options.seconds("--budget", budget),
        drain_timeout_seconds=options.removable("--drain-timeout", drain_timeout, 30.0, options.seconds),
        grace_seconds=options.kept("--grace", grace, GRACE_SECONDS, options.seconds),
        maintain=not no_maintain,
    )
    count = None if processes is None else options.whole("--processes", processes)
    if count is not None and count < 1:
        raise InvalidInput(f"--processes is {count}; it must be at least 1")
    pause = None if every is None else options.seconds("--every", every)
    if pause is not None and pause < _SHORTEST_SECONDS:
        raise InvalidInput(f"--every is {every!r}; it must be at least {_SHORTEST_SECONDS:g} seconds")
    if metrics_port is None and metrics_address is not None:
        raise InvalidInput("--metrics-address was given without --metrics-port: name the port to listen on")
    scraped = _scraped(
        None if metrics_port is None else options.whole("--metrics-port", metrics_port), metrics_address or ADDRESS
    )
    look_here()
    named = [_weighted(text) for text in handlers]
    loaded = [(load(reference), weight) for reference, weight in named]
    check_handlers(loaded)
    with session.queue(pool_size=POOL_SIZE) as queue:
        for declared, _ in loaded:
            ensure_queue(queue, declared.spec, create=not no_create)
        show = screen if not session.as_json and sys.stdout.isatty() else log
        with Signals() as signals, show(queue, as_json=session.as_json, every_seconds=pause) as progress:
            if count is None:
                code = _work_here(queue, loaded, chosen, signals, progress, scraped)
            else:
                url = queue.database.url
                assignment = Assignment(url, queue.database.schema, tuple(named), chosen)
                code = _supervise(assignment, count, signals, progress, scraped)
            progress.tell("stopped", exit_code=code)
    if code:
        raise typer.Exit(code)


def _work_here(
    queue: "SqlQueue",
    handlers: "list[tuple[QueueHandler[Any], float]]",
    chosen: "WorkOptions",
    signals: Signals,
    progress: Progress,
    scraped: Scraped,
) -> int:
    from dagster_sqlqueue.worker.worker import Resident

    resident = Resident(queue, handlers, chosen, signals=signals, tell=progress.tell)
    stopper = Stopper(
        resident,
        signals,
        drain_timeout_seconds=chosen.drain_timeout_seconds,
        grace_seconds=chosen.grace_seconds,
        told=lambda word: progress.tell(word.replace(" ", "_")),
    )
    try:
        with scraped(resident.figures, progress), progress.of(resident.figures), stopper:
            resident.run()
    except CutOff:
        return Code.CUT_OFF
    return Code.DONE


def _supervise(assignment: "Assignment", count: int, signals: Signals, progress: Progress, scraped: Scraped) -> int:
    from dagster_sqlqueue.worker.supervisor import Supervisor

    supervisor = Supervisor(assignment, count, signals=signals, tell=progress.tell)
    with scraped(supervisor.figures, progress), progress.of(supervisor.figures):
        return supervisor.run()


def _scraped(port: int | None, address: str) -> Scraped:
    """What serves the figures of a worker while it works; does nothing where no port is wanted.

    Raises:
        InvalidInput: the extra for metrics is not installed.
    """
    if port is None:
        return lambda figures, progress: nullcontext()
    package = metrics_package()
    from prometheus_client import CollectorRegistry

    @contextmanager
    def serving(figures: "Callable[[], list[Figures]]", progress: Progress) -> Iterator[None]:
        registry = CollectorRegistry()
        registry.register(package.WorkerCollector(figures))
        with package.serve(registry, port=port, address=address) as listening:
            progress.tell("metrics", address=f"[{address}]" if ":" in address else address, port=listening)
            yield

    return serving


def _mode(text: str) -> Mode:
    if text not in list(Mode):
        raise InvalidInput(f"--mode is {text!r}; it must be {' or '.join(Mode)}")
    return Mode(text)


def _weighted(text: str) -> tuple[str, float]:
    reference, equals, weight = text.partition("=")
    if not equals:
        return reference, 1.0
    try:
        value = float(weight)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise InvalidInput(f"the weight of handler {reference!r} is {weight!r}; it must be a positive number")
    return reference, value
