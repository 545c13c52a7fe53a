"""The verbs on a queue, one at a time."""

from datetime import UTC, datetime, timedelta

import pytest

from dagster_sqlqueue import Backoff, NewJob, QueueSpec, Retry, Snooze, SqlQueue, Strategy
from dagster_sqlqueue.errors import InvalidInput, UnknownQueue
from dagster_sqlqueue.model.job import ArchiveState, ClaimedJob
from dagster_sqlqueue.queue import Ending, Enqueued
from dagster_sqlqueue.queue.claim_request import ClaimRequest
from tests.support import Work, claim, make_due, numbers, rows, value

BACKOFF = Backoff(0, jitter=0)
LATER = datetime.now(UTC) + timedelta(days=1)


def test_a_job_goes_in_and_comes_out_once(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    job_id = queue.enqueue(spec, Work(n=1, note="äß😀\\u0000"))
    (job,) = claim(queue)
    assert (job.id, job.attempt, job.lease_no, job.max_attempts, job.error) == (job_id, 1, 1, 3, None)
    assert Work.model_validate_json(job.payload) == Work(n=1, note="äß😀\\u0000")
    assert job.lease_until - job.created_at > timedelta(seconds=299)
    assert claim(queue) == []
    queue.complete([job])
    assert queue.depth("work").live == 0
    assert queue.archived("work", since_seconds=3_600) == {"succeeded": 1}


def test_a_job_may_be_a_model_a_mapping_or_more(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    assert queue.enqueue(spec, {"n": 1})
    assert queue.enqueue(spec, NewJob(Work(n=2)))
    assert queue.enqueue(spec, NewJob({"n": 3}))
    assert sorted(numbers(claim(queue))) == [1, 2, 3]


@pytest.mark.parametrize("limit", [3, 500])
def test_order_is_priority_then_time_then_id(queue: SqlQueue, limit: int) -> None:
    spec = QueueSpec("ordered", Work, bucket_count=1)
    queue.create_queue(spec)
    moment = datetime.now(UTC) - timedelta(hours=1)
    jobs = [NewJob(Work(n=n), priority=n % 10, run_at=moment + timedelta(seconds=n * 7 % 5)) for n in range(200)]
    queue.enqueue_many(spec, jobs)
    expected = [
        row[0]
        for row in rows(
            queue,
            "SELECT id FROM {s}.job WHERE queue = 'ordered' ORDER BY priority DESC, available_at, id",
        )
    ]
    claimed = []
    while batch := queue.claim("ordered", buckets=[0], limit=limit, lease_seconds=300, worker="w"):
        claimed += batch
    assert [job.id for job in claimed] == expected
    assert [job.priority for job in claimed] == sorted((n % 10 for n in range(200)), reverse=True)


def test_buckets_are_claimed_in_the_order_given(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    queue.enqueue_many(spec, [Work(n=n) for n in range(200)])
    order = [2, 0, 3, 1]
    jobs = queue.claim("work", buckets=order, limit=200, lease_seconds=300, worker="w")
    assert [job.bucket for job in jobs] == sorted((job.bucket for job in jobs), key=order.index)
    assert {job.bucket for job in jobs} == set(order)


def test_jobs_with_one_ordering_key_share_a_bucket(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    queue.enqueue_many(spec, [NewJob(Work(n=n), ordering_key="k") for n in range(30)])
    jobs = claim(queue)
    assert len({job.bucket for job in jobs}) == 1
    assert {job.ordering_key for job in jobs} == {"k"}


def test_a_job_for_later_waits_for_its_time(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    queue.enqueue(spec, NewJob(Work(n=1), run_at=LATER))
    assert claim(queue) == []
    assert queue.depth("work").scheduled == 1
    make_due(queue)
    assert numbers(claim(queue)) == [1]


def test_a_failed_attempt_waits_for_its_backoff(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    queue.enqueue(spec, Work(n=1))
    (job,) = claim(queue)
    assert queue.fail(job, "no luck", backoff=Backoff(100, factor=3, jitter=0))
    assert claim(queue) == []
    assert 70 < value(queue, "SELECT extract(epoch FROM available_at - now()) FROM {s}.job") <= 100
    make_due(queue)
    (again,) = claim(queue)
    assert (again.attempt, again.lease_no, again.error) == (2, 2, "no luck")
    assert queue.fail(again, "still none", backoff=Backoff(100, factor=3, jitter=0))
    assert 270 < value(queue, "SELECT extract(epoch FROM available_at - now()) FROM {s}.job") <= 300
    make_due(queue)
    (last,) = claim(queue)
    assert queue.fail(last, "x", backoff=BACKOFF, after=7) is False


def test_a_delay_of_ones_own(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    queue.enqueue(spec, Work(n=1))
    (job,) = claim(queue)
    assert queue.fail(job, "busy", backoff=BACKOFF, after=700)
    assert 600 < value(queue, "SELECT extract(epoch FROM available_at - now()) FROM {s}.job") <= 700


def test_the_last_failure_ends_in_the_dead_letter_with_its_error(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    job_id = queue.enqueue(spec, NewJob(Work(n=1, note="broken"), unique_key="u", ordering_key="o", priority=3))
    for attempt in (1, 2, 3):
        (job,) = claim(queue)
        assert job.last_attempt == (attempt == 3)
        assert queue.fail(job, f"failure {attempt}", backoff=BACKOFF) == (attempt < 3)
    assert claim(queue) == []
    (dead,) = queue.dead_letters("work")
    assert (dead.id, dead.error, dead.attempt, dead.max_attempts) == (job_id, "failure 3", 3, 3)
    assert (dead.unique_key, dead.ordering_key, dead.priority) == ("u", "o", 3)
    assert Work.model_validate_json(dead.payload) == Work(n=1, note="broken")
    assert queue.dead_letters("work", limit=0) == []


def test_a_jobs_own_max_attempts(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    queue.enqueue(spec, NewJob(Work(n=1), max_attempts=1))
    (job,) = claim(queue)
    assert not queue.fail(job, "once is enough", backoff=BACKOFF)


def test_a_snooze_does_not_spend_the_attempt(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    queue.enqueue(spec, Work(n=1))
    for lease_no in range(1, 6):
        (job,) = claim(queue)
        assert (job.attempt, job.lease_no) == (1, lease_no)
        assert queue.requeue([(job, Snooze(0))], backoff=BACKOFF) == {job.id}


def test_requeue_takes_both_kinds_in_one_call(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    queue.enqueue_many(spec, [Work(n=n) for n in range(4)])
    jobs = claim(queue)
    ways = [Retry("e0"), Retry("e1", 60), Snooze(0), Snooze(60.5)]
    queue.requeue(list(zip(jobs, ways, strict=True)), backoff=BACKOFF)
    again = {job.id: job for job in claim(queue)}
    assert set(again) == {jobs[0].id, jobs[2].id}
    assert (again[jobs[0].id].attempt, again[jobs[0].id].error) == (2, "e0")
    assert (again[jobs[2].id].attempt, again[jobs[2].id].error) == (1, None)


def test_released_jobs_are_due_at_once_as_if_never_claimed(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    queue.enqueue_many(spec, [Work(n=n) for n in range(5)])
    jobs = claim(queue)
    assert queue.release(jobs[:3]) == {job.id for job in jobs[:3]}
    assert queue.release([]) == set()
    again = claim(queue)
    assert {job.id for job in again} == {job.id for job in jobs[:3]}
    assert {job.attempt for job in again} == {1}
    assert value(queue, "SELECT count(*) FROM {s}.job WHERE claimed_by IS NULL") == 0


def test_a_heartbeat_extends_the_lease_from_now(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    queue.enqueue_many(spec, [Work(n=n) for n in range(3)])
    jobs = claim(queue, lease_seconds=1)
    assert queue.heartbeat(jobs[:2], lease_seconds=1_000).held == {job.id for job in jobs[:2]}
    left = dict(rows(queue, "SELECT id, extract(epoch FROM available_at - now()) FROM {s}.job"))
    assert all(700 < left[job.id] <= 1_000 for job in jobs[:2])
    assert left[jobs[2].id] <= 1


def test_finish_keeps_results_errors_and_what_the_job_was(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    queue.enqueue_many(spec, [NewJob(Work(n=n), priority=n) for n in range(4)])
    jobs = sorted(claim(queue), key=lambda job: job.priority)
    results = [None, {"a": [1, 2.5, "x\\u0000ü"]}, False, []]
    endings = [Ending(job, ArchiveState.SUCCEEDED, result) for job, result in zip(jobs[:3], results[:3], strict=True)]
    endings.append(Ending(jobs[3], ArchiveState.CANCELLED, results[3], error="not wanted"))
    assert queue.finish(endings) == {job.id for job in jobs}
    archived = rows(
        queue, "SELECT state, result, error, claimed_by, lease_no, priority FROM {s}.job_archive ORDER BY priority"
    )
    assert [row[1] for row in archived] == results
    assert [row[0] for row in archived] == ["succeeded"] * 3 + ["cancelled"]
    assert [row[2:] for row in archived] == [
        (None, "w", 1, 0),
        (None, "w", 1, 1),
        (None, "w", 1, 2),
        ("not wanted", "w", 1, 3),
    ]


def test_a_finish_in_a_transaction_stands_or_falls_with_it(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    queue.enqueue(spec, Work(n=1))
    jobs = claim(queue)
    rows(queue, "CREATE TABLE {s}.effect (n integer)")
    effect = f"INSERT INTO {queue.database.schema}.effect VALUES (1)"

    def do_both() -> None:
        with queue.database.transaction() as transaction:
            transaction.connection.execute(effect.encode())
            queue.complete(jobs, executor=transaction)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        do_both()
    assert queue.depth("work").running == 1
    with queue.database.transaction() as transaction:
        transaction.connection.execute(effect.encode())
        queue.complete(jobs, executor=transaction)
    assert value(queue, "SELECT count(*) FROM {s}.effect") == 1
    assert queue.archived("work", since_seconds=3_600) == {"succeeded": 1}


def test_heads_peek_and_depth_show_what_there_is(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    assert queue.peek_heads("work") == []
    assert queue.peek("work") == []
    moment = datetime.now(UTC) - timedelta(hours=1)
    queue.enqueue_many(spec, [NewJob(Work(n=n), run_at=moment, ordering_key="a", priority=n % 2) for n in range(6)])
    queue.enqueue(spec, NewJob(Work(n=6), run_at=LATER, priority=9, ordering_key="a"))
    heads = queue.peek_heads("work")
    assert [head.priority for head in sorted(heads, key=lambda head: -head.priority)] == [9, 1, 0]
    assert [head.due_seconds > 3599 for head in sorted(heads, key=lambda head: head.priority)] == [True, True, False]
    assert len({head.bucket for head in heads}) == 1
    peeked = queue.peek("work", limit=4)
    assert [job.priority for job in peeked] == [9, 1, 1, 1]
    assert [job.state for job in peeked] == ["queued"] * 4
    claim(queue, 2)
    depth = queue.depth("work")
    assert (depth.ready, depth.running, depth.scheduled, depth.held, depth.live) == (4, 2, 1, 0, 7)
    assert queue.depth("work", cap=3).ready == 3
    rows(queue, "UPDATE {s}.job SET state = 'held', available_at = 'infinity' WHERE state = 'running'")
    assert queue.depth("work").held == 2


def test_depth_counts_what_is_not_due_together_up_to_the_cap(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    queue.enqueue_many(spec, [Work(n=n) for n in range(3)])
    claim(queue)
    queue.enqueue_many(spec, [NewJob(Work(n=n), run_at=LATER) for n in range(50)])
    depth = queue.depth("work", cap=20)
    assert depth.scheduled + depth.running == 20
    depth = queue.depth("work", cap=100)
    assert (depth.scheduled, depth.running) == (50, 3)


def test_two_queues_do_not_meet(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    other = QueueSpec("other", Work, bucket_count=4)
    queue.create_queue(other)
    queue.enqueue(spec, NewJob(Work(n=1), unique_key="k"))
    assert queue.enqueue(other, NewJob(Work(n=2), unique_key="k"))
    assert numbers(claim(queue)) == [1]
    assert queue.depth("other").ready == 1
    assert [settings.name for settings in queue.queues()] == ["other", "work"]


def test_creating_a_queue_again_changes_its_settings_but_not_its_buckets(queue: SqlQueue) -> None:
    changed = QueueSpec("work", Work, bucket_count=8, lease_seconds=5, max_attempts=9, backoff=Backoff(1, 2, 3))
    settings = queue.create_queue(changed)
    assert (settings.bucket_count, settings.lease_seconds, settings.max_attempts) == (4, 5, 9)
    assert (settings.backoff.seconds, settings.backoff.factor, settings.backoff.max_seconds) == (1, 2, 3)
    assert queue.settings("work") == settings


def test_ended_by_us_returns_our_endings_only(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    queue.enqueue_many(spec, [Work(n=n) for n in range(2)])
    first, second = claim(queue)
    queue.complete([first])
    make_due(queue)
    (again,) = claim(queue)
    queue.complete([again])
    assert queue.leases.ended_by_us([first, second]) == {first.id}
    assert queue.leases.ended_by_us([again]) == {second.id}


@pytest.mark.parametrize("strategy", Strategy)
def test_a_claim_of_jobs_that_join_others_takes_none_that_is_to_be_alone(queue: SqlQueue, strategy: Strategy) -> None:
    spec = QueueSpec("join", Work, bucket_count=1, strategy=strategy)
    queue.create_queue(spec)
    queue.enqueue_many(spec, [Work(n=n) for n in range(3)])
    (held,) = queue.claim("join", limit=1, worker="w", lease_seconds=300)
    rows(queue, "UPDATE {s}.job SET available_at = now() - interval '1 hour' WHERE id = %s", held.id)
    joined: list[ClaimedJob] = []
    # The one whose lease ran out comes first, or by chance: then there is none.
    for _ in range(5):
        joined += queue.leases.claim(ClaimRequest("join", 1, "w", joining=True))
    assert held.id not in {job.id for job in joined}
    rows(queue, "DELETE FROM {s}.job WHERE id = %s", held.id)
    while len(joined) < 2:
        joined += queue.leases.claim(ClaimRequest("join", 1, "w", joining=True))
    assert {job.alone for job in joined} == {False}


@pytest.mark.parametrize(
    ("strategy", "limits"),
    [
        *((strategy, {}) for strategy in Strategy),
        *(
            (Strategy.ROUND_ROBIN, {limit: most})
            for limit in ("max_running", "max_running_per_key")
            for most in (1, 1_000)
        ),
    ],
)
def test_a_job_beside_which_others_may_begin_is_alone_only_if_its_lease_ran_out(
    queue: SqlQueue, strategy: Strategy, limits: dict[str, int]
) -> None:
    spec = QueueSpec("beside", Work, bucket_count=1, strategy=strategy, max_attempts=3, **limits)
    queue.create_queue(spec)
    queue.enqueue(spec, NewJob(Work(n=1), ordering_key="key"))
    seen = []
    for _ in range(3):
        (job,) = queue.leases.claim(ClaimRequest("beside", 1, "w", lease_seconds=300, beside=True))
        assert job.alone == value(queue, "SELECT alone FROM {s}.job")
        seen.append((job.alone, job.attempt))
        make_due(queue)
    assert seen == [(False, 1), (True, 1), (True, 2)]


def test_unknown_queue_is_named_with_those_there_are(queue: SqlQueue) -> None:
    missing = QueueSpec("missing", Work)
    calls = [
        lambda: queue.enqueue(missing, Work(n=1)),
        lambda: queue.enqueue_many(missing, [Work(n=1)]),
        lambda: queue.enqueue_many(missing, []),
        lambda: queue.settings("missing"),
        lambda: queue.peek("missing"),
        lambda: queue.peek_heads("missing"),
        lambda: queue.depth("missing"),
        lambda: queue.dead_letters("missing"),
        lambda: queue.archived("missing", since_seconds=60),
    ]
    for call in calls:
        with pytest.raises(UnknownQueue, match=r"no queue 'missing'.*there are: work.*sqlqueue create"):
            call()


def test_an_unknown_queue_is_reported_with_a_single_connection(url: str, schema: str, spec: QueueSpec[Work]) -> None:
    with SqlQueue(url, schema=schema, pool_size=1) as queue:
        queue.migrate()
        with pytest.raises(UnknownQueue, match="there are: none"):
            queue.enqueue_many(spec, [Work(n=1)])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"limit": 0}, "limit is 0"),
        ({"limit": 10_001}, "limit is 10001"),
        ({"limit": "5"}, "limit is '5'"),
        ({"limit": 2.5}, "limit is 2.5"),
        ({"lease_seconds": 0}, "lease_seconds is 0"),
        ({"lease_seconds": float("nan")}, "lease_seconds is nan"),
        ({"lease_seconds": float("inf")}, "lease_seconds is inf"),
        ({"lease_seconds": "5"}, "lease_seconds is '5'"),
        ({"buckets": []}, r"buckets is \[\]"),
        ({"buckets": [0, 1024]}, r"buckets is \[0, 1024\]"),
        ({"buckets": [-1]}, r"buckets is \[-1\]"),
        ({"buckets": ["0"]}, r"buckets is \['0'\]"),
        ({"buckets": 0}, "buckets is 0"),
        ({"buckets": iter([0])}, "buckets is <list_iterator object"),
        ({"worker": " "}, "worker is ' '; give a name for the consumer"),
        ({"worker": None}, "worker is None; give a name"),
        ({"worker": "a\x00"}, r"worker is 'a\\x00'; it holds a NUL character"),
        ({"queue": "Work; DROP"}, "queue name 'Work; DROP' is not usable"),
        ({"queue": "work\n"}, "is not usable"),
    ],
)
def test_a_claim_refuses_what_makes_no_sense(queue: SqlQueue, arguments: dict[str, object], message: str) -> None:
    usual: dict[str, object] = {"queue": "work", "buckets": [0], "limit": 1, "lease_seconds": 1.0, "worker": "w"}
    with pytest.raises(InvalidInput, match=message):
        queue.claim(**{**usual, **arguments})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "arguments",
    [
        {"name": "Nö"},
        {"name": "work\n"},
        {"name": "x" * 64},
        {"bucket_count": 0},
        {"bucket_count": 1025},
        {"lease_seconds": 0},
        {"lease_seconds": float("inf")},
        {"max_attempts": 0},
    ],
)
def test_a_spec_refuses_what_makes_no_sense(arguments: dict[str, object]) -> None:
    with pytest.raises(InvalidInput):
        QueueSpec(**{"name": "work", "payload": Work, **arguments})  # type: ignore[arg-type]


def test_enqueue_many_counts(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    assert queue.enqueue_many(spec, []) == Enqueued(0, 0)
    jobs = [NewJob(Work(n=n), unique_key=f"k{n % 10}") for n in range(2_500)]
    assert queue.enqueue_many(spec, jobs) == Enqueued(10, 2_490)
