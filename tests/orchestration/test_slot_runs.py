"""A slot beside its run: it carries the run's id, waits for one that has not come, and ends with one that has."""

import re
import time
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import dagster as dg
import psycopg
import pytest
from dagster._core.remote_origin import RegisteredCodeLocationOrigin, RemoteJobOrigin, RemoteRepositoryOrigin
from dagster._core.storage.runs import SqlRunStorage
from dagster._core.storage.runs.schema import RunsTable
from psycopg import sql

from dagster_sqlqueue import Job, QueueSpec, SqlQueue
from dagster_sqlqueue.orchestration import (
    QueueConsumer,
    SensorSettings,
    SqlQueueResource,
    build_sqlqueue_sensor,
    queue_consumer,
    slots,
)
from tests.orchestration.support import Deployment, NewInstance, configs, expire
from tests.support import Work, rows, states, value

Status = dg.DagsterRunStatus


@pytest.fixture
def sensor(consumer: QueueConsumer[Work]) -> dg.SensorDefinition:
    return build_sqlqueue_sensor(consumer, settings=SensorSettings(max_runs=3, jobs_per_run=10_000))


def make(deployment: Deployment, consumer: QueueConsumer[Work], request: Any, status: Status) -> str:
    """The run that was asked for, as Dagster knows it. Gives its id."""
    repository = RemoteRepositoryOrigin(RegisteredCodeLocationOrigin("code"), "__repository__")
    run = dg.DagsterRun(
        job_name=consumer.job.name,
        run_config=request.run_config,
        tags=dict(request.tags),
        status=status,
        remote_job_origin=RemoteJobOrigin(repository, consumer.job.name),
    )
    return deployment.instance.add_run(run).run_id


def reserved_before(queue: SqlQueue) -> None:
    """The ticks that reserved slots are over."""
    rows(queue, "UPDATE {s}.consumer_slot SET reserved_at = now() - interval '1 day'")


@pytest.mark.parametrize(
    ("status", "said"), [(Status.QUEUED, "queued"), (Status.NOT_STARTED, "made"), (Status.STARTING, "starting")]
)
def test_a_run_that_has_not_begun_keeps_its_slot_which_has_its_id(
    queue: SqlQueue,
    deployment: Deployment,
    consumer: QueueConsumer[Work],
    sensor: dg.SensorDefinition,
    status: Status,
    said: str,
) -> None:
    deployment.enqueue(Work(n=1))
    (request,) = deployment.tick(sensor).run_requests
    run_id = make(deployment, consumer, request, status)
    for _ in range(3):
        expire(queue)
        again = deployment.tick(sensor)
        assert not again.run_requests
        assert f"run {run_id[:8]} ({said}) has buckets 0-3" in again.skip_reason.skip_message
    assert rows(queue, "SELECT run_id, expires_at > now() FROM {s}.consumer_slot") == [(run_id, True)]


def age(deployment: Deployment, run_id: str, seconds: float) -> None:
    """Nothing was heard of the run for so long."""
    then = datetime.fromtimestamp(time.time() - seconds, UTC).replace(tzinfo=None)
    storage = deployment.instance.run_storage
    assert isinstance(storage, SqlRunStorage)
    with storage.connect() as connection:
        connection.execute(RunsTable.update().where(RunsTable.c.run_id == run_id).values(update_timestamp=then))


@pytest.mark.parametrize("status", [Status.NOT_STARTED, Status.STARTING])
def test_no_other_run_is_requested_while_one_is_starting_and_none_is_counted_as_one_that_took_nothing(
    queue: SqlQueue,
    deployment: Deployment,
    consumer: QueueConsumer[Work],
    sensor: dg.SensorDefinition,
    status: Status,
) -> None:
    """Starts of minutes are usual on Kubernetes. Here the launcher died, and nobody has informed Dagster."""
    deployment.enqueue(Work(n=1))
    result = deployment.tick(sensor)
    for _ in range(4):
        (request,) = result.run_requests
        run_id = make(deployment, consumer, request, status)
        for seconds in (75, 590):
            expire(queue)
            age(deployment, run_id, seconds)
            waiting = deployment.tick(sensor)
            assert not configs(waiting)
            assert re.search(rf"run {run_id[:8]} \(\w+ for \d+ s\) has buckets 0-3", waiting.cursor)
        age(deployment, run_id, 601)
        result = deployment.tick(sensor)
        assert re.search(f"free again: run {run_id[:8]} has not started for 60\\d s; requested a run", result.cursor)
        assert "no run took a job" not in result.cursor
        assert {one.starts for one in slots.asked(queue, "work").values()} == {1}


