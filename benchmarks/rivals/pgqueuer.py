"""PgQueuer on asyncpg and uvloop, through its own manager."""

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any

import asyncpg
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries
from pgqueuer.types import QueueExecutionMode

from benchmarks.harness import Event
from benchmarks.rivals.program import Handler, run

_BATCH = 100
_CHUNK = 10_000


class PgQueuerRival:
    def __init__(self, url: str) -> None:
        self._url = url
        self._loop = uvloop.new_event_loop()
        self._connection = self._loop.run_until_complete(asyncpg.connect(url))
        self._queries = Queries(AsyncpgDriver(self._connection))

    def setup(self) -> None:
        self._loop.run_until_complete(self._queries.install())

    def clear(self) -> None:
        self._loop.run_until_complete(self._connection.execute("TRUNCATE pgqueuer, pgqueuer_log, pgqueuer_statistics"))

    def bulk(self, payloads: Sequence[dict[str, Any]]) -> None:
        async def put() -> None:
            async with self._connection.transaction():
                for at in range(0, len(payloads), _CHUNK):
                    chunk = payloads[at : at + _CHUNK]
                    texts = [Event.model_validate(payload).model_dump_json().encode() for payload in chunk]
                    await self._queries.enqueue(["bench"] * len(texts), texts, [0] * len(texts))

        self._loop.run_until_complete(put())

    def single(self, payload: dict[str, Any]) -> None:
        text = Event.model_validate(payload).model_dump_json().encode()
        self._loop.run_until_complete(self._queries.enqueue("bench", text))

    def drain(self, handle: Handler) -> None:
        async def work(manager: PgQueuer) -> None:
            await manager.run(batch_size=_BATCH, mode=QueueExecutionMode.drain)

        self._loop.run_until_complete(self._working(handle, work))

    def serve(self, handle: Handler, stop: threading.Event) -> None:
        async def work(manager: PgQueuer) -> None:
            running = asyncio.create_task(manager.run(batch_size=_BATCH, dequeue_timeout=timedelta(seconds=30)))
            await asyncio.to_thread(stop.wait)
            manager.shutdown.set()
            await running

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(self._working(handle, work))

    async def _working(self, handle: Handler, work: Callable[[PgQueuer], Awaitable[None]]) -> None:
        connection = await asyncpg.connect(self._url)
        try:
            manager = PgQueuer(AsyncpgDriver(connection))

            @manager.entrypoint("bench")
            async def handler(job: Job) -> None:
                handle(Event.model_validate_json(job.payload or b""))

            await work(manager)
        finally:
            await connection.close()


if __name__ == "__main__":
    run(PgQueuerRival(os.environ["RIVAL_URL"]))
