"""What a sensor's cursor shows, and what it remembers, without a database."""

import time
from datetime import UTC, datetime
from uuid import UUID, uuid4

import pytest

from dagster_sqlqueue.model.job import Head
from dagster_sqlqueue.orchestration.sensor_cursor import Memory

DUE = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)


def head(bucket: int, priority: int, due_seconds: float, job: UUID) -> Head:
    return Head(bucket, priority, DUE, due_seconds, job)


def test_a_cursor_ends_with_the_last_part_of_its_status_and_repeats_no_sole_part() -> None:
    idle = Memory(status="0 ready, 0 leased, 0 scheduled")
    assert idle.cursor() == "0 ready, 0 leased, 0 scheduled\n{}"
    busy = Memory(status="1 ready, 0 leased, 0 scheduled; requested a run for bucket 0")
    assert busy.cursor().split("\n") == [busy.status, "{}", "requested a run for bucket 0"]
    assert Memory.of(idle.cursor()) == Memory.of(busy.cursor()) == Memory()


def test_a_cursor_names_the_jobs_in_few_words_and_is_read_back() -> None:
    job = uuid4()
    memory = Memory(status="1 ready")
    memory.stood([head(7, 2, 4.25, job)])
    assert memory.cursor().split("\n")[1] == f'{{"heads": {{"7": "{job} 2 2026-01-31T12:00:00.000Z 4.25"}}}}'
    again = Memory.of(memory.cursor())
    assert again.heads == memory.heads
    assert again.stood([head(7, 2, 64.25, job)]) == {7: 60.0}


@pytest.mark.parametrize("urgent_first", [True, False])
def test_of_a_bucket_with_several_priorities_the_most_urgent_job_counts(urgent_first: bool) -> None:
    """Heads come in no order: each tick is to compare the same one."""
    low, high = uuid4(), uuid4()
    memory = Memory()
    for seconds in (5.0, 10.0, 15.0):
        heads = [head(0, 5, seconds, high), head(0, 0, seconds + 1_000, low)]
        # The order changes from tick to tick.
        first = urgent_first == (seconds == 10.0)
        memory = Memory.of(memory.cursor())
        stood = memory.stood(heads if first else heads[::-1])
    assert stood == {0: 10.0}
    assert memory.heads["0"][0].startswith(f"{high} 5 ")


def test_a_job_that_is_not_due_yet_hides_none_that_is() -> None:
    later, due = uuid4(), uuid4()
    memory = Memory()
    assert memory.stood([head(0, 5, -60.0, later), head(0, 0, 3.0, due)]) == {0: 0.0}
    assert memory.heads["0"][0].startswith(f"{due} 0 ")


def test_where_the_clock_was_set_back_a_tick_remembers_no_moment_that_is_yet_to_come() -> None:
    began = time.time()
    ahead, before = began + 86_400.0, began - 5.0
    memory = Memory(observed_at=ahead, early_at=ahead, events_read_at=ahead, checked_at=before, measured_at=ahead)
    # By the clock of the run's machine.
    memory.run_ended_at = ahead
    read = Memory.of(memory.cursor())
    for moment in (read.observed_at, read.early_at, read.events_read_at, read.measured_at):
        assert began - 0.001 <= moment <= time.time()
    assert (read.checked_at, read.run_ended_at) == pytest.approx((before, ahead), abs=0.001)