def test_dagsters_own_time_for_a_start_counts_if_it_is_longer(
    deployment: Deployment, consumer: QueueConsumer[Work], sensor: dg.SensorDefinition, new_instance: NewInstance
) -> None:
    deployment.enqueue(Work(n=1))
    with new_instance(run_monitoring={"enabled": True, "start_timeout_seconds": 1_800}) as monitored:
        deployment = replace(deployment, instance=monitored)
        (request,) = deployment.tick(sensor).run_requests
        run_id = make(deployment, consumer, request, Status.STARTING)
        age(deployment, run_id, 1_700)
        assert not configs(deployment.tick(sensor))
        age(deployment, run_id, 1_900)
        assert len(configs(deployment.tick(sensor))) == 1


def test_the_time_for_a_start_can_be_set(
    deployment: Deployment, consumer: QueueConsumer[Work], sensor: dg.SensorDefinition
) -> None:
    deployment.enqueue(Work(n=1))
    (request,) = deployment.tick(sensor).run_requests
    run_id = make(deployment, consumer, request, Status.QUEUED)
    impatient = build_sqlqueue_sensor(consumer, settings=SensorSettings(starting_seconds=1e-9))
    assert not configs(deployment.tick(impatient)), "the time in Dagster's queue does not count"
    deployment.instance.delete_run(run_id)
    run_id = make(deployment, consumer, request, Status.STARTING)
    patient = build_sqlqueue_sensor(consumer, settings=SensorSettings(starting_seconds=3_600))
    age(deployment, run_id, 1_800)
    assert not configs(deployment.tick(patient))
    assert len(configs(deployment.tick(impatient))) == 1


def test_what_a_dead_tick_reserved_is_free_at_the_next_one(
    queue: SqlQueue, deployment: Deployment, consumer: QueueConsumer[Work], sensor: dg.SensorDefinition
) -> None:
    """Its daemon was killed before Dagster had recorded a run. No bucket becomes a suspect by it, however often."""
    deployment.enqueue_many(20)
    tokens = set()
    for _ in range(4):
        result = deployment.tick(sensor)
        (config,) = configs(result)
        tokens.add(config["token"])
        assert not configs(deployment.tick(sensor)), "it may be another daemon's tick, which is not over"
        reserved_before(queue)
    assert len(tokens) == 4
    assert "free again: no run was created for slot 0" in result.cursor
    assert {one.starts for one in slots.asked(queue, "work").values()} == {1}
    deployment.drain(consumer, **{**config, "linger_seconds": 0})
    assert set(states(queue).values()) == {"succeeded"}


def test_what_another_dagster_reserved_is_left_to_it(
    queue: SqlQueue, deployment: Deployment, sensor: dg.SensorDefinition, new_instance: NewInstance
) -> None:
    """Two deployments on one queue, with sensors of one name: neither knows the runs of the other."""
    deployment.enqueue(Work(n=1))
    with new_instance() as other:
        assert len(configs(replace(deployment, instance=other).tick(sensor))) == 1
    reserved_before(queue)
    assert not configs(deployment.tick(sensor))
    rows(queue, "UPDATE {s}.consumer_slot SET dagster_instance = NULL")
    assert not configs(deployment.tick(sensor)), "nor one whose storage has no id"
    expire(queue)
    assert len(configs(deployment.tick(sensor))) == 1


def test_a_run_that_came_is_no_dead_tick(
    queue: SqlQueue, deployment: Deployment, spec: QueueSpec[Work], sensor: dg.SensorDefinition
) -> None:
    """Also where somebody has deleted it from Dagster while it works."""
    seen = []

    @queue_consumer(spec)
    def handle(job: Job[Work]) -> None:
        reserved_before(queue)
        seen.append(configs(deployment.tick(sensor)))

    deployment.enqueue(Work(n=1))
    (config,) = configs(deployment.tick(sensor))
    deployment.drain(handle, **{**config, "linger_seconds": 0})
    assert seen == [[]]


@pytest.mark.parametrize(
    ("status", "said"), [(Status.SUCCESS, "succeeded"), (Status.FAILURE, "failed"), (Status.CANCELED, "was cancelled")]
)
def test_a_slot_ends_with_its_run(
    queue: SqlQueue,
    deployment: Deployment,
    consumer: QueueConsumer[Work],
    sensor: dg.SensorDefinition,
    status: Status,
    said: str,
) -> None:
    """Without any other sensor: one run that was killed, one that was cancelled in Dagster's queue."""
    deployment.enqueue(Work(n=1))
    (request,) = deployment.tick(sensor).run_requests
    run_id = make(deployment, consumer, request, Status.QUEUED)
    deployment.tick(sensor)
    run = deployment.instance.get_run_by_id(run_id)
    assert run is not None
    if status is Status.CANCELED:
        deployment.instance.report_run_canceled(run)
    elif status is Status.FAILURE:
        deployment.instance.report_run_failed(run)
    else:
        deployment.instance.delete_run(run_id)
        run_id = make(deployment, consumer, request, status)
    result = deployment.tick(sensor)
    (config,) = configs(result)
    assert config["token"] != request.run_config["ops"][consumer.op.name]["config"]["token"]
    assert f"free again: run {run_id[:8]} {said}" in result.cursor
    assert "requested a run for buckets 0-3" in result.cursor


