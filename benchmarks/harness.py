"""What the benchmarks share: a server, a schema that is thrown away, rounds, and figures with their floors and aims."""

import contextlib
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql
from pydantic import BaseModel

from dagster_sqlqueue import QueueSpec, SqlQueue
from dagster_sqlqueue.embedded import EmbeddedPostgres
from dagster_sqlqueue.schema.functions import pinned_schema


class Event(BaseModel):
    """About 150 bytes of JSON."""

    account: str
    kind: str
    number: int
    amount: float
    note: str


SPEC = QueueSpec("bench", Event, bucket_count=16)


def event(number: int) -> dict[str, Any]:
    """A payload as an application has it, before it is validated."""
    return {
        "account": f"account-{number % 105:03}",
        "kind": "arrived",
        "number": number,
        "amount": number * 0.25,
        "note": "somewhat more than sixty characters of text, as an event has it.",
    }


@dataclass(frozen=True)
class Figure:
    """One measured figure: the rounds' values, and what their median is held to.

    Attributes:
        floor: a median below it is a regression, and fails the run. It is chosen, to find regressions and not the
            machine's other work; see `benchmarks/README.md`.
        aim: what the library is to reach; a median below it is listed, and fails nothing.
        at_most: floor and aim are the most that the median may be.
    """

    name: str
    unit: str
    rounds: Sequence[float]
    command: str
    floor: float | None = None
    at_most: bool = False
    aim: float | None = None

    @property
    def median(self) -> float:
        return statistics.median(self.rounds)

    @property
    def passed(self) -> bool:
        return self._is(self.floor)

    @property
    def reached(self) -> bool:
        return self._is(self.aim)

    def _is(self, bound: float | None) -> bool:
        if bound is None:
            return True
        return self.median <= bound if self.at_most else self.median >= bound


@dataclass(frozen=True)
class Bench:
    """Where to measure, and how long."""

    queue: SqlQueue
    url: str
    quick: bool
    rows: Sequence[int] = ()

    def execute(self, statement: str) -> list[tuple[Any, ...]]:
        """Run a statement with `{s}` for the schema, each in autocommit."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            text = sql.SQL(statement).format(s=sql.Identifier(self.queue.database.schema))
            cursor = connection.execute(text)
            return cursor.fetchall() if cursor.description else []

    def wal_position(self) -> float:
        """How many bytes the server has written to its log."""
        ((position,),) = self.execute("SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')")
        return float(position)

    def empty(self) -> None:
        """Remove every job, and what they left behind."""
        self.execute("TRUNCATE {s}.job, {s}.job_archive")

    def settle(self) -> None:
        """Bring statistics up to date and the disk to rest, so that a round pays for its own work only."""
        self.execute("VACUUM (ANALYZE) {s}.job")
        self.checkpoint()

    def checkpoint(self) -> None:
        """Write out what earlier work left, where the user may ask for it."""
        with contextlib.suppress(psycopg.errors.InsufficientPrivilege):
            self.execute("CHECKPOINT")

    def fill(self, jobs: int, spec: QueueSpec[Event] = SPEC) -> None:
        """Empty all queues and put so many due jobs on one."""
        self.empty()
        self.queue.enqueue_many(spec, (event(number) for number in range(jobs)))
        self.settle()


def note(text: str) -> None:
    """Say what is going on, on standard error."""
    print(f"  {text}", file=sys.stderr, flush=True)


def rounds(count: int, *measures: Callable[[], float]) -> list[list[float]]:
    """The values of each measure: one warm-up of each, then rounds that take them in turns."""
    for measure in measures:
        measure()
    found: list[list[float]] = [[] for _ in measures]
    for _ in range(count):
        for values, measure in zip(found, measures, strict=True):
            values.append(measure())
    return found


@contextmanager
def opened(quick: bool, rows: Sequence[int] = ()) -> Iterator[Bench]:
    """A schema of its own: on the server of `SQLQUEUE_URL`, or on one that lives in a temporary directory."""
    with ExitStack() as stack:
        url = os.environ.get("SQLQUEUE_URL")
        if not url:
            directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="sqlqueue-bench-"))
            Path(directory).chmod(0o755)
            url = stack.enter_context(EmbeddedPostgres(Path(directory) / "postgres")).url
        queue = stack.enter_context(SqlQueue(url, schema=f"sqlqueue_bench_{os.getpid()}"))
        bench = Bench(queue, url.replace("postgresql+psycopg://", "postgresql://"), quick, rows)
        queue.migrate()
        try:
            queue.create_queue(SPEC)
            yield bench
        finally:
            bench.execute(f'DROP SCHEMA IF EXISTS {{s}}, "{pinned_schema(queue.database.schema)}" CASCADE')
