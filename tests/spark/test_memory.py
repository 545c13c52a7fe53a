"""What a task holds of a slice: a batch or two, however large the slice is."""

import subprocess
import sys

import pytest

from dagster_sqlqueue import SqlQueue
from tests.gate.patience import PATIENCE
from tests.gate.plugin import note_figures
from tests.spark.cluster import ROOT
from tests.support import rows

COUNT = 100_000
MB = 1_000_000


@pytest.mark.prove
def test_a_task_holds_a_few_batches_of_a_large_slice(queue: SqlQueue, url: str) -> None:
    rows(
        queue,
        "INSERT INTO {s}.job_archive (id, queue, bucket, priority, state, lease_no, attempt, max_attempts, run_at,"
        " created_at, finished_at, region, tags, payload)"
        " SELECT gen_random_uuid(), 'work', 0, 0, 'succeeded', 1, 1, 3, now(), now(), now(), 'local', '{{}}',"
        " jsonb_build_object('note', repeat('x', 1000)) FROM generate_series(1, %s)",
        COUNT,
    )
    command = [sys.executable, "-m", "tests.spark.reading_task", url, queue.database.schema]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    read, more = map(int, done.stdout.split())
    assert read > COUNT * 1_000
    # Batches of 4 MiB, and what the allocators keep for the next ones.
    assert more < 20 * MB
    note_figures(read_mb=read // MB, held_mb=more // MB)
