"""How a code server evaluates the ticks of the library's sensors."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import dagster as dg
import pytest
from dagster._core.definitions.sensor_definition import SensorExecutionData
from dagster._core.instance.ref import InstanceRef
from dagster._core.remote_origin import RegisteredCodeLocationOrigin
from dagster._grpc.impl import get_external_sensor_execution

from dagster_sqlqueue import SqlQueue
from dagster_sqlqueue.orchestration import QueueConsumer, SqlQueueResource, build_sqlqueue_schedules_sensor
from tests.gate.patience import PATIENCE
from tests.orchestration.support import Deployment, NewInstance
from tests.support import Work


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[InstanceRef]:
    """What Dagster's instance was opened for, in order."""
    refs: list[InstanceRef] = []
    open_instance = dg.DagsterInstance.from_ref

    def from_ref(ref: InstanceRef) -> dg.DagsterInstance:
        refs.append(ref)
        return open_instance(ref)

    monkeypatch.setattr(dg.DagsterInstance, "from_ref", staticmethod(from_ref))
    return refs


class CodeServer:
    """Evaluates ticks of a sensor as Dagster's code server does, which is told where the instance is."""

    def __init__(self, sensor: dg.SensorDefinition, resource: SqlQueueResource, *jobs: dg.JobDefinition) -> None:
        defs = dg.Definitions(jobs=jobs, sensors=[sensor], resources={"sqlqueue": resource})
        self._repository = defs.get_repository_def()
        self._sensor = sensor.name

    def tick(self, instance: dg.DagsterInstance, cursor: str | None = None) -> SensorExecutionData:
        found: Any = get_external_sensor_execution(
            self._repository,
            RegisteredCodeLocationOrigin("code"),
            instance.get_ref(),
            self._sensor,
            last_tick_completion_timestamp=None,
            last_run_key=None,
            cursor=cursor,
            log_key=["code", self._sensor, "1"],
            last_sensor_start_timestamp=None,
        )
        assert isinstance(found, SensorExecutionData), found
        return found


@pytest.fixture
def server(consumer: QueueConsumer[Work], resource: SqlQueueResource) -> CodeServer:
    return CodeServer(consumer.sensor, resource, consumer.job)


def test_dagsters_instance_is_opened_once_for_all_ticks_of_a_process(
    persistent: dg.DagsterInstance, server: CodeServer, opened: list[InstanceRef]
) -> None:
    first = server.tick(persistent)
    second = server.tick(persistent, cursor=first.cursor)
    assert opened == [persistent.get_ref()]
    # What a tick logs is where its page looks for it.
    assert second.log_key == ["code", "work_sensor", "1"]
    assert "0 ready" in str(second.skip_message)


def test_the_sensor_of_schedules_opens_it_once_too(
    persistent: dg.DagsterInstance, resource: SqlQueueResource, opened: list[InstanceRef]
) -> None:
    server = CodeServer(build_sqlqueue_schedules_sensor(), resource)
    assert "no schedule ticks" in str(server.tick(persistent).skip_message)
    server.tick(persistent)
    assert opened == [persistent.get_ref()]


def test_ticks_for_another_instance_are_that_ones(
    persistent: dg.DagsterInstance, new_instance: NewInstance, server: CodeServer, opened: list[InstanceRef]
) -> None:
    server.tick(persistent)
    with new_instance() as other:
        server.tick(other)
        assert opened == [persistent.get_ref(), other.get_ref()]


def test_ticks_side_by_side_share_the_instance_and_ask_for_each_bucket_once(
    queue: SqlQueue, persistent: dg.DagsterInstance, server: CodeServer, opened: list[InstanceRef], spec: Any
) -> None:
    Deployment(queue, spec, SqlQueueResource(url="unused"), persistent).enqueue_many(100)
    with ThreadPoolExecutor(4) as pool:
        ticks = [pool.submit(server.tick, persistent) for _ in range(8)]
        asked = [request for tick in ticks for request in tick.result(PATIENCE).run_requests or []]
    assert opened == [persistent.get_ref()]
    buckets = [bucket for one in asked for op in one.run_config["ops"].values() for bucket in op["config"]["buckets"]]
    assert sorted(buckets) == [0, 1, 2, 3]
