"""Jobs staged by attempts of tasks: only the accepted ones are enqueued, all or none; no Spark runs here."""

import threading
from typing import Any
from uuid import UUID, uuid4

import pytest

from dagster_sqlqueue import NewJob, QueueSpec, SqlQueue
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.queue.validation import values
from dagster_sqlqueue.spark import staged_jobs
from dagster_sqlqueue.spark.staged_jobs import Staged, StagedJobsLost
from tests.support import Work, claim, numbers, rows
from tests.support.armed import armed, wakes

SHARES_A_SCHEMA = True


def staged(queue: SqlQueue, spec: QueueSpec[Work], write: UUID, *ns: int, **more: Any) -> Staged:
    jobs = [NewJob(Work(n=n), **more) for n in ns]
    return staged_jobs.stage(queue, write, [(values(spec, job), job.id is not None, job.tags) for job in jobs])


def left(queue: SqlQueue) -> int:
    return len(rows(queue, "SELECT 1 FROM {s}.staged_job UNION ALL SELECT 1 FROM {s}.staged_attempt"))


def test_attempts_that_lost_are_left_out(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    write = uuid4()
    won = [staged(queue, spec, write, 0, 1), staged(queue, spec, write, 2)]
    staged(queue, spec, write, 0, 1, 1)
    assert queue.claim("work", limit=9, worker="w") == []
    done = staged_jobs.commit(queue, "work", write, won)
    assert (done.jobs, done.duplicates, done.repeated) == (3, 0, False)
    assert sorted(numbers(claim(queue))) == [0, 1, 2]
    assert left(queue) == 0


def test_a_unique_key_that_is_held_until_the_claim(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    for n in range(2):
        write = uuid4()
        parts = [staged(queue, spec, write, n, unique_key="u", unique_until="claim") for _ in range(2)]
        done = staged_jobs.commit(queue, "work", write, parts)
        assert (done.jobs, done.duplicates) == (1, 1)
        assert numbers(claim(queue)) == [n]


def test_an_ordered_queue_gets_the_jobs_of_a_key_in_the_order_of_partitions_and_rows(
    fresh: SqlQueue, spec: QueueSpec[Work]
) -> None:
    ordered = QueueSpec("work", Work, bucket_count=2, ordered=True)
    fresh.migrate()
    fresh.create_queue(ordered)
    write = uuid4()
    second, first = (staged(fresh, ordered, write, *ns, ordering_key="k") for ns in ((3, 4), (0, 1, 2)))
    staged_jobs.commit(fresh, "work", write, [first, second])
    found = []
    while jobs := claim(fresh, 1):
        found += numbers(jobs)
        fresh.complete(jobs)
    assert found == [0, 1, 2, 3, 4]


def test_a_write_that_is_given_up_leaves_nothing(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    write, other = uuid4(), uuid4()
    staged(queue, spec, write, 0, 1)
    kept = staged(queue, spec, other, 5)
    assert staged_jobs.drop(queue, write) == 2
    staged_jobs.commit(queue, "work", other, [kept])
    assert numbers(claim(queue)) == [5]
    assert left(queue) == 0


def test_what_is_gone_is_missed_and_nothing_is_enqueued(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    write = uuid4()
    parts = [staged(queue, spec, write, 0), staged(queue, spec, write, 1, 2)]
    rows(queue, "UPDATE {s}.staged_attempt SET staged_at = now() - interval '23 hours'")
    queue.maintain()
    assert left(queue) == 5
    rows(
        queue,
        "UPDATE {s}.staged_attempt SET staged_at = now() - interval '25 hours' WHERE attempt = %s",
        parts[0].attempt,
    )
    assert queue.maintain().expired_removed == 1
    with pytest.raises(StagedJobsLost, match="Nothing was enqueued; write again"):
        staged_jobs.commit(queue, "work", write, parts, name="once")
    assert claim(queue) == []
    assert staged_jobs.written(queue, "work", "once") is None


def test_of_two_writes_of_one_name_at_once_one_is_done(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    writes = [uuid4(), uuid4()]
    parts = [staged(queue, spec, write, *range(100)) for write in writes]
    found: list[staged_jobs.Written] = []

    def commit(n: int) -> None:
        found.append(staged_jobs.commit(queue, "work", writes[n], [parts[n]], name="once"))

    threads = [threading.Thread(target=commit, args=(n,)) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted((one.repeated, one.jobs) for one in found) == [(False, 100), (True, 100)]
    assert len(claim(queue, 300)) == 100
    assert left(queue) == 0


def test_the_batches_of_a_stream_are_each_done_once(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    outcomes = []
    for batch in (0, 1, 1, 0, 2):
        write = uuid4()
        part = staged(queue, spec, write, batch)
        outcomes.append(staged_jobs.commit(queue, "work", write, [part], name="stream/x", batch=batch).repeated)
    assert outcomes == [False, False, True, True, False]
    assert sorted(numbers(claim(queue))) == [0, 1, 2]


def test_who_waits_is_woken(queue: SqlQueue, spec: QueueSpec[Work], url: str) -> None:
    write = uuid4()
    part = staged(queue, spec, write, 1)
    with armed(queue, url, 2) as sessions:
        staged_jobs.commit(queue, "work", write, [part])
        assert wakes(sessions) == [1, 0]


def test_a_region_without_buckets_is_refused(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    write = uuid4()
    part = staged(queue, spec, write, 1, region="mars")
    with pytest.raises(InvalidInput, match="has no bucket"):
        staged_jobs.commit(queue, "work", write, [part])
    assert claim(queue) == []
