"""Tasks that fail and are run again, with a master that allows it: each row is one job, and each job one row."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from dagster_sqlqueue import NewJob, QueueSpec, SqlQueue
from dagster_sqlqueue.spark import staged_jobs
from tests.gate.plugin import note_figures
from tests.spark.cluster import JVM_PATIENCE, ROOT
from tests.spark.retry_driver import FOUND, PARTITIONS, ROWS
from tests.spark.support import NOON, Done, archive
from tests.spark.test_writing import nothing_is_left
from tests.support import Work, rows

READS: list[dict[str, str]] = [
    {"target_rows": "100"},
    {"target_rows": "100", "consistent": "snapshot"},
    {"split": "bucket"},
    {"state": "live", "target_rows": "100"},
]

Order = tuple[str, Path, dict[str, str]]


def drive(queue: SqlQueue, url: str, orders: Sequence[Order]) -> None:
    """Have one driver do it all: most of what it takes is the start of a JVM."""
    arguments = json.dumps([(kind, str(notes), options) for kind, notes, options in orders])
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.retry_driver", url, queue.database.schema, arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=JVM_PATIENCE,
    )
    assert done.returncode == 0, done.stderr[-3000:]


def attempts(notes: Path) -> list[str]:
    return sorted(file.name for file in notes.iterdir() if file.name != FOUND)


def both_attempts(what: str, tasks: int) -> list[str]:
    return sorted(f"{what}-{task}-{attempt}" for task in range(tasks) for attempt in range(2))


@pytest.mark.prove
def test_writes_whose_tasks_each_fail_once_give_each_job_once(
    queue: SqlQueue, spec: QueueSpec[Work], url: str, tmp_path: Path
) -> None:
    kinds = ("written", "staged")
    for kind in kinds:
        queue.create_queue(replace(spec, name=kind))
    drive(queue, url, [(kind, tmp_path / kind, {"queue": kind, "writeName": "once"}) for kind in kinds])
    for kind in kinds:
        assert attempts(tmp_path / kind) == both_attempts(kind, PARTITIONS)
        done = staged_jobs.written(queue, kind, "once")
        assert done is not None
        assert (done.jobs, done.duplicates, done.repeats) == (ROWS, 0, 0)
        found = rows(queue, "SELECT CAST(payload ->> 'n' AS integer) FROM {s}.job WHERE queue = %s ORDER BY 1", kind)
        assert found == [(n,) for n in range(ROWS)]
    nothing_is_left(queue)


@pytest.mark.prove
def test_reads_whose_tasks_each_fail_once_give_each_row_once(
    queue: SqlQueue, spec: QueueSpec[Work], url: str, tmp_path: Path
) -> None:
    queue.enqueue_many(spec, [NewJob(Work(n=n)) for n in range(ROWS)])
    archive(queue, [Done({"n": n}, at=NOON + timedelta(seconds=n)) for n in range(ROWS)])
    rows(queue, "UPDATE {s}.job_archive SET bucket = mod(CAST(payload ->> 'n' AS integer), 4)")
    orders = [("read", tmp_path / f"read-{number}", options) for number, options in enumerate(READS)]
    stored = "SELECT id, xmin::text, ctid::text, state, lease_no, attempt, claimed_by FROM {s}.job ORDER BY id"
    before = rows(queue, stored)
    drive(queue, url, orders)
    # No attempt of a task claims: a write would have given the row another place.
    assert rows(queue, stored) == before
    for _, notes, options in orders:
        assert json.loads((notes / FOUND).read_text()) == list(range(ROWS)), options
        seen = attempts(notes)
        assert seen == both_attempts("read", len(seen) // 2), options
        assert len(seen) >= 4, options
    note_figures(reads=len(orders), rows=ROWS)
