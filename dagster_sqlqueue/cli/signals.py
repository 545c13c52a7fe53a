"""An event that SIGTERM or Ctrl-C sets, for commands that run until then."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def stopped_by_signals() -> Iterator[tuple[threading.Event, list[int]]]:
    """Yield an event that SIGTERM and SIGINT set while the block runs, and the signals received.

    The main thread must not wait for the event: the signal handler runs in it, and would need a lock that it may hold.
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
