"""The loop of a process that drains through the verbs: claim under a lease, end the batch and claim the next one in one
transaction, as `Consumer.drain` does where it claims nothing ahead. Payloads come as text, and nothing is parsed.
"""

from collections.abc import Callable
from dataclasses import dataclass

from dagster_sqlqueue import SqlQueue
from dagster_sqlqueue.model.job import ArchiveState, ClaimedJob
from dagster_sqlqueue.queue.claim_request import ClaimRequest
from dagster_sqlqueue.queue.endings import Ending, Endings
from dagster_sqlqueue.queue.head_hints import SWEEP_SECONDS, HeadHints

BATCH = 100
_LEASE_SECONDS = 60

TakeBatch = Callable[[], int]
"""Take a batch and end it; gives how many jobs it held, 0 when nothing was there."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a process drains, and which one it is of how many."""

    queue: SqlQueue
    number: int
    of: int


def leased(place: Place, name: str = "bench", sweep_seconds: float = SWEEP_SECONDS, batch: int = BATCH) -> TakeBatch:
    """Take batches of a queue.

    Args:
        place: the process.
        name: the queue.
        sweep_seconds: of the head hints; 0: they are not used.
        batch: jobs of one.
    """
    hints = HeadHints(sweep_seconds)
    buckets = _buckets(place, name)
    known = False
    ahead: list[ClaimedJob] = []
    wanted = {"limit": batch, "worker": f"bench-{place.number}", "lease_seconds": _LEASE_SECONDS, "hints": hints}

    def take_batch() -> int:
        nonlocal buckets, ahead, known
        if sweep_seconds and not known:
            place.queue.leases.note_sweep(name)
            hints.know(place.queue.leases.head_hints(name))
            known = True
        jobs = ahead or place.queue.claim(name, buckets=buckets, **wanted)
        if not jobs and not hints.swept:
            hints.sweep_next()
            jobs = place.queue.claim(name, buckets=buckets, **wanted)
        ahead = []
        if jobs:
            buckets = _behind(jobs[0].bucket, buckets)
            endings = Endings.of(Ending(job, ArchiveState.SUCCEEDED) for job in jobs)
            _, ahead = place.queue.leases.finish_and_claim(endings, ClaimRequest(name, buckets=buckets, **wanted))
        return len(jobs)

    return take_batch


def _buckets(place: Place, name: str) -> list[int]:
    """The buckets, from one's own on."""
    count = place.queue.settings(name).claim_buckets
    at = place.number * count // place.of
    return [*range(at, count), *range(at)]


def _behind(bucket: int, buckets: list[int]) -> list[int]:
    """The next search begins behind the bucket that the last one found something in, as a consumer's does."""
    turn = buckets.index(bucket) + 1
    return [*buckets[turn:], *buckets[:turn]]
