"""A leased batch is sealed some buckets at a time: a driver that is killed in between has its seal resumed."""

import multiprocessing
import os
import signal
import threading
from multiprocessing.connection import Connection
from typing import Any

from dagster_sqlqueue import NewJob, QueueSpec, SqlQueue
from dagster_sqlqueue.spark.batches import leased_seal
from tests.gate.patience import PATIENCE
from tests.support import Work, make_due, rows, value
from tests.support.leased import publish, seal

JOBS = 40


def seal_two_buckets(url: str, schema: str, done: Connection) -> None:
    """Seal bucket by bucket, as where they are large, and wait to be killed when two of the four are sealed."""
    leased_seal._SEALED_TOGETHER = 1
    lease, parts = leased_seal.despite_odd_jobs, 0

    def leasing(*arguments: Any) -> Any:
        nonlocal parts
        if parts == 2:
            done.send(None)
            threading.Event().wait()
        parts += 1
        return lease(*arguments)

    leased_seal.despite_odd_jobs = leasing
    with SqlQueue(url, schema=schema) as queue:
        seal(queue, lease_seconds=900)


def test_a_seal_that_is_killed_between_two_buckets_is_resumed(url: str, queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    """What it had sealed stays in the batch, the next one adds the rest, and all of it ends once."""
    queue.enqueue_many(spec, [NewJob(Work(n=n)) for n in range(JOBS)])
    processes = multiprocessing.get_context("spawn")
    mine, theirs = processes.Pipe()
    process = processes.Process(target=seal_two_buckets, args=(url, queue.database.schema, theirs))
    process.start()
    assert mine.poll(PATIENCE)
    assert process.pid
    os.kill(process.pid, signal.SIGKILL)
    process.join(PATIENCE)
    sealed = rows(queue, "SELECT bucket, id FROM {s}.job WHERE batch_id IS NOT NULL")
    assert len({bucket for bucket, _ in sealed}) == 2
    assert 0 < len(sealed) < JOBS
    assert rows(queue, "SELECT state, token FROM {s}.batch") == [("sealing", 1)]
    queue.enqueue(spec, Work(n=JOBS))
    make_due(queue)
    batch = seal(queue)
    assert (batch.job_count, batch.token, batch.attempt) == (JOBS + 1, 2, 2)
    assert value(queue, "SELECT count(DISTINCT batch_id) FROM {s}.job") == 1
    # Those of the killed driver have a lease of the new owner's: what that driver might still write is refused.
    leases = dict(rows(queue, "SELECT lease_no, count(*) FROM {s}.job GROUP BY 1"))
    assert leases == {1: JOBS + 1 - len(sealed), 2: len(sealed)}
    publish(queue, batch)
    ended = "SELECT state, attempt, count(DISTINCT payload->>'n'), count(*) FROM {s}.job_archive GROUP BY 1, 2"
    assert rows(queue, ended) == [("succeeded", 1, JOBS + 1, JOBS + 1)]
