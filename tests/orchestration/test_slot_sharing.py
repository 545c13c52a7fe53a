"""What a tick does beside live slots: it widens them, leaves them to others, and says so in a line."""

import re
from datetime import timedelta

import pytest

from dagster_sqlqueue import Job, NewJob, QueueSpec, SqlQueue
from dagster_sqlqueue.orchestration import QueueConsumer, SensorSettings, build_sqlqueue_sensor, queue_consumer, slots
from tests.orchestration.support import SENSOR, Deployment, configs, expire
from tests.support import Work, rows, states


@pytest.mark.parametrize("mode", ["batch", "linger", "standing"])
def test_a_run_that_comes_late_works_all_the_same(
    queue: SqlQueue, deployment: Deployment, spec: QueueSpec[Work], mode: str
) -> None:
    """Start-ups of minutes are usual: it shares the buckets with the run that has its slot, and waits for nothing more."""

    @queue_consumer(spec, mode=mode)
    def handle(job: Job[Work]) -> None: ...

    sensor = build_sqlqueue_sensor(handle, settings=SensorSettings(max_runs=1))
    deployment.enqueue_many(5)
    (late,) = configs(deployment.tick(sensor))
    expire(queue)
    (punctual,) = configs(deployment.tick(sensor))
    assert punctual["slot"] == late["slot"]
    assert deployment.drain(handle, **late).success
    assert set(states(queue).values()) == {"succeeded"}
    assert slots.taken(queue, "work", sensor=SENSOR) == {0: tuple(punctual["buckets"])}, "the other one's slot stays"
    # Nor does its successor, which comes to the slot that was taken over.
    deployment.enqueue(Work(n=5))
    deployment.drain(handle, **{**punctual, "linger_seconds": 0})
    assert states(queue)[5] == "succeeded"
    assert slots.taken(queue, "work", sensor=SENSOR) == {}


def test_a_trickle_has_one_run_that_covers_all(
    queue: SqlQueue, deployment: Deployment, consumer: QueueConsumer[Work]
) -> None:
    sensor = build_sqlqueue_sensor(consumer)
    asked = []
    for n in range(13):
        deployment.enqueue(Work(n=n))
        rows(queue, "UPDATE {s}.job SET bucket = (payload ->> 'n')::int % 4")
        asked += configs(deployment.tick(sensor))
    assert [sorted(config["buckets"]) for config in asked] == [[0, 1, 2, 3]]
    deployment.drain(consumer, **{**asked[0], "linger_seconds": 0})
    assert set(states(queue).values()) == {"succeeded"}


def test_a_live_run_takes_over_what_no_other_may_be_started_for(
    queue: SqlQueue, deployment: Deployment, consumer: QueueConsumer[Work]
) -> None:
    sensor = build_sqlqueue_sensor(consumer, settings=SensorSettings(max_runs=1))
    assert slots.acquire(queue, "work", 0, [0], seconds=3_600, sensor=SENSOR)
    deployment.enqueue_many(20)
    rows(queue, "UPDATE {s}.job SET bucket = (payload ->> 'n')::int % 4")
    result = deployment.tick(sensor)
    assert not result.run_requests
    assert "live runs take over buckets 1-3" in result.skip_reason.skip_message
    ((buckets,),) = rows(queue, "SELECT buckets FROM {s}.consumer_slot")
    assert sorted(buckets) == [0, 1, 2, 3]
    assert "taken over" not in deployment.tick(sensor).skip_reason.skip_message


@pytest.mark.parametrize("transactional", [False, True], ids=["leased", "transactional"])
def test_a_run_works_off_what_it_was_given_beside_its_own(
    queue: SqlQueue,
    deployment: Deployment,
    spec: QueueSpec[Work],
    monkeypatch: pytest.MonkeyPatch,
    transactional: bool,
) -> None:
    monkeypatch.setattr("dagster_sqlqueue.consumer.queue_view._REFRESH_SECONDS", 0.0)

    acquired = slots.acquire(queue, "work", 0, [0], seconds=3_600, sensor=SENSOR)
    assert acquired is not None
    slot = acquired

    @queue_consumer(spec, transactional=transactional)
    def handle(job: Job[Work]) -> None:
        if job.payload.n == 0:
            assert slots.widen(queue, slot, [2, 3])

    deployment.enqueue_many(8)
    rows(queue, "UPDATE {s}.job SET bucket = (payload ->> 'n')::int % 4")
    mine = {"buckets": [0], "slot": 0, "token": str(slot.token), "sensor": SENSOR, "linger_seconds": 0}
    deployment.drain(handle, **mine)
    done = {n % 4 for n, state in states(queue).items() if state == "succeeded"}
    assert done == {0, 2, 3}
    assert slots.taken(queue, "work", sensor=SENSOR) == {}


def test_a_region_looks_after_its_own_and_reports_on_all(
    queue: SqlQueue, deployment: Deployment, consumer: QueueConsumer[Work]
) -> None:
    """The page of the queue is one: what waits longest is shown whichever sensor reads."""
    queue.set_region("work", "eu", [3])
    deployment.enqueue(NewJob(Work(n=1)))
    rows(queue, "UPDATE {s}.job SET bucket = 0, available_at = now() - %s", timedelta(hours=1))
    eu = build_sqlqueue_sensor(consumer, name="work_eu", settings=SensorSettings(region="eu"))
    result = deployment.tick(eu)
    assert not result.run_requests
    assert result.asset_events[0].metadata["oldest_ready_seconds"].value >= 3_600


def test_what_a_tick_says_stays_a_line_that_a_person_can_read(
    queue: SqlQueue, deployment: Deployment, consumer: QueueConsumer[Work]
) -> None:
    queue.rebucket("work", 64)
    deployment.enqueue_many(200)
    sensor = build_sqlqueue_sensor(consumer, settings=SensorSettings(max_runs=2, jobs_per_run=1))
    deployment.tick(sensor)
    status = deployment.tick(sensor).skip_reason.skip_message
    assert len(re.findall(r"a run on its way has \d\d buckets \(", status)) == 2
    assert len(status) < 200
