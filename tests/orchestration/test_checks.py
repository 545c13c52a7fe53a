"""What ticks and checks say of a queue's health."""

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import dagster as dg
import pytest
from dagster._core.definitions.sensor_definition import SensorType
from dagster._core.remote_origin import InProcessCodeLocationOrigin, RemoteInstigatorOrigin, RemoteRepositoryOrigin
from dagster._core.scheduler.instigation import (
    InstigatorState,
    InstigatorStatus,
    InstigatorType,
    SensorInstigatorData,
)
from dagster._core.types.loadable_target_origin import LoadableTargetOrigin
from uuid_utils.compat import uuid7

from dagster_sqlqueue import SqlQueue
from dagster_sqlqueue.errors import InvalidInput, LeaseLost
from dagster_sqlqueue.model.job import ArchiveState, Head
from dagster_sqlqueue.orchestration import (
    CheckThresholds,
    QueueConsumer,
    build_sqlqueue_asset_spec,
    build_sqlqueue_checks,
    build_sqlqueue_sensor,
    queue_asset_key,
    slots,
)
from dagster_sqlqueue.orchestration.queue_page import QueueState, bucket_table
from dagster_sqlqueue.orchestration.sensor_cursor import Memory
from dagster_sqlqueue.orchestration.slot_runs import Capacity
from dagster_sqlqueue.queue.endings import Ending
from tests.orchestration.support import Deployment, changed, configs, evaluations, observations, remembered
from tests.support import Work, rows

NAMES = {"oldest_ready", "dead_letters", "stale_writes", "stalled_bucket"}


@pytest.fixture
def sensor(consumer: QueueConsumer[Work]) -> dg.SensorDefinition:
    return build_sqlqueue_sensor(consumer)


def verdicts(result: Any) -> dict[str, bool]:
    return {check.check_name: check.passed for check in evaluations(result)}


def checked(deployment: Deployment, thresholds: CheckThresholds | None = None) -> dict[str, dg.AssetCheckEvaluation]:
    """As a person runs them."""
    defs = dg.Definitions(
        assets=[build_sqlqueue_asset_spec(deployment.spec)],
        asset_checks=[build_sqlqueue_checks(deployment.spec, thresholds)],
        jobs=[dg.define_asset_job("health", dg.AssetSelection.all_asset_checks(), executor_def=dg.in_process_executor)],
        resources={"sqlqueue": deployment.resource},
    )
    result = defs.resolve_job_def("health").execute_in_process(instance=deployment.instance)
    assert result.success
    return {check.check_name: check for check in result.get_asset_check_evaluations()}


def state(instance: dg.DagsterInstance, sensor: str, cursor: str) -> None:
    """Dagster's record of a sensor with this cursor."""
    place = InProcessCodeLocationOrigin(LoadableTargetOrigin(module_name="code"), location_name="code")
    origin = RemoteInstigatorOrigin(RemoteRepositoryOrigin(place, "__repository__"), sensor)
    data = SensorInstigatorData(cursor=cursor, sensor_type=SensorType.STANDARD)
    instance.add_instigator_state(
        InstigatorState(origin, InstigatorType.SENSOR, InstigatorStatus.DECLARED_IN_CODE, data)
    )


def age(queue: SqlQueue, seconds: float) -> None:
    rows(queue, "UPDATE {s}.job SET available_at = available_at - make_interval(secs => %s)", seconds)


def forget(cursor: str, **kept: Any) -> str:
    """The cursor as it is some time later: what was said is long ago."""
    return changed(cursor, **{"observed_at": None, **kept})


def ago(cursor: str, seconds: float) -> str:
    """The cursor as it is so much later."""
    then = datetime.fromisoformat(remembered(cursor)["observed_at"])
    return forget(cursor, observed_at=(then - timedelta(seconds=seconds)).isoformat())


def test_the_first_tick_says_all_four_and_later_ones_what_changed(
    queue: SqlQueue, deployment: Deployment, sensor: dg.SensorDefinition
) -> None:
    deployment.enqueue(Work(n=1))
    first = deployment.tick(sensor)
    assert verdicts(first) == dict.fromkeys(NAMES, True)
    age(queue, 301)
    later = deployment.tick(sensor, cursor=forget(first.cursor))
    assert verdicts(later) == {"oldest_ready": False}
    (check,) = evaluations(later)
    assert check.severity is dg.AssetCheckSeverity.ERROR
    assert "has been due for 5 min" in (check.description or "")
    hour = deployment.tick(sensor, cursor=forget(later.cursor, checked_at=None))
    assert verdicts(hour) == {**dict.fromkeys(NAMES, True), "oldest_ready": False}


