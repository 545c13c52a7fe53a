"""`sqlqueue metrics`: the statistics of the queues for Prometheus, served until stopped, or printed once."""

import json
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Annotated, Any

import typer

from dagster_sqlqueue import display
from dagster_sqlqueue.cli.exit_codes import Code
from dagster_sqlqueue.cli.input import options
from dagster_sqlqueue.cli.output import render
from dagster_sqlqueue.cli.session import Session, command
from dagster_sqlqueue.errors import InvalidInput

_PORT = 9187
ADDRESS = "127.0.0.1"
_CONNECT_SECONDS = 5
"""Less than the ten seconds after which Prometheus abandons a scrape."""
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app)(metrics)


def metrics(
    session: Session,
    port: Annotated[
        str | None,
        typer.Option(metavar="N", show_default=False, help=f"Port to listen on; 0 for any free one. Default: {_PORT}."),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            show_default=False,
            help=f"Address to listen on. Default: {ADDRESS}, which only this machine can reach.",
        ),
    ] = None,
    once: Annotated[bool, typer.Option("--once", show_default=False, help="Print the metrics, then exit.")] = False,
) -> None:
    """Serve the statistics of `stats` to Prometheus, until SIGTERM or Ctrl-C.

    Each scrape queries the database. While it is unavailable, sqlqueue_up is 0 and the queues have no metrics; this is not
    an error, also with --once, and the reason is written to standard error. It needs prometheus_client, which the
    package's extra `metrics` installs.

    Examples: sqlqueue metrics --port 9187

    sqlqueue metrics --once
    """
    if once and (port is not None or address is not None):
        raise InvalidInput("--port and --address apply to serving, and --once was given")
    number = options.kept("--port", port, _PORT, options.whole)
    package = metrics_package()
    from prometheus_client import CollectorRegistry, generate_latest

    with session.queue(checked=False, pool_size=4, connect_timeout=_CONNECT_SECONDS) as source:
        registry = CollectorRegistry()
        registry.register(package.QueueCollector(source))
        if once:
            if session.as_json:
                render.emit_json(_families(registry))
            else:
                sys.stdout.write(generate_latest(registry).decode())
            return
        with _waiting() as received, package.serve(registry, port=number, address=address or ADDRESS) as listening:
            _report(session, address or ADDRESS, listening)
            if received() == signal.SIGINT:
                raise typer.Exit(Code.INTERRUPTED)


def metrics_package() -> ModuleType:
    """Return the package `metrics`, which needs an extra.

    Raises:
        InvalidInput: the extra is not installed.
    """
    try:
        from dagster_sqlqueue import metrics as package
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "prometheus_client":
            raise
        raise InvalidInput(str(error)) from None
    return package


def _families(registry: Any) -> list[dict[str, Any]]:
    return [
        {
            "name": family.name,
            "type": family.type,
            "unit": family.unit,
            "help": family.documentation,
            "samples": [{"labels": sample.labels, "value": sample.value} for sample in family.samples],
        }
        for family in registry.collect()
    ]


def _report(session: Session, address: str, port: int) -> None:
    if session.as_json:
        sys.stdout.write(json.dumps({"event": "listening", "address": address, "port": port}) + "\n")
    else:
        host = f"[{address}]" if ":" in address else address
        render.say(display.printable(f"metrics at http://{host}:{port}/metrics, until Ctrl-C"))
    sys.stdout.flush()


@contextmanager
def _waiting() -> Iterator[Any]:
    """Yield a function that waits for SIGTERM or SIGINT and returns the signal; threads started in the block get neither."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield lambda: signal.sigwait(_SIGNALS)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
