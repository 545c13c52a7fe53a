"""A Spark Connect server that goes away in the middle: how long it is waited for, and the error that then names it."""

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
    """Have a session's client wait so long for a server that does not answer; PySpark itself waits ten minutes.

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
    """Errors of the block that come from a Connect server that is gone become one that says so.

    Args:
        session: the session that the block uses, of whatever kind.
        where: the server's address, for the message.

    Raises:
        SparkUnavailable: the server is gone, or another one that does not know the session has come in its place.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, SparkUnavailable) or (reason := _loss(error)) is None:
            raise
        # Whatever else is asked of that session, such as its end, is not waited for again.
        wait_for_server(session, 0)
        raise SparkUnavailable(
            f"Spark Connect at {where} went away in the middle ({reason}), and the session with it. Its log, and that of the"
            " machine it ran on, say why: often its memory. Start it again (sbin/start-connect-server.sh of Spark), and run"
            " this again: what was published is kept, everything else is done anew"
        ) from error


def _loss(error: BaseException | None) -> str | None:
    """What an error, or one that it came from, says about a server that is gone."""
    grpc = sys.modules.get("grpc")
    while error is not None:
        status, told = "", ""
        if isinstance(error, PySparkException):
            status = getattr(getattr(error, "getGrpcStatusCode", lambda: None)(), "name", "")
            told = error.getCondition() or ""
        elif grpc is not None and isinstance(error, grpc.RpcError):
            status = getattr(getattr(error, "code", lambda: None)(), "name", "")
            told = getattr(error, "details", lambda: "")() or ""
        if "INVALID_HANDLE.SESSION_" in told:
            return "the server does not know the session: it was restarted, or has ended it"
        if status == "UNAVAILABLE":
            return "it does not answer any more"
        # PySpark raises an error of its own while it handles the server's.
        error = error.__cause__ or error.__context__
    return None
