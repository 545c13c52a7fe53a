"""What is reported about single jobs of a batch, and what becomes of them when it ends."""

from concurrent.futures import ThreadPoolExecutor
from uuid import UUID

import pytest

from dagster_sqlqueue import Done, NewJob, QueueSpec, Reject, Retry, Selection, SqlQueue
from dagster_sqlqueue.errors import BatchLost, InvalidInput
from dagster_sqlqueue.spark import batches
from dagster_sqlqueue.spark.batches import Swept
from tests.support import Work, claim, make_due, rows, states, value
from tests.support.leased import ids_of, outcomes_of, publish, seal


def test_each_job_ends_as_was_reported_and_the_others_succeed(filled: SqlQueue) -> None:
    batch, ids = seal(filled), ids_of(filled)
    reports = outcomes_of(ids)
    assert batches.report(filled, batch, [*reports, (UUID(int=1), Done())]) == {id for id, _ in reports}
    assert batches.outcomes(filled, batch) == dict(reports)
    publish(filled, batch)
    assert states(filled) == {
        **dict.fromkeys(range(30), "succeeded"),
        0: "failed",
        1: "queued",
        2: "queued",
        3: "held",
        4: "cancelled",
        6: "queued",
        7: "queued",
    }
    live = rows(
        filled, "SELECT (payload ->> 'n')::integer, attempt, error, batch_id, claimed_by FROM {s}.job ORDER BY 1"
    )
    assert live == [
        (1, 1, "again", None, None),
        (2, 0, None, None, None),
        (3, 0, "look", None, None),
        (6, 0, None, None, None),
        (7, 1, "by backoff", None, None),
    ]
    errors = dict(rows(filled, "SELECT (payload ->> 'n')::integer, error FROM {s}.job_archive WHERE error IS NOT NULL"))
    assert errors == {0: "bad row", 4: "not wanted"}
    assert value(filled, "SELECT result FROM {s}.job_archive WHERE id = %s", ids[5]) == {"n": 5}
    assert [Work.model_validate_json(job.payload).n for job in claim(filled)] == [7]
    seconds = dict(
        rows(
            filled,
            "SELECT (payload ->> 'n')::integer, extract(epoch FROM available_at - now())::integer FROM {s}.job"
            " WHERE payload ->> 'n' IN ('1', '2')",
        )
    )
    assert all(900 < left <= 1_000 for left in seconds.values())
    assert (batches.outcomes(filled, batch), value(filled, "SELECT count(*) FROM {s}.batch_outcome")) == ({}, 0)


def test_what_is_to_be_cancelled_and_goes_back_is_due_at_once(filled: SqlQueue) -> None:
    batch, ids = seal(filled), ids_of(filled)
    back = [ids[1], ids[2], ids[6], ids[7]]
    assert batches.report(filled, batch, outcomes_of(ids))
    filled.cancel("work", Selection(ids=back))
    publish(filled, batch)
    assert claim(filled) == []
    assert {filled.job(id).state for id in back} == {"cancelled"}


def test_of_repeated_reports_the_first_stands_and_only_success_replaces_it(filled: SqlQueue) -> None:
    batch, ids = seal(filled), ids_of(filled)
    assert batches.report(filled, batch, [(ids[0], Retry("one")), (ids[0], Retry("two")), (ids[1], Done(1))])
    assert batches.report(filled, batch, [(ids[0], Reject("three")), (ids[1], Retry("late"))]) == {ids[0], ids[1]}
    assert batches.outcomes(filled, batch) == {ids[0]: Retry("one"), ids[1]: Done(1)}
    with ThreadPoolExecutor(4) as pool:
        reports = [(id, Done()) for id in ids.values()]
        assert list(pool.map(lambda _: batches.report(filled, batch, reports), range(8))) == [set(ids.values())] * 8
    assert batches.outcomes(filled, batch) == {**dict.fromkeys(ids.values(), Done()), ids[1]: Done(1)}


def test_a_retry_without_an_attempt_left_is_dead(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    queue.enqueue(spec, NewJob(Work(n=1), max_attempts=1))
    batch = seal(queue)
    batches.report(queue, batch, [(id, Retry("no more")) for id in ids_of(queue).values()])
    publish(queue, batch)
    assert [letter.error for letter in queue.dead_letters("work")] == ["no more"]


def test_who_was_overtaken_reports_nothing(filled: SqlQueue) -> None:
    old, ids = seal(filled), ids_of(filled)
    make_due(filled)
    seal(filled)
    with pytest.raises(BatchLost):
        batches.report(filled, old, [(ids[0], Done())])
    with pytest.raises(BatchLost):
        batches.report(filled, old, [])


def test_what_is_no_outcome_is_refused(filled: SqlQueue) -> None:
    batch, ids = seal(filled), ids_of(filled)
    with pytest.raises(InvalidInput, match="is 'done'; give Done, Retry"):
        batches.report(filled, batch, [(ids[1], Done()), (ids[0], "done")])  # type: ignore[list-item]
    with pytest.raises(InvalidInput, match="cannot be written as JSON"):
        batches.report(filled, batch, [(ids[0], Done(object()))])  # type: ignore[arg-type]
    assert batches.outcomes(filled, batch) == {}


@pytest.mark.parametrize("end", ["abandoned", "taken over", "swept"])
def test_what_was_reported_is_done_however_the_batch_ends(filled: SqlQueue, end: str) -> None:
    batch, ids = seal(filled), ids_of(filled)
    batches.report(filled, batch, outcomes_of(ids))
    expected = {0: "failed", 3: "held", 4: "cancelled", 5: "succeeded"}
    if end == "abandoned":
        assert batches.abandon(filled, batch, "stop") == 27
    elif end == "taken over":
        make_due(filled)
        assert seal(filled).job_count == 23
        expected |= dict.fromkeys(range(8, 30), "running") | {7: "running"}
    else:
        make_due(filled)
        assert batches.sweep_batches(filled) == Swept(batches=1, returned=27, ended=3)
    assert states(filled) == {**dict.fromkeys(range(30), "queued"), **expected}
