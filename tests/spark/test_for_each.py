"""A handler run by Spark's tasks for each job of a sealed batch."""

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from dagster_sqlqueue import Cancel, Done, Hold, Job, Reject, Retry, Snooze, SqlQueue
from dagster_sqlqueue.consumer.consumer import Mode
from dagster_sqlqueue.errors import BatchLost, InvalidInput
from dagster_sqlqueue.model.outcome import Outcome
from dagster_sqlqueue.spark.batches import batch_seal
from dagster_sqlqueue.spark.consume_verbs import consume
from dagster_sqlqueue.spark.for_each import for_each_job
from tests.spark.consuming_support import NO_HEARTBEAT, SALES, Sale, endings, prepare, waiting
from tests.support import Work, make_due, rows

SHARES_A_SCHEMA = True


class Noted:
    """A handler that writes down every job that it is given, by the process that had it."""

    def __init__(self, directory: Path, breaks: bool = False) -> None:
        self.directory = directory
        self.breaks = breaks

    def __call__(self, job: Job[Sale]) -> Outcome | None:
        with (self.directory / str(os.getpid())).open("a") as file:
            file.write(f"{job.id}\n")
        if self.breaks and job.payload.amount == -1:
            raise OSError("the till is stuck")
        return None

    def noted(self) -> Counter[str]:
        return Counter(line for file in self.directory.iterdir() for line in file.read_text().split())


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    (tmp_path / "notes").mkdir()
    return tmp_path / "notes"


def each(job: Job[Sale]) -> Outcome | None:
    match job.payload.amount:
        case 1:
            return Done({"key": str(job.id)})
        case 2:
            return Retry("again", after=3_600)
        case 5:
            return Snooze(3_600)
        case 10:
            return Hold("look at it")
        case 17:
            return Reject("never")
        case 26:
            return Cancel("not wanted")
        case -1:
            raise ValueError("a sale of nothing")
    return None


def test_every_outcome_is_counted_and_done_when_the_batch_is_published(queue: SqlQueue, spark: SparkSession) -> None:
    prepare(queue)
    rows(queue, "UPDATE {s}.job SET payload = payload || '{{\"account\": 7}}' WHERE payload->>'amount' = '37'")
    with consume(queue, spark, SALES, key="k") as work:
        summary = for_each_job(work, each, tasks=2)
        assert endings(queue) == []
        assert work.jobs().count() == 30
    assert (summary.jobs, summary.succeeded, summary.retried, summary.snoozed) == (30, 21, 4, 1)
    assert (summary.held, summary.rejected, summary.cancelled) == (1, 2, 1)
    assert endings(queue) == [("cancelled", 1, 1), ("failed", 2, 2), ("succeeded", 21, 21)]
    found = rows(
        queue,
        "SELECT payload->>'amount', state, attempt, split_part(error, E'\\n', 1), available_at > now() FROM {s}.job"
        " WHERE queue = 'sales' ORDER BY CAST(payload->>'amount' AS int), id",
    )
    assert found[:3] == [("-1", "queued", 1, "ValueError: a sale of nothing", False)] * 3
    assert [(amount, state, spent, error) for amount, state, spent, error, _ in found[3:]] == [
        ("2", "queued", 1, "again"),
        ("5", "queued", 0, None),
        ("10", "held", 0, "look at it"),
    ]
    assert rows(queue, "SELECT result->>'key' = CAST(id AS text) FROM {s}.job_archive WHERE payload->>'amount' = '1'") == [
        (True,)
    ]  # fmt: skip


def test_what_was_reported_is_not_run_again_after_a_failure(queue: SqlQueue, spark: SparkSession, notes: Path) -> None:
    prepare(queue)
    handler = Noted(notes, breaks=True)
    with pytest.raises(RuntimeError), consume(queue, spark, SALES, key="k") as work:  # noqa: PT012
        for_each_job(work, handler)
        raise RuntimeError("after the work")
    assert endings(queue) == [("succeeded", 27, 27)]
    assert {(state, attempt) for state, attempt, _ in waiting(queue)} == {("queued", 1)}
    with consume(queue, spark, SALES, key="k") as work:
        again = Noted(notes)
        assert for_each_job(work, again).succeeded == work.job_count == 3
    assert endings(queue) == [("succeeded", 30, 30)]
    assert sorted(handler.noted().values()) == [1] * 27 + [2] * 3


