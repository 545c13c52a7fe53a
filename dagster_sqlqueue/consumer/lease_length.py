"""The length of a consumer's leases: its own, or the queue's current one."""

import threading
import time


class LeaseLength:
    """The length of one consumer's leases. Without one of its own it is the queue's, and changes with it.

    Args:
        override: in seconds, whatever the queue says; None: the queue's.
        until_known: the length before the queue's settings are read; so long a database that is away is waited for then.

    Attributes:
        seconds: of a lease that is granted or extended now.
        changed: set when it changed, for the heartbeat, which waits for a part of it.
    """

    def __init__(self, override: float | None, *, until_known: float) -> None:
        self._override = override
        self.seconds = until_known if override is None else override
        self.changed = threading.Event()
        self._known = override is not None
        self._before = self.seconds
        self._before_until = 0.0

    @property
    def pace(self) -> float:
        """The shortest lease that may be in hand: a claim that was under way when the length changed has the old one."""
        return min(self.seconds, self._before) if time.monotonic() < self._before_until else self.seconds

    def follow(self, seconds: float) -> None:
        """Take over the queue's length, in seconds, if there is no other of the consumer's own."""
        if self._override is not None or seconds == self.seconds:
            self._known = True
            return
        if self._known:
            # Whatever was granted the old length is extended by the new one, or over, in half of the old one.
            self._before, self._before_until = self.pace, time.monotonic() + 2 * self.seconds
        self.seconds = seconds
        self._known = True
        self.changed.set()