def test_what_a_killed_run_has_leased_waits_for_the_lease_and_all_else_for_a_tick(
    queue: SqlQueue, deployment: Deployment, consumer: QueueConsumer[Work], sensor: dg.SensorDefinition
) -> None:
    deployment.enqueue_many(20)
    (request,) = deployment.tick(sensor).run_requests
    run_id = make(deployment, consumer, request, Status.STARTED)
    queue.claim("work", limit=5, worker=f"run/{run_id}")
    run = deployment.instance.get_run_by_id(run_id)
    assert run is not None
    assert not configs(deployment.tick(sensor))
    deployment.instance.report_run_failed(run)
    (heir,) = configs(deployment.tick(sensor))
    deployment.drain(consumer, **{**heir, "linger_seconds": 0})
    assert list(states(queue).values()).count("succeeded") == 15
    assert not configs(deployment.tick(sensor))
    rows(queue, "UPDATE {s}.job SET available_at = now()")
    (heir,) = configs(deployment.tick(sensor))
    deployment.drain(consumer, **{**heir, "linger_seconds": 0})
    assert set(states(queue).values()) == {"succeeded"}


def test_a_run_that_dagster_tries_again_keeps_the_slot(
    queue: SqlQueue, deployment: Deployment, consumer: QueueConsumer[Work], sensor: dg.SensorDefinition
) -> None:
    deployment.enqueue(Work(n=1))
    (request,) = deployment.tick(sensor).run_requests
    make(deployment, consumer, request, Status.FAILURE)
    retry = make(deployment, consumer, request, Status.QUEUED)
    make(deployment, consumer, request, Status.FAILURE)
    result = deployment.tick(sensor)
    assert not result.run_requests
    assert f"run {retry[:8]} (queued)" in result.skip_reason.skip_message


def test_a_run_notes_its_id_by_which_the_ticks_and_the_table_of_the_buckets_name_it(
    queue: SqlQueue, deployment: Deployment, spec: QueueSpec[Work], sensor: dg.SensorDefinition
) -> None:
    seen: list[str] = []

    @queue_consumer(spec)
    def handle(job: Job[Work]) -> None:
        seen.append(value(queue, "SELECT run_id FROM {s}.consumer_slot"))
        deployment.enqueue(Work(n=2)) if job.payload.n == 1 else None
        tick = deployment.tick(sensor)
        seen.extend([tick.asset_events[0].metadata["buckets"].value, tick.skip_reason.skip_message])

    deployment.enqueue(Work(n=1))
    (config,) = configs(deployment.tick(sensor))
    result = deployment.drain(handle, **{**config, "linger_seconds": 0})
    assert seen[0] == result.run_id
    assert f"| {result.run_id[:8]} |" in seen[1]
    assert f"run {result.run_id[:8]} has buckets 0-3" in seen[2]


def test_a_run_whose_slot_was_freed_works_too(
    queue: SqlQueue, deployment: Deployment, consumer: QueueConsumer[Work], sensor: dg.SensorDefinition
) -> None:
    deployment.enqueue_many(5)
    (config,) = configs(deployment.tick(sensor))
    rows(queue, "DELETE FROM {s}.consumer_slot")
    assert deployment.drain(consumer, **{**config, "linger_seconds": 0}).success
    assert set(states(queue).values()) == {"succeeded"}


def test_a_tick_that_fails_has_reserved_nothing(
    queue: SqlQueue, deployment: Deployment, sensor: dg.SensorDefinition, url: str
) -> None:
    deployment.enqueue(Work(n=1))
    archive = sql.Identifier(queue.database.schema, "job_archive")
    with psycopg.connect(url) as other:
        other.execute(sql.SQL("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE").format(archive))
        hurried = SqlQueueResource(url=url, schema_name=queue.database.schema, tick_timeout_seconds=1.0)
        with pytest.raises(psycopg.errors.QueryCanceled):
            replace(deployment, resource=hurried).tick(sensor)
    assert rows(queue, "SELECT 1 FROM {s}.consumer_slot") == []
    assert slots.asked(queue, "work") == {}


