"""What consumers do, as Prometheus reads it, against their own summaries and what the test did."""

import time
from collections import Counter

import pytest
from prometheus_client import CollectorRegistry

from dagster_sqlqueue import (
    Cancel,
    Consumer,
    Hold,
    Job,
    Mode,
    NewJob,
    QueueSpec,
    Reject,
    Retry,
    Snooze,
    SqlQueue,
    Strategy,
)
from dagster_sqlqueue.consumer import hooked
from dagster_sqlqueue.metrics import ConsumerMetrics
from dagster_sqlqueue.model.outcome import Outcome
from tests.metrics.support import Samples, key, scraped
from tests.support import Work, make_due

HOURS = 36_000.0
OUTCOMES: dict[int, Outcome | None] = {
    1: Retry("again", after=HOURS),
    2: Snooze(HOURS),
    3: Reject("wrong"),
    4: Hold("look"),
    5: Cancel(),
}
"""By the last digit of a job; all others succeed."""
EXPECTED = {"succeeded": 50, "retried": 10, "snoozed": 10, "failed": 10, "held": 10, "cancelled": 10}


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


def handle(job: Job[Work]) -> Outcome | None:
    return OUTCOMES.get(job.payload.n % 10)


def outcomes(samples: Samples) -> dict[str, float]:
    name = "sqlqueue_consumer_outcomes_total"
    return {dict(labels)["outcome"]: value for (found, labels), value in samples.items() if found == name}


def claims(samples: Samples) -> dict[str, float]:
    """How many calls of each verb were timed."""
    name = "sqlqueue_consumer_claim_seconds_count"
    return {dict(labels)["verb"]: value for (found, labels), value in samples.items() if found == name}


@pytest.mark.parametrize("mode", Mode)
def test_outcomes_are_counted(queue: SqlQueue, spec: QueueSpec[Work], registry: CollectorRegistry, mode: Mode) -> None:
    queue.enqueue_many(spec, [Work(n=n) for n in range(100)])
    summary = Consumer(queue, spec, handle, mode=mode, batch_size=30, hooks=[ConsumerMetrics(registry)]).drain()
    samples = scraped(registry)
    assert outcomes(samples) == EXPECTED
    assert samples[key("sqlqueue_consumer_claimed_jobs_total", queue="work")] == 100
    assert samples[key("sqlqueue_consumer_batches_total", queue="work")] == summary.batches >= 4
    assert samples[key("sqlqueue_consumer_handler_seconds_count", queue="work")] == 100
    assert samples[key("sqlqueue_consumer_stale_writes_total", queue="work")] == 0
    assert samples[key("sqlqueue_consumer_released_jobs_total", queue="work")] == 0


def test_a_refused_write_is_stale_and_no_outcome(
    queue: SqlQueue, spec: QueueSpec[Work], registry: CollectorRegistry
) -> None:
    queue.enqueue(spec, Work(n=0))

    def overtaken(job: Job[Work]) -> None:
        make_due(queue)
        assert queue.claim("work", limit=1, worker="another")

    Consumer(queue, spec, overtaken, hooks=[ConsumerMetrics(registry)]).drain()
    samples = scraped(registry)
    assert samples[key("sqlqueue_consumer_stale_writes_total", queue="work")] == 1
    assert sum(outcomes(samples).values()) == 0


def test_given_back_jobs_are_counted(queue: SqlQueue, spec: QueueSpec[Work], registry: CollectorRegistry) -> None:
    queue.enqueue_many(spec, [Work(n=0) for _ in range(10)])
    consumer: Consumer[Work] = Consumer(
        queue, spec, lambda job: consumer.stop(), batch_size=100, hooks=[ConsumerMetrics(registry)]
    )
    consumer.drain()
    samples = scraped(registry)
    assert samples[key("sqlqueue_consumer_released_jobs_total", queue="work")] == 9
    assert outcomes(samples)["succeeded"] == 1


