"""Drain runs: what they do to the queue, what they say, and what is left when they are interrupted."""

import logging
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import dagster as dg
import pytest
from pydantic import BaseModel

from dagster_sqlqueue import Done, Job, NewJob, QueueSpec, Sensitive, SqlQueue
from dagster_sqlqueue.db.database import Database
from dagster_sqlqueue.errors import DatabaseUnavailable
from dagster_sqlqueue.orchestration import (
    QueueConsumer,
    build_claim_op,
    build_create_job,
    build_maintenance_schedule,
    build_sqlqueue_launchpad_jobs,
    queue_asset_key,
    queue_consumer,
    slots,
)
from tests.gate.patience import sized
from tests.orchestration.support import WORK, Deployment, TablesOnly, done_by, error_of
from tests.support import Work, rows, value

claim_work = build_claim_op(WORK)


@dg.job
def claiming() -> None:
    claim_work()


PROJECT = Path(__file__).resolve().parents[2]


def test_a_run_works_the_queue_off_and_says_what_it_did(
    queue: SqlQueue, deployment: Deployment, consumer: QueueConsumer[Work]
) -> None:
    deployment.enqueue_many(20)
    deployment.enqueue(Work(n=99, note="fail"))
    result = deployment.drain(consumer, linger_seconds=0)
    assert result.success
    summary = done_by(result)
    assert (summary["claimed"], summary["succeeded"], summary["retried"], summary["failed"]) == (23, 20, 2, 1)
    assert queue.depth("work").live == 0
    assert [letter.error for letter in queue.dead_letters("work")] == ["cannot do 99"]
    event = deployment.instance.get_latest_materialization_event(queue_asset_key("work"))
    assert event is not None
    assert event.asset_materialization is not None
    assert event.asset_materialization.metadata["ready"].value == 0


@pytest.mark.parametrize("statement", ["buckets_served", "depth"])
def test_a_run_whose_database_goes_away_when_all_is_done_has_succeeded(
    deployment: Deployment, consumer: QueueConsumer[Work], monkeypatch: pytest.MonkeyPatch, statement: str
) -> None:
    run = Database.run

    def goes_away(database: Database, name: str, parameters: Mapping[str, Any]) -> Any:
        if name == statement:
            raise DatabaseUnavailable("the server restarts")
        return run(database, name, parameters)

    deployment.enqueue_many(3)
    monkeypatch.setattr(Database, "run", goes_away)
    result = deployment.drain(consumer)
    assert done_by(result)["succeeded"] == 3
    entries = deployment.instance.all_logs(result.run_id)
    left = [one.user_message for one in entries if "left to the next tick or run" in one.user_message]
    assert left == ["work: the queue's page is left to the next tick or run: the server restarts"] * (
        statement == "depth"
    )


def test_a_run_shows_no_sensitive_value(
    queue: SqlQueue, deployment: Deployment, caplog: pytest.LogCaptureFixture
) -> None:
    class Login(BaseModel):
        password: Annotated[str, Sensitive()]

    @queue_consumer(QueueSpec("work", Login, bucket_count=4, max_attempts=1))
    def handle(job: Job[Login]) -> Done:
        if job.payload.password == "correct horse 1":
            raise ValueError(f"refused {job.payload.password}")
        return Done({"password": job.payload.password})

    queue.enqueue_many(handle.spec, [Login(password=f"correct horse {n}") for n in range(3)])
    result = deployment.drain(handle, linger_seconds=0)
    assert done_by(result)["failed"] == 1
    entries = [str(entry) for entry in deployment.instance.all_logs(result.run_id)]
    assert len(entries) >= 5
    assert "horse" not in "".join([*entries, caplog.text])
    assert "attempt 3 of 3: dead letter: ValueError: refused ***" in caplog.text


def test_the_leases_of_a_run_are_as_long_as_the_queue_says(queue: SqlQueue, deployment: Deployment) -> None:
    lengths: list[float] = []

    @queue_consumer(QueueSpec("work", Work, bucket_count=4, lease_seconds=300))
    def handle(job: Job[Work]) -> Done:
        lengths.append(value(queue, "SELECT extract(epoch FROM available_at - started_at)::float8 FROM {s}.job"))
        return Done()

    queue.create_queue(replace(handle.spec, lease_seconds=9_000))
    deployment.enqueue(Work(n=1))
    assert deployment.drain(handle, linger_seconds=0).success
    assert lengths == [9_000]


def test_a_run_has_as_many_events_for_many_jobs_as_for_one(
    deployment: Deployment, consumer: QueueConsumer[Work]
) -> None:
    events: list[list[str]] = []
    for jobs in (1, sized(400, 2_000)):
        deployment.enqueue_many(jobs)
        result = deployment.drain(consumer, linger_seconds=0, batch_size=10)
        assert done_by(result)["batches"] >= jobs // 10
        logs = deployment.instance.all_logs(result.run_id)
        seconds = done_by(result)["seconds"]
        events.append([entry.dagster_event_type.value if entry.dagster_event_type else "LOG" for entry in logs])
    one, many = events
    # A line of progress in ten seconds is the only thing that there may be more of.
    assert [event for event in one if event != "LOG"] == [event for event in many if event != "LOG"]
    assert many.count("LOG") - one.count("LOG") <= 1 + seconds / 10


