"""Runs that die before they take a job, that wait in Dagster's queue, or that were killed: what the sensors make of it."""

import os
import re
import signal
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import dagster as dg
import pytest
from dagster._core.remote_origin import RegisteredCodeLocationOrigin, RemoteJobOrigin, RemoteRepositoryOrigin

from dagster_sqlqueue import Job, NewJob, QueueSpec, SqlQueue
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.model.job import ArchiveState
from dagster_sqlqueue.orchestration import (
    DrainMode,
    QueueConsumer,
    SensorSettings,
    SqlQueueResource,
    build_cleanup_sensors,
    build_sqlqueue_sensor,
    queue_consumer,
    slots,
)
from dagster_sqlqueue.queue.endings import Ending, Endings
from tests.orchestration.support import SENSOR, Deployment, NewInstance, configs, done_by, evaluations
from tests.support import Work, rows


@pytest.fixture
def sensor(consumer: QueueConsumer[Work]) -> dg.SensorDefinition:
    return build_sqlqueue_sensor(consumer, settings=SensorSettings(max_runs=3, jobs_per_run=10_000))


def let_runs_die(queue: SqlQueue, seconds_ago: float | None = None) -> None:
    """Runs that were asked for are gone; if it is said, they were asked for so long ago, or will have been."""
    rows(queue, "UPDATE {s}.consumer_slot SET expires_at = now() - interval '1 second'")
    if seconds_ago is not None:
        rows(
            queue,
            "UPDATE {s}.bucket SET asked_at = now() - make_interval(secs => %s) WHERE asked_at IS NOT NULL",
            seconds_ago,
        )


def fill_buckets(deployment: Deployment, buckets: int = 4) -> None:
    deployment.enqueue_many(2 * buckets)
    rows(deployment.queue, "UPDATE {s}.job SET bucket = mod((payload->>'n')::int, %s)", buckets)


def test_a_poisoned_bucket_waits_fails_its_check_and_blocks_no_other(
    queue: SqlQueue, deployment: Deployment, consumer: QueueConsumer[Work], sensor: dg.SensorDefinition
) -> None:
    fill_buckets(deployment)
    rows(queue, "DELETE FROM {s}.job WHERE bucket <> 2")
    for _ in range(2):
        (config,) = configs(deployment.tick(sensor))
        assert config["buckets"] == [2, 0, 1, 3]
        let_runs_die(queue)
    let_runs_die(queue, seconds_ago=-3_600)
    waiting = deployment.tick(sensor)
    assert not configs(waiting)
    assert re.search(r"no run took a job of bucket 2 \(2 runs, the next in \d+ s\)", waiting.skip_reason.skip_message)

    # The others' runs come, and the suspect's own one beside them once its time is up.
    fill_buckets(deployment)
    beside = deployment.tick(sensor)
    (others,) = configs(beside)
    assert sorted(others["buckets"]) == [0, 1, 3]
    status, _, last = beside.cursor.split("\n")
    assert re.search(r"; no run took a job of bucket 2 \(.*\); requested a run", status)
    assert last == "requested a run for buckets 0-1,3"
    deployment.drain(consumer, **others)
    let_runs_die(queue, seconds_ago=31)
    failing = deployment.tick(sensor)
    (alone,) = configs(failing)
    assert alone["buckets"] == [2]

    # Dead three times: its check fails, and says why.
    let_runs_die(queue)
    (stalled,) = [check for check in evaluations(deployment.tick(sensor)) if check.check_name == "stalled_bucket"]
    assert not stalled.passed
    assert stalled.severity is dg.AssetCheckSeverity.ERROR
    assert stalled.description == "Bucket 2: 3 runs were requested and none took a job."

    # A run that takes its jobs makes it one like the others, and the check passes.
    let_runs_die(queue, seconds_ago=61)
    mended = deployment.tick(sensor, cursor=failing.cursor)
    assert deployment.drain(consumer, **configs(mended)[0]).success
    assert slots.asked(queue, "work") == {}
    after = deployment.tick(sensor, cursor=mended.cursor)
    assert [check.passed for check in evaluations(after) if check.check_name == "stalled_bucket"] in ([], [True])