def test_an_idle_queue_is_silent(deployment: Deployment, sensor: dg.SensorDefinition) -> None:
    first = deployment.tick(sensor)
    assert verdicts(first) == dict.fromkeys(NAMES, True)
    assert deployment.tick(sensor, cursor=forget(first.cursor)).asset_events == []


def test_jobs_that_wait_are_observed_once_a_minute_whether_their_counts_change_or_not(
    queue: SqlQueue, deployment: Deployment, sensor: dg.SensorDefinition
) -> None:
    deployment.enqueue_many(5)
    first = deployment.tick(sensor)
    assert not observations(deployment.tick(sensor, cursor=ago(first.cursor, -3_600)))
    assert observations(deployment.tick(sensor, cursor=ago(first.cursor, 55)))
    rows(queue, "DELETE FROM {s}.job WHERE payload->>'n' = '1'")
    # In the future, so that the minute is not over, however long the tick takes to come.
    assert not observations(deployment.tick(sensor, cursor=ago(first.cursor, -3_600)))
    assert observations(deployment.tick(sensor, cursor=ago(first.cursor, 55)))
    rows(queue, "DELETE FROM {s}.job")
    empty = deployment.tick(sensor, cursor=ago(first.cursor, -3_600)).asset_events[0]
    assert isinstance(empty, dg.AssetMaterialization)
    assert empty.metadata["ready"].value == 0


def test_a_queue_that_is_stuck_says_so_once_a_minute_with_the_age_of_the_oldest(
    queue: SqlQueue, deployment: Deployment, sensor: dg.SensorDefinition
) -> None:
    """Nothing but the time changes, and ticks come every five seconds."""
    deployment.enqueue_many(10)
    cursor = deployment.tick(sensor).cursor
    for minute in range(1, 4):
        age(queue, 60)
        result = deployment.tick(sensor, cursor=ago(cursor, 55))
        (seen,) = observations(result)
        shown = seen.metadata["oldest_ready_seconds"].value
        assert isinstance(shown, float)
        assert shown >= 60 * minute
        cursor = result.cursor
    # Also while a run has them, and does nothing.
    queue.claim("work", limit=10, worker="w")
    cursor = deployment.tick(sensor, cursor=forget(cursor)).cursor
    assert [
        seen.metadata["most_leased"].value for seen in observations(deployment.tick(sensor, cursor=ago(cursor, 55)))
    ] == [10]


def test_a_person_can_read_the_cursor(deployment: Deployment, sensor: dg.SensorDefinition) -> None:
    """Dagster's pages show its beginning and its end."""
    deployment.enqueue(Work(n=1))
    cursor = deployment.tick(sensor).cursor
    assert cursor.startswith("1 ready, 0 leased, 0 scheduled; requested a run for buckets 0-3\n")
    assert cursor.endswith("\nrequested a run for buckets 0-3")
    kept = remembered(cursor)
    assert kept["counts"] == {"ready": 1, "leased": 0, "scheduled": 0, "held": 0}
    assert datetime.fromisoformat(kept["observed_at"]).tzinfo is not None
    (head,) = kept["heads"].values()
    assert re.fullmatch(r"[0-9a-f-]{36} 0 \d{4}-\d\d-\d\dT[0-9:.]{12}Z [0-9.]+", head)
    assert not kept.keys() & {"status", "paused", "left", "early_at", "rate"}, "nothing is to be said of them"


def test_the_table_of_buckets_names_the_run_of_each(
    queue: SqlQueue, deployment: Deployment, sensor: dg.SensorDefinition
) -> None:
    deployment.enqueue_many(2)
    rows(queue, "UPDATE {s}.job SET bucket = 1 + (payload->>'n')::int, available_at = now() - interval '90 seconds'")
    first = deployment.tick(sensor)
    table = observations(first)[0].metadata["buckets"].value
    assert table.splitlines()[0] == "| bucket | due for | priority | run |"
    assert [line.split(" | ")[0].strip("| ") for line in table.splitlines()[2:]] in (["1", "2"], ["2", "1"])
    assert table.count("| none |") == 2
    second = deployment.tick(sensor, cursor=forget(first.cursor))
    assert observations(second)[0].metadata["buckets"].value.count("| a run on its way |") == 2


