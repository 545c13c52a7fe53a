"""What the archive's index by transaction, by which streams read, costs those that end jobs: with it and without, in turns.

Two schemas hold the same archive, of the one the index is dropped. Jobs are ended in two ways: 100 at a time, as consumers
do, of which the finish alone counts, and all at once, as the publication of a leased batch does.
"""

import sys
import time
from collections.abc import Callable
from contextlib import ExitStack

from benchmarks.harness import SPEC, Bench, Figure, note, opened, rounds
from benchmarks.loading import load
from benchmarks.showing import show
from dagster_sqlqueue import Mode, SqlQueue
from dagster_sqlqueue.model.job import ArchiveState
from dagster_sqlqueue.queue.endings import Ending
from dagster_sqlqueue.schema.functions import pinned_schema
from dagster_sqlqueue.spark import batches

COMMAND = "python -m benchmarks ended_in"
ARCHIVED = 1_000_000
_BATCH = 100

# As a year of a busy queue lies there: the rows of a thousand transactions in each of ten queues.
_ENDED = """
INSERT INTO {schema}.job_archive (
    id, queue, bucket, priority, state, lease_no, attempt, max_attempts, run_at, created_at, started_at, finished_at,
    claimed_by, region, tags, payload, ended_in
)
SELECT
    gen_random_uuid(), CASE WHEN n % 10 = 0 THEN '{queue}' ELSE 'queue-' || n % 10 END, n % 16, 0, 'succeeded', 1, 1, 5,
    at, at, at, at, 'bench', 'local', ARRAY[]::text[], jsonb_build_object('number', n, 'note', repeat('x', 60)),
    CAST(CAST(1 + n / 1000 AS text) AS xid8)
FROM (SELECT n, now() - n * interval '1 millisecond' AS at FROM generate_series(1, {rows}) AS n) AS ended
"""


def measure(bench: Bench) -> list[Figure]:
    """The figures of the whole suite: a smaller archive there than in a run of its own."""
    return figures(bench, 10_000 if bench.quick else 200_000)


def figures(bench: Bench, archived: int) -> list[Figure]:
    """Jobs a second and bytes of log a job of each way, and the shares with the index of what it is without."""
    count, jobs = (2, 2_000) if bench.quick else (15, 20_000)
    with ExitStack() as stack:
        plain, indexed = (_Archive(bench, stack, archived, indexed=indexed) for indexed in (False, True))
        note(f"ended_in: rounds of {jobs:,} jobs ended with the index and without, in turns")
        found: list[Figure] = []
        for label, end in (
            (f"end of {_BATCH} jobs", lambda archive: archive.by_hundreds(jobs)),
            (f"publication of {jobs:,} jobs", lambda archive: archive.at_once(jobs)),
        ):
            found += _compared(label, count, plain, indexed, end)
    return found


def _compared(
    label: str, count: int, plain: "_Archive", indexed: "_Archive", end: "Callable[[_Archive], float]"
) -> list[Figure]:
    logged: dict[_Archive, list[float]] = {plain: [], indexed: []}

    def timed(archive: _Archive) -> float:
        rate = end(archive)
        logged[archive].append(archive.bytes)
        return rate

    rates = rounds(count, lambda: timed(plain), lambda: timed(indexed))
    shares = [100 * one / other for other, one in zip(*rates, strict=True)]
    # The first of each is the warm-up.
    without, there = (logged[archive][1:] for archive in (plain, indexed))
    return [
        Figure(f"{label}, without the index", "jobs/s", rates[0], COMMAND),
        Figure("  with it", "jobs/s", rates[1], COMMAND),
        Figure("    share of the rate without", "%", shares, COMMAND),
        Figure("  log without", "bytes/job", without, COMMAND),
        Figure("  log with it", "bytes/job", there, COMMAND),
    ]


class _Archive:
    """A schema of its own with so many jobs archived, with the index or without."""

    def __init__(self, bench: Bench, stack: ExitStack, archived: int, *, indexed: bool) -> None:
        self._bench = bench
        self.bytes = 0.0
        """Of log for each job of the last round."""
        self._schema = f"{bench.queue.database.schema}_{'with' if indexed else 'without'}"
        note(f"ended_in: archiving {archived:,} jobs {'with' if indexed else 'without'} the index")
        stack.callback(
            bench.execute, f'DROP SCHEMA IF EXISTS "{self._schema}", "{pinned_schema(self._schema)}" CASCADE'
        )
        self._queue = stack.enter_context(SqlQueue(bench.url, schema=self._schema))
        self._queue.migrate()
        self._queue.create_queue(SPEC)
        self._queue.maintain()
        if not indexed:
            bench.execute(f'DROP INDEX "{self._schema}".job_archive_ended_in')
        bench.execute(_ENDED.format(schema=f'"{self._schema}"', queue=SPEC.name, rows=archived))
        bench.execute(f'VACUUM (ANALYZE) "{self._schema}".job_archive')
        self._jobs = 0

    def by_hundreds(self, jobs: int) -> float:
        """Jobs a second of the finishes alone; claims go in between."""
        self._fill(jobs)
        seconds, logged = 0.0, 0.0
        buckets = list(range(SPEC.bucket_count))
        for _ in range(jobs // _BATCH):
            claimed = self._queue.claim(SPEC.name, limit=_BATCH, worker="bench", buckets=buckets, lease_seconds=600)
            assert len(claimed) == _BATCH, f"{len(claimed)} jobs were claimed"
            endings = [Ending(job, ArchiveState.SUCCEEDED) for job in claimed]
            log, began = self._bench.wal_position(), time.perf_counter()
            self._queue.finish(endings)
            seconds += time.perf_counter() - began
            logged += self._bench.wal_position() - log
            buckets = [*buckets[1:], buckets[0]]
        self.bytes = logged / jobs
        return jobs / seconds

    def at_once(self, jobs: int) -> float:
        """Jobs a second of the publication alone."""
        self._fill(jobs)
        batch = batches.seal(self._queue, SPEC.name, "bench", owner="bench", mode=Mode.LEASED, lease_seconds=600)
        assert batch.job_count == jobs
        log, began = self._bench.wal_position(), time.perf_counter()
        with batches.publication(self._queue, batch, output={}):
            pass
        seconds = time.perf_counter() - began
        self.bytes = (self._bench.wal_position() - log) / jobs
        return jobs / seconds

    def _fill(self, jobs: int) -> None:
        # Before the filling, so that the log of a round holds few images of whole pages.
        self._bench.checkpoint()
        load(self._bench, jobs, schema=self._schema, first=self._jobs + 1)
        self._jobs += jobs
        self._bench.execute(f'VACUUM (ANALYZE) "{self._schema}".job')


if __name__ == "__main__":
    with opened(quick=False) as single:
        show(figures(single, int(sys.argv[1]) if len(sys.argv) > 1 else ARCHIVED), single)
