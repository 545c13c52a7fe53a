"""The program of a rival in Python: it takes orders as lines of JSON, and answers each with one.

The orders are the same for the programs in Node (`node/program.mjs`): `setup`, `clear`, `bulk`, `single`, `drain`, `serve`,
`served` and `send`. Moments are those of the system's clock, in seconds, so that two processes agree on them.
"""

import json
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from benchmarks.harness import Event, event

Handler = Callable[[Event], None]


class Rival(Protocol):
    """What a rival has to do."""

    def setup(self) -> None:
        """Make its tables and its queue."""

    def clear(self) -> None:
        """Remove all jobs."""

    def bulk(self, payloads: Sequence[dict[str, Any]]) -> None:
        """Put these on the queue, as it is done best."""

    def single(self, payload: dict[str, Any]) -> None:
        """Put one on the queue, in a transaction of its own that has ended on return."""

    def drain(self, handle: Handler) -> None:
        """Work until nothing is left."""

    def serve(self, handle: Handler, stop: threading.Event) -> None:
        """Work, and wait for more, until stopped."""


class _Program:
    def __init__(self, rival: Rival) -> None:
        self._rival = rival
        self._seen: dict[int, float] = {}
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def setup(self) -> dict[str, Any]:
        self._rival.setup()
        return {}

    def clear(self) -> dict[str, Any]:
        self._rival.clear()
        return {}

    def bulk(self, jobs: int) -> dict[str, Any]:
        payloads = [event(number) for number in range(jobs)]
        began = time.perf_counter()
        self._rival.bulk(payloads)
        return {"seconds": time.perf_counter() - began}

    def single(self, jobs: int) -> dict[str, Any]:
        payload = event(1)
        began = time.perf_counter()
        for _ in range(jobs):
            self._rival.single(payload)
        return {"seconds": time.perf_counter() - began}

    def drain(self) -> dict[str, Any]:
        jobs = 0

        def handle(payload: Event) -> None:
            nonlocal jobs
            jobs += 1

        began = time.time()
        self._rival.drain(handle)
        return {"began": began, "ended": time.time(), "jobs": jobs}

    def serve(self) -> dict[str, Any]:
        self._seen, self._stop = {}, threading.Event()

        def handle(payload: Event) -> None:
            self._seen[payload.number] = time.time()

        self._thread = threading.Thread(target=self._rival.serve, args=(handle, self._stop))
        self._thread.start()
        return {}

    def served(self) -> dict[str, Any]:
        """End the serving; when each job was seen, by its number."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        return {"times": self._seen}

    def send(self, pauses: Sequence[float]) -> dict[str, Any]:
        """Put jobs on the queue one by one, each after its pause in seconds; when each was committed, by its number."""
        times = {}
        for number, seconds in enumerate(pauses):
            time.sleep(seconds)
            self._rival.single(event(number))
            times[number] = time.time()
        return {"times": times}


def run(rival: Rival) -> None:
    """Answer orders until the input ends. What goes wrong ends the process with its traceback."""
    program = _Program(rival)
    # What a rival prints is no answer.
    answers, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        order = json.loads(line)
        answer = getattr(program, order.pop("do"))(**order)
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
