"""Crowds: 16 processes take 20,000 jobs at once, by each strategy. Beside each the published form of the same design is the
control: that one must be seen to claim jobs twice."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from dagster_sqlqueue import QueueSpec, Strategy
from tests.core.support import Work, until, value
from tests.faults.conftest import Fleet
from tests.faults.published import FANOUT, MANAGER, MERGE, ROUND_ROBIN, TOKEN, taken

PROCESSES = 16
CROWD_JOBS = 20_000
BATCH = 50

PUBLISHED = {
    Strategy.FANOUT: FANOUT,
    Strategy.FIFO: MERGE,
    Strategy.ASSIGN: MANAGER,
    Strategy.ROUND_ROBIN: ROUND_ROBIN,
    Strategy.TOKEN: TOKEN,
}

AFTER_THE_FIRST_LEFT = "SELECT count(*) FROM {s}.audit WHERE kind = 'claim' AND at > to_timestamp(%s)"


@pytest.mark.parametrize("strategy", list(Strategy))
def test_a_crowd_claims_every_job_once_and_with_the_published_form_some_twice(
    fleet: Fleet, spec: QueueSpec[Work], url: str, schema: str, tmp_path: Path, strategy: Strategy
) -> None:
    begun = taken(url, f"{schema}_published", PUBLISHED[strategy])
    assert sum(times > 1 for times in begun.values()) > 0

    fleet.queue.create_queue(replace(spec, strategy=strategy))
    fleet.enqueue(CROWD_JOBS)
    go = tmp_path / "go"
    histories = [fleet.start(go=go, batch_size=BATCH) for _ in range(PROCESSES)]
    until(lambda: all(fleet.read(history, "ready") for history in histories))
    go.touch()
    summaries = fleet.join(180)

    assert fleet.verdict() == []
    claims = Counter(job for event in fleet.all("claimed") for job, _ in event["jobs"])
    assert len(claims) == CROWD_JOBS
    assert claims.total() == CROWD_JOBS
    assert fleet.queue.archived("work", since_seconds=600) == {"succeeded": CROWD_JOBS}
    assert sum(summary["succeeded"] for summary in summaries) == CROWD_JOBS
    assert sum(summary["stale"] + summary["released"] for summary in summaries) == 0
    # Nobody left while jobs were due: what was claimed later, the others had in their hands already.
    first_left = min(history.stat().st_mtime for history in histories)
    assert value(fleet.queue, AFTER_THE_FIRST_LEFT, first_left) <= (PROCESSES - 1) * BATCH
