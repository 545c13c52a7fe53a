"""A claim whose answer is taken later: the jobs that are made of it."""

import gc
from collections.abc import Iterator
from typing import Any

import pytest

from dagster_sqlqueue import QueueSpec, SqlQueue
from dagster_sqlqueue.db.channel import Channel
from dagster_sqlqueue.queue.claim_request import ClaimRequest
from tests.support import Work

JOBS = 2_000


@pytest.fixture(params=[True, False], ids=["collects", "collects nothing"])
def collecting(request: pytest.FixtureRequest) -> Iterator[bool]:
    """Whether Python collects garbage."""
    before, wanted = gc.isenabled(), bool(request.param)
    (gc.enable if wanted else gc.disable)()
    yield wanted
    (gc.enable if before else gc.disable)()


def test_no_garbage_is_collected_while_jobs_are_made(queue: SqlQueue, spec: QueueSpec[Work], collecting: bool) -> None:
    queue.enqueue_many(spec, (Work(n=n) for n in range(JOBS)))
    channel = Channel(queue.database)
    request = ClaimRequest("work", JOBS, "w", range(4), joining=True)
    sent = queue.leases.send_claim_ahead(channel, None, request, queue.settings("work"))
    assert sent.receive() == JOBS
    collections: list[str] = []

    def note(phase: str, info: dict[str, Any]) -> None:
        collections.append(phase)

    gc.callbacks.append(note)
    try:
        jobs = sent.claimed()
    finally:
        gc.callbacks.remove(note)
        channel.close()
    assert len({job.id for job in jobs}) == JOBS
    # One that was due is made as soon as it may be.
    assert collections.count("start") <= 1
    assert gc.isenabled() is collecting
