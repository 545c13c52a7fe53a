"""End a process in order: on a signal or a parent's message, within a time, and by force after it."""

import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from types import FrameType, TracebackType
from typing import Any, Protocol, Self

from dagster_sqlqueue.errors import QueueError

logger = logging.getLogger("dagster_sqlqueue")

CUT_OFF = 7
"""The exit code of a process that gave jobs back that a handler had begun."""

GRACE_SECONDS = 5.0
"""How long a handler that was interrupted may take to leave, before the process ends without it, unless it is said."""

SIGNALS = (signal.SIGTERM, signal.SIGINT)
_WAKE = b"\0"


class CutOff(KeyboardInterrupt):
    """Raised in the middle of a handler that must not go on. Drivers treat it as they do Ctrl-C: a statement that runs is
    cancelled.
    """


class Signals:
    """SIGTERM and SIGINT as bytes on a socket, whatever the main thread does meanwhile. Only for the main thread.

    Attributes:
        socket: becomes readable with each signal.
        interruptible: whether `interrupt` may raise in the main thread now.
    """

    def __init__(self) -> None:
        self.interruptible = False
        self._interrupting = False
        self.socket, self._sender = socket.socketpair()
        self.socket.setblocking(False)
        self._sender.setblocking(False)

    def __enter__(self) -> Self:
        # The handlers do nothing by themselves: they run in the midst of anything, a lock that is held included.
        self._before = {number: signal.signal(number, self._handle) for number in SIGNALS}
        self._wakeup_before = signal.set_wakeup_fd(self._sender.fileno(), warn_on_full_buffer=False)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        return self

    def __exit__(self, *_: object) -> None:
        signal.set_wakeup_fd(self._wakeup_before)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self.socket.close()
        self._sender.close()

    def received(self) -> int:
        """Return how many signals came since the last call; does not wait."""
        try:
            return len(self.socket.recv(4096).replace(_WAKE, b""))
        except (BlockingIOError, OSError):
            return 0

    def wake(self) -> None:
        """Make the socket readable without a signal."""
        self._sender.send(_WAKE)

    def interrupt(self) -> None:
        """Raise `CutOff` in the main thread, once it is interruptible."""
        self._interrupting = True
        ident = threading.main_thread().ident
        assert ident is not None
        signal.pthread_kill(ident, signal.SIGTERM)

    def check(self) -> None:
        """Raise `CutOff` if the main thread should be interrupted.

        Raises:
            CutOff: it is.
        """
        if self._interrupting and self.interruptible:
            self.interruptible = False
            raise CutOff

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        self.check()


class Stoppable(Protocol):
    """What a `Stopper` ends."""

    def stop(self) -> None:
        """Begin no more jobs; those that were claimed and not begun are released now."""
        ...

    def interrupt(self) -> None:
        """Interrupt running handlers that are not in the main thread."""
        ...

    def give_back(self) -> None:
        """Release all jobs in hand: the process ends now."""
        ...


def leave_soon(grace_seconds: float) -> None:
    """End this process with `CUT_OFF` after the grace period, at least a second, unless it ends by itself: threads that
    handlers have left behind may keep it.
    """

    def leave() -> None:
        time.sleep(max(grace_seconds, 1.0))
        os._exit(CUT_OFF)

    threading.Thread(target=leave, name="sqlqueue-leaving", daemon=True).start()


class Stopper:
    """Wait in a thread for the order to stop, and carry it out.

    The first order has the worker finish what runs. A second one, or the end of the time, interrupts the running handlers,
    so that their jobs go back; a handler that does not let itself be interrupted ends with the process, when the grace is
    over.

    Args:
        worker: what is stopped.
        signals: where orders come from, unless there is a parent; and what interrupts the main thread.
        drain_timeout_seconds: how long what runs may take to finish; None: as long as it likes.
        grace_seconds: how long a handler that was interrupted may take to leave.
        parent: a process whose orders are followed instead of signals; its end is an order as well.
        notify: called with a word for each step: `stopping`, `cutting off`, `abandoned`.
    """

    def __init__(
        self,
        worker: Stoppable,
        signals: Signals,
        *,
        drain_timeout_seconds: float | None,
        grace_seconds: float = GRACE_SECONDS,
        parent: "Connection[Any, Any] | None" = None,
        notify: Callable[[str], None],
    ) -> None:
        self._worker = worker
        self._signals = signals
        self._timeout = drain_timeout_seconds
        self._grace = grace_seconds
        self._parent = parent
        self._notify = notify
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="sqlqueue-stopper", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended = True
        self._signals.wake()
        self._thread.join()

    def _run(self) -> None:
        if not self._ordered(None):
            return
        deadline = None if self._timeout is None else time.monotonic() + self._timeout
        self._notify("stopping")
        self._attempt(self._worker.stop)
        if not self._ordered(deadline) and self._ended:
            return
        self._notify("cutting off")
        self._worker.interrupt()
        self._signals.interrupt()
        deadline = time.monotonic() + self._grace
        while not self._ended and time.monotonic() < deadline:
            self._ordered(deadline)
        if self._ended:
            return
        self._attempt(self._worker.give_back)
        self._notify("abandoned")
        os._exit(CUT_OFF)

    def _ordered(self, deadline: float | None) -> bool:
        """Return whether an order came before a moment of `time.monotonic`; also returns when the worker has ended."""
        sources: list[Any] = [self._signals.socket, *([] if self._parent is None else [self._parent])]
        while not self._ended:
            left = None if deadline is None else max(deadline - time.monotonic(), 0.0)
            ready = wait(sources, left)
            signalled = bool(self._signals.received())
            if self._parent is None:
                if signalled:
                    return True
            elif self._parent in ready:
                try:
                    self._parent.recv()
                except (EOFError, OSError):
                    # Once: a parent that has ended stays readable.
                    self._parent = None
                return True
            if left == 0.0:
                break
        return False

    def _attempt(self, work: Callable[[], None]) -> None:
        try:
            work()
        except QueueError as error:
            logger.warning("jobs could not be given back, they are due again when their leases end: %s", error)
        except Exception:
            logger.exception("jobs could not be given back, they are due again when their leases end")
