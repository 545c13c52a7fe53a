"""What consumers do, as Prometheus reads it, against their own summaries and what the test did."""

import gc
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
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.metrics import ConsumerMetrics
from dagster_sqlqueue.model.outcome import Outcome
from tests.gate.patience import PATIENCE
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
    summary = ConsumerMetrics(registry).consumer(queue, spec, handle, mode=mode, batch_size=30).drain()
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

    ConsumerMetrics(registry).consumer(queue, spec, overtaken).drain()
    samples = scraped(registry)
    assert samples[key("sqlqueue_consumer_stale_writes_total", queue="work")] == 1
    assert sum(outcomes(samples).values()) == 0


def test_given_back_jobs_are_counted(queue: SqlQueue, spec: QueueSpec[Work], registry: CollectorRegistry) -> None:
    queue.enqueue_many(spec, [Work(n=0) for _ in range(10)])
    consumer: Consumer[Work] = ConsumerMetrics(registry).consumer(queue, spec, lambda job: consumer.stop())
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
    consumer = ConsumerMetrics(registry).consumer(queue, spec, lambda job: None, mode=mode, batch_size=5)
    inner = consumer._leases
    for verb in verbs:

        def counting(*given: object, verb: str = verb, call: object = getattr(inner, verb), **how: object) -> object:
            called[verb] += 1
            return call(*given, **how)  # type: ignore[operator]

        if verb != "claim" or strategy is not Strategy.TOKEN:
            monkeypatch.setattr(inner, verb, counting, raising=True)
    consumer.drain()
    timed = claims(scraped(registry))
    assert set(timed) == verbs
    assert {verb: timed[verb] for verb in called} == called
    if strategy is Strategy.TOKEN:
        # The first claim, and those that found nothing more: not the four within finish_and_claim.
        assert timed["finish_and_claim"] >= 4
        assert timed["claim"] <= 3
    total = "sqlqueue_consumer_claim_seconds_sum"
    assert all(0 < scraped(registry)[key(total, queue="timed", verb=verb)] < PATIENCE for verb in verbs)


def test_an_exception_is_timed_and_is_a_retry(
    queue: SqlQueue, spec: QueueSpec[Work], registry: CollectorRegistry
) -> None:
    queue.enqueue(spec, NewJob(Work(n=0), max_attempts=2))

    def fail(job: Job[Work]) -> None:
        raise ValueError("no")

    ConsumerMetrics(registry).consumer(queue, spec, fail).drain()
    samples = scraped(registry)
    assert samples[key("sqlqueue_consumer_handler_seconds_count", queue="work")] == 2
    assert {name: count for name, count in outcomes(samples).items() if count} == {"retried": 1, "failed": 1}


def test_counts_stay_when_consumers_go(queue: SqlQueue, spec: QueueSpec[Work], registry: CollectorRegistry) -> None:
    metrics = ConsumerMetrics(registry)
    for done in range(1, 6):
        queue.enqueue(spec, Work(n=0))
        metrics.consumer(queue, spec, handle).drain()
        gc.collect()
        assert outcomes(scraped(registry))["succeeded"] == done
    assert len(metrics._live) <= 1 + 1, "the consumers that are gone are kept"


def test_a_registry_has_them_once(registry: CollectorRegistry) -> None:
    ConsumerMetrics(registry)
    with pytest.raises(ValueError, match="Duplicated"):
        ConsumerMetrics(registry)


def test_an_async_handler_is_refused(queue: SqlQueue, spec: QueueSpec[Work], registry: CollectorRegistry) -> None:
    async def later(job: Job[Work]) -> None: ...

    class Later:
        async def __call__(self, job: Job[Work]) -> None: ...

    metrics = ConsumerMetrics(registry)
    for handler in (later, Later()):
        with pytest.raises(InvalidInput, match="async"):
            metrics.consumer(queue, spec, handler)  # type: ignore[arg-type]
