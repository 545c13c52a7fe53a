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
from dagster_sqlqueue.worker.handlers import QueueHandler, import_from_working_directory, load
from dagster_sqlqueue.worker.shutdown import GRACE_SECONDS, CutOff, Signals, Stopper, leave_soon

if TYPE_CHECKING:
    from dagster_sqlqueue.queue import SqlQueue
    from dagster_sqlqueue.worker.stats import WorkerStats
    from dagster_sqlqueue.worker.supervisor import Assignment
    from dagster_sqlqueue.worker.worker import WorkOptions

_SHORTEST_SECONDS = 0.1
_METRICS = "Metrics"

Scraped: TypeAlias = "Callable[[Callable[[], list[WorkerStats]], Progress], AbstractContextManager[None]]"
"""Serves the stats of a worker while a block runs."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app)(work)


def work(
    session: Session,
    handlers: Annotated[
        list[str],
        typer.Argument(
            metavar="MODULE:HANDLER[=WEIGHT]",
            help="Functions bound to their queues with @handles(spec), or Dagster's queue_consumers. Several take"
            " turns, each with a share of the jobs by its weight (default: 1); with a concurrency, or an async one among"
            " them, none waits for another.",
        ),
    ],
    batch: Annotated[
        str | None,
        typer.Option(
            metavar="N",
            show_default=False,
            help="Jobs per claim, 1 to 10000. Default: first 1, then as many as are handled in a tenth of a second, up to"
            " 500; in transactional mode, or with --concurrency, up to 100.",
        ),
    ] = None,
    concurrency: Annotated[
        str | None,
        typer.Option(
            metavar="N",
            show_default=False,
            help="Jobs that each handler handles at a time in each process, 1 to 1000: in as many threads, or, if it is"
            " async, on its event loop. A job is claimed only when it can begin. Default: as the handler declares it, else"
            " 1, or 100 for an async one.",
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
        typer.Option(
            metavar="TIME",
            show_default=False,
            help="How long a claim lasts without a heartbeat, instead of the queue's lease.",
        ),
    ] = None,
    processes: Annotated[
        str | None,
        typer.Option(
            metavar="N",
            show_default=False,
            help="Number of processes, 1 to 1000; one that dies is replaced. Default: only this process.",
        ),
    ] = None,
    drain: Annotated[
        bool, typer.Option("--drain", show_default=False, help="Exit when no job is due any more.")
    ] = False,
    budget: Annotated[
        str | None,
        typer.Option(metavar="TIME", show_default=False, help="Begin no new batch after this time, and exit."),
    ] = None,
    drain_timeout: Annotated[
        str,
        typer.Option(
            metavar="TIME",
            show_default=False,
            help="How long running jobs may take to finish after the first signal; none for no limit. Default: 30.",
        ),
    ] = "30",
    grace: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            show_default=False,
            help="How long an interrupted handler may take to end, before its process exits without it."
            f" Default: {GRACE_SECONDS:g}.",
        ),
    ] = None,
    no_maintain: Annotated[
        bool,
        typer.Option(
            "--no-maintain",
            show_default=False,
            help="Never run maintenance. Default: this worker runs it, beside its work, when it is due.",
        ),
    ] = False,
    no_create: Annotated[
        bool,
        typer.Option(
            "--no-create",
            show_default=False,
            help="Refuse to start if a queue does not exist. Default: create it as the code declares it; an existing"
            " queue is never changed.",
        ),
    ] = False,
    every: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            show_default=False,
            help=f"Time between two lines of stats. Default: {DEFAULT_EVERY_SECONDS:g}; in a terminal 1.",
        ),
    ] = None,
    metrics_port: Annotated[
        str | None,
        typer.Option(
            metavar="N",
            show_default=False,
            rich_help_panel=_METRICS,
            help="Serve the stats of this worker to Prometheus on this port; 0 for any free port. Needs"
            " prometheus_client, which the package's extra `metrics` installs.",
        ),
    ] = None,
    metrics_address: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            show_default=False,
            rich_help_panel=_METRICS,
            help=f"Address to listen on. Default: {ADDRESS}, which only this machine can reach.",
        ),
    ] = None,
) -> None:
    """Run consumers outside of Dagster, with your functions as handlers, until stopped.

    For systemd, a container, or a terminal. On SIGTERM or Ctrl-C, running jobs are finished, claimed jobs that have not
    begun are released at once, and the exit code is 0. After the drain time-out, or on a second signal, running handlers
    are interrupted and their jobs are released: exit code 7. With --concurrency, handlers in threads cannot be interrupted:
    job.cancelled is set, and the process exits without those that have not ended within the grace period. Jobs of a process
    that was killed are due again when their leases expire. If the database becomes unavailable, the worker waits for it
    (with --drain for a limited time).

    In a terminal, the stats are redrawn; elsewhere each line stands by itself, with --json as a JSON object.

    Examples: sqlqueue work handlers:send_email

    sqlqueue work handlers:send_email=3 handlers:write_report=1 --processes 4

    sqlqueue work handlers:send_email handlers:write_report --concurrency 20

    sqlqueue work handlers:send_email --drain --mode transactional

    sqlqueue work handlers:send_email --metrics-port 9188
    """
    from dagster_sqlqueue.consumer.start import ensure_queue
    from dagster_sqlqueue.worker.supervisor import MOST_PROCESSES, Assignment
    from dagster_sqlqueue.worker.worker import WorkOptions, check_handlers, pool_size

    chosen = WorkOptions(
        batch_size=None if batch is None else options.whole("--batch", batch),
        concurrency=None if concurrency is None else options.whole("--concurrency", concurrency),
        mode=_mode(mode),
        lease_seconds=None if lease is None else options.seconds("--lease", lease),
        drain=drain,
        budget_seconds=None if budget is None else options.seconds("--budget", budget),
        drain_timeout_seconds=options.removable("--drain-timeout", drain_timeout, 30.0, options.seconds),
        grace_seconds=options.kept("--grace", grace, GRACE_SECONDS, options.seconds),
        maintain=not no_maintain,
    )
    count = None if processes is None else options.whole("--processes", processes)
    if count is not None and not 1 <= count <= MOST_PROCESSES:
        raise InvalidInput(f"--processes is {count}; it must be 1 to {MOST_PROCESSES:,}")
    pause = None if every is None else options.seconds("--every", every)
    if pause is not None and pause < _SHORTEST_SECONDS:
        raise InvalidInput(f"--every is {every!r}; it must be at least {_SHORTEST_SECONDS:g} seconds")
    if metrics_port is None and metrics_address is not None:
        raise InvalidInput("--metrics-address was given without --metrics-port: name the port to listen on")
    scraped = _scraped(
        None if metrics_port is None else options.whole("--metrics-port", metrics_port), metrics_address or ADDRESS
    )
    import_from_working_directory()
    named = [_weighted(text) for text in handlers]
    loaded = [(load(reference), weight) for reference, weight in named]
    check_handlers(loaded, chosen)
    with session.queue(pool_size=pool_size(loaded, chosen)) as queue:
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
            progress.report("stopped", exit_code=code)
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
    from dagster_sqlqueue.worker.worker import Worker

    worker = Worker(queue, handlers, chosen, signals=signals, report=progress.report)
    stopper = Stopper(
        worker,
        signals,
        drain_timeout_seconds=chosen.drain_timeout_seconds,
        grace_seconds=chosen.grace_seconds,
        notify=lambda word: progress.report(word.replace(" ", "_")),
    )
    try:
        with scraped(worker.stats, progress), progress.of(worker.stats), stopper:
            worker.run()
    except CutOff:
        leave_soon(chosen.grace_seconds)
        return Code.CUT_OFF
    return Code.DONE


def _supervise(assignment: "Assignment", count: int, signals: Signals, progress: Progress, scraped: Scraped) -> int:
    from dagster_sqlqueue.worker.supervisor import Supervisor

    supervisor = Supervisor(assignment, count, signals=signals, report=progress.report)
    with scraped(supervisor.stats, progress), progress.of(supervisor.stats):
        return supervisor.run()


def _scraped(port: int | None, address: str) -> Scraped:
    """Return what serves the stats of a worker while it works; it does nothing if no port is given.

    Raises:
        InvalidInput: the extra for metrics is not installed.
    """
    if port is None:
        return lambda stats, progress: nullcontext()
    package = metrics_package()
    from prometheus_client import CollectorRegistry

    @contextmanager
    def serving(stats: "Callable[[], list[WorkerStats]]", progress: Progress) -> Iterator[None]:
        registry = CollectorRegistry()
        registry.register(package.WorkerCollector(stats))
        with package.serve(registry, port=port, address=address) as listening:
            progress.report("metrics", address=f"[{address}]" if ":" in address else address, port=listening)
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
