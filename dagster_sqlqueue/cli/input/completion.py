"""Complete names of queues in the shell, beside those of commands and options."""

import contextlib

import typer

from dagster_sqlqueue.cli.session import Session

_CONNECT_SECONDS = 2


def queue_names(context: typer.Context, incomplete: str) -> list[str]:
    """Return the queues whose names begin so; none where the database cannot be asked.

    The line that is being written must not be disturbed: no error is shown, and no server is started.
    """
    written = [inner.params for inner in (context, context.find_root())]
    url, schema = (next((found[name] for found in written if found.get(name)), None) for name in ("url", "schema"))
    session = Session(url, schema)
    with contextlib.suppress(Exception):
        if session.reachable():
            with session.queue(checked=False, pool_size=1, connect_timeout=_CONNECT_SECONDS) as source:
                return [queue.name for queue in source.queues() if queue.name.startswith(incomplete)]
    return []
