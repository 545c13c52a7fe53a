"""How many jobs a run is given: as many as runs were measured to end in the time that one is to take."""

import time
from datetime import datetime
from typing import Any

import pytest

from dagster_sqlqueue import Job, QueueSpec, SqlQueue
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.orchestration import SensorSettings, build_sqlqueue_sensor, queue_consumer
from dagster_sqlqueue.orchestration.run_rate import MOST_JOBS, USUAL_JOBS, RunRate, jobs_in, measured
from tests.orchestration.support import Deployment, changed, configs, done_by, remembered
from tests.support import Work, rows


def ended(queue: SqlQueue, by: str | None, *spans: tuple[float, float], state: str = "succeeded") -> None:
    """Jobs of `work` that ended: for each of them, how many seconds ago it was claimed and when it ended."""
    rows(
        queue,
        "INSERT INTO {s}.job_archive (id, queue, bucket, priority, state, lease_no, attempt, max_attempts, run_at,"
        " created_at, started_at, finished_at, claimed_by, region, tags, payload)"
        " SELECT gen_random_uuid(), 'work', 0, 0, %s, 1, 1, 3, now(), now(), now() - make_interval(secs => began),"
        "  now() - make_interval(secs => finished), %s, 'local', '{{}}', '{{}}'"
        " FROM unnest(CAST(%s AS float8[]), CAST(%s AS float8[])) AS span (began, finished)",
        state,
        by,
        [began for began, _ in spans],
        [finished for _, finished in spans],
    )


def asked_anew(queue: SqlQueue) -> None:
    """No run is on its way, and none was asked for in vain."""
    rows(queue, "TRUNCATE {s}.consumer_slot")
    rows(queue, "UPDATE {s}.bucket SET starts = 0")


@pytest.mark.parametrize(
    ("rate", "jobs"),
    [
        (None, USUAL_JOBS),
        (RunRate(10, 2.5), 120),
        (RunRate(10, 1e-9), MOST_JOBS),
        (RunRate(1, 3_600.0), 1),
    ],
)
def test_a_run_is_given_what_it_ends_in_its_time(rate: RunRate | None, jobs: int) -> None:
    assert jobs_in(rate, 30.0) == jobs


def test_a_claim_is_worked_on_from_its_beginning_to_its_last_end(queue: SqlQueue) -> None:
    """Ten jobs that were claimed together, one of a second after the other; then nothing for a while, then three more."""
    ended(queue, "run/a", *((100.0, 100.0 - n) for n in range(1, 11)), (50.0, 48.0), (50.0, 46.0), (50.0, 44.0))
    assert measured(queue, "work", batch_size=100) == RunRate(13, 16.0)
    assert str(RunRate(13, 16.0)) == "0.8 jobs a second in a run"


def test_jobs_side_by_side_share_their_time_and_runs_do_not(queue: SqlQueue) -> None:
    ended(queue, "run/a", (30.0, 20.0), (29.0, 19.0), (25.0, 22.0))
    assert measured(queue, "work", batch_size=100) == RunRate(3, 11.0)
    ended(queue, "run/b", (30.0, 20.0))
    assert measured(queue, "work", batch_size=100) == RunRate(4, 21.0)


def test_only_what_runs_ended_within_an_hour_counts(queue: SqlQueue) -> None:
    ended(queue, "worker/7", (100.0, 1.0))
    ended(queue, None, (100.0, 1.0))
    ended(queue, "run/a", (9_000.0, 1.0), state="cancelled")
    ended(queue, "run/a", (9_000.0, 8_000.0))
    assert measured(queue, "work", batch_size=100) is None
    ended(queue, "run/a", (3.0, 1.0))
    assert measured(queue, "work", batch_size=100) == RunRate(1, 2.0)


def test_of_many_jobs_the_latest_count_and_the_time_before_them_does_not(queue: SqlQueue) -> None:
    """What was written together with the first of them may be missing, and what the run did before is."""
    long_ago = 1_500.0
    ended(queue, "run/a", *((long_ago, 1_200.0 - n) for n in range(1_002)))
    found = measured(queue, "work", batch_size=1)
    assert found == RunRate(999, 999.0)


def test_the_backlog_of_slow_handlers_gets_more_runs_and_an_explicit_number_wins(
    deployment: Deployment, spec: QueueSpec[Work]
) -> None:
    """Real runs: before the first one 5,000 jobs are one run's, and once it was seen that a job takes long, far fewer."""

    @queue_consumer(spec)
    def slow(job: Job[Work]) -> None:
        time.sleep(0.1)

    def sensor(**settings: Any) -> Any:
        return build_sqlqueue_sensor(slow, settings=SensorSettings(max_runs=3, run_seconds=1.0, **settings))

    learning = sensor()
    deployment.enqueue_many(5)
    first = deployment.tick(learning)
    (config,) = configs(first)
    assert "a second in a run" not in first.cursor
    assert done_by(deployment.drain(slow, **{**config, "linger_seconds": 0}))["succeeded"] == 5
    deployment.enqueue_many(30)
    # It is measured every ten seconds, and the last time was before the run.
    before = changed(first.cursor, measured_at="2026-01-01T00:00:00+00:00")
    second = deployment.tick(learning, cursor=before)
    assert len(configs(second)) == 3
    kept = remembered(second.cursor)
    assert kept["rate"]["jobs"] == 5
    assert 0 < kept["rate"]["per_second"] <= 10
    assert datetime.fromisoformat(kept["measured_at"]).tzinfo is not None
    assert f"{kept['rate']['per_second']} jobs a second in a run, so " in second.cursor
    assert second.cursor.split("\n")[2].startswith("requested a run for bucket"), "the rate matters less"
    # A cursor that a person looked at, and a queue that was idle, go on from it.
    asked_anew(deployment.queue)
    rows(deployment.queue, "TRUNCATE {s}.job_archive")
    assert len(configs(deployment.tick(learning, cursor=second.cursor))) == 3
    asked_anew(deployment.queue)
    assert len(configs(deployment.tick(sensor(jobs_per_run=1_000), cursor=second.cursor))) == 1


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("max_runs", 0, "a whole number from 1"),
        ("max_runs", None, "a whole number from 1"),
        ("max_runs", 2.5, "a whole number from 1"),
        ("jobs_per_run", 0, "a whole number from 1"),
        ("batch_size", 0, "a whole number from 1 to 10,000"),
        ("batch_size", 10_001, "a whole number from 1 to 10,000"),
        ("run_seconds", 0.0, "a number of seconds above 0, at most a hundred years"),
        ("run_seconds", None, "a number of seconds above 0, at most a hundred years"),
        ("start_seconds", -1, "a number of seconds above 0, at most a hundred years"),
        ("starting_seconds", float("nan"), "a number of seconds above 0, at most a hundred years"),
        ("budget_seconds", 0, "a number of seconds above 0, at most a hundred years"),
        ("budget_seconds", float("inf"), "a number of seconds above 0, at most a hundred years"),
        ("linger_seconds", -0.5, "a number of seconds, 0 or more, at most a hundred years"),
        ("linger_seconds", "60", "a number of seconds, 0 or more, at most a hundred years"),
        ("hand_over_seconds", True, "a number of seconds, 0 or more, at most a hundred years"),
    ],
)
def test_settings_that_cannot_be(name: str, value: Any, rule: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        SensorSettings(**{name: value})
    assert str(refused.value) == f"{name} of SensorSettings is {value!r}; it must be {rule}"


def test_settings_that_only_just_can_be() -> None:
    SensorSettings(max_runs=1, batch_size=10_000, budget_seconds=1, linger_seconds=0, hand_over_seconds=0.0)
