"""One process that consumes queues until it is stopped."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from dagster_sqlqueue.consumer import Consumer
from dagster_sqlqueue.consumer.annotations import is_async
from dagster_sqlqueue.consumer.handler import AsyncHandler, check_concurrency, outcome_of
from dagster_sqlqueue.consumer.weighted import WeightedConsumers
from dagster_sqlqueue.errors import DatabaseUnavailable, InvalidInput
from dagster_sqlqueue.model.backoff import Backoff
from dagster_sqlqueue.model.interrupts import is_interrupt
from dagster_sqlqueue.model.job import Job, Mode
from dagster_sqlqueue.model.outcome import Hold, Reject, Retry
from dagster_sqlqueue.model.queue import check_lease_seconds
from dagster_sqlqueue.payload import redacted_text
from dagster_sqlqueue.queue import MAX_BATCH, SqlQueue
from dagster_sqlqueue.worker.handlers import QueueHandler
from dagster_sqlqueue.worker.shutdown import GRACE_SECONDS, CutOff, Signals
from dagster_sqlqueue.worker.stats import HandlerTimes, Report, WorkerStats, first_line

_POOL_SIZE = 4
"""Connections that are needed by each thread that works: to work, extend leases, wait, and release jobs."""

ASYNC_CONCURRENCY = 100
"""Jobs that an async handler is at, unless a number is given: as many as a `Consumer` claims for one."""

_AWAY = Backoff(0.2, max_seconds=5.0, jitter=0.5)


@dataclass(frozen=True, slots=True)
class WorkOptions:
    """How a worker works.

    Attributes:
        batch_size: jobs for each claim, 1 to 10,000; None: as `Consumer` has it.
        concurrency: jobs that each process handles at a time, 1 to 1,000: by a plain handler in as many threads, by an async
            one on its event loop. None: as the handler declares it, else one, or `ASYNC_CONCURRENCY` of an async one.
        mode: leased or transactional.
        lease_seconds: instead of the handler's or the queue's.
        drain: end when nothing is due.
        budget_seconds: end after that long; None: never.
        drain_timeout_seconds: how long what runs may take once it is to stop; None: as long as it likes.
        grace_seconds: how long a handler that was interrupted may take to leave, before its process ends without it.
        maintain: whether its consumers maintain the schema when that is due.

    Raises:
        InvalidInput: one of them is out of range.
    """

    batch_size: int | None = None
    concurrency: int | None = None
    mode: Mode = Mode.LEASED
    lease_seconds: float | None = None
    drain: bool = False
    budget_seconds: float | None = None
    drain_timeout_seconds: float | None = 30.0
    grace_seconds: float = GRACE_SECONDS
    maintain: bool = True

    def __post_init__(self) -> None:
        if self.batch_size is not None and not 1 <= self.batch_size <= MAX_BATCH:
            raise InvalidInput(f"batch_size is {self.batch_size}; it must be 1 to {MAX_BATCH:,}")
        if self.concurrency is not None:
            check_concurrency(self.concurrency)
        if self.lease_seconds is not None:
            check_lease_seconds(self.lease_seconds)
        for name in ("budget_seconds", "drain_timeout_seconds", "grace_seconds"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < float("inf"):
                raise InvalidInput(f"{name} is {value!r}; it must be a number of seconds, not negative")


class Worker:
    """Consume the queues of some handlers: in this thread, where they take turns, each with its share; or, if one of them
    handles several jobs at a time, each in a thread of its own, where none waits for another.

    Args:
        queue: where the queues are; its pool needs as many connections as `pool_size` says.
        handlers: the handlers, each with its weight.
        options: how.
        signals: interrupts a handler when its time is up; None: nothing does.
        report: called with events.

    Raises:
        InvalidInput: as `check_handlers`.
    """

    def __init__(
        self,
        queue: SqlQueue,
        handlers: Sequence[tuple[QueueHandler[Any], float]],
        options: WorkOptions,
        *,
        signals: Signals | None = None,
        report: Report,
    ) -> None:
        self._options = options
        self._signals = signals
        self._report = report
        self._stopping = threading.Event()
        self._errors: dict[str, str] = {}
        self._times: dict[str, HandlerTimes] = {}
        check_handlers(handlers, options)
        self._consumers: dict[Consumer[Any], float] = {}
        self._names: list[str] = []
        threads = _threads(handlers, options)
        for declared, weight in handlers:
            self._times[declared.spec.name] = HandlerTimes()
            concurrency = concurrency_of(declared, options)
            consumer = Consumer(
                queue,
                declared.spec,
                self._watched(declared, interruptible=concurrency is None and threads == 1),
                batch_size=options.batch_size,
                concurrency=concurrency,
                lease_seconds=declared.lease_seconds if options.lease_seconds is None else options.lease_seconds,
                job_timeout_seconds=declared.job_timeout_seconds,
                mode=options.mode,
                maintain=options.maintain,
                # The queues exist before workers start: one that is removed since is not created again.
                create=False,
            )
            self._consumers[consumer] = weight
            self._names.append(declared.spec.name)
        self._parallel = threads > 1
        self._weighted = WeightedConsumers(self._consumers) if len(self._consumers) > 1 and not self._parallel else None

    def run(self) -> None:
        """Work until an order to stop, or, as the options say, until nothing is due or the time is up. It waits for a
        database that becomes unavailable meanwhile.

        Raises:
            UnknownQueue: a queue does not exist.
            DatabaseUnavailable: the database is unavailable at the end, or it stayed so while the queues should be
                drained.
            InvalidInput: transactional mode, and a queue's strategy, order or limits need leases.
            CutOff: handlers were interrupted; their jobs were given back.
        """
        began = time.monotonic()
        if self._parallel:
            self._work_in_threads(began)
        elif self._weighted is not None:
            self._work(self._weighted.drain, list(self._consumers), began)
        else:
            (consumer,) = self._consumers
            self._work(consumer.drain, [consumer], began)
        if any(consumer.cut_off for consumer in self._consumers):
            raise CutOff

    def stop(self) -> None:
        """Begin no more jobs; those that were claimed and not begun are released now. May come from any thread.

        Raises:
            DatabaseUnavailable: they could not be released; their leases end by themselves.
        """
        self._stopping.set()
        if self._weighted is not None:
            self._weighted.stop()
        for consumer in self._consumers:
            consumer.stop()
        for consumer in self._consumers:
            consumer.give_back()

    def interrupt(self) -> None:
        """Interrupt handlers that run side by side; `Signals.interrupt` does so for one in the main thread. May come from
        any thread.
        """
        for consumer in self._consumers:
            consumer.interrupt()

    def give_back(self) -> None:
        """Release all jobs in hand, for a process that ends now. May come from any thread.

        Raises:
            DatabaseUnavailable: as `stop`.
        """
        for consumer in self._consumers:
            consumer.give_back(begun=True)

    def stats(self) -> list[WorkerStats]:
        """What was done so far, for each queue. May come from any thread."""
        return [
            WorkerStats.of(name, consumer.summary, self._errors.get(name), self._times[name])
            for name, consumer in zip(self._names, self._consumers, strict=True)
        ]

    def _work(self, drain: Callable[..., object], consumers: Sequence[Consumer[Any]], began: float) -> None:
        """Drain, as long as the options say, and again when the database is back."""
        options = self._options
        linger = 0.0 if options.drain else float("inf")
        away = 0
        while not self._stopping.is_set():
            left = None if options.budget_seconds is None else options.budget_seconds - (time.monotonic() - began)
            if left is not None and left <= 0:
                return
            claimed = sum(consumer.summary.claimed for consumer in consumers)
            try:
                drain(budget_seconds=left, linger_seconds=linger)
                return
            except DatabaseUnavailable as error:
                if options.drain or self._stopping.is_set():
                    raise
                away = 1 if sum(consumer.summary.claimed for consumer in consumers) > claimed else away + 1
                self._report("database_away", error=first_line(error))
                self._stopping.wait(_AWAY(away))

    def _work_in_threads(self, began: float) -> None:
        """Drain each queue in a thread of its own. The first error ends them all."""
        errors: list[BaseException] = []

        def work(consumer: Consumer[Any]) -> None:
            try:
                self._work(consumer.drain, [consumer], began)
            except BaseException as error:
                errors.append(error)
                self._stopping.set()
                for other in self._consumers:
                    other.stop()

        while True:
            claimed = self._claimed()
            # An executor's threads would be waited for by a process that ends without its handlers.
            threads = [threading.Thread(target=work, args=(consumer,), daemon=True) for consumer in self._consumers]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            if errors:
                raise errors[0]
            # What a handler enqueued into a queue that was empty already.
            if self._stopping.is_set() or self._claimed() == claimed:
                return

    def _claimed(self) -> int:
        return sum(consumer.summary.claimed for consumer in self._consumers)

    def _note(self, declared: QueueHandler[Any], job: Job[Any], error: str) -> None:
        self._errors[declared.spec.name] = redacted_text.scrub(declared.spec.payload, error, job.payload)

    def _watched(self, declared: QueueHandler[Any], *, interruptible: bool) -> Any:
        """Return the handler, measured, noted when it fails, and interruptible while it works in the main thread."""
        times, called = self._times[declared.spec.name], declared.handler

        def noted(job: Job[Any], returned: Any) -> Any:
            # Judged here already: what is no outcome, or has a result that cannot be stored, is an error as well.
            outcome = outcome_of(returned)
            match outcome:
                case Retry(reason, _) | Reject(reason) | Hold(reason):
                    self._note(declared, job, first_line(reason))
            return outcome

        async def awaited(job: Job[Any]) -> Any:
            try:
                with times.measured():
                    outcome: Any = await cast("AsyncHandler[Any]", called)(job)
            except BaseException as error:
                if not is_interrupt(error):
                    self._note(declared, job, _described(error))
                raise
            return noted(job, outcome)

        def handler(job: Job[Any]) -> Any:
            try:
                with times.measured():
                    outcome = self._interruptibly(declared, job) if interruptible else called(job)
            except BaseException as error:
                if not is_interrupt(error):
                    self._note(declared, job, _described(error))
                raise
            return noted(job, outcome)

        return awaited if is_async(called) else handler

    def _interruptibly(self, declared: QueueHandler[Any], job: Job[Any]) -> Any:
        signals = self._signals
        if signals is None:
            return declared.handler(job)
        try:
            signals.interruptible = True
            signals.check()
            return declared.handler(job)
        finally:
            signals.interruptible = False


def concurrency_of(declared: QueueHandler[Any], options: WorkOptions) -> int | None:
    """Return how many jobs of a handler a process works on side by side; None: one after another, in the main thread."""
    given = options.concurrency or declared.concurrency
    if is_async(declared.handler):
        return given or ASYNC_CONCURRENCY
    return None if given == 1 else given


def pool_size(handlers: Sequence[tuple[QueueHandler[Any], float]], options: WorkOptions) -> int:
    """Return how many connections a worker of these handlers needs at most."""
    return _POOL_SIZE * _threads(handlers, options)


def check_handlers(handlers: Sequence[tuple[QueueHandler[Any], float]], options: WorkOptions) -> None:
    """Raise an error if these cannot work in one process.

    Raises:
        InvalidInput: there is none, two of them have the same queue, or one handles several jobs at a time, and the mode is
            transactional, or weights are given.
    """
    names = [declared.spec.name for declared, _ in handlers]
    if not names:
        raise InvalidInput("no handler was given; name at least one, as package.module:handler")
    for name in names:
        if names.count(name) > 1:
            raise InvalidInput(f"queue {name!r} has two handlers here; a queue's jobs go to one")
    for declared, _ in handlers:
        at_a_time = concurrency_of(declared, options)
        if at_a_time is None:
            continue
        plain = not is_async(declared.handler)
        what = f"with concurrency {at_a_time}" if plain else "with an async handler"
        cure = "set concurrency 1 (--concurrency 1)" if plain else "make it a plain function"
        if options.mode is Mode.TRANSACTIONAL:
            raise InvalidInput(
                f"queue {declared.spec.name!r} is to be worked off {what} and in transactional mode, which works one job"
                f" after another on one connection; leave --mode transactional out, or {cure}"
            )
        for other, weight in handlers:
            if weight != 1:
                raise InvalidInput(
                    f"queue {other.spec.name!r} has the weight {weight:g}, and queue {declared.spec.name!r} is to be worked"
                    f" off {what}: then no queue waits for another, and each has as many jobs at a time as its own"
                    f" concurrency says; leave the weight out, or {cure}"
                )


def _threads(handlers: Sequence[tuple[QueueHandler[Any], float]], options: WorkOptions) -> int:
    """Return how many threads work: one for all handlers that take turns, else one for each."""
    takes_turns = all(concurrency_of(declared, options) is None for declared, _ in handlers)
    return 1 if takes_turns else len(handlers)


def _described(error: BaseException) -> str:
    try:
        return first_line(f"{type(error).__name__}: {error}")
    except Exception:
        return type(error).__name__