def test_a_run_that_finds_its_buckets_empty_was_not_in_vain(
    queue: SqlQueue, deployment: Deployment, consumer: QueueConsumer[Work], sensor: dg.SensorDefinition
) -> None:
    fill_buckets(deployment)
    (config,) = configs(deployment.tick(sensor))
    assert set(slots.asked(queue, "work")) == {0, 1, 2, 3}
    rows(queue, "DELETE FROM {s}.job")
    assert done_by(deployment.drain(consumer, **config))["claimed"] == 0
    assert slots.asked(queue, "work") == {}


def test_a_job_that_kills_its_run_spends_attempts_and_poisons_no_bucket(
    queue: SqlQueue, deployment: Deployment, spec: QueueSpec[Work], sensor: dg.SensorDefinition
) -> None:
    """What a run notes before its first handler is called is still there when the handler took the process with it."""
    seen: list[int] = []

    @queue_consumer(spec)
    def handle(job: Any) -> None:
        seen.append(len(slots.asked(queue, "work")))

    deployment.enqueue(Work(n=1))
    (config,) = configs(deployment.tick(sensor))
    deployment.drain(handle, **config)
    assert seen == [0]


@pytest.fixture
def queueing(
    queue: SqlQueue, spec: QueueSpec[Work], resource: SqlQueueResource, new_instance: NewInstance
) -> Iterator[Deployment]:
    """A deployment whose runs wait in Dagster's queue."""
    coordinator = {"module": "dagster._core.run_coordinator", "class": "QueuedRunCoordinator", "config": {}}
    with new_instance(run_coordinator=coordinator) as made:
        yield Deployment(queue, spec, resource, made)


def test_a_run_that_waits_in_dagsters_queue_keeps_its_slot(
    queue: SqlQueue, queueing: Deployment, consumer: QueueConsumer[Work], sensor: dg.SensorDefinition
) -> None:
    fill_buckets(queueing)
    (request,) = queueing.tick(sensor).run_requests
    repository = RemoteRepositoryOrigin(RegisteredCodeLocationOrigin("code"), "__repository__")
    run = queueing.instance.add_run(
        dg.DagsterRun(
            job_name=consumer.job.name,
            run_config=request.run_config,
            tags=dict(request.tags),
            status=dg.DagsterRunStatus.QUEUED,
            remote_job_origin=RemoteJobOrigin(repository, consumer.job.name),
        )
    )
    let_runs_die(queue)
    again = queueing.tick(sensor)
    assert not configs(again)
    assert f"run {run.run_id[:8]} (queued) has buckets 0-3" in again.skip_reason.skip_message
    assert set(slots.taken(queue, "work", sensor=SENSOR)) == {0}

    # One that has left the queue and died is not waited for.
    queueing.instance.report_run_failed(run)
    let_runs_die(queue)
    assert len(configs(queueing.tick(sensor))) == 1


@pytest.mark.prove
def test_a_standing_consumer_has_runs_without_work_and_a_successor_in_time(
    queue: SqlQueue, deployment: Deployment, spec: QueueSpec[Work]
) -> None:
    @queue_consumer(spec, mode="standing")
    def handle(job: Any) -> None: ...

    assert handle.mode is DrainMode.STANDING
    sensor = build_sqlqueue_sensor(
        handle, settings=SensorSettings(max_runs=2, budget_seconds=5.0, linger_seconds=5.0, hand_over_seconds=2.5)
    )
    asked = configs(deployment.tick(sensor))
    assert [config["buckets"] for config in asked] == [[0, 2], [1, 3]]
    assert not configs(deployment.tick(sensor))

    successors: list[int] = []

    @queue_consumer(spec, mode="standing")
    def late(job: Any) -> None:
        # Called while the run still has most of its time before it: only once its slot is free there is a successor.
        while not successors:
            successors.extend(config["slot"] for config in configs(deployment.tick(sensor)))

    deployment.enqueue(Work(n=1))
    rows(queue, "UPDATE {s}.job SET bucket = 0")
    assert done_by(deployment.drain(late, **asked[0]))["succeeded"] == 1
    assert successors == [0]
    assert set(slots.taken(queue, "work", sensor=SENSOR)) == {0, 1}, "what the successor has is not given back"


