"""Limits and rates, with sixteen processes and kills: never broken at any moment, and no slot is ever lost."""

import threading

import pytest

from dagster_sqlqueue import Backoff, NewJob, QueueSpec, SqlQueue
from dagster_sqlqueue.database import Executor
from dagster_sqlqueue.errors import DatabaseUnavailable
from tests.core.support import Work, until


def test_a_process_that_stopped_in_mid_claim_keeps_nobody_from_a_limited_queue(queue: SqlQueue, url: str) -> None:
    spec = QueueSpec("work", Work, max_running=2)
    queue.create_queue(spec)
    queue.enqueue(spec, NewJob(Work(n=1)))
    locked, awake = threading.Event(), threading.Event()
    errors = []

    def stop_in_mid_claim(executor: Executor) -> None:
        executor.run("limit_lock", {"queue": "work"})
        locked.set()
        awake.wait()
        executor.run("limit_allowance", {"queue": "work", "revision": 1, "limit": 1})

    def claim_and_stop() -> None:
        with SqlQueue(url, schema=queue.database.schema) as stopped, pytest.raises(DatabaseUnavailable) as caught:
            stopped.database.transact(stop_in_mid_claim)
        errors.append(caught.value)

    thread = threading.Thread(target=claim_and_stop)
    thread.start()
    try:
        assert locked.wait(10)
        assert len(queue.claim("work", limit=1, worker="w")) == 1
    finally:
        awake.set()
        thread.join(20)
    assert "idle-in-transaction" in str(errors)