@pytest.mark.parametrize(
    ("mode", "strategy", "verbs"),
    [
        (Mode.LEASED, Strategy.ROUND_ROBIN, {"claim", "finish_and_claim"}),
        # Its finish_and_claim calls claim, which is not counted beside it.
        (Mode.LEASED, Strategy.TOKEN, {"claim", "finish_and_claim"}),
        (Mode.TRANSACTIONAL, Strategy.ROUND_ROBIN, {"lock_due", "finish_and_lock"}),
    ],
)
def test_each_call_that_takes_jobs_is_timed_once(
    queue: SqlQueue,
    registry: CollectorRegistry,
    mode: Mode,
    strategy: Strategy,
    verbs: set[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spec = QueueSpec("timed", Work, bucket_count=1, strategy=strategy)
    queue.create_queue(spec)
    queue.enqueue_many(spec, [Work(n=0) for _ in range(20)])
    called: Counter[str] = Counter()
    consumer = Consumer(queue, spec, lambda job: None, mode=mode, batch_size=5, hooks=[ConsumerMetrics(registry)])
    inner = consumer._leases
    for verb in verbs:

        def counting(*given: object, verb: str = verb, call: object = getattr(inner, verb), **how: object) -> object:
            called[verb] += 1
            return call(*given, **how)  # type: ignore[operator]

        if verb != "claim" or strategy is not Strategy.TOKEN:
            monkeypatch.setattr(inner, verb, counting, raising=True)
    began = time.perf_counter()
    consumer.drain()
    took = time.perf_counter() - began
    timed = claims(scraped(registry))
    assert set(timed) - {"claim_ahead", "lock_ahead"} == verbs
    assert {verb: timed[verb] for verb in called} == called
    if strategy is Strategy.TOKEN:
        # The first claim, and those that found nothing more: not the four within finish_and_claim.
        assert timed["finish_and_claim"] >= 4
        assert timed["claim"] <= 3
    total = "sqlqueue_consumer_claim_seconds_sum"
    assert all(0 < scraped(registry)[key(total, queue="timed", verb=verb)] <= took for verb in verbs)


def test_an_exception_is_timed_and_is_a_retry(
    queue: SqlQueue, spec: QueueSpec[Work], registry: CollectorRegistry
) -> None:
    queue.enqueue(spec, NewJob(Work(n=0), max_attempts=2))

    def fail(job: Job[Work]) -> None:
        raise ValueError("no")

    Consumer(queue, spec, fail, hooks=[ConsumerMetrics(registry)]).drain()
    samples = scraped(registry)
    assert samples[key("sqlqueue_consumer_handler_seconds_count", queue="work")] == 2
    assert {name: count for name, count in outcomes(samples).items() if count} == {"retried": 1, "failed": 1}


def test_counts_stay_when_consumers_go(queue: SqlQueue, spec: QueueSpec[Work], registry: CollectorRegistry) -> None:
    metrics = ConsumerMetrics(registry)
    for done in range(1, 6):
        queue.enqueue(spec, Work(n=0))
        Consumer(queue, spec, handle, hooks=[metrics]).drain()
        assert outcomes(scraped(registry))["succeeded"] == done
    assert metrics._working == [], "consumers that are not at work are kept"


def test_a_registry_has_them_once(registry: CollectorRegistry) -> None:
    ConsumerMetrics(registry)
    with pytest.raises(ValueError, match="Duplicated"):
        ConsumerMetrics(registry)


def test_one_consumer_is_counted_through_all_its_drains_and_while_it_works(
    queue: SqlQueue, spec: QueueSpec[Work], registry: CollectorRegistry
) -> None:
    seen: list[float] = []

    def scrape(job: Job[Work]) -> None:
        seen.append(scraped(registry)[key("sqlqueue_consumer_claimed_jobs_total", queue="work")])

    consumer = Consumer(queue, spec, scrape, batch_size=1, hooks=[ConsumerMetrics(registry)])
    for _ in range(3):
        queue.enqueue_many(spec, [Work(n=0), Work(n=0)])
        consumer.drain()
    assert seen == [1, 2, 3, 4, 5, 6]
    assert outcomes(scraped(registry))["succeeded"] == 6


def test_consumers_at_the_same_time_are_added_up(
    queue: SqlQueue, spec: QueueSpec[Work], registry: CollectorRegistry
) -> None:
    other = QueueSpec("other", Work)
    queue.create_queue(other)
    for made in (spec, other):
        queue.enqueue_many(made, [Work(n=0) for _ in range(10)])
    metrics = ConsumerMetrics(registry)
    first, second = (Consumer(queue, made, handle, hooks=[metrics]) for made in (spec, other))
    with first.working(), second.working():
        while first.work_batch() + second.work_batch():
            pass
        samples = scraped(registry)
    for name in ("work", "other"):
        assert samples[key("sqlqueue_consumer_outcomes_total", queue=name, outcome="succeeded")] == 10
    assert outcomes(scraped(registry))["succeeded"] == 10


@pytest.mark.parametrize("batch", [True, False])
def test_async_handlers_and_those_of_batches_are_measured(
    queue: SqlQueue, spec: QueueSpec[Work], registry: CollectorRegistry, batch: bool
) -> None:
    queue.enqueue_many(spec, [Work(n=0) for _ in range(20)])

    async def later(job: object) -> None: ...

    Consumer(queue, spec, later, batch=batch, hooks=[ConsumerMetrics(registry)]).drain()
    samples = scraped(registry)
    assert samples[key("sqlqueue_consumer_handler_seconds_count", queue="work")] == 20
    assert outcomes(samples)["succeeded"] == 20


def test_a_handler_that_something_else_calls_is_measured(
    queue: SqlQueue, spec: QueueSpec[Work], registry: CollectorRegistry
) -> None:
    queue.enqueue(spec, Work(n=0))
    measured = hooked(handle, [ConsumerMetrics(registry)])
    assert Consumer(queue, spec, measured).drain().succeeded == 1
    assert scraped(registry)[key("sqlqueue_consumer_handler_seconds_count", queue="work")] == 1
