"""The loop that ticks: any number of processes run it, and one of them at least should be alive."""

import logging
import threading
from collections.abc import Callable

import tenacity

from dagster_sqlqueue.errors import DatabaseUnavailable, InvalidInput
from dagster_sqlqueue.model.numbers import is_seconds
from dagster_sqlqueue.schedules.schedules import Schedules, Ticked

logger = logging.getLogger("dagster_sqlqueue")

_HELD_SECONDS = 0.05
"""Seconds until the next poll when schedules are still overdue, as another scheduler has locked them."""


class Scheduler:
    """Enqueues what schedules say, when it is due by the database's clock.

    Args:
        schedules: what is ticked.
        poll_seconds: a schedule that was made or changed meanwhile is seen after so long at the latest.
        notify: called with the result of each poll that did something.

    Raises:
        InvalidInput: poll_seconds is not positive.
    """

    def __init__(
        self, schedules: Schedules, *, poll_seconds: float = 1.0, notify: Callable[[Ticked], None] | None = None
    ) -> None:
        if not is_seconds(poll_seconds):
            raise InvalidInput(f"poll_seconds is {poll_seconds!r}; it must be positive, in seconds")
        self._schedules = schedules
        self._poll_seconds = poll_seconds
        self._notify = notify

    def run(self, stopping: threading.Event) -> int:
        """Tick until the event is set; a transaction that has begun is ended first. Returns the number of ticks enqueued.

        A database that is away is waited for, and tried again at growing intervals of up to five seconds.

        Raises:
            SchemaMissing: see the class.
        """
        patiently = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(DatabaseUnavailable),
            wait=tenacity.wait_random_exponential(multiplier=0.1, max=5),
            stop=tenacity.stop_when_event_set(stopping),
            sleep=tenacity.sleep_using_event(stopping),
            before_sleep=lambda state: logger.warning("scheduler: %s", state.outcome and state.outcome.exception()),
            retry_error_callback=lambda _: (0, 0.0),
        )
        total = 0
        while not stopping.is_set():
            enqueued, pause = patiently(self._tick)
            total += enqueued
            stopping.wait(pause)
        return total

    def _tick(self) -> tuple[int, float]:
        """Tick once; returns the number of ticks enqueued, and for how long there is nothing to do."""
        done = self._schedules.tick()
        for (queue, name), reason in done.failed.items():
            logger.error("schedule %r of queue %r is paused: %s", name, queue, reason)
        if self._notify is not None and (done.enqueued or done.failed):
            self._notify(done)
        enqueued = sum(done.enqueued.values())
        if done.more:
            return enqueued, 0.0
        wait = self._schedules.seconds_to_wait()
        if wait is None:
            return enqueued, self._poll_seconds
        return enqueued, min(wait if wait > 0 else _HELD_SECONDS, self._poll_seconds)
