"""The activity of a worker, shown while it works: redrawn in a terminal, as lines elsewhere."""

import json
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from dagster_sqlqueue import display
from dagster_sqlqueue.cli.output import render
from dagster_sqlqueue.errors import QueueError
from dagster_sqlqueue.model.job import Depth

if TYPE_CHECKING:
    from dagster_sqlqueue.queue import SqlQueue
    from dagster_sqlqueue.worker.stats import WorkerStats

DEFAULT_EVERY_SECONDS = 10.0
_SCREEN_SECONDS = 1.0
_RATE_SECONDS = 10.0
_BACKLOG_CAP = 10_000
_OUTCOMES = ("succeeded", "retried", "snoozed", "failed", "held", "cancelled", "released", "stale")

_WORDS: dict[str, str] = {
    "stopping": "stopping: running jobs are finished, jobs that have not begun are released",
    "cutting_off": "running jobs are interrupted and released",
    "abandoned": "not every handler ended; their jobs were released, and the process exits without them",
    "metrics": "metrics at http://{address}:{port}/metrics",
    "database_away": "the database is unavailable; waiting for it",
    "process_started": "process {pid} started",
    "process_ended": "process {pid} ended with exit code {exit_code}",
    "process_died": "process {pid} died ({reason}); a new one starts in {restart_seconds:g} s",
    "process_killed": "process {pid} did not end in time and is killed",
    "stopped": "stopped with exit code {exit_code}",
}