def test_sensors_for_regions_ask_for_their_own_buckets_only(
    queue: SqlQueue, deployment: Deployment, consumer: QueueConsumer[Work]
) -> None:
    queue.set_region("work", "eu", [1, 3])
    fill_buckets(deployment)
    eu, local = (
        build_sqlqueue_sensor(consumer, name=f"work_{region}", settings=SensorSettings(region=region))
        for region in ("eu", "local")
    )
    assert [sorted(config["buckets"]) for config in configs(deployment.tick(eu))] == [[1, 3]]
    assert [sorted(config["buckets"]) for config in configs(deployment.tick(local))] == [[0, 2]]
    nowhere = build_sqlqueue_sensor(consumer, name="work_us", settings=SensorSettings(region="us"))
    with pytest.raises(InvalidInput, match=r"region 'us'.*its regions are 'eu', 'local'"):
        deployment.tick(nowhere)


def test_a_sensor_for_tags_starts_runs_for_jobs_that_have_them(
    queue: SqlQueue, deployment: Deployment, consumer: QueueConsumer[Work]
) -> None:
    big = build_sqlqueue_sensor(consumer, name="work_big", settings=SensorSettings(tags=["big"]))
    deployment.enqueue_many(5)
    assert not configs(deployment.tick(big))
    deployment.enqueue(NewJob(Work(n=99), tags=["big", "other"]))
    (config,) = configs(deployment.tick(big))
    assert done_by(deployment.drain(consumer, **config))["succeeded"] == 1
    assert rows(queue, "SELECT payload->>'n' FROM {s}.job_archive") == [("99",)]


def test_what_a_killed_run_held_is_given_back_at_once(
    queue: SqlQueue, deployment: Deployment, consumer: QueueConsumer[Work], sensor: dg.SensorDefinition
) -> None:
    fill_buckets(deployment)
    (request,) = deployment.tick(sensor).run_requests
    run = deployment.instance.create_run_for_job(consumer.job, run_config=request.run_config, tags=dict(request.tags))
    held = queue.claim("work", limit=3, worker=f"run/{run.run_id}")
    other = queue.claim("work", limit=1, worker="run/other")
    ended_before = queue.claim("work", limit=2, worker=f"run/{run.run_id}")
    endings = zip(ended_before, (ArchiveState.SUCCEEDED, ArchiveState.FAILED), strict=True)
    queue.leases.finish(Endings.of(Ending(job, state, error="no") for job, state in endings))
    deployment.instance.report_run_failed(run)
    (ended,) = deployment.instance.all_logs(run.run_id, of_type=dg.DagsterEventType.RUN_FAILURE)
    failed, cancelled = build_cleanup_sensors([consumer])
    assert (failed.name, cancelled.name) == ("drain_work_failed_runs", "drain_work_cancelled_runs")

    def evaluate() -> Any:
        context = dg.build_run_status_sensor_context(
            sensor_name=failed.name,
            dagster_instance=deployment.instance,
            dagster_run=run,
            dagster_event=ended.get_dagster_event(),
            resources={"sqlqueue": deployment.resource},
        )
        with context:
            return failed(context)

    assert evaluate() is None
    assert queue.depth("work").running == len(other)
    assert slots.taken(queue, "work", sensor=SENSOR) == {}
    taken = {}
    while jobs := queue.claim("work", limit=10, worker="heir"):
        taken |= {job.id: (job.attempt, len(jobs) == 1) for job in jobs}
    assert {job.id: (1, True) for job in held}.items() <= taken.items()
    assert len(taken) == 5
    assert evaluate() is None
    logged = [log for log in deployment.instance.all_logs(run.run_id) if log.message.startswith("work: ")]
    assert [log.message for log in logged] == [
        "work: 1 succeeded, 1 failed; 3 given back",
        "work: 1 succeeded, 1 failed; 0 given back",
    ]
    event = logged[0].get_dagster_event()
    shown = {name: one.value for name, one in event.event_specific_data.metadata.items()}  # type: ignore[union-attr]
    assert shown == {"succeeded": 1, "failed": 1, "cancelled": 0, "given_back": 3}


