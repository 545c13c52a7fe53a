"""Ways to work a queue off: in a transaction, filtered, by region, under limits, by weight, through managers."""

import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from dagster_sqlqueue import (
    Backoff,
    Cancel,
    ClaimFilter,
    Consumer,
    Done,
    Hold,
    Job,
    Mode,
    NewJob,
    QueueSpec,
    RateLimit,
    Reject,
    Retry,
    Snooze,
    SqlQueue,
)
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.hints import HeadHints
from dagster_sqlqueue.manager import AssignedSource, Manager
from dagster_sqlqueue.weights import WeightedConsumers
from tests.core.support import Work, claim, make_due, numbers, rows, until, value


def states(queue: SqlQueue) -> dict[int, str]:
    """Every job's state, live or archived, by its payload's number."""
    found = rows(
        queue,
        "SELECT (payload ->> 'n')::integer, state FROM {s}.job"
        " UNION ALL SELECT (payload ->> 'n')::integer, state FROM {s}.job_archive",
    )
    assert len(found) == len(dict(found))
    return dict(found)


def locked(queue: SqlQueue, spec: QueueSpec[Work], handler: Any, **settings: Any) -> Consumer[Work]:
    return Consumer(queue, spec, handler, mode=Mode.TRANSACTIONAL, **settings)


# In one transaction