def test_the_table_names_all_runs_that_share_a_bucket(queue: SqlQueue) -> None:
    head = Head(bucket=1, priority=0, id=uuid7(), available_at=datetime.now(UTC), due_seconds=113.2)
    shared = {number: slots.Slot("work", number, (1, 5 + number), uuid7()) for number in range(3)}
    runs = {0: "run 0aaaaaaa (at work)", 1: "run 1aaaaaaa (starting for 20 s)", 2: "run 2aaaaaaa (at work)"}
    state = QueueState("work", False, [head], queue.depth("work"), Capacity(shared, runs), {})
    assert "| 1 | 113 s | 0 | 0aaaaaaa, 1aaaaaaa (starting for 20 s) and 1 more |" in bucket_table(state)


def test_leases_between_two_reports_are_plotted(
    queue: SqlQueue, deployment: Deployment, consumer: QueueConsumer[Work], sensor: dg.SensorDefinition
) -> None:
    """A report comes when nothing is leased yet, or any more."""
    deployment.enqueue_many(9)
    first = deployment.tick(sensor)
    taken = queue.claim("work", limit=7, worker="w")
    between = deployment.tick(sensor, cursor=first.cursor)
    assert not between.asset_events
    queue.complete(taken)
    second = deployment.tick(sensor, cursor=ago(between.cursor, 55))
    (event,) = [event for event in second.asset_events if not isinstance(event, dg.AssetCheckEvaluation)]
    assert event.metadata["most_leased"].value == 7
    assert "leased" not in event.metadata["summary"].value
    after = deployment.tick(sensor, cursor=ago(second.cursor, 55))
    (event,) = [event for event in after.asset_events if not isinstance(event, dg.AssetCheckEvaluation)]
    assert event.metadata["most_leased"].value == 0
    # A run reports when it has ended everything.
    assert deployment.drain(consumer, batch_size=2).success
    latest = deployment.instance.get_latest_materialization_event(queue_asset_key("work"))
    assert latest is not None
    assert latest.asset_materialization is not None
    assert latest.asset_materialization.metadata["most_leased"].value == 2


def test_progress_of_live_runs_is_a_materialisation(
    queue: SqlQueue, deployment: Deployment, sensor: dg.SensorDefinition
) -> None:
    """So that a freshness policy sees it, which reads nothing else."""
    deployment.enqueue_many(9)
    first = deployment.tick(sensor)
    assert configs(first)
    queue.complete(queue.claim("work", limit=5, worker="w"))
    moving = deployment.tick(sensor, cursor=forget(first.cursor))
    (event,) = [event for event in moving.asset_events if isinstance(event, dg.AssetMaterialization)]
    assert event.asset_key == queue_asset_key("work")
    assert event.metadata["ready"].value == 4
    assert event.metadata["done_per_minute"].value == 5
    rows(queue, "UPDATE {s}.job_archive SET finished_at = finished_at - interval '2 minutes'")
    assert observations(deployment.tick(sensor, cursor=forget(moving.cursor)))


def test_after_a_run_that_ended_jobs_all_checks_are_reported_anew(
    deployment: Deployment, consumer: QueueConsumer[Work], sensor: dg.SensorDefinition
) -> None:
    """Dagster shows no check that is older than the last materialisation, which has the statistics already."""
    first = deployment.tick(sensor)
    deployment.enqueue(Work(n=1))
    assert deployment.drain(consumer).success
    after = deployment.tick(sensor, cursor=first.cursor)
    assert len(after.asset_events) == len(evaluations(after))
    assert set(verdicts(after)) == NAMES
    assert deployment.tick(sensor, cursor=after.cursor).asset_events == []


def test_the_data_version_changes_with_what_is_on_the_queue(
    deployment: Deployment, sensor: dg.SensorDefinition
) -> None:
    def version(result: Any) -> str:
        return str(observations(result)[0].tags["dagster/data_version"])

    deployment.enqueue(Work(n=1))
    first = deployment.tick(sensor)
    same = deployment.tick(sensor, cursor=forget(first.cursor))
    deployment.enqueue(Work(n=2))
    other = deployment.tick(sensor, cursor=forget(first.cursor))
    assert version(first) == version(same) != version(other)


