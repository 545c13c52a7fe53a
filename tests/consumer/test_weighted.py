"""Several queues that one process works off by weight."""

import threading
from collections import Counter
from typing import Any

import pytest

from dagster_sqlqueue import Consumer, Job, QueueSpec, SqlQueue
from dagster_sqlqueue.consumer.weighted import WeightedConsumers
from dagster_sqlqueue.errors import InvalidInput
from tests.gate.patience import sized
from tests.support import Work


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
    half = sized(400, 1_000)
    queue.enqueue_many(first, [Work(n=n) for n in range(2 * half)])

    pause = threading.Event()

    def handler(job: Job[Work]) -> None:
        pause.wait(0.001)
        order.append(job.queue)
        if len(order) == half:
            queue.enqueue_many(second, [Work(n=n) for n in range(half)])

    consumers = {Consumer(queue, spec, handler, batch_size=20): 1.0 for spec in (first, second)}
    WeightedConsumers(consumers).drain()
    begin = order.index("second")
    together = Counter(order[begin : begin + 400])
    assert abs(together["first"] - together["second"]) <= 60


@pytest.mark.parametrize("times", [{"budget_seconds": "5"}, {"budget_seconds": float("nan")}, {"linger_seconds": None}])
@pytest.mark.parametrize("weighted", [False, True])
def test_times_that_are_none_are_refused(
    queue: SqlQueue, spec: QueueSpec[Work], times: dict[str, Any], weighted: bool
) -> None:
    queue.enqueue(spec, Work(n=1))
    consumer = Consumer(queue, spec, lambda job: None)
    ((name, given),) = times.items()
    with pytest.raises(InvalidInput, match=f"{name} is {given!r}; give seconds"):
        (WeightedConsumers({consumer: 1.0}) if weighted else consumer).drain(**times)
    assert consumer.summary.claimed == 0


@pytest.mark.parametrize("weight", [0, -1, float("inf"), float("nan"), True, "3"])
def test_a_weight_that_is_none_is_refused(queue: SqlQueue, spec: QueueSpec[Work], weight: Any) -> None:
    with pytest.raises(InvalidInput, match="a weight is"):
        WeightedConsumers({Consumer(queue, spec, lambda job: None): weight})


def test_what_is_no_consumer_is_refused(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    given: Any
    for given in ({spec: 1}, {"work": 1}):
        with pytest.raises(InvalidInput, match=r"one of the consumers is .*; give a Consumer\(queue, spec, handler\)"):
            WeightedConsumers(given)
    for given in ([Consumer(queue, spec, lambda job: None)], Consumer(queue, spec, lambda job: None)):
        with pytest.raises(InvalidInput, match="give a mapping of each to its weight"):
            WeightedConsumers(given)