def test_what_a_cancelled_run_held_is_given_back_at_once(
    queue: SqlQueue, deployment: Deployment, consumer: QueueConsumer[Work], sensor: dg.SensorDefinition
) -> None:
    fill_buckets(deployment)
    (request,) = deployment.tick(sensor).run_requests
    run = deployment.instance.create_run_for_job(consumer.job, run_config=request.run_config, tags=dict(request.tags))
    held = queue.claim("work", limit=3, worker=f"run/{run.run_id}")
    assert len(held) == 3
    other = queue.claim("work", limit=1, worker="run/other")
    deployment.instance.report_run_canceling(run)
    deployment.instance.report_run_canceled(run)
    (ended,) = deployment.instance.all_logs(run.run_id, of_type=dg.DagsterEventType.RUN_CANCELED)
    _, cancelled = build_cleanup_sensors([consumer])
    with dg.build_run_status_sensor_context(
        sensor_name=cancelled.name,
        dagster_instance=deployment.instance,
        dagster_run=run,
        dagster_event=ended.get_dagster_event(),
        resources={"sqlqueue": deployment.resource},
    ) as context:
        cancelled(context)
    assert queue.depth("work").running == len(other)
    assert slots.taken(queue, "work", sensor=SENSOR) == {}
    logged = [log.message for log in deployment.instance.all_logs(run.run_id) if log.message.startswith("work: ")]
    assert logged == ["work: no job was ended; 3 given back"]


def test_one_tick_cleans_up_after_several_runs_whatever_they_held(
    queue: SqlQueue, deployment: Deployment, persistent: dg.DagsterInstance, consumer: QueueConsumer[Work]
) -> None:
    deployment = replace(deployment, instance=persistent)
    failed, _ = build_cleanup_sensors([consumer])
    defs = dg.Definitions(jobs=[consumer.job], sensors=[failed], resources={"sqlqueue": deployment.resource})
    repository = defs.get_repository_def()
    failed_resources = dict(repository.get_top_level_resources())
    code = RegisteredCodeLocationOrigin("here")
    origin = RemoteJobOrigin(RemoteRepositoryOrigin(code, repository.name), consumer.job.name)

    def evaluate(cursor: str | None) -> Any:
        with dg.SensorEvaluationContext(
            instance_ref=deployment.instance.get_ref(),
            last_tick_completion_time=None,
            last_run_key=None,
            cursor=cursor,
            repository_name=repository.name,
            repository_def=repository,
            sensor_name=failed.name,
            resources=failed_resources,
            code_location_origin=code,
        ) as context:
            return failed.evaluate_tick(context)

    def died() -> str:
        run = deployment.instance.create_run_for_job(
            consumer.job, remote_job_origin=origin, tags={"sqlqueue/queue": "work"}
        )
        deployment.instance.report_run_failed(run)
        return run.run_id

    died()
    begun = evaluate(None)
    deployment.enqueue_many(3)
    runs = [died() for _ in range(3)]
    queue.claim("work", limit=3, worker=f"run/{runs[1]}")
    result = evaluate(begun.cursor)
    assert [reaction.error for reaction in result.dagster_run_reactions] == [None, None, None]
    assert queue.depth("work").running == 0


def test_cleanup_needs_consumers_of_different_jobs(consumer: QueueConsumer[Work]) -> None:
    for wrong in ([], [consumer, consumer]):
        with pytest.raises(InvalidInput, match="each once; given were"):
            build_cleanup_sensors(wrong)


def test_buckets_that_a_killed_run_had_not_reached_are_no_suspects(
    queue: SqlQueue, deployment: Deployment, spec: QueueSpec[Work], consumer: QueueConsumer[Work]
) -> None:
    @queue_consumer(spec)
    def interrupted(job: Job[Work]) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    fill_buckets(deployment)
    sensor = build_sqlqueue_sensor(consumer, settings=SensorSettings(max_runs=1, batch_size=1))
    for _ in range(3):
        (config,) = configs(deployment.tick(sensor))
        assert sorted(config["buckets"]) == [0, 1, 2, 3]
        result = deployment.execute(interrupted.job, **{interrupted.op.name: config})
        assert not result.success
        assert slots.asked(queue, "work") == {}