def test_a_bucket_whose_first_job_stays_the_same_is_stalled(
    queue: SqlQueue, deployment: Deployment, consumer: QueueConsumer[Work]
) -> None:
    sensor = build_sqlqueue_sensor(consumer, thresholds=CheckThresholds(oldest_ready_seconds=3_600, stalled_seconds=60))
    deployment.enqueue(Work(n=1))
    rows(queue, "UPDATE {s}.job SET bucket = 3")
    first = deployment.tick(sensor)
    # It was seen for the first time when it had been due for a minute less.
    memory = Memory.of(first.cursor)
    memory.heads = {bucket: (head, seconds - 61) for bucket, (head, seconds) in memory.heads.items()}
    memory.observed_at = 0.0
    stalled = deployment.tick(sensor, cursor=memory.cursor())
    assert verdicts(stalled) == {"stalled_bucket": False}
    said = evaluations(stalled)[0].description
    assert said is not None
    assert re.fullmatch(r"Bucket 3: its first job has been the same for \d+ (s|min)\.", said)
    queue.pause("work")
    assert verdicts(deployment.tick(sensor, cursor=forget(stalled.cursor))) == {"stalled_bucket": True}


def test_a_check_that_a_user_executes_knows_what_the_sensor_remembers(
    queue: SqlQueue, deployment: Deployment, consumer: QueueConsumer[Work], persistent: dg.DagsterInstance
) -> None:
    """The first job of a bucket has been the same for a minute by the sensor's cursor, and by no other's."""
    limits = CheckThresholds(oldest_ready_seconds=3_600, stalled_seconds=60)
    sensor = build_sqlqueue_sensor(consumer, thresholds=limits)
    deployment.enqueue(Work(n=1))
    memory = Memory.of(deployment.tick(sensor).cursor)
    here = replace(deployment, instance=persistent)
    assert checked(here, limits)["stalled_bucket"].passed
    state(persistent, "broken", "not a cursor of ours")
    state(persistent, "sensor", memory.cursor())
    assert checked(here, limits)["stalled_bucket"].passed
    memory.heads = {bucket: (head, seconds - 61) for bucket, (head, seconds) in memory.heads.items()}
    state(persistent, "copy", memory.cursor())
    assert not checked(here, limits)["stalled_bucket"].passed
    queue.pause("work")
    assert checked(here, limits)["stalled_bucket"].passed


@pytest.mark.parametrize(
    "cursor",
    [
        *(
            "",
            "null",
            "[]",
            "7",
            "{}",
            "not JSON",
            "\n",
            "\nnull",
            "\n[]",
            "\n7",
            '\n{"heads": 7}',
            '\n{"heads": {"1": 7}}',
        ),
        *(
            '\n{"heads": {"1": "first"}}',
            '\n{"left": 7}',
            '\n{"left": ["a"]}',
            '\n{"observed_at": "soon"}',
            '\n{"x": 1}',
        ),
    ],
)
def test_a_cursor_that_a_person_edited_harms_nothing(
    deployment: Deployment, sensor: dg.SensorDefinition, cursor: str
) -> None:
    deployment.enqueue(Work(n=1))
    assert observations(deployment.tick(sensor, cursor=cursor))


def test_a_person_can_run_the_checks(queue: SqlQueue, deployment: Deployment) -> None:
    assert {name: check.passed for name, check in checked(deployment).items()} == dict.fromkeys(NAMES, True)
    deployment.enqueue_many(3)
    jobs = queue.claim("work", limit=2, worker="w")
    queue.finish([Ending(jobs[0], ArchiveState.FAILED, error="no good")])
    rows(queue, "UPDATE {s}.job SET lease_no = lease_no + 1, available_at = now() - interval '400 seconds'")
    assert not queue.heartbeat([jobs[1]], lease_seconds=300).held
    with pytest.raises(LeaseLost):
        queue.complete([jobs[1]])
    found = checked(deployment)
    assert {name: check.passed for name, check in found.items()} == {
        "oldest_ready": False,
        "dead_letters": False,
        "stale_writes": False,
        "stalled_bucket": True,
    }
    assert found["dead_letters"].metadata["dead_letters"].value == 1
    assert found["stale_writes"].metadata["stale_writes_today"].value == 2
    generous = CheckThresholds(oldest_ready_seconds=900, dead_letters=1, stale_writes=2)
    assert all(check.passed for check in checked(deployment, generous).values())


def test_a_threshold_that_cannot_be() -> None:
    with pytest.raises(InvalidInput, match="dead_letters"):
        CheckThresholds(dead_letters=-1)
