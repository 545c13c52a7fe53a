"""Procrastinate on psycopg, through its own worker."""

import asyncio
import os
import threading
from collections.abc import Sequence
from typing import Any

import procrastinate
import psycopg

from benchmarks.harness import Event
from benchmarks.rivals.program import Handler, run

_AT_ONCE = 30
_CHUNK = 1_000


class ProcrastinateRival:
    def __init__(self, url: str) -> None:
        self._url = url
        self._handle: Handler = lambda payload: None
        # Its synchronous side enqueues, and is open for as long as the process lives.
        self._sender = self._app(procrastinate.SyncPsycopgConnector(conninfo=url))
        self._sender.open()

    def setup(self) -> None:
        self._sender.schema_manager.apply_schema()

    def clear(self) -> None:
        with psycopg.connect(self._url, autocommit=True) as connection:
            connection.execute("TRUNCATE procrastinate_jobs, procrastinate_events RESTART IDENTITY CASCADE")

    def bulk(self, payloads: Sequence[dict[str, Any]]) -> None:
        task = self._sender.tasks["bench"]
        for at in range(0, len(payloads), _CHUNK):
            chunk = [Event.model_validate(payload).model_dump() for payload in payloads[at : at + _CHUNK]]
            task.batch_defer(*chunk)

    def single(self, payload: dict[str, Any]) -> None:
        self._sender.tasks["bench"].defer(**Event.model_validate(payload).model_dump())

    def drain(self, handle: Handler) -> None:
        self._handle = handle

        async def work() -> None:
            async with self._app(procrastinate.PsycopgConnector(conninfo=self._url)).open_async() as app:
                await app.run_worker_async(wait=False, concurrency=_AT_ONCE, install_signal_handlers=False)

        asyncio.run(work())

    def serve(self, handle: Handler, stop: threading.Event) -> None:
        self._handle = handle

        async def work() -> None:
            async with self._app(procrastinate.PsycopgConnector(conninfo=self._url)).open_async() as app:
                running = asyncio.create_task(app.run_worker_async(concurrency=_AT_ONCE, install_signal_handlers=False))
                await asyncio.to_thread(stop.wait)
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)

        asyncio.run(work())

    def _app(self, connector: Any) -> procrastinate.App:
        app = procrastinate.App(connector=connector)

        @app.task(name="bench")
        async def bench(**payload: Any) -> None:
            self._handle(Event.model_validate(payload))

        return app


if __name__ == "__main__":
    run(ProcrastinateRival(os.environ["RIVAL_URL"]))
