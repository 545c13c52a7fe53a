"""The arguments of a claim, passed on as they are from the caller to the statement."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Self

from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.model.numbers import is_whole
from dagster_sqlqueue.model.queue import MAX_BUCKETS, check_lease_seconds, check_queue_name
from dagster_sqlqueue.payload.storable import unstorable_text
from dagster_sqlqueue.queue.claim_filter import ClaimFilter
from dagster_sqlqueue.queue.head_hints import HeadHints

MAX_BATCH = 10_000


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """One claim's arguments. Not checked: where they come from a caller of the library, call `checked`.

    Args:
        queue: the queue's name.
        limit: the most jobs to claim, 1 to 10,000.
        worker: the name of the consumer that claims; unique for each start, shown with the jobs that it holds.
        buckets: where to search, in this order; None for all buckets.
        lease_seconds: how long the lease holds without a heartbeat; None for the queue's. Ignored by locks.
        hints: where earlier claims of the same consumer began; not given: search from the very beginning.
        filter: claim only jobs that fit.
        joining: the claimed jobs join others that the consumer has in hand: none is claimed whose lease ran out, and their
            attempts are not spent if the consumer dies.
        beside: others may join the claimed jobs: of one that is claimed by itself the attempt is spent if the consumer dies
            only where its lease had run out before; nothing may then run beside it.
    """

    queue: str
    limit: int
    worker: str = ""
    buckets: Sequence[int] | None = None
    lease_seconds: float | None = None
    hints: HeadHints = field(default_factory=HeadHints)
    filter: ClaimFilter | None = None
    joining: bool = False
    beside: bool = False

    def checked(self) -> Self:
        """Return the same arguments, checked.

        Raises:
            InvalidInput: a value is out of range; the message names it.
        """
        check_queue_name(self.queue)
        if not is_whole(self.limit, 1, MAX_BATCH):
            raise InvalidInput(f"limit is {self.limit!r}; a claim takes 1 to {MAX_BATCH:,} jobs")
        if self.lease_seconds is not None:
            check_lease_seconds(self.lease_seconds)
        if self.buckets is not None:
            check_buckets(self.buckets)
        return self


def check_buckets(buckets: Sequence[int]) -> Sequence[int]:
    """Return the buckets, checked.

    Raises:
        InvalidInput: there are none, or one is out of range.
    """
    usable = isinstance(buckets, Collection) and all(is_whole(bucket, 0, MAX_BUCKETS - 1) for bucket in buckets)
    if not usable or not buckets:
        given = list(buckets) if isinstance(buckets, Collection) else repr(buckets)
        raise InvalidInput(f"buckets is {given}; name at least one, each 0 to {MAX_BUCKETS - 1}, or give None for all")
    return buckets


def check_worker(worker: object) -> str:
    """Return the name of a consumer, checked.

    Raises:
        InvalidInput: it is no text, or blank, or cannot be stored.
    """
    if not isinstance(worker, str) or not worker.strip():
        raise InvalidInput(f"worker is {worker!r}; give a name for the consumer")
    if problem := unstorable_text(worker):
        raise InvalidInput(f"worker is {worker!r}; it {problem}: remove that")
    return worker
