"""The consumers of one process, which die together: a job of one of them may be what the others die of.

What a consumer claims by itself counts as the only job that its process had: if the process dies, the attempt is spent. So
one job of the process at a time is claimed by itself, and none that has not run yet where other threads claim as well.

A consumer does not wait for another one for ever: a handler may wait for what the other consumer is to do, or hang.
"""

import contextlib
import math
import os
import threading
import time
import weakref
from collections.abc import Iterator, Sized

from dagster_sqlqueue.errors import InvalidInput


class _Members:
    """The consumers of this process, and the one of them whose turn it is."""

    def __init__(self) -> None:
        # By consumer the thread in which it works, or was made, if it has not worked yet.
        self.threads: weakref.WeakKeyDictionary[Member, int] = weakref.WeakKeyDictionary()
        self.forget()

    def forget(self) -> None:
        """Begin anew, as in a process that was forked: the threads of the one before it are not there."""
        self.lock = threading.Lock()
        self.threads.clear()
        self.turn: weakref.ref[Member] | None = None


_ASKS_ON_SECONDS = 5.0
"""One that has not asked for its turn for that long has had something else to do."""

_members = _Members()
os.register_at_fork(after_in_child=_members.forget)


class Member:
    """One consumer among those of its process.

    Attributes:
        known: the consumers of the process that work, or have not worked yet, and this one while it works.
        has_turn: whether it may have a job that counts as the only one of its process.
    """

    def __init__(self) -> None:
        self.known: Sized = _members.threads
        self.has_turn = False
        self._waits_since = self._asked_at = -math.inf
        self._process = os.getpid()
        with _members.lock:
            _members.threads[self] = threading.get_ident()

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """The consumer works in this thread while the block runs.

        Raises:
            InvalidInput: it was made before this process was forked.
        """
        if (here := os.getpid()) != self._process:
            raise InvalidInput(
                f"the consumer was made by process {self._process}, and this is process {here}, forked from it: both would"
                " claim under one name; make the consumer in the process that runs it"
            )
        with _members.lock:
            _members.threads[self] = threading.get_ident()
        try:
            yield
        finally:
            self.pass_turn()
            with _members.lock:
                _members.threads.pop(self, None)

    @property
    def has_company(self) -> bool:
        """Whether other consumers work in other threads, or may be about to."""
        here = threading.get_ident()
        with _members.lock:
            return any(thread != here for member, thread in _members.threads.items() if member is not self)

    def take_turn(self, patience_seconds: float) -> bool:
        """Return whether this consumer may have a job that counts as the only one of its process; until `pass_turn`.

        Args:
            patience_seconds: for how long it waits for one of another thread, over several calls.
        """
        with _members.lock:
            holder = None if _members.turn is None else _members.turn()
            if holder is not None and holder is not self and not self._has_waited(holder, patience_seconds):
                return False
            _members.turn = weakref.ref(self)
            self.has_turn = True
            self._asked_at = -math.inf
            return True

    def _has_waited(self, holder: "Member", patience_seconds: float) -> bool:
        # One of this thread goes on only when this one has ended: it drains a queue in a handler.
        if _members.threads.get(holder) == threading.get_ident():
            return True
        now = time.monotonic()
        if now - self._asked_at > _ASKS_ON_SECONDS:
            self._waits_since = now
        self._asked_at = now
        return now - self._waits_since >= patience_seconds

    def pass_turn(self) -> None:
        """Let the others have such a job."""
        self.has_turn = False
        with _members.lock:
            if _members.turn is not None and _members.turn() is self:
                _members.turn = None