def test_a_run_claims_by_the_time_that_its_handler_takes_unless_it_is_given_a_size(
    queue: SqlQueue, deployment: Deployment, spec: QueueSpec[Work]
) -> None:
    """At five milliseconds a job, twenty take as long as a batch is to take."""

    @queue_consumer(spec)
    def slow(job: Job[Work]) -> None:
        time.sleep(0.005)

    def claims(**config: int) -> list[int]:
        rows(queue, "DELETE FROM {s}.job_archive")
        deployment.enqueue_many(125)
        assert done_by(deployment.drain(slow, linger_seconds=0, **config))["succeeded"] == 125
        return [
            size
            for (size,) in rows(queue, "SELECT count(*) FROM {s}.job_archive GROUP BY started_at ORDER BY started_at")
        ]

    assert claims(batch_size=60) == [60, 60, 5]
    first, second, *others = claims()
    assert (first, max(others) <= 20) == (1, True)
    assert second <= 4


def test_a_run_takes_only_its_buckets(queue: SqlQueue, deployment: Deployment, consumer: QueueConsumer[Work]) -> None:
    deployment.enqueue_many(100)
    per_bucket = dict(rows(queue, "SELECT bucket, count(*) FROM {s}.job GROUP BY bucket"))
    result = deployment.drain(consumer, linger_seconds=0, buckets=[1, 2])
    assert done_by(result)["succeeded"] == per_bucket[1] + per_bucket[2]
    assert dict(rows(queue, "SELECT bucket, count(*) FROM {s}.job GROUP BY bucket")) == {
        0: per_bucket[0],
        3: per_bucket[3],
    }


def test_a_launch_for_buckets_that_the_queue_has_not_is_refused(
    deployment: Deployment, consumer: QueueConsumer[Work]
) -> None:
    deployment.enqueue_many(1)
    for job, op in ((consumer.job, consumer.op.name), (claiming, "claim_work")):
        result = deployment.execute(job, **{op: {"buckets": [1, 99]}})
        assert "the config's buckets name 99, and queue 'work' has the buckets 0 to 3" in error_of(result, op)


def test_a_launch_with_a_token_that_is_none_is_refused(deployment: Deployment, consumer: QueueConsumer[Work]) -> None:
    op = consumer.op.name
    result = deployment.execute(consumer.job, **{op: {"slot": 1, "token": "abc"}})
    assert "the config's token is 'abc', which no sensor makes" in error_of(result, op)


def test_the_op_of_a_consumer_runs_after_another(
    queue: SqlQueue, deployment: Deployment, consumer: QueueConsumer[Work]
) -> None:
    @dg.op
    def load() -> None:
        deployment.enqueue_many(5)

    @dg.job
    def graph() -> None:
        consumer.op(start=load())

    assert deployment.execute(graph, **{consumer.op.name: {"linger_seconds": 0}}).success
    assert queue.depth("work").live == 0


def test_a_run_gives_its_own_slot_back_and_no_other(
    queue: SqlQueue, deployment: Deployment, consumer: QueueConsumer[Work]
) -> None:
    slot = slots.acquire(queue, "work", 0, [0, 1, 2, 3], seconds=3_600)
    assert slot is not None
    mine = {"buckets": [0, 1, 2, 3], "slot": 0, "token": str(slot.token), "linger_seconds": 0}
    for token, left in (("00000000-0000-7000-8000-000000000000", {0: (0, 1, 2, 3)}), (str(slot.token), {})):
        deployment.enqueue_many(5)
        assert deployment.drain(consumer, **{**mine, "token": token}).success
        assert queue.depth("work").live == 0
        assert slots.taken(queue, "work") == left


def test_a_cancelled_run_gives_its_leases_and_its_slot_back_at_once(
    queue: SqlQueue, deployment: Deployment, spec: QueueSpec[Work]
) -> None:
    handled = []

    @queue_consumer(spec)
    def interrupted(job: Job[Work]) -> Done:
        handled.append(job.payload.n)
        if len(handled) == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return Done()

    deployment.enqueue_many(10)
    slot = slots.acquire(queue, "work", 0, [0, 1, 2, 3], seconds=3_600)
    assert slot is not None
    result = deployment.execute(
        interrupted.job, work_off_work={"linger_seconds": 0, "slot": 0, "token": str(slot.token)}
    )
    assert not result.success
    assert len(handled) == 3
    depth = queue.depth("work")
    assert depth.running == 0
    assert depth.ready == 8, "the two that were done stay done"
    assert queue.archived("work", since_seconds=3_600) == {"succeeded": 2}
    assert slots.taken(queue, "work") == {}
    assert rows(queue, "SELECT DISTINCT attempt FROM {s}.job") == [(0,)]