def test_a_run_that_is_gone_leaves_what_it_reported_done(queue: SqlQueue, spark: SparkSession, notes: Path) -> None:
    prepare(queue)
    handler = Noted(notes)
    lost = consume(queue, spark, SALES, key="k", owner="lost", lease_seconds=NO_HEARTBEAT)
    for_each_job(lost.__enter__(), handler)
    make_due(queue)
    with consume(queue, spark, SALES, key="k") as work:
        assert for_each_job(work, handler).jobs == 0
    with pytest.raises(BatchLost):
        lost.__exit__(None, None, None)
    assert endings(queue) == [("succeeded", 30, 30)]
    assert set(handler.noted().values()) == {1}


def test_what_cannot_be_run_by_tasks_is_refused(queue: SqlQueue, spark: SparkSession) -> None:
    prepare(queue)
    with (
        pytest.raises(InvalidInput, match=r"consume with Mode\.LEASED"),
        consume(queue, spark, SALES, key="k", mode=Mode.TRANSACTIONAL) as work,
    ):
        for_each_job(work, each)
    with pytest.raises(InvalidInput, match="give consume"), consume(queue, spark, "sales", key="k") as work:
        for_each_job(work, each)
    with pytest.raises(InvalidInput, match="tasks is 0"), consume(queue, spark, SALES, key="k") as work:
        for_each_job(work, each, tasks=0)
    assert endings(queue) == []


def test_a_handler_that_fails_for_each_job_is_refused_before_an_attempt_is_spent(
    queue: SqlQueue, spark: SparkSession
) -> None:
    async def asynchronous(job: Job[Sale]) -> None: ...

    def nothing() -> None: ...

    def many(jobs: list[Job[Sale]]) -> None: ...

    def other(job: Job[Work]) -> None: ...

    prepare(queue)
    handler: Any
    for handler, said in (
        (asynchronous, "queue 'sales' is async, and Spark's tasks call it"),
        (nothing, "'nothing' of queue 'sales' is called with one positional argument"),
        (many, "'many' of queue 'sales' takes a list of jobs"),
        (other, r"takes Job\[Work\], and the payloads of queue 'sales' are Sale"),
        (None, "the handler of queue 'sales' is None; it must be a function"),
    ):
        with pytest.raises(InvalidInput, match=said), consume(queue, spark, SALES, key="k") as work:
            for_each_job(work, handler)
    assert {(state, attempt) for state, attempt, _ in waiting(queue)} == {("queued", 0)}


def test_many_jobs_are_leased_for_their_tasks(
    queue: SqlQueue, spark: SparkSession, notes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_seal, "TRANSACTIONAL_FROM", 30)
    prepare(queue)
    with (  # noqa: PT012
        pytest.raises(InvalidInput, match=r"consume with Mode\.LEASED"),
        consume(queue, spark, SALES, key="k") as work,
    ):
        work.jobs()
        for_each_job(work, each)
    with consume(queue, spark, SALES, key="k") as work:
        assert work.batch.mode is Mode.TRANSACTIONAL
        assert for_each_job(work, Noted(notes)).succeeded == 30
        assert work.batch.mode is Mode.LEASED
    assert endings(queue) == [("succeeded", 30, 30)]


def test_a_batch_that_is_taken_over_meanwhile_is_lost(queue: SqlQueue, spark: SparkSession) -> None:
    prepare(queue)
    with (  # noqa: PT012
        pytest.raises(BatchLost),
        consume(queue, spark, SALES, key="k", lease_seconds=NO_HEARTBEAT) as work,
    ):
        make_due(queue)
        with consume(queue, spark, SALES, key="k"):
            pass
        for_each_job(work, each)
    assert endings(queue) == [("succeeded", 30, 30)]