def come(deployment: Deployment, consumer: QueueConsumer[Work], request: Any) -> None:
    """The run that was asked for starts, and claims a job, whose handler takes minutes."""
    run_id = make(deployment, consumer, request, Status.STARTING)
    begun = dg.DagsterEvent(dg.DagsterEventType.RUN_START.value, consumer.job.name)
    deployment.instance.report_dagster_event(begun, run_id=run_id)
    (config,) = (op["config"] for op in request.run_config["ops"].values())
    deployment.queue.claim("work", limit=1, buckets=config["buckets"], worker=f"run/{run_id}")
    slots.served(deployment.queue, "work", config["buckets"])


def test_due_jobs_wait_for_two_ticks_while_a_slot_is_free(
    queue: SqlQueue, deployment: Deployment, consumer: QueueConsumer[Work]
) -> None:
    """Also behind several jobs of minutes, in whatever bucket they are."""
    sensor = build_sqlqueue_sensor(consumer)
    deployment.enqueue_many(3)
    first = deployment.tick(sensor)
    (request,) = first.run_requests
    assert not configs(deployment.tick(sensor, first.cursor)), "it is on its way"
    come(deployment, consumer, request)
    once = deployment.tick(sensor, first.cursor)
    assert not configs(once), "it came a moment ago"
    twice = deployment.tick(sensor, once.cursor)
    assert [sorted(config["buckets"]) for config in configs(twice)] == [[0, 1, 2, 3]] * 2
    assert not configs(deployment.tick(sensor, twice.cursor)), "they are on their way"
    for request in twice.run_requests:
        come(deployment, consumer, request)
    assert queue.depth("work").ready == 0

    # Quick ones that come meanwhile.
    cursor = deployment.tick(sensor, twice.cursor).cursor
    queue.enqueue_many(deployment.spec, [Work(n=n) for n in range(3, 203)])
    once = deployment.tick(sensor, cursor)
    assert not configs(once)
    twice = deployment.tick(sensor, once.cursor)
    (config,) = configs(twice)
    deployment.drain(consumer, **{**config, "linger_seconds": 0})
    assert queue.depth("work").ready == 0


def test_what_a_run_has_locked_is_not_left(
    queue: SqlQueue, deployment: Deployment, consumer: QueueConsumer[Work], url: str
) -> None:
    """In transactional mode a job that is worked on waits on the queue, for all that others see."""
    sensor = build_sqlqueue_sensor(replace(consumer, transactional=True))
    deployment.enqueue(Work(n=1))
    first = deployment.tick(sensor)
    come(deployment, consumer, first.run_requests[0])
    rows(queue, "UPDATE {s}.job SET state = 'queued', available_at = now()")
    found = first
    for _ in range(4):
        found = deployment.tick(sensor, found.cursor)
        assert not configs(found)


def test_ticks_find_a_job_left_only_while_it_is_the_same_and_runs_may_share(
    queue: SqlQueue, deployment: Deployment, consumer: QueueConsumer[Work], sensor: dg.SensorDefinition
) -> None:
    deployment.enqueue_many(20)
    rows(queue, "UPDATE {s}.job SET bucket = 0")
    first = deployment.tick(sensor)
    come(deployment, consumer, first.run_requests[0])
    found = deployment.tick(sensor, first.cursor)
    alone = build_sqlqueue_sensor(consumer, settings=SensorSettings(share=False))
    assert not configs(deployment.tick(alone, found.cursor))
    for _ in range(3):
        # The run takes one after another.
        queue.claim("work", limit=1, worker="run")
        found = deployment.tick(sensor, found.cursor)
        assert not configs(found)
    assert len(configs(deployment.tick(sensor, found.cursor))) == 2


def test_runs_without_due_jobs_share_what_is_left_where_no_slot_is_free(
    queue: SqlQueue, deployment: Deployment, consumer: QueueConsumer[Work]
) -> None:
    sensor = build_sqlqueue_sensor(consumer, settings=SensorSettings(max_runs=2))
    deployment.enqueue_many(2)
    rows(queue, "UPDATE {s}.job SET bucket = 0")
    first = deployment.tick(sensor)
    come(deployment, consumer, first.run_requests[0])
    assert slots.acquire(queue, "work", 1, [1], seconds=3_600, sensor="work_sensor", shared=True, due=[])
    once = deployment.tick(sensor, first.cursor)
    twice = deployment.tick(sensor, once.cursor)
    assert "live runs take over bucket 0" in twice.cursor
    assert sorted(slots.taken(queue, "work", sensor="work_sensor")[1]) == [0, 1]
