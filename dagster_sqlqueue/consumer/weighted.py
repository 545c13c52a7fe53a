"""Work several queues off in one process, each with its share."""

import contextlib
import math
import threading
import time
from collections.abc import Mapping
from typing import Any

from dagster_sqlqueue.consumer import Consumer
from dagster_sqlqueue.consumer.settlement import DrainSummary
from dagster_sqlqueue.consumer.start import check_drain_times
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.model.numbers import is_number

_POLL_SECONDS = 0.2


class WeightedConsumers:
    """Consumers that take turns, so that of the jobs worked off each has its share as long as it has any.

    The one that has had least for its weight goes next, a batch at a time; one that was idle does not save up turns. While
    all have jobs, the counts differ from the shares by at most one batch of each.

    Args:
        weights: the consumers, each with its weight, a positive number.

    Raises:
        InvalidInput: there are none, one is no consumer, or a weight is not positive.
    """

    def __init__(self, weights: "Mapping[Consumer[Any], float]") -> None:
        if not weights:
            raise InvalidInput("no consumer was given; give at least one, with its weight")
        if not isinstance(weights, Mapping):
            raise InvalidInput(f"the consumers are a {type(weights).__name__}; give a mapping of each to its weight")
        for consumer, weight in weights.items():
            if not isinstance(consumer, Consumer):
                raise InvalidInput(f"one of the consumers is {consumer!r:.100}; give a Consumer(queue, spec, handler)")
            if not is_number(weight, 0) or weight in (0, math.inf):
                raise InvalidInput(f"a weight is {weight!r}; it must be a positive number")
        self._weights = dict(weights)
        self._stopping = threading.Event()

    def stop(self) -> None:
        """End the drain after the job in hand. May come from any thread."""
        self._stopping.set()
        for consumer in self._weights:
            consumer.stop()

    def drain(self, *, budget_seconds: float | None = None, linger_seconds: float = 0.0) -> list[DrainSummary]:
        """Work until nothing is due in any of the queues.

        Args:
            budget_seconds: stop taking new batches after that long; None for no limit.
            linger_seconds: when nothing is due, wait that long for more before ending.

        Returns:
            What each did, in the order given.

        Raises:
            UnknownQueue, DatabaseUnavailable, InvalidInput: as `Consumer.drain`.
        """
        check_drain_times(budget_seconds, linger_seconds)
        began = time.monotonic()
        had = dict.fromkeys(self._weights, 0.0)
        idle_until: dict[Consumer[Any], float] = {}
        idle_since: float | None = None
        with contextlib.ExitStack() as working:
            for consumer in self._weights:
                working.enter_context(consumer.working())
            while not self._stopping.is_set():
                now = time.monotonic()
                if budget_seconds is not None and now - began >= budget_seconds:
                    break
                # A consumer that had nothing is asked again a moment later, and once more before that counts as the end.
                if self._turn(had, idle_until) or self._turn(had, {}):
                    idle_since = None
                    continue
                if any(consumer.wait_if_limited() for consumer in self._weights):
                    continue
                idle_since = now if idle_since is None else idle_since
                if time.monotonic() - idle_since >= linger_seconds:
                    break
                self._stopping.wait(min(_POLL_SECONDS, linger_seconds))
        return [consumer.summary for consumer in self._weights]

    def _turn(self, had: "dict[Consumer[Any], float]", idle_until: "dict[Consumer[Any], float]") -> bool:
        """One batch of the first that has any, in the order of what they had for their weight."""
        for consumer in sorted(had, key=had.__getitem__):
            if time.monotonic() < idle_until.get(consumer, 0.0):
                continue
            level = had[consumer]
            if taken := consumer.work_batch():
                idle_until.pop(consumer, None)
                had[consumer] = level + taken / self._weights[consumer]
                for other in idle_until:
                    had[other] = max(had[other], level)
                return True
            idle_until[consumer] = time.monotonic() + _POLL_SECONDS
        return False