def test_a_queue_that_does_not_exist_fails_the_run_with_its_name(deployment: Deployment) -> None:
    @queue_consumer(QueueSpec("nowhere", Work))
    def handle(job: Job[Work]) -> Done:
        return Done()

    result = deployment.execute(handle.job)
    assert not result.success
    assert "there is no queue 'nowhere'" in error_of(result, "work_off_nowhere")


def test_no_io_manager_has_to_do_with_a_run(deployment: Deployment, consumer: QueueConsumer[Work]) -> None:
    deployment.enqueue_many(3)
    defs = dg.Definitions(
        jobs=[
            consumer.job,
            build_create_job(consumer.spec),
            *build_sqlqueue_launchpad_jobs(consumer.spec),
            build_maintenance_schedule().job,
        ],
        resources={"sqlqueue": deployment.resource, "io_manager": TablesOnly()},
    )
    for job in ("create_work", "sqlqueue_show", "sqlqueue_maintenance_job"):
        assert defs.resolve_job_def(job).execute_in_process(instance=deployment.instance).success
    result = defs.resolve_job_def(consumer.job.name).execute_in_process(
        instance=deployment.instance, run_config={"ops": {consumer.op.name: {"config": {"linger_seconds": 0}}}}
    )
    assert done_by(result)["succeeded"] == 3
    said = [log.user_message for log in deployment.instance.all_logs(result.run_id)]
    assert [text for text in said if re.fullmatch(r"work: 3 claimed, 3 succeeded; \d batches, \d+\.\d s", text)]


def test_a_run_that_fails_says_what_it_had_done(deployment: Deployment, spec: QueueSpec[Work]) -> None:
    @queue_consumer(spec)
    def handle(job: Job[Work]) -> Done:
        if job.payload.n == 1:
            raise SystemExit("enough")
        return Done()

    deployment.enqueue_many(2)
    result = deployment.execute(handle.job, work_off_work={"linger_seconds": 0, "batch_size": 1})
    assert not result.success
    (said,) = (
        log.user_message for log in deployment.instance.all_logs(result.run_id) if "ended early" in log.user_message
    )
    assert re.fullmatch(r"work: ended early: \d claimed.*; \d batches, \d+\.\d s", said)


KILLED = """
import os, signal, sys
import dagster as dg
from dagster_sqlqueue.orchestration import SqlQueueResource, queue_consumer
from tests.orchestration.support import WORK

@queue_consumer(WORK)
def handle(job):
    os.kill(os.getpid(), signal.SIGKILL)

resource = SqlQueueResource(url=sys.argv[1], schema_name=sys.argv[2])
config = {"ops": {handle.op.name: {"config": {"linger_seconds": 0}}}}
handle.job.execute_in_process(resources={"sqlqueue": resource}, run_config=config)
"""


def test_jobs_that_killed_their_runs_are_counted_shown_and_materialised(
    url: str, queue: SqlQueue, deployment: Deployment, consumer: QueueConsumer[Work]
) -> None:
    deployment.enqueue(NewJob(Work(n=1), max_attempts=1))
    command = [sys.executable, "-c", KILLED, url, queue.database.schema]
    done = subprocess.run(command, cwd=PROJECT, env={**os.environ, "PYTHONPATH": str(PROJECT)}, capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert queue.depth("work").running == 1
    rows(queue, "UPDATE {s}.job SET available_at = now()")
    result = deployment.drain(consumer, linger_seconds=0)
    did = done_by(result)
    assert {name: did[name] for name in ("claimed", "succeeded", "failed", "buried")} == {
        "claimed": 1,
        "succeeded": 0,
        "failed": 1,
        "buried": 1,
    }
    said = {log.user_message: log.level for log in deployment.instance.all_logs(result.run_id)}
    (warned,) = (text for text, level in said.items() if level == logging.WARNING)
    assert warned.startswith("work: 1 jobs had killed the process that worked on them")
    assert any(text.startswith("work: 1 claimed, 1 failed, 1 buried; ") for text in said)
    event = deployment.instance.get_latest_materialization_event(queue_asset_key("work"))
    assert event is not None
    assert event.asset_materialization is not None
    assert event.asset_materialization.metadata["dead_letters"].value == 1
    (letter,) = queue.dead_letters("work")
    assert "its consumer died or hung" in (letter.error or "")


@pytest.mark.parametrize("transactional", [False, True])
def test_what_is_met_with_its_attempts_spent_is_counted_in_each_mode(
    queue: SqlQueue, deployment: Deployment, spec: QueueSpec[Work], transactional: bool
) -> None:
    @queue_consumer(spec, transactional=transactional)
    def handle(job: Job[Work]) -> None: ...

    deployment.enqueue_many(4)
    rows(queue, "UPDATE {s}.job SET state = 'running', claimed_by = 'dead', lease_no = 1, attempt = 3, alone = true")
    rows(queue, "UPDATE {s}.job SET attempt = 2 WHERE (payload->>'n')::int = 0")
    did = done_by(deployment.drain(handle, linger_seconds=0))
    assert (did["claimed"], did["succeeded"], did["failed"], did["buried"]) == (4, 1, 3, 3)
