"""Crowds: 16 processes take 20,000 jobs at once, by each strategy. The published form of the same design is the control:
that one must be seen to claim jobs twice. `make test` has small crowds."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from dagster_sqlqueue import QueueSpec, Strategy
from tests.faults.conftest import SINCE, Fleet, a_race
from tests.faults.published import FANOUT, MANAGER, MERGE, ROUND_ROBIN, TOKEN, taken
from tests.gate.patience import sized
from tests.support import Work, until, value

PROCESSES = sized(4, 16)
CROWD_JOBS = sized(2_000, 20_000)
BATCH = 50

PUBLISHED = {
    Strategy.FANOUT: FANOUT,
    Strategy.FIFO: MERGE,
    Strategy.ASSIGN: MANAGER,
    Strategy.ROUND_ROBIN: ROUND_ROBIN,
    Strategy.TOKEN: TOKEN,
}

TOOK = "SELECT EXTRACT(EPOCH FROM max(at) - min(at)) FROM {s}.audit"
AFTER_THE_FIRST_LEFT = "SELECT count(*) FROM {s}.audit WHERE kind = 'claim' AND at > to_timestamp(%s)"


@a_race
@pytest.mark.parametrize("strategy", list(Strategy))
def test_a_crowd_claims_some_jobs_twice_with_the_published_form(url: str, schema: str, strategy: Strategy) -> None:
    begun = taken(url, f"{schema}_published", PUBLISHED[strategy])
    assert max(begun.values()) > 1


@pytest.mark.parametrize(
    "strategy",
    [
        strategy
        if strategy in (Strategy.ROUND_ROBIN, Strategy.ASSIGN)
        else pytest.param(strategy, marks=pytest.mark.prove)
        for strategy in Strategy
    ],
)
def test_a_crowd_claims_every_job_once(fleet: Fleet, spec: QueueSpec[Work], tmp_path: Path, strategy: Strategy) -> None:
    fleet.queue.create_queue(replace(spec, strategy=strategy))
    fleet.enqueue(CROWD_JOBS)
    go = tmp_path / "go"
    histories = [fleet.start(go=go, batch_size=BATCH) for _ in range(PROCESSES)]
    until(lambda: all(fleet.read(history, "ready") for history in histories))
    go.touch()
    summaries = fleet.join()
    fleet.note(seconds=round(value(fleet.queue, TOOK), 1))

    assert fleet.verdict() == []
    claims = Counter(job for event in fleet.all("claimed") for job, _ in event["jobs"])
    assert len(claims) == CROWD_JOBS
    assert claims.total() == CROWD_JOBS
    assert fleet.queue.archived("work", since_seconds=SINCE) == {"succeeded": CROWD_JOBS}
    assert sum(summary["succeeded"] for summary in summaries) == CROWD_JOBS
    assert sum(summary["stale"] + summary["released"] for summary in summaries) == 0
    # Nobody left while jobs were due: what was claimed later, the others had in their hands already.
    first_left = min(history.stat().st_mtime for history in histories)
    assert value(fleet.queue, AFTER_THE_FIRST_LEFT, first_left) <= (PROCESSES - 1) * BATCH
