"""Complete queue names in the shell, in addition to commands and options."""

import contextlib

import typer

from dagster_sqlqueue.cli.session import Session

_CONNECT_SECONDS = 2


def queue_names(context: typer.Context, incomplete: str) -> list[str]:
    """Return the names of queues that begin with the text; none if the database cannot be reached.

    The line that is being typed must not be disturbed: no error is shown, and no server is started.
    """
    written = [inner.params for inner in (context, context.find_root())]
    url, schema = (next((found[name] for found in written if found.get(name)), None) for name in ("url", "schema"))
    session = Session(url, schema)
    with contextlib.suppress(Exception):
        if session.reachable():
            with session.queue(checked=False, pool_size=1, connect_timeout=_CONNECT_SECONDS) as source:
                return [queue.name for queue in source.queues() if queue.name.startswith(incomplete)]
    return []
