"""What one call makes of consumers, and two databases in one code location."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from dagster_sqlqueue import Done, Job, QueueSpec, SqlQueue
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.followers import GroupEnded
from dagster_sqlqueue.orchestration import (
    DailyAccount,
    EnqueuedGroup,
    QueueAssetData,
    QueueConsumer,
    SqlQueueResource,
    SqlQueueTranslator,
    build_claim_op,
    build_cleanup_sensors,
    build_complete_op,
    build_fanout_asset,
    build_fanout_schedule,
    build_give_back_hook,
    build_group_op,
    build_group_sensor,
    build_maintenance_schedule,
    build_observe_job,
    build_sqlqueue_definitions,
    build_sqlqueue_schedules_sensor,
    build_sqlqueue_sensor,
    build_wait_op,
    queue_asset_key,
    queue_consumer,
)
from tests.orchestration.support import configs, done_by
from tests.support import Work
from tests.support.cleared import own_schema

EMAILS = QueueSpec("emails", Work, bucket_count=2, max_attempts=3)


@queue_consumer(EMAILS)
def send(job: Job[Work]) -> Done:
    return Done({"n": job.payload.n})


@queue_consumer(
    EMAILS,
    name="send_other",
    resource_key="other",
    asset_key=dg.AssetKey(["other", "emails"]),
    sensor={"name": "other_sensor"},
)
def send_other(job: Job[Work], context: dg.OpExecutionContext) -> Done:
    context.log.info("of the other")
    return Done({"n": -job.payload.n})


@pytest.fixture
def two(url: str) -> Iterator[tuple[SqlQueue, SqlQueue]]:
    with own_schema(url, "here") as here, own_schema(url, "there") as there:
        yield here, there


def tick(defs: dg.Definitions, sensor: str, instance: dg.DagsterInstance) -> Any:
    found = defs.resolve_sensor_def(sensor)
    with dg.build_sensor_context(instance=instance, resources=dict(defs.resources or {})) as context:
        return found(context)


def drain(
    defs: dg.Definitions, job: str, op: str, instance: dg.DagsterInstance, tick: Any
) -> dg.ExecuteInProcessResult:
    config = {"ops": {op: {"config": {**configs(tick)[0], "linger_seconds": 0}}}}
    return defs.resolve_job_def(job).execute_in_process(instance=instance, run_config=config)


def test_everything_comes_from_one_call(
    url: str, two: tuple[SqlQueue, SqlQueue], instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    here, _ = two
    resource = SqlQueueResource(url=url, schema_name=here.database.schema)
    defs = build_sqlqueue_definitions(send, resource=resource)
    dg.Definitions.validate_loadable(defs)
    graph = defs.resolve_asset_graph()
    assert queue_asset_key("emails") in graph.get_all_asset_keys()
    assert {check.name for check in graph.asset_check_keys} == {
        "dead_letters",
        "stale_writes",
        "oldest_ready",
        "stalled_bucket",
    }
    jobs = {"drain_emails", "create_emails", "observe_emails", "emails_show", "emails_redrive"}
    assert {job.name for job in defs.jobs or ()} == jobs
    sensors = {sensor.name: sensor.default_status for sensor in defs.sensors or ()}
    assert sensors.keys() == {"emails_sensor", "sqlqueue_emails_failed_runs", "sqlqueue_emails_cancelled_runs"}
    assert set(sensors.values()) == {dg.DefaultSensorStatus.RUNNING}
    tick(defs, "emails_sensor", instance)
    made = here.settings("emails")
    assert (made.max_attempts, made.bucket_count) == (3, 2), "as the code declares it"
    here.enqueue(EMAILS, Work(n=1))
    result = drain(defs, "drain_emails", "work_off_emails", instance, tick(defs, "emails_sensor", instance))
    assert done_by(result, "work_off_emails")["succeeded"] == 1
    assert "other settings" not in str([log.user_message for log in instance.all_logs(result.run_id)])


def test_what_several_calls_make_can_be_merged() -> None:
    def consumers(*names: str) -> list[QueueConsumer[Any]]:
        return [queue_consumer(QueueSpec(name, Work))(lambda job: None) for name in names]

    @dg.job
    def send_emails() -> None:
        build_complete_op(EMAILS)(build_claim_op(EMAILS)())

    merged = dg.Definitions.merge(
        build_sqlqueue_definitions(consumers("a", "b"), resource=SqlQueueResource(url=dg.EnvVar("SQLQUEUE_URL"))),
        build_sqlqueue_definitions(consumers("c", "d")),
        build_sqlqueue_definitions(consumers("a_b")),
        build_sqlqueue_definitions(consumers(*(f"queue_of_a_long_name_{n}" for n in range(5)))),
        build_sqlqueue_definitions(consumers(*(f"queue_of_a_long_name_{n}" for n in range(5, 9)))),
        dg.Definitions(jobs=[send_emails], sensors=build_cleanup_sensors([send_emails])),
    )
    dg.Definitions.validate_loadable(merged)
    assert {
        "sqlqueue_a__b_failed_runs",
        "sqlqueue_c__d_cancelled_runs",
        "sqlqueue_a_b_failed_runs",
        "send_emails_failed_runs",
    } <= {sensor.name for sensor in merged.sensors or ()}


def test_a_queue_that_a_fan_out_fills_has_the_asset_of_the_fan_out() -> None:
    spec = QueueSpec("daily", DailyAccount)

    @queue_consumer(spec)
    def analyse(job: Job[DailyAccount]) -> None: ...

    fan_out = build_fanout_asset(spec, list, dg.DailyPartitionsDefinition(start_date="2026-01-01"))
    resource = SqlQueueResource(url=dg.EnvVar("SQLQUEUE_URL"))
    defs = dg.Definitions.merge(
        build_sqlqueue_definitions([analyse, send], resource=resource, fan_outs=[fan_out]),
        dg.Definitions(schedules=[build_fanout_schedule(fan_out)]),
    )
    dg.Definitions.validate_loadable(defs)
    graph = defs.resolve_asset_graph()
    assert graph.get(queue_asset_key("daily")).is_partitioned
    assert graph.materializable_asset_keys == {queue_asset_key("daily")}
    assert graph.get_all_asset_keys() == {queue_asset_key("daily"), queue_asset_key("emails")}
    with pytest.raises(InvalidInput, match=r"fan_outs has the assets queues/daily, .* on queues/emails"):
        build_sqlqueue_definitions(send, fan_outs=[fan_out])


def test_settings_that_differ_are_named_by_each_run(
    url: str, two: tuple[SqlQueue, SqlQueue], instance: dg.DagsterInstance
) -> None:
    here, _ = two
    here.create_queue(QueueSpec("emails", Work, bucket_count=4))
    defs = build_sqlqueue_definitions(send, resource=SqlQueueResource(url=url, schema_name=here.database.schema))
    here.enqueue(EMAILS, Work(n=1))
    result = drain(defs, "drain_emails", "work_off_emails", instance, tick(defs, "emails_sensor", instance))
    (warned,) = (
        log.user_message for log in instance.all_logs(result.run_id) if "has other settings" in log.user_message
    )
    assert (
        "bucket_count is 4 where the code says 2, max_attempts is 5 where the code says 3. The database's hold"
        in warned
    )
    assert "launch the job create_emails" in warned
    assert here.settings("emails").max_attempts == 5
    assert defs.resolve_job_def("create_emails").execute_in_process(instance=instance).success
    assert here.settings("emails").max_attempts == 3


def test_one_location_serves_two_databases(
    url: str, two: tuple[SqlQueue, SqlQueue], instance: dg.DagsterInstance
) -> None:
    here, there = two
    defs = dg.Definitions.merge(
        build_sqlqueue_definitions(send, resource=SqlQueueResource(url=url, schema_name=here.database.schema)),
        build_sqlqueue_definitions(send_other, resource=SqlQueueResource(url=url, schema_name=there.database.schema)),
    )
    dg.Definitions.validate_loadable(defs)
    for sensor in ("emails_sensor", "other_sensor"):
        tick(defs, sensor, instance)
    here.enqueue(EMAILS, Work(n=1))
    there.enqueue_many(EMAILS, [Work(n=2), Work(n=3)])
    for sensor, job, op, count in (
        ("emails_sensor", "drain_emails", "work_off_emails", 1),
        ("other_sensor", "send_other", "send_other_op", 2),
    ):
        result = drain(defs, job, op, instance, tick(defs, sensor, instance))
        assert done_by(result, op)["succeeded"] == count
    assert [queue.archived("emails", since_seconds=3_600) for queue in two] == [{"succeeded": 1}, {"succeeded": 2}]
    assert defs.resolve_job_def("other_create_emails").execute_in_process(instance=instance).success


def test_the_job_of_the_page_observes_the_queue(
    url: str, two: tuple[SqlQueue, SqlQueue], instance: dg.DagsterInstance
) -> None:
    here, _ = two
    here.create_queue(EMAILS)
    here.enqueue_many(EMAILS, [Work(n=1), Work(n=2)])
    here.pause("emails")
    defs = build_sqlqueue_definitions(send, resource=SqlQueueResource(url=url, schema_name=here.database.schema))
    assert defs.resolve_job_def("observe_emails").execute_in_process(instance=instance).success
    (record,) = instance.fetch_observations(queue_asset_key("emails"), limit=10).records
    observed = record.asset_observation
    assert observed is not None
    assert observed.metadata["ready"].value == 2
    assert "until the queue is resumed" in str(observed.metadata["summary"].value)
    assert here.depth("emails").ready == 2


def test_each_asset_of_a_queue_has_its_job() -> None:
    defs = build_sqlqueue_definitions(
        [
            send,
            queue_consumer(EMAILS, name="again", asset_key=dg.AssetKey(["more", "emails"]), sensor={"name": "more"})(
                send.handler
            ),
        ],
        resource=SqlQueueResource(url="postgresql://"),
    )
    dg.Definitions.validate_loadable(defs)
    assert {job.name for job in defs.jobs or () if "observe" in job.name} == {"observe_emails", "observe_more_emails"}


class Ours(SqlQueueTranslator):
    def get_asset_spec(self, data: QueueAssetData) -> dg.AssetSpec:
        return super().get_asset_spec(data).replace_attributes(key=["ours", data.spec.name], owners=["team:ours"])


def test_everything_reports_on_the_key_of_the_translator(
    url: str, two: tuple[SqlQueue, SqlQueue], instance: dg.DagsterInstance
) -> None:
    here, _ = two
    resource = SqlQueueResource(url=url, schema_name=here.database.schema)
    defs = build_sqlqueue_definitions(send, resource=resource, translator=Ours())
    dg.Definitions.validate_loadable(defs)
    key = dg.AssetKey(["ours", "emails"])
    (spec,) = defs.resolve_all_asset_specs()
    assert (spec.key, spec.owners) == (key, ["team:ours"])
    assert {check.asset_key for check in defs.resolve_asset_graph().asset_check_keys} == {key}
    assert {event.asset_key for event in tick(defs, "emails_sensor", instance).asset_events} == {key}
    here.enqueue(EMAILS, Work(n=1))
    drain(defs, "drain_emails", "work_off_emails", instance, tick(defs, "emails_sensor", instance))
    assert instance.get_latest_materialization_event(key) is not None
    assert instance.get_latest_materialization_event(queue_asset_key("emails")) is None
    (kept,) = build_sqlqueue_definitions(send_other, resource=resource, translator=Ours()).resolve_all_asset_specs()
    assert kept.key == send_other.asset_key, "it has a key of its own"


@pytest.mark.parametrize("translator", [None, Ours()])
def test_hooks_of_a_consumers_job_are_called(
    url: str, two: tuple[SqlQueue, SqlQueue], instance: dg.DagsterInstance, translator: SqlQueueTranslator | None
) -> None:
    called: list[str] = []

    @dg.success_hook
    def tell(context: dg.HookContext) -> None:
        called.append(context.step_key)

    here, _ = two
    defs = build_sqlqueue_definitions(
        replace(send, job=send.job.with_hooks({tell})),
        resource=SqlQueueResource(url=url, schema_name=here.database.schema),
        translator=translator,
    )
    dg.Definitions.validate_loadable(defs)
    tick(defs, "emails_sensor", instance)
    here.enqueue(EMAILS, Work(n=1))
    result = drain(defs, "drain_emails", "work_off_emails", instance, tick(defs, "emails_sensor", instance))
    assert done_by(result, "work_off_emails")["succeeded"] == 1
    assert called == ["work_off_emails"]


def test_sensors_of_a_queue_share_the_job_of_its_page() -> None:
    job = build_observe_job(EMAILS)
    urgent = build_sqlqueue_sensor(send, name="urgent", observe_job=job)
    defs = dg.Definitions(
        jobs=[send.job],
        sensors=[send.sensor_with(observe_job=job), urgent],
        resources={"sqlqueue": SqlQueueResource(url="postgresql://")},
    )
    names = {found.name for found in defs.get_repository_def().get_all_jobs()}
    assert names == {"drain_emails", "observe_emails"}


def test_consumers_of_two_databases_are_not_given_together() -> None:
    with pytest.raises(InvalidInput, match=r"\['other', 'sqlqueue'\]"):
        build_sqlqueue_definitions([send, send_other])


@pytest.mark.parametrize("given", [lambda job: None, [send, "work"]])
def test_what_is_no_consumer_is_named(given: Any) -> None:
    with pytest.raises(InvalidInput, match="which is no consumer; decorate the handler with queue_consumer"):
        build_sqlqueue_definitions(given)


def test_consumers_of_one_name_are_named() -> None:
    again = queue_consumer(EMAILS)(send.handler)
    with pytest.raises(InvalidInput, match=r"consumers with the job 'drain_emails'; .*: queue_consumer\(name=…\)"):
        build_sqlqueue_definitions([send, again])
    again = queue_consumer(EMAILS, name="again")(send.handler)
    with pytest.raises(InvalidInput, match=r"consumers with the sensor 'emails_sensor'; .*\(sensor=\{'name': …\}\)"):
        build_sqlqueue_definitions([send, again])
    again = queue_consumer(EMAILS, name="again", sensor={"name": "again"})(send.handler)
    dg.Definitions.validate_loadable(build_sqlqueue_definitions([send, again], resource=SqlQueueResource(url="x")))


@pytest.mark.parametrize(("key", "number"), [("sqlqueue", 0), ("other", 1)])
def test_all_other_parts_take_the_resource_of_another_key(
    url: str, two: tuple[SqlQueue, SqlQueue], instance: dg.DagsterInstance, key: str, number: int
) -> None:
    """Ops, the hook, groups, their sensor, maintenance and the schedules' sensor, with the resources of both databases."""
    ends = QueueSpec("ends", GroupEnded)
    for one in two:
        one.create_queue(EMAILS)
        one.create_queue(ends)
    resources = {
        name: SqlQueueResource(url=url, schema_name=one.database.schema)
        for name, one in zip(("sqlqueue", "other"), two, strict=True)
    }
    enqueue = build_group_op(EMAILS, joined_by=ends, resource_key=key)
    claim = build_claim_op(EMAILS, resource_key=key)
    complete = build_complete_op(EMAILS, resource_key=key)
    wait = build_wait_op(resource_key=key)

    @dg.op
    def listed() -> list[Work]:
        return [Work(n=1), Work(n=2)]

    # Nothing else orders the wait after the completion, and a run in one process does one step at a time.
    @dg.op
    def once_completed(counts: dict[str, int], group: EnqueuedGroup) -> EnqueuedGroup:
        return group

    @dg.job(hooks={build_give_back_hook(key)}, executor_def=dg.in_process_executor)
    def mails() -> None:
        group = enqueue(listed())
        wait(once_completed(complete(claim(start=group)), group))

    defs = dg.Definitions(jobs=[mails], schedules=[build_maintenance_schedule(resource_key=key)], resources=resources)
    dg.Definitions.validate_loadable(defs)
    for job in ("mails", "sqlqueue_maintenance_job"):
        assert defs.resolve_job_def(job).execute_in_process(instance=instance).success
    done: list[dict[str, int]] = [{}, {}]
    done[number] = {"succeeded": 2}
    assert [one.archived("emails", since_seconds=3_600) for one in two] == done
    with dg.build_sensor_context(instance=instance, resources=dict(resources)) as context:
        assert len(build_group_sensor(ends, mails, resource_key=key)(context).run_requests) == 1
        ticked: Any = build_sqlqueue_schedules_sensor(resource_key=key)(context)
    assert "no schedule ticks" in str(ticked.skip_reason)
