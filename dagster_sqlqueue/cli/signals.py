"""Being stopped by SIGTERM or Ctrl-C, in commands that run until then."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def stopped_by_signals() -> Iterator[tuple[threading.Event, list[int]]]:
    """Yield an event that SIGTERM and SIGINT set while the block runs, and which of them came.

    The main thread must not wait for the event: its handler would set what it may hold the lock of.
    """
    stopping = threading.Event()
    received: list[int] = []

    def stop(number: int, _frame: object) -> None:
        received.append(number)
        stopping.set()

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stopping, received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
