"""Queues for answers: made when they are wanted, with a name of their own, gone when they are not."""

import contextlib
import os
import socket
import time
from types import TracebackType
from typing import Any, Generic, Self
from uuid import uuid4

from dagster_sqlqueue.consumer.waiter import Waiter
from dagster_sqlqueue.errors import DatabaseUnavailable, InvalidInput, InvalidPayload, UnknownQueue, WaitTimedOut
from dagster_sqlqueue.model.job import ArchiveState, ClaimedJob
from dagster_sqlqueue.model.numbers import MAX_DELAY_SECONDS, is_number
from dagster_sqlqueue.model.queue import Payload, QueueSpec
from dagster_sqlqueue.payload import serialization
from dagster_sqlqueue.payload.serialization import AnyObject
from dagster_sqlqueue.queue import SqlQueue
from dagster_sqlqueue.queue.claim_request import ClaimRequest
from dagster_sqlqueue.queue.endings import Ending, Endings
from dagster_sqlqueue.queue.service_verbs import ServiceVerbs
from dagster_sqlqueue.queue.validation import check_timeout

_POLL_SECONDS = 0.2
_LISTENING_POLL_SECONDS = 1.0
_LEASE_SECONDS = 30.0


class ReplyVerbs(ServiceVerbs):
    """The verb that creates a queue for the answers to one caller."""

    def reply_queue(
        self, payload: type[Payload] | None = None, *, ttl_seconds: float = 3_600.0
    ) -> "ReplyQueue[Payload]":
        """Create a queue with a name of its own, for answers to the caller.

        It is removed, with the jobs that are on it, by `close`, or by `maintain` once it has not been used for so long:
        nothing was received from it or claimed, and no wait for its jobs exists.

        Args:
            payload: the model that the answers fit; None: any JSON object.
            ttl_seconds: how long it is there without being used, 1 second to a hundred years.

        Raises:
            InvalidInput: ttl_seconds is out of range.
        """
        if not is_number(ttl_seconds, 1, MAX_DELAY_SECONDS):
            raise InvalidInput(f"ttl_seconds is {ttl_seconds!r}; it must be at least 1, at most a hundred years")
        model: Any = AnyObject if payload is None else payload
        spec = QueueSpec(f"reply_{uuid4().hex}", model, bucket_count=1, lease_seconds=_LEASE_SECONDS, retention_days=1)
        terms = {"queue": spec.name, "seconds": float(ttl_seconds)}
        self.database.run("reply_queue_put", terms)
        self.queue.create_queue(spec)
        # Again: maintenance may have met it while there was nothing to keep.
        self.database.run("reply_queue_put", terms)
        return ReplyQueue(self.queue, spec, ttl_seconds=ttl_seconds)


class ReplyQueue(Generic[Payload]):
    """A queue for the answers to one asker: to be enqueued to, or named for a callback, like any other. Belongs to one
    thread.

    Attributes:
        spec: the queue.
        name: its name, which goes with the request.
    """

    def __init__(self, queue: SqlQueue, spec: QueueSpec[Payload], *, ttl_seconds: float) -> None:
        self.spec = spec
        self._leases = queue.leases
        self._ttl_seconds = ttl_seconds
        self._renewed_at = time.monotonic()
        self._worker = f"{socket.gethostname()}/{os.getpid()}"
        self._waiter: Waiter | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def name(self) -> str:
        """The queue's name."""
        return self.spec.name

    def receive(self, *, timeout_seconds: float | None = None) -> Payload:
        """Take the next answer off the queue, waiting until one comes: it is archived as succeeded. Two who receive at once
        never get the same one.

        Args:
            timeout_seconds: how long to wait; None for as long as it takes, 0 to check once.

        Raises:
            WaitTimedOut: none came in time.
            InvalidPayload: the answer does not fit the model; it is in the dead letter.
            UnknownQueue: the queue was removed.
            InvalidInput: the timeout is not usable.
        """
        check_timeout(timeout_seconds)
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        while True:
            if time.monotonic() - self._renewed_at > self._ttl_seconds / 4:
                self.renew()
            if jobs := self._leases.claim(ClaimRequest(self.name, 1, worker=self._worker)):
                if self._waiter is not None:
                    self._waiter.busy()
                return self._taken(jobs[0])
            left = _POLL_SECONDS if deadline is None else deadline - time.monotonic()
            if left <= 0:
                raise WaitTimedOut(f"no answer came on queue {self.name!r} within {timeout_seconds:g} seconds", {})
            self._wait(left if deadline is not None else _LISTENING_POLL_SECONDS)

    def renew(self) -> None:
        """Say that the queue is in use: its time begins anew. `receive` does so by itself.

        Raises:
            UnknownQueue: it was removed.
        """
        if not self._leases.database.run("reply_queue_renew", {"queue": self.name}):
            raise UnknownQueue(
                f"the reply queue {self.name!r} was removed: it was not used for {self._ttl_seconds:g} seconds; make another"
            )
        self._renewed_at = time.monotonic()

    def close(self) -> bool:
        """Remove the queue and the jobs on it. Return whether it is gone: while a producer enqueues to it, or a consumer
        works on one in a transaction, it is not, and `maintain` removes it later.
        """
        waiter, self._waiter = self._waiter, None
        if waiter is not None:
            waiter.close()
        gone: bool | None = None
        with contextlib.suppress(DatabaseUnavailable):
            while gone is None:
                ((gone,),) = self._leases.database.run("reply_queue_remove", {"queue": self.name, "expired": False})
        return bool(gone)

    def _taken(self, job: ClaimedJob) -> Payload:
        try:
            payload = serialization.parse(self.spec, job.payload)
        except InvalidPayload as error:
            self._leases.finish(Endings.of([Ending(job, ArchiveState.FAILED, error=str(error))]))
            raise
        self._leases.complete([job])
        return payload

    def _wait(self, seconds: float) -> None:
        if self._waiter is None:
            # The first wait checks again at once: what came before it was registered was not notified.
            waiter = Waiter(self._leases.catalog, self.name, self._worker)
            self._waiter = waiter.__enter__()
            return
        self._waiter.wait(min(seconds, _LISTENING_POLL_SECONDS if self._waiter.listening else _POLL_SECONDS))
