"""Consumers of a queue that holds a job which kills whatever process begins it."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from dagster_sqlqueue import Consumer, Job, Mode, QueueSpec, SqlQueue
from dagster_sqlqueue.consumer.manager import AssignedSource, Manager
from dagster_sqlqueue.schema.functions import pinned_schema
from dagster_sqlqueue.worker.handlers import handles
from dagster_sqlqueue.worker.worker import Worker, WorkOptions
from tests.support import Work, caller

KILLER = 17


@dataclass(frozen=True)
class Victim:
    """How one process works the queue off."""

    url: str
    schema: str
    spec: QueueSpec[Work]
    how: str
    batch_size: int


def handle(job: Job[Work]) -> None:
    if job.payload.n == KILLER:
        os.kill(os.getpid(), signal.SIGKILL)


async def handle_async(job: Job[Work]) -> None:
    handle(job)


def handle_batch(jobs: Sequence[Job[Work]]) -> None:
    for job in jobs:
        handle(job)


def drain(victim: Victim) -> None:
    """Work the queue off, or die over it."""
    {"functions": by_functions, "managed": by_managers}.get(victim.how, by_consumer)(victim)


def by_consumer(victim: Victim) -> None:
    handler = {"async": handle_async, "batch": handle_batch}.get(victim.how, handle)
    mode = Mode.TRANSACTIONAL if victim.how == "transactional" else Mode.LEASED
    with SqlQueue(victim.url, schema=victim.schema) as queue:
        Consumer(
            queue, victim.spec, handler, batch=victim.how == "batch", batch_size=victim.batch_size, mode=mode
        ).drain()


def slowly(job: Job[Work]) -> None:
    """Kill the process, or be at work when another job of it does so."""
    time.sleep(0.5)
    handle(job)
    time.sleep(1.5)


def drain_in_threads(victim: Victim, other: QueueSpec[Work]) -> None:
    """Work two queues off in two threads, a job at a time, or die over it."""
    with SqlQueue(victim.url, schema=victim.schema, pool_size=10) as queue:
        if victim.how == "worker":
            handlers = [(handles(victim.spec, concurrency=4)(slowly), 1.0), (handles(other)(slowly), 1.0)]
            Worker(queue, handlers, WorkOptions(drain=True), report=lambda *event, **fields: None).run()
            return
        consumers = [Consumer(queue, spec, slowly, batch_size=1, mode=victim.how) for spec in (victim.spec, other)]
        threads = [threading.Thread(target=consumer.drain) for consumer in consumers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def by_managers(victim: Victim) -> None:
    with SqlQueue(victim.url, schema=victim.schema) as queue, contextlib.ExitStack() as stack:
        manager = Manager(queue, victim.spec.name)
        stopping = threading.Event()
        managing = threading.Thread(target=manager.run, args=(stopping,), kwargs={"poll_seconds": 0.01})
        stack.callback(managing.join)
        stack.callback(stopping.set)
        managing.start()
        source = stack.enter_context(AssignedSource(queue, victim.spec.name, f"w{os.getpid()}"))
        consumer = Consumer(queue, victim.spec, handle, batch_size=victim.batch_size, source=source)
        consumer.drain(linger_seconds=1.0)


def by_functions(victim: Victim) -> None:
    name = pinned_schema(victim.schema)
    with caller(victim.url, autocommit=True) as connection:
        claim = f"SELECT job_id, lease_no, payload FROM {name}.claim(%s, 'w', %s)"
        while jobs := connection.execute(claim.encode(), (victim.spec.name, victim.batch_size)).fetchall():
            for id, lease_no, payload in jobs:
                if payload["n"] == KILLER:
                    os.kill(os.getpid(), signal.SIGKILL)
                connection.execute(f"SELECT {name}.complete(%s, %s)".encode(), (id, lease_no))