def test_every_outcome_in_one_transaction(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    queue.enqueue_many(spec, [Work(n=n) for n in range(8)])
    outcomes: dict[int, Any] = {
        0: Done({"sum": 1}),
        1: Reject("never"),
        2: Hold("look at it"),
        3: Cancel("not wanted"),
        4: Retry("later", after=3600),
        5: Snooze(3600),
        6: Snooze(datetime.now(UTC) + timedelta(hours=2)),
        7: None,
    }
    summary = locked(queue, spec, lambda job: outcomes[job.payload.n]).drain()
    expected = ["succeeded", "failed", "held", "cancelled", "queued", "queued", "queued", "succeeded"]
    assert states(queue) == dict(enumerate(expected))
    counts = (summary.succeeded, summary.failed, summary.held, summary.cancelled, summary.retried, summary.snoozed)
    assert counts == (2, 1, 1, 1, 1, 2)
    assert value(queue, "SELECT result ->> 'sum' FROM {s}.job_archive WHERE payload ->> 'n' = '0'") == "1"
    attempts = dict(rows(queue, "SELECT (payload ->> 'n')::integer, attempt FROM {s}.job"))
    assert attempts == {2: 0, 4: 1, 5: 0, 6: 0}
    assert value(queue, "SELECT count(*) FROM {s}.job WHERE lease_no <> 1") == 0


def test_an_effect_and_the_end_of_its_job_are_one(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    rows(queue, "CREATE TABLE {s}.effect (n integer)")
    queue.create_queue(QueueSpec("work", Work, backoff=Backoff(60)))
    queue.enqueue_many(spec, [Work(n=n) for n in range(20)])
    schema = queue.database.schema

    def handler(job: Job[Work]) -> Any:
        job.connection.execute(f"INSERT INTO {schema}.effect VALUES ({job.payload.n})")
        if job.payload.n % 5 == 1:
            job.connection.execute("SELECT 1 / 0")
        if job.payload.n % 5 == 2:
            return Reject("no")
        return Done() if job.payload.n % 5 else Retry("again", after=0 if job.attempt == 1 else 60)

    summary = locked(queue, spec, handler).drain()
    ended = {n for n, state in states(queue).items() if state == "succeeded"}
    assert ended == {n for n in range(20) if n % 5 in (3, 4)}
    assert {row[0] for row in rows(queue, "SELECT n FROM {s}.effect")} == ended
    assert summary.failed == 4


def test_a_handler_may_take_its_time_in_a_transaction(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    queue.enqueue(spec, Work(n=1))
    own = value(queue, "SHOW idle_in_transaction_session_timeout")

    def handler(job: Job[Work]) -> Any:
        return Done(job.connection.execute("SHOW idle_in_transaction_session_timeout").fetchone()[0])

    locked(queue, spec, handler).drain()
    assert value(queue, "SELECT result #>> '{{}}' FROM {s}.job_archive") == own


def test_a_crash_leaves_the_jobs_as_they_were(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    queue.enqueue_many(spec, [Work(n=n) for n in range(10)])
    rows(queue, "CREATE TABLE {s}.effect (n integer)")
    schema = queue.database.schema

    def dies(job: Job[Work]) -> None:
        job.connection.execute(f"INSERT INTO {schema}.effect VALUES ({job.payload.n})")
        if job.payload.n == 7:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        locked(queue, spec, dies).drain()
    assert rows(queue, "SELECT DISTINCT state, attempt, lease_no FROM {s}.job") == [("queued", 0, 0)]
    assert value(queue, "SELECT count(*) FROM {s}.job WHERE available_at <= now()") == 10
    assert rows(queue, "SELECT * FROM {s}.effect") == []


def test_a_job_that_a_transaction_took_from_a_dead_consumer_refuses_that_one(
    queue: SqlQueue, spec: QueueSpec[Work]
) -> None:
    queue.enqueue_many(spec, [Work(n=1), Work(n=2)])
    stale = claim(queue)
    make_due(queue)
    locked(queue, spec, lambda job: Retry("again", after=60) if job.payload.n == 1 else None).drain()
    assert queue.heartbeat(stale, lease_seconds=60).held == set()
    assert queue.requeue([(stale[0], Snooze(0))]) == set()
    assert value(queue, "SELECT sum(writes) FROM {s}.stale_write") == 3


def test_two_transactions_share_a_queue_and_a_stop_leaves_the_rest(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    queue.enqueue_many(spec, [Work(n=n) for n in range(400)])
    seen: Counter[int] = Counter()

    def handler(job: Job[Work]) -> None:
        seen[job.payload.n] += 1
        if len(seen) == 300:
            stopping.stop()

    stopping = locked(queue, spec, handler, batch_size=40)
    other = locked(queue, spec, handler, batch_size=40)
    with ThreadPoolExecutor(2) as pool:
        summaries = [future.result() for future in [pool.submit(stopping.drain), pool.submit(other.drain)]]
    assert set(seen.values()) == {1}
    assert len(seen) == 400
    assert sum(summary.succeeded for summary in summaries) == 400


@pytest.mark.parametrize("strategy", ["fanout", "fifo", "round_robin"])
def test_transactional_mode_with_each_strategy_that_locks(queue: SqlQueue, strategy: str) -> None:
    spec = QueueSpec("work", Work, strategy=strategy)
    queue.create_queue(spec)
    queue.enqueue_many(spec, [NewJob(Work(n=n), priority=n % 3) for n in range(90)])
    assert locked(queue, spec, lambda job: None, batch_size=25).drain().succeeded == 90


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"strategy": "assign"}, "has the strategy 'assign'"),
        ({"strategy": "token"}, "has the strategy 'token'"),
        ({"ordered": True}, "is ordered or limited"),
        ({"max_running": 3}, "is ordered or limited"),
        ({"rate": RateLimit(3)}, "is ordered or limited"),
    ],
)
def test_transactional_mode_says_which_queues_need_leases(queue: SqlQueue, settings: dict[str, Any], why: str) -> None:
    spec = QueueSpec("work", Work, **settings)
    queue.create_queue(spec)
    queue.enqueue(spec, Work(n=1))
    with pytest.raises(InvalidInput, match=why):
        locked(queue, spec, lambda job: None).drain()
    assert states(queue) == {1: "queued"}


def test_transactional_mode_goes_by_the_settings_of_now(queue: SqlQueue, spec: QueueSpec[Work], url: str) -> None:
    with SqlQueue(url, schema=queue.database.schema) as other:
        other.create_queue(QueueSpec("work", Work, max_running=1))
        queue.settings("work")
        other.create_queue(spec)
    queue.enqueue(spec, Work(n=1))
    with queue.database.transaction() as transaction:
        assert len(queue.lock_due(transaction, "work", limit=5)) == 1


# Only some jobs


def test_a_filter_takes_what_fits_and_looks_at_no_more_than_it_may(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    queue.enqueue_many(
        spec,
        [
            NewJob(Work(n=n, note="x" if n % 7 else "seven"), tags=["odd"] if n % 2 else [], priority=n % 2)
            for n in range(700)
        ],
    )
    filter = ClaimFilter(tags=["odd"], payload={"note": "seven"}, scan=60)
    taken: list[int] = []
    summary = Consumer(queue, spec, lambda job: taken.append(job.payload.n), filter=filter, batch_size=9).drain()
    assert sorted(taken) == [n for n in range(700) if n % 2 and n % 7 == 0]
    assert summary.succeeded == 50
    assert queue.depth("work").ready == 650
    one = queue.claim("work", limit=5, worker="w", filter=ClaimFilter(payload='{"note": "seven"}', scan=10_000))
    assert all(n % 7 == 0 for n in numbers(one))
    assert len(one) == 5


def test_a_filter_goes_on_among_jobs_that_became_due_together(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    queue.enqueue_many(spec, [Work(n=n) for n in range(300)])
    filter = ClaimFilter(payload={"n": 299}, scan=7)
    found = []
    for _ in range(100):
        found += queue.claim("work", limit=1, worker="w", filter=filter)
        if found:
            break
    assert numbers(found) == [299]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"payload": "{not json"}, "'{not json' is not JSON"),
        ({"payload": "[1]"}, "is not a JSON object"),
        ({"payload": {"a": float("nan")}}, "is not JSON"),
        ({"tags": "urgent"}, "give a sequence of texts"),
        ({"scan": 0}, "scan is 0"),
    ],
)
def test_a_filter_that_is_none_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        ClaimFilter(**arguments)


