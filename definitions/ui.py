"""`make ui`: the demo's deployment in the Dagster UI, sensors on, until Ctrl-C."""

import os
import signal
import socket
import sys

from rich.console import Console
from rich.markup import escape

from dagster_sqlqueue.errors import InvalidInput, QueueError
from definitions.flights import parse_range


def main() -> int:
    """Serve the UI on SQLQUEUE_UI_PORT (3000)."""
    console = Console()
    for sign in (signal.SIGINT, signal.SIGTERM):
        signal.signal(sign, signal.default_int_handler)
    try:
        port = _port()
        parse_range(os.environ.get("FLIGHTS"))
        # The code locations read FLIGHTS when they are imported: import them after it has been checked.
        from definitions.deployment import WORKSPACE, deployment, running

        with (
            deployment() as at,
            running(["dg", "dev", "-w", str(WORKSPACE), "-p", str(port)], at.environment) as ui,
        ):
            console.print(
                f"The Dagster UI will be at [bold]http://127.0.0.1:{port}[/]; Ctrl-C ends it.", highlight=False
            )
            return ui.wait()
    except KeyboardInterrupt:
        return 0
    except QueueError as error:
        console.print(f"[red]error:[/] {escape(str(error))}", highlight=False, soft_wrap=True)
        return 1


def _port() -> int:
    text = os.environ.get("SQLQUEUE_UI_PORT", "3000")
    if not text.isdecimal() or not 1 <= int(text) <= 65535:
        raise InvalidInput(f"SQLQUEUE_UI_PORT is {text!r}; it must be a port number, 1 to 65535")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", int(text)))
        except OSError as error:
            raise InvalidInput(
                f"port {text} cannot be used for the UI: {error.strerror}. Set SQLQUEUE_UI_PORT to a free one"
            ) from None
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
