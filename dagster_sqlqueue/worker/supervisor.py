"""Several processes that consume the same queues, and the one that keeps them alive."""

import contextlib
import multiprocessing
import multiprocessing.connection
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from dagster_sqlqueue.errors import (
    DatabaseUnavailable,
    InvalidInput,
    QueueError,
    SchemaMissing,
    SchemaTooNew,
    SchemaTooOld,
    UnknownQueue,
)
from dagster_sqlqueue.model.backoff import Backoff
from dagster_sqlqueue.queue import SqlQueue
from dagster_sqlqueue.worker.handlers import load
from dagster_sqlqueue.worker.shutdown import CUT_OFF, SIGNALS, CutOff, Signals, Stopper, leave_soon
from dagster_sqlqueue.worker.stats import Report, WorkerStats, added
from dagster_sqlqueue.worker.worker import Worker, WorkOptions, pool_size

MOST_PROCESSES = 1_000

_REPORT_SECONDS = 0.5
_SHORT_LIFE_SECONDS = 10.0
_PAUSE = Backoff(0.5, max_seconds=30.0, jitter=0.0)
_HOPELESS = (InvalidInput, UnknownQueue, SchemaMissing, SchemaTooOld, SchemaTooNew)
"""What a new process would meet again."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """What a process consumes, in a form that can be sent to it.

    Attributes:
        url: the database, with its password.
        schema: where the tables are.
        handlers: the names of the handlers, each with its weight.
        options: how.
    """

    url: str = field(repr=False)
    schema: str
    handlers: tuple[tuple[str, float], ...]
    options: WorkOptions


@dataclass(slots=True)
class _Child:
    process: BaseProcess
    connection: "Connection[Any, Any]"
    born: float
    stats: list[WorkerStats] = field(default_factory=list)
    error: QueueError | None = None


class Supervisor:
    """Keep some processes running: one that dies is replaced, its jobs are due again when their leases end.

    One that dies soon after its start is replaced after a pause, which grows up to 30 seconds.

    Args:
        assignment: what each consumes.
        processes: how many.
        signals: where orders to stop come from.
        report: called with events, in the thread that runs.

    Raises:
        InvalidInput: the number is not 1 to 1,000.
    """

    def __init__(self, assignment: Assignment, processes: int, *, signals: Signals, report: Report) -> None:
        if not 1 <= processes <= MOST_PROCESSES:
            raise InvalidInput(f"the number of processes is {processes}; it must be 1 to {MOST_PROCESSES:,}")
        self._assignment = assignment
        self._wanted = processes
        self._signals = signals
        self._report = report
        self._context = multiprocessing.get_context("spawn")
        self._queues = [load(reference).spec.name for reference, _ in assignment.handlers]
        self._children: list[_Child] = []
        self._past: list[WorkerStats] = added([], self._queues)
        self._lock = threading.Lock()
        self._due: list[float] = []
        self._short_lives = 0
        self._orders = 0
        self._force_at: float | None = None
        self._cut_off = False
        self._failed: QueueError | None = None

    def stats(self) -> list[WorkerStats]:
        """Return what was done so far by all, those that died included, up to half a second ago. May come from any
        thread.
        """
        with self._lock:
            return added([self._past, *(child.stats for child in self._children)], self._queues)

    def run(self) -> int:
        """Work until an order to stop, or until every process has drained its queues. Returns 0, or `CUT_OFF` when jobs
        were released that a handler had begun.

        Raises:
            InvalidInput, UnknownQueue, SchemaMissing, SchemaTooOld, SchemaTooNew, DatabaseUnavailable: what a process
                ended with, and another one would.
        """
        began = time.monotonic()
        self._due = [began] * self._wanted
        try:
            while self._children or (self._due and not self._orders):
                self._start_next(began)
                self._listen()
        finally:
            for child in self._children:
                child.process.kill()
        if self._failed is not None:
            raise self._failed
        return CUT_OFF if self._cut_off else 0

    def _start_next(self, began: float) -> None:
        """Start one process that is due, if any; of several, one each time, so that orders are heard in between."""
        now = time.monotonic()
        budget = self._assignment.options.budget_seconds
        if budget is not None and now - began >= budget:
            self._due.clear()
        if self._due and self._due[0] <= now and not self._orders:
            self._due.pop(0)
            ours, theirs = self._context.Pipe()
            left = None if budget is None else max(budget - (time.monotonic() - began), 0.001)
            process = self._context.Process(
                target=_child, args=(theirs, self._assignment, left), name="sqlqueue-worker"
            )
            _start_deaf(process)
            theirs.close()
            with self._lock:
                self._children.append(_Child(process, ours, time.monotonic()))
            self._report("process_started", pid=process.pid)

    def _listen(self) -> None:
        """Wait until something happens: an order, a report, an end, a moment that was waited for."""
        moments = [*self._due[:1], *([] if self._force_at is None else [self._force_at])]
        left = max(min(moments) - time.monotonic(), 0.0) if moments else None
        connections = {child.connection: child for child in self._children if not child.connection.closed}
        sentinels = {child.process.sentinel: child for child in self._children}
        ready = multiprocessing.connection.wait([self._signals.socket, *connections, *sentinels], left)
        for _ in range(self._signals.received()):
            self._order()
        for source in ready:
            if source in connections:
                self._hear(connections[source])
        for source in ready:
            if source in sentinels:
                self._bury(sentinels[source])
        if self._force_at is not None and time.monotonic() >= self._force_at:
            self._force_at = None
            self._cut_off = True
            for child in self._children:
                self._report("process_killed", pid=child.process.pid)
                child.process.kill()

    def _order(self) -> None:
        """Pass an order to stop on to every process."""
        self._orders += 1
        options = self._assignment.options
        patience = 3 * options.grace_seconds
        if self._orders == 1:
            self._report("stopping")
            timeout = options.drain_timeout_seconds
            # A process keeps its time-out itself. One that runs long after it does not react any more.
            self._force_at = None if timeout is None else time.monotonic() + timeout + patience
        else:
            self._force_at = time.monotonic() + patience
        for child in self._children:
            with contextlib.suppress(OSError):
                child.connection.send("stop")

    def _hear(self, child: _Child) -> None:
        try:
            while not child.connection.closed and child.connection.poll():
                match child.connection.recv():
                    case "stats", stats:
                        with self._lock:
                            child.stats = stats
                    case "failed", error:
                        child.error = error
                    case "event", (name, facts):
                        self._report(name, pid=child.process.pid, **facts)
        except (EOFError, OSError):
            child.connection.close()

    def _bury(self, child: _Child) -> None:
        self._hear(child)
        child.process.join()
        code = child.process.exitcode
        with self._lock:
            self._children.remove(child)
            self._past = added([self._past, [one.landed() for one in child.stats]], self._queues)
        child.connection.close()
        options = self._assignment.options
        self._cut_off = self._cut_off or code == CUT_OFF or (code != 0 and self._orders > 0)
        hopeless = isinstance(child.error, _HOPELESS) or (
            isinstance(child.error, DatabaseUnavailable) and (options.drain or self._orders > 0)
        )
        if hopeless:
            self._failed = self._failed or child.error
            if not self._orders:
                self._order()
            return
        as_wanted = code == 0 and (options.drain or options.budget_seconds is not None)
        if as_wanted or self._orders:
            self._report("process_ended", pid=child.process.pid, exit_code=code)
            return
        lived = time.monotonic() - child.born
        self._short_lives = self._short_lives + 1 if lived < _SHORT_LIFE_SECONDS else 0
        pause = _PAUSE(self._short_lives) if self._short_lives else 0.0
        self._due = sorted([*self._due, time.monotonic() + pause])
        self._report("process_died", pid=child.process.pid, reason=_reason(child), restart_seconds=pause)


def _start_deaf(process: BaseProcess) -> None:
    """Start a process in which signals wait until it is ready for them: one that dies of them would be replaced."""
    resource_tracker.ensure_running()
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def _reason(child: _Child) -> str:
    code = child.process.exitcode
    if child.error is not None:
        return f"{type(child.error).__name__}: {child.error}"
    if code is not None and code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return f"exit code {code}"


def _child(connection: "Connection[Any, Any]", assignment: Assignment, budget_seconds: float | None) -> None:
    """The life of one process. A message of its parent stops it, signals do not: those of a terminal or of a service
    manager reach every process, and would count as the second one.
    """
    lock = threading.Lock()

    def send(kind: str, what: object) -> None:
        # A parent that has ended needs no report; its end is noticed elsewhere.
        with lock, contextlib.suppress(OSError):
            connection.send((kind, what))

    def report(name: str, **facts: Any) -> None:
        send("event", (name, facts))

    options = assignment.options
    try:
        handlers = [(load(reference), weight) for reference, weight in assignment.handlers]
        connections = pool_size(handlers, options)
        with (
            Signals() as signals,
            SqlQueue(
                assignment.url, schema=assignment.schema, pool_size=connections, application_name="sqlqueue work"
            ) as queue,
        ):
            own = replace(options, budget_seconds=budget_seconds)
            worker = Worker(queue, handlers, own, signals=signals, report=report)
            stopper = Stopper(
                worker,
                signals,
                drain_timeout_seconds=options.drain_timeout_seconds,
                grace_seconds=options.grace_seconds,
                parent=connection,
                notify=lambda word: report(word.replace(" ", "_")) if word != "stopping" else None,
            )
            with stopper, _reporting(lambda: send("stats", worker.stats())):
                worker.run()
    except CutOff:
        leave_soon(options.grace_seconds)
        sys.exit(CUT_OFF)
    except QueueError as error:
        send("failed", error)
        sys.exit(1)


@contextlib.contextmanager
def _reporting(report: Callable[[], None]) -> Iterator[None]:
    """Report from time to time, and once at the end."""
    ended = threading.Event()

    def run() -> None:
        while not ended.wait(_REPORT_SECONDS):
            report()

    thread = threading.Thread(target=run, name="sqlqueue-reports", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        report()
