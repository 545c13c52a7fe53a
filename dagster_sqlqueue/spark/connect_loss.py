"""The loss of a Spark Connect server in the middle of a block: how long to wait for it, and the error that names it."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyspark.errors import PySparkException

from dagster_sqlqueue.errors import SparkUnavailable

_MOST_BETWEEN = 2_000
"""Milliseconds between two attempts to reach the server."""


def wait_for_server(session: Any, seconds: float) -> None:
    """Set how long a session's client waits for a server that does not answer; PySpark itself waits ten minutes.

    Args:
        session: of a Connect server.
        seconds: for each call; 0: do not wait.
    """
    from pyspark.sql.connect.client.retries import DefaultPolicy, RetryPolicy, RetryPolicyState

    class Waiting(RetryPolicyState):
        """Counts by the clock, not by attempts."""

        def __init__(self, policy: RetryPolicy) -> None:
            super().__init__(policy)
            self._until: float | None = None

        def next_attempt(self, exception: BaseException | None = None) -> int | None:
            self._until = self._until or time.monotonic() + seconds
            return None if time.monotonic() >= self._until else super().next_attempt(exception)

    class Policy(DefaultPolicy):
        def to_state(self) -> RetryPolicyState:
            return Waiting(self)

    session.client.set_retry_policies([Policy(max_retries=None, max_backoff=_MOST_BETWEEN)])


@contextmanager
def losses_named(session: Any, where: str) -> Iterator[None]:
    """Turn errors of the block that come from the loss of a Connect server into one that says so.

    Args:
        session: the session that the block uses, of whatever kind.
        where: the server's address, for the message.

    Raises:
        SparkUnavailable: the server was lost, or another one that does not know the session has taken its place.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, SparkUnavailable) or (reason := _loss(error)) is None:
            raise
        # Further calls of that session, such as its end, do not wait again.
        wait_for_server(session, 0)
        raise SparkUnavailable(
            f"Spark Connect at {where} went away in the middle ({reason}), and the session with it. Its log, and that of the"
            " machine it ran on, say why: often its memory. Start it again (sbin/start-connect-server.sh of Spark), and run"
            " this again: what was published is kept, everything else is done anew"
        ) from error


def _loss(error: BaseException | None) -> str | None:
    """Return what an error, or one that it came from, says about a lost server."""
    grpc = sys.modules.get("grpc")
    while error is not None:
        status, detail = "", ""
        if isinstance(error, PySparkException):
            status = getattr(getattr(error, "getGrpcStatusCode", lambda: None)(), "name", "")
            detail = error.getCondition() or ""
        elif grpc is not None and isinstance(error, grpc.RpcError):
            status = getattr(getattr(error, "code", lambda: None)(), "name", "")
            detail = getattr(error, "details", lambda: "")() or ""
        if "INVALID_HANDLE.SESSION_" in detail:
            return "the server does not know the session: it was restarted, or has ended it"
        if status == "UNAVAILABLE":
            return "it does not answer any more"
        # PySpark raises an error of its own while it handles the server's.
        error = error.__cause__ or error.__context__
    return None
