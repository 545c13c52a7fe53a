"""A connection that waits for an answer of its server for a limited time, by the client's clock.

A `statement_timeout` is the server's: it does nothing when the server, or a proxy before it, keeps the connection open and
is silent.
"""

import selectors
import time
from collections.abc import Generator
from typing import Any

import psycopg


class AnsweredConnection(psycopg.Connection[Any]):
    """A connection that is closed when nothing arrives for `answer_seconds` while it waits.

    Attributes:
        answer_seconds: the longest silence; None: no limit.
    """

    answer_seconds: float | None = None

    def wait(self, gen: Any, *given: Any, **named: Any) -> Any:
        """Wait for the end of an operation of the driver.

        Raises:
            psycopg.OperationalError: nothing arrived for too long; the connection is closed.
        """
        if self.answer_seconds is None:
            return super().wait(gen, *given, **named)
        return super().wait(self._limited(gen, self.answer_seconds), *given, **named)

    def _limited(self, gen: Any, seconds: float) -> Generator[Any, Any, Any]:
        heard = time.monotonic()
        try:
            wanted = next(gen)
            while True:
                # The driver resumes it each tenth of a second. Psycopg 3.2 then says of any socket that it is ready.
                ready = yield wanted
                now = time.monotonic()
                if self._is_ready(wanted):
                    heard = now
                elif now - heard > seconds:
                    # Whatever is sent on it later, such as the end of a pipeline, fails at once.
                    self.close()
                    raise psycopg.OperationalError(f"the server has not answered for {seconds:g} s")
                wanted = gen.send(ready)
        except StopIteration as end:
            return end.value

    def _is_ready(self, wanted: int) -> bool:
        """Return whether the socket can be read or written, as the driver's generator wants it by its `Wait`."""
        with selectors.DefaultSelector() as selector:
            # The numbers of `Wait` are those of the events.
            selector.register(self.fileno(), wanted)
            return bool(selector.select(0))
