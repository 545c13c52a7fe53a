"""The library, through its `Consumer`."""

import os
import sys
import threading
from collections.abc import Sequence
from typing import Any

from benchmarks.harness import SPEC, Event
from benchmarks.rivals.program import Handler, run
from dagster_sqlqueue import Consumer, Job, SqlQueue

_WAYS: dict[str, dict[str, Any]] = {
    "leased-100": {"batch_size": 100},
    "leased": {},
    "transactional-100": {"batch_size": 100, "mode": "transactional"},
}
_LONG_SECONDS = 3_600.0


class Ours:
    def __init__(self, url: str, way: str) -> None:
        self._queue = SqlQueue(url)
        self._settings = _WAYS[way]

    def setup(self) -> None:
        self._queue.migrate()
        self._queue.create_queue(SPEC)

    def clear(self) -> None:
        with self._queue.database.transaction() as transaction:
            transaction.connection.execute("TRUNCATE sqlqueue.job, sqlqueue.job_archive")

    def bulk(self, payloads: Sequence[dict[str, Any]]) -> None:
        self._queue.enqueue_many(SPEC, payloads)

    def single(self, payload: dict[str, Any]) -> None:
        self._queue.enqueue(SPEC, payload)

    def drain(self, handle: Handler) -> None:
        self._consumer(handle).drain()

    def serve(self, handle: Handler, stop: threading.Event) -> None:
        consumer = self._consumer(handle)
        working = threading.Thread(target=consumer.drain, kwargs={"linger_seconds": _LONG_SECONDS})
        working.start()
        stop.wait()
        consumer.stop()
        working.join()

    def _consumer(self, handle: Handler) -> Consumer[Event]:
        def work(job: Job[Event]) -> None:
            handle(job.payload)

        return Consumer(self._queue, SPEC, work, **self._settings)


if __name__ == "__main__":
    run(Ours(os.environ["RIVAL_URL"], sys.argv[1]))