class Progress:
    """Shows events when they happen, and stats at intervals.

    Args:
        queue: where the backlog is counted.
        every_seconds: time between two refreshes.
        event: shows an event.
        stats: shows stats: those of each queue, jobs per second by queue, and the backlog by queue (None: not known).
    """

    def __init__(
        self,
        queue: "SqlQueue",
        every_seconds: float,
        event: Callable[[str, dict[str, Any]], None],
        stats: "Callable[[list[WorkerStats], dict[str, float], dict[str, Depth | None]], None]",
    ) -> None:
        self._queue = queue
        self._every = every_seconds
        self._event = event
        self._stats = stats
        self._lock = threading.Lock()
        self._seen: deque[tuple[float, dict[str, int]]] = deque()
        self._ended = threading.Event()

    def report(self, name: str, **facts: Any) -> None:
        """Show an event. Can be called from any thread."""
        with self._lock:
            self._event(name, facts)

    @contextmanager
    def of(self, source: "Callable[[], list[WorkerStats]]") -> Iterator[None]:
        """Show the stats of a source while the block runs, and at its end."""
        self._seen.append((time.monotonic(), {stats.queue: stats.handled for stats in source()}))

        def run() -> None:
            while not self._ended.wait(self._every):
                self._show_stats(source)

        thread = threading.Thread(target=run, name="sqlqueue-progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            thread.join()
            self._show_stats(source)

    def _show_stats(self, source: "Callable[[], list[WorkerStats]]") -> None:
        found, now = source(), time.monotonic()
        handled = {stats.queue: stats.handled for stats in found}
        while len(self._seen) > 1 and now - self._seen[1][0] >= _RATE_SECONDS:
            self._seen.popleft()
        since, before = self._seen[0]
        self._seen.append((now, handled))
        rates = {name: (handled[name] - before[name]) / max(now - since, 0.001) for name in handled}
        backlog = {name: self._depth(name) for name in handled}
        with self._lock:
            self._stats(found, rates, backlog)

    def _depth(self, name: str) -> Depth | None:
        with suppress(QueueError):
            return self._queue.depth(name, cap=_BACKLOG_CAP)
        return None


@contextmanager
def log(queue: "SqlQueue", *, as_json: bool, every_seconds: float | None) -> Iterator[Progress]:
    """Yield what writes a line for each event, and one for the stats of each queue when they have changed."""
    last: dict[str, tuple[dict[str, int], int]] = {}

    def write(name: str, facts: dict[str, Any], words: str) -> None:
        moment = datetime.now(UTC)
        if as_json:
            line = json.dumps({"at": moment.isoformat(timespec="milliseconds"), "event": name, **facts})
        else:
            line = f"{display.moment(moment)} {display.printable(words)}"
        sys.stdout.write(line + "\n")
        sys.stdout.flush()

    def event(name: str, facts: dict[str, Any]) -> None:
        write(name, facts, _sentence(name, facts))

    def stats(found: "list[WorkerStats]", rates: dict[str, float], backlog: dict[str, Depth | None]) -> None:
        for one in found:
            now = (dict(one.counts), one.in_flight)
            if last.get(one.queue) == now:
                continue
            last[one.queue] = now
            depth = backlog[one.queue]
            facts = {
                "queue": one.queue,
                **one.counts,
                "in_flight": one.in_flight,
                "jobs_per_second": round(rates[one.queue], 1),
                "ready": depth and depth.ready,
                "running": depth and depth.running,
                "counted_up_to": _BACKLOG_CAP,
                "last_error": one.last_error,
            }
            done = ", ".join(f"{one.counts[name]:,} {name}" for name in _OUTCOMES if one.counts[name]) or "nothing yet"
            flight = f", {one.in_flight:,} in flight" if one.in_flight else ""
            error = f"; last error: {one.last_error}" if one.last_error else ""
            write("stats", facts, f"{one.queue}: {done}, {rates[one.queue]:,.1f}/s{flight}; {_waiting(depth)}{error}")

    progress = Progress(queue, every_seconds or DEFAULT_EVERY_SECONDS, event, stats)
    progress.report("started")
    yield progress


@contextmanager
def screen(queue: "SqlQueue", *, as_json: bool, every_seconds: float | None) -> Iterator[Progress]:
    """Yield what redraws a table, with events above it."""
    console: Console = render.console()
    with Live(console=console, auto_refresh=False, vertical_overflow="visible") as live:

        def event(name: str, facts: dict[str, Any]) -> None:
            if name not in ("process_started", "started"):
                words = f"{display.moment(datetime.now(UTC))} {display.printable(_sentence(name, facts))}"
                console.print(Text(words, style="dim"))
            if name == "abandoned":
                live.stop()

        def stats(found: "list[WorkerStats]", rates: dict[str, float], backlog: dict[str, Depth | None]) -> None:
            live.update(drawn(found, rates, backlog), refresh=True)

        yield Progress(queue, every_seconds or _SCREEN_SECONDS, event, stats)


def drawn(found: "Sequence[WorkerStats]", rates: dict[str, float], backlog: dict[str, Depth | None]) -> RenderableType:
    """Return the stats as a table, with the last errors below it."""
    shown = [name for name in _OUTCOMES if name == "succeeded" or any(one.counts[name] for one in found)]
    depths = [backlog[one.queue] for one in found]
    table = render.grid(
        ["queue", "jobs/s", "in flight", *shown, "ready", "running"],
        [
            [
                one.queue,
                f"{rates[one.queue]:,.1f}",
                f"{one.in_flight:,}",
                *(f"{one.counts[name]:,}" for name in shown),
                "–" if depth is None else display.count(depth.ready, depth.cap),
                "–" if depth is None else f"{depth.running:,}",
            ]
            for one, depth in zip(found, depths, strict=True)
        ],
        right=["jobs/s", "in flight", *shown, "ready", "running"],
    )
    errors = [
        Text(display.shortened(f"{one.queue}: {one.last_error}", 200), style="red", no_wrap=True, overflow="ellipsis")
        for one in found
        if one.last_error
    ]
    return Group(table, *errors, Text("Ctrl-C finishes running jobs, a second Ctrl-C releases them", style="dim"))


def _sentence(name: str, facts: dict[str, Any]) -> str:
    words = _WORDS.get(name, name.replace("_", " ")).format_map(facts)
    return f"{words}: {facts['error']}" if facts.get("error") else words


def _waiting(depth: Depth | None) -> str:
    return "backlog unknown" if depth is None else f"{display.count(depth.ready, depth.cap)} ready"
