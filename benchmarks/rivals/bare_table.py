"""A table of its own and a Python loop: what is left when nothing is promised."""

import os
import sys
import threading
from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg.types.json import Jsonb

from benchmarks.harness import Event
from benchmarks.rivals.program import Handler, run

# An array, because a join is planned as if the table were empty where it was when it was last analysed.
_TAKE = """
DELETE FROM bare AS b
WHERE b.id = ANY (ARRAY(SELECT id FROM bare ORDER BY id LIMIT {limit} FOR UPDATE SKIP LOCKED))
RETURNING CAST(b.payload AS text)
"""


class BareTable:
    def __init__(self, url: str, batch: int) -> None:
        self._url = url
        self._take = _TAKE.format(limit=batch)
        self._connection = psycopg.connect(url, autocommit=True)

    def setup(self) -> None:
        self._connection.execute(
            "CREATE TABLE bare (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, payload jsonb NOT NULL)"
        )

    def clear(self) -> None:
        self._connection.execute("TRUNCATE bare")

    def bulk(self, payloads: Sequence[dict[str, Any]]) -> None:
        with (
            self._connection.transaction(),
            self._connection.cursor() as cursor,
            cursor.copy("COPY bare (payload) FROM STDIN") as copy,
        ):
            for payload in payloads:
                copy.write_row((Event.model_validate(payload).model_dump_json(),))

    def single(self, payload: dict[str, Any]) -> None:
        checked = Event.model_validate(payload).model_dump()
        self._connection.execute("INSERT INTO bare (payload) VALUES (%s)", (Jsonb(checked),))

    def drain(self, handle: Handler) -> None:
        while self._work(self._connection, handle):
            pass

    def serve(self, handle: Handler, stop: threading.Event) -> None:
        # Nobody notifies: it looks every millisecond.
        with psycopg.connect(self._url, autocommit=True) as connection:
            while not stop.wait(0 if self._work(connection, handle) else 0.001):
                pass

    def _work(self, connection: "psycopg.Connection[tuple[Any, ...]]", handle: Handler) -> int:
        with connection.transaction():
            rows = connection.execute(self._take).fetchall()
            for (text,) in rows:
                handle(Event.model_validate_json(text))
        return len(rows)


if __name__ == "__main__":
    run(BareTable(os.environ["RIVAL_URL"], int(sys.argv[1])))
