"""What the tables refuse of direct writes: what no consumer could work with, by a name that says so."""

from uuid import uuid4

import psycopg
import pytest

from dagster_sqlqueue import NewJob, QueueSpec, Selection, SqlQueue
from tests.support import Work, rows, value
from tests.support.odd_rows import insert_odd

BROKEN = {
    "due for ever": "job_available_at_is_of_year_1_or_later",
    "due before Christ": "job_available_at_is_of_year_1_or_later",
    "wanted for ever": "job_run_at_is_of_years_1_to_9999",
    "never wanted": "job_run_at_is_of_years_1_to_9999",
    "a place in no line": "job_order_no_is_positive_and_needs_an_ordering_key",
    "a place before the first": "job_order_no_is_positive_and_needs_an_ordering_key",
    "a bucket that no queue has": "job_bucket_is_0_to_1023",
    "a negative bucket": "job_bucket_is_0_to_1023",
    "a priority that there is not": "job_priority_is_0_to_9",
    "a negative priority": "job_priority_is_0_to_9",
    "a state that there is not": "job_state_is_live",
}
LONG = "k" * 2_501


@pytest.mark.parametrize("what", BROKEN)
def test_a_row_that_no_consumer_could_work_with_is_refused(queue: SqlQueue, what: str) -> None:
    with pytest.raises(psycopg.errors.CheckViolation) as refused:
        insert_odd(queue, what)
    assert refused.value.diag.constraint_name == BROKEN[what]
    assert BROKEN[what] in str(refused.value).splitlines()[0]


@pytest.mark.parametrize(
    ("columns", "name"),
    [
        ("available_at = '-infinity'", "job_available_at_is_of_year_1_or_later"),
        ("available_at = 'infinity'", "job_available_at_of_queued_is_finite_unless_parked"),
        ("run_at = 'infinity'", "job_run_at_is_of_years_1_to_9999"),
        ("max_attempts = 0", "job_max_attempts_is_at_least_1"),
        ("priority = 10", "job_priority_is_0_to_9"),
    ],
)
def test_so_is_what_makes_one_of_it(queue: SqlQueue, spec: QueueSpec[Work], columns: str, name: str) -> None:
    """Of a job that waits under a unique key a producer may replace the content."""
    queue.enqueue(spec, NewJob(Work(n=1), unique_key="u"))
    with pytest.raises(psycopg.errors.CheckViolation) as refused:
        rows(queue, f"UPDATE {{s}}.replaceable_job SET {columns}")
    assert refused.value.diag.constraint_name == name


def test_a_queued_job_that_waits_for_no_turn_has_a_finite_time(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    """It would never be claimed, and nothing would name it: no other job gives it a turn."""
    first, second = (queue.enqueue(spec, NewJob(Work(n=n), ordering_key="k")) for n in range(2))
    assert first
    never = "UPDATE {s}.job SET available_at = 'infinity' WHERE id = %s"
    with pytest.raises(psycopg.errors.CheckViolation, match="job_available_at_of_queued_is_finite_unless_parked"):
        rows(queue, never, first)
    queue.hold_queued("work", Selection(ids=[first]), "for later")
    assert value(queue, "SELECT available_at = 'infinity' FROM {s}.job WHERE id = %s", first), "held ones have none"
    assert value(queue, "SELECT available_at < 'infinity' FROM {s}.job WHERE id = %s", second)


def test_keys_are_no_longer_than_an_index_takes(queue: SqlQueue) -> None:
    """One of a follower would be met when the job that it follows ends."""
    follower = (
        "INSERT INTO {s}.follower (id, job_id, states, queue, ordering_key) VALUES (%s, %s, '{{failed}}', 'work', %s)"
    )
    group = "INSERT INTO {s}.job_group (id, queue, priority, ordering_key) VALUES (%s, 'work', 0, %s)"
    with pytest.raises(psycopg.errors.CheckViolation, match="follower_ordering_key_has_at_most_2500_bytes"):
        rows(queue, follower, uuid4(), uuid4(), LONG)
    with pytest.raises(psycopg.errors.CheckViolation, match="job_group_ordering_key_has_at_most_2500_bytes"):
        rows(queue, group, uuid4(), LONG)
    with pytest.raises(psycopg.errors.CheckViolation, match="group_tally_members_is_within_1000000000000"):
        rows(queue, "INSERT INTO {s}.group_tally (group_id, members) VALUES (%s, -9223372036854775808)", uuid4())


@pytest.mark.parametrize("bucket", [4, 900, 1_023])
def test_a_bucket_that_the_queue_never_had(queue: SqlQueue, spec: QueueSpec[Work], bucket: int) -> None:
    """Sensors do not look there; maintenance brings its jobs to where they do."""
    kept = queue.enqueue(spec, NewJob(Work(n=1), ordering_key="k"))
    stray = queue.enqueue(spec, NewJob(Work(n=2), ordering_key="k"))
    right = value(queue, "SELECT bucket FROM {s}.job WHERE id = %s", kept)
    rows(queue, "UPDATE {s}.job SET bucket = %s WHERE id = %s", bucket, stray)
    assert rows(queue, "SELECT id, queue, bucket FROM {s}.stray_job") == [(stray, "work", bucket)]
    assert queue.maintain().jobs_moved == 1
    assert rows(queue, "SELECT id, bucket FROM {s}.job ORDER BY 1") == [(kept, right), (stray, right)]
    assert queue.maintain().jobs_moved == 0
    queue.rebucket("work", 2)
    assert queue.maintain().jobs_moved == 0, "a bucket of an older and larger count is looked at until it is empty"
