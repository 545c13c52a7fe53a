"""pgmq's SQL functions, as its package for Python brings them, in the loop that its documentation has: read, work, archive
or delete. Payloads come as text, which pydantic parses and validates in one go.
"""

import os
import sys
import threading
from collections.abc import Sequence
from importlib import resources
from typing import Any

import psycopg
from psycopg.types.json import Jsonb

from benchmarks.harness import Event
from benchmarks.rivals.program import Handler, run

_VISIBILITY_SECONDS = 60
_CHUNK = 10_000
_READ = "SELECT msg_id, CAST(message AS text) FROM pgmq.read('bench', %s, %s)"


class Pgmq:
    def __init__(self, url: str, way: str) -> None:
        verb, size = way.split("-")
        self._url = url
        self._batch = int(size)
        self._end = f"SELECT pgmq.{verb}('bench', CAST(%b AS bigint[]))"
        self._connection = psycopg.connect(url, autocommit=True)

    def setup(self) -> None:
        self._connection.execute((resources.files("pgmq") / "sql" / "pgmq.sql").read_bytes())
        self._connection.execute("SELECT pgmq.create('bench')")

    def clear(self) -> None:
        self._connection.execute("TRUNCATE pgmq.q_bench, pgmq.a_bench")

    def bulk(self, payloads: Sequence[dict[str, Any]]) -> None:
        with self._connection.transaction():
            for at in range(0, len(payloads), _CHUNK):
                texts = [Event.model_validate(payload).model_dump_json() for payload in payloads[at : at + _CHUNK]]
                self._connection.execute("SELECT count(*) FROM pgmq.send_batch('bench', CAST(%s AS jsonb[]))", (texts,))

    def single(self, payload: dict[str, Any]) -> None:
        # The same check of the payload as for all of Python's.
        checked = Event.model_validate(payload).model_dump()
        self._connection.execute("SELECT pgmq.send('bench', %s)", (Jsonb(checked),))

    def drain(self, handle: Handler) -> None:
        while self._work(self._connection, handle):
            pass

    def serve(self, handle: Handler, stop: threading.Event) -> None:
        with (
            psycopg.connect(self._url, autocommit=True) as connection,
            psycopg.connect(self._url, autocommit=True) as listener,
        ):
            connection.execute("SELECT pgmq.enable_notify_insert('bench', 0)")
            listener.execute('LISTEN "pgmq.q_bench.INSERT"')
            while not stop.is_set():
                if not self._work(connection, handle):
                    for _ in listener.notifies(timeout=0.2, stop_after=1):
                        pass

    def _work(self, connection: "psycopg.Connection[tuple[Any, ...]]", handle: Handler) -> int:
        rows = connection.execute(_READ, (_VISIBILITY_SECONDS, self._batch), binary=True).fetchall()
        if rows:
            for _, text in rows:
                handle(Event.model_validate_json(text))
            connection.execute(self._end, ([row[0] for row in rows],)).fetchall()
        return len(rows)


if __name__ == "__main__":
    run(Pgmq(os.environ["RIVAL_URL"], sys.argv[1]))
