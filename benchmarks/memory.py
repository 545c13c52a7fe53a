"""How much memory a measurement took."""

import contextlib
import threading
from collections.abc import Callable, Iterator

import psutil


@contextlib.contextmanager
def peak() -> Iterator[Callable[[], float]]:
    """The most resident memory, in MB, that this process and all below it, PostgreSQL aside, have at a time, measured ten
    times a second.
    """
    most, over, me = 0, threading.Event(), psutil.Process()

    def measure() -> None:
        nonlocal most
        while not over.wait(0.1):
            total = 0
            for process in (me, *me.children(recursive=True)):
                with contextlib.suppress(psutil.Error):
                    total += 0 if process.name() == "postgres" else process.memory_info().rss
            most = max(most, total)

    watcher = threading.Thread(target=measure, daemon=True)
    watcher.start()
    try:
        yield lambda: most / 1e6
    finally:
        over.set()
        watcher.join()