# Where to look


def test_buckets_of_the_own_region_come_first(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    rows(queue, "UPDATE {s}.bucket SET region = 'eu' WHERE bucket IN (1, 3)")
    queue.enqueue_many(spec, [NewJob(Work(n=n), region="eu" if n % 2 else "local") for n in range(400)])
    assert rows(queue, "SELECT DISTINCT bucket FROM {s}.job WHERE region = 'eu' ORDER BY 1") == [(1,), (3,)]
    order: list[int] = []
    Consumer(queue, spec, lambda job: order.append(job.payload.n % 2), region="eu", batch_size=30).drain()
    assert len(order) == 400
    assert 0 not in order[: sum(order)]


def test_a_hint_hides_no_job_for_longer_than_a_sweep(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    hints = HeadHints(sweep_seconds=3600)
    queue.enqueue_many(spec, [Work(n=n) for n in range(10)])
    assert len(queue.claim("work", limit=5, worker="w", hints=hints)) == 5
    late = datetime.now(UTC) - timedelta(hours=1)
    queue.enqueue_many(spec, [NewJob(Work(n=n), run_at=late) for n in range(100, 110)])
    seen = set()
    while jobs := queue.claim("work", limit=5, worker="w", hints=hints):
        seen |= set(numbers(jobs))
    hints.sweep_next()
    while jobs := queue.claim("work", limit=5, worker="w", hints=hints):
        seen |= set(numbers(jobs))
        hints.sweep_next()
    assert len(seen) == 15


def test_what_the_database_knows_of_the_heads_serves_a_claim_without_order(queue: SqlQueue) -> None:
    spec = QueueSpec("single", Work, bucket_count=1, strategy="fanout")
    queue.create_queue(spec)
    queue.enqueue(spec, NewJob(Work(n=1), run_at=datetime.now(UTC) - timedelta(hours=1)))
    assert queue.note_sweep("single") == 1
    (hint,) = queue.head_hints("single").values()
    assert datetime.fromisoformat(hint) < datetime.now(UTC) - timedelta(minutes=59)
    hints = HeadHints(sweep_seconds=3600)
    hints.array([0])
    hints.know({0: str(datetime.now(UTC))})
    assert queue.claim("single", limit=5, worker="w", hints=hints) == []
    hints.know(queue.head_hints("single"))
    assert len(queue.claim("single", limit=5, worker="w", hints=hints)) == 1


def test_a_consumer_finds_what_was_committed_behind_its_hint(queue: SqlQueue, spec: QueueSpec[Work], url: str) -> None:
    with psycopg.connect(url) as producer:
        queue.enqueue_many(spec, [Work(n=n) for n in range(50)], connection=producer)
        queue.enqueue_many(spec, [Work(n=n) for n in range(100, 200)])
        committed = False

        def handler(job: Job[Work]) -> None:
            nonlocal committed
            if not committed:
                producer.commit()
                committed = True

        assert Consumer(queue, spec, handler, batch_size=10).drain().succeeded == 150


# Limits


def test_a_drain_waits_for_its_rate_and_keeps_to_it(queue: SqlQueue) -> None:
    spec = QueueSpec("work", Work, bucket_count=4, rate=RateLimit(10, 0.5))
    queue.create_queue(spec)
    queue.enqueue_many(spec, [Work(n=n) for n in range(35)])
    summary = Consumer(queue, spec, lambda job: None).drain()
    assert summary.succeeded == 35
    assert summary.seconds >= 1.5
    breach = (
        "SELECT max(n) FROM (SELECT count(*) OVER (ORDER BY started_at RANGE BETWEEN interval '0.4999 s' PRECEDING AND"
        " CURRENT ROW) AS n FROM {s}.job_archive) AS w"
    )
    assert value(queue, breach) <= 10


def test_a_limit_counts_leases_until_they_end_by_themselves(queue: SqlQueue) -> None:
    spec = QueueSpec("work", Work, bucket_count=4, max_running=3)
    queue.create_queue(spec)
    queue.enqueue_many(spec, [Work(n=n) for n in range(10)])
    held = claim(queue, 10)
    assert len(held) == 3
    assert claim(queue, 10) == []
    queue.complete(held[:1])
    assert len(claim(queue, 10)) == 1
    make_due(queue)
    assert len(claim(queue, 10, worker="another")) == 3
    assert queue.heartbeat(held[1:], lease_seconds=30).held == set()


def test_a_lease_that_ran_out_is_not_extended_where_it_counts(queue: SqlQueue) -> None:
    spec = QueueSpec("work", Work, bucket_count=4, max_running=1)
    queue.create_queue(spec)
    queue.enqueue(spec, Work(n=1))
    job = claim(queue)
    make_due(queue)
    assert queue.heartbeat(job, lease_seconds=30).held == set()


def test_keys_take_turns_and_none_has_more_than_its_share(queue: SqlQueue) -> None:
    spec = QueueSpec("work", Work, bucket_count=1, max_running_per_key=2)
    queue.create_queue(spec)
    queue.enqueue_many(spec, [NewJob(Work(n=n), ordering_key="hog") for n in range(1_500)])
    queue.enqueue_many(spec, [NewJob(Work(n=10_000 + n), ordering_key=f"small {n % 5}") for n in range(10)])
    first = []
    while jobs := queue.claim("work", limit=50, worker="w"):
        first += jobs
    assert Counter(job.ordering_key for job in first) == {"hog": 2, **{f"small {n}": 2 for n in range(5)}}
    queue.complete(first)
    assert [job.ordering_key for job in queue.claim("work", limit=50, worker="w")] == ["hog", "hog"]


# Shares


def test_queues_are_worked_off_by_weight(queue: SqlQueue) -> None:
    order: list[str] = []
    consumers = {}
    for name, weight in (("heavy", 3.0), ("light", 1.0)):
        spec = QueueSpec(name, Work, bucket_count=2)
        queue.create_queue(spec)
        queue.enqueue_many(spec, [Work(n=n) for n in range(400)])
        consumers[Consumer(queue, spec, lambda job: order.append(job.queue), batch_size=10)] = weight
    heavy, light = WeightedConsumers(consumers).drain()
    assert (heavy.succeeded, light.succeeded) == (400, 400)
    together = Counter(order[:400])
    assert 280 <= together["heavy"] <= 320
    assert order[-200:] == ["light"] * 200


def test_one_that_was_idle_has_saved_nothing_up(queue: SqlQueue) -> None:
    order: list[str] = []
    first, second = (QueueSpec(name, Work, bucket_count=2) for name in ("first", "second"))
    for spec in (first, second):
        queue.create_queue(spec)
    queue.enqueue_many(first, [Work(n=n) for n in range(2_000)])

    pause = threading.Event()

    def handler(job: Job[Work]) -> None:
        pause.wait(0.001)
        order.append(job.queue)
        if len(order) == 1_000:
            queue.enqueue_many(second, [Work(n=n) for n in range(1_000)])

    consumers = {Consumer(queue, spec, handler, batch_size=20): 1.0 for spec in (first, second)}
    WeightedConsumers(consumers).drain()
    begin = order.index("second")
    together = Counter(order[begin : begin + 400])
    assert abs(together["first"] - together["second"]) <= 60


@pytest.mark.parametrize("weight", [0, -1, float("inf"), float("nan"), "3"])
def test_a_weight_that_is_none_is_refused(queue: SqlQueue, spec: QueueSpec[Work], weight: Any) -> None:
    with pytest.raises(InvalidInput, match="a weight is"):
        WeightedConsumers({Consumer(queue, spec, lambda job: None): weight})


# Managers


def test_two_managers_grant_every_job_to_one_worker(url: str, queue: SqlQueue) -> None:
    spec = QueueSpec("work", Work, bucket_count=4, strategy="assign")
    queue.create_queue(spec)
    queue.enqueue_many(spec, [Work(n=n) for n in range(600)])
    seen: Counter[int] = Counter()
    stopping = threading.Event()

    def work(name: str) -> int:
        with (
            SqlQueue(url, schema=queue.database.schema) as own,
            AssignedSource(own, "work", name) as source,
        ):
            consumer = Consumer(
                own, spec, lambda job: seen.update([job.payload.n]), source=source, worker=name, batch_size=20
            )
            return consumer.drain(linger_seconds=3).succeeded

    with ThreadPoolExecutor(5) as pool:
        managers = [pool.submit(Manager(queue, "work").run, stopping, poll_seconds=0.02) for _ in range(2)]
        done = [future.result() for future in [pool.submit(work, f"worker {n}") for n in range(3)]]
        stopping.set()
        assert sum(manager.result() for manager in managers) == 600
    assert sum(done) == 600
    assert set(seen.values()) == {1}
    assert all(count > 0 for count in done)


def test_what_a_worker_never_took_goes_to_another(queue: SqlQueue) -> None:
    spec = QueueSpec("work", Work, bucket_count=4, strategy="assign")
    queue.create_queue(spec)
    queue.enqueue_many(spec, [Work(n=n) for n in range(4)])
    manager = Manager(queue, "work")
    gone, there = AssignedSource(queue, "work", "gone"), AssignedSource(queue, "work", "there")
    assert gone.take(10) == []
    assert manager.assign() == 4
    assert there.take(10) == []
    assert manager.assign() == 0
    make_due(queue)
    rows(queue, "UPDATE {s}.worker SET expires_at = now() WHERE name = 'gone'")
    assert manager.assign() == 4
    assert gone.take(10) == []
    taken = there.take(10)
    assert len(taken) == 4
    queue.complete(taken)
    assert value(queue, "SELECT count(*) FROM {s}.assignment") == 0


def test_a_worker_that_leaves_gives_back_what_it_did_not_take(queue: SqlQueue) -> None:
    spec = QueueSpec("work", Work, bucket_count=4, strategy="assign")
    queue.create_queue(spec)
    queue.enqueue_many(spec, [Work(n=n) for n in range(4)])
    with AssignedSource(queue, "work", "w") as source:
        assert source.take(10) == []
        assert Manager(queue, "work").assign() == 4
    assert queue.depth("work").ready == 4
    assert value(queue, "SELECT count(*) FROM {s}.worker") == 0


def test_a_manager_is_for_its_strategy(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    with pytest.raises(InvalidInput, match="has the strategy 'round_robin'"):
        Manager(queue, "work")


# Told while it runs


def test_a_running_job_is_told_that_it_is_not_wanted(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    queue.enqueue(spec, Work(n=1))

    def handler(job: Job[Work]) -> Any:
        rows(queue, "UPDATE {s}.job SET cancel_requested_at = now()")
        assert job.cancellation.wait(20)
        assert job.cancelled
        return Cancel("as asked")

    assert Consumer(queue, spec, handler, lease_seconds=1).drain().cancelled == 1
    assert rows(queue, "SELECT state, error FROM {s}.job_archive") == [("cancelled", "as asked")]


def test_a_job_that_was_cancelled_while_its_consumer_died_is_not_begun_again(
    queue: SqlQueue, spec: QueueSpec[Work]
) -> None:
    queue.enqueue(spec, Work(n=1))
    claim(queue)
    rows(queue, "UPDATE {s}.job SET cancel_requested_at = now()")
    make_due(queue)
    assert claim(queue) == []
    assert states(queue) == {1: "cancelled"}


def test_a_job_may_say_how_long_it_takes(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    """The consumer would let its lease run out after 0.1 s."""
    queue.enqueue(spec, NewJob(Work(n=1), timeout_seconds=60))
    began = time.monotonic()

    def handler(job: Job[Work]) -> None:
        until(lambda: time.monotonic() - began > 2.5)

    summary = Consumer(queue, spec, handler, lease_seconds=0.8, job_timeout_seconds=0.1).drain()
    assert (summary.succeeded, summary.stale) == (1, 0)


def test_a_busy_handler_does_not_starve_the_heartbeat(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    queue.enqueue(spec, Work(n=1))

    def burns(job: Job[Work]) -> None:
        began = time.monotonic()
        while time.monotonic() - began < 2.5:
            sum(range(10_000))

    summary = Consumer(queue, spec, burns, lease_seconds=0.8).drain()
    assert (summary.succeeded, summary.stale) == (1, 0)
