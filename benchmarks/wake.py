"""Wake: how long a single job waits until a consumer that has nothing to do holds it, notified or polling; what somebody who
waits costs producers; and what it costs to wait."""

import json
import os
import random
import re
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TypeAlias

from psycopg import conninfo

from benchmarks.harness import SPEC, Bench, Figure, event, note, rounds
from dagster_sqlqueue import Consumer, SqlQueue
from dagster_sqlqueue.consumer.waiter import Waiter
from dagster_sqlqueue.embedded import launch
from dagster_sqlqueue.model.job import ArchiveState
from dagster_sqlqueue.queue.endings import Ending
from dagster_sqlqueue.queue.head_hints import HeadHints

COMMAND = "python -m benchmarks wake"
_Bounds: TypeAlias = tuple[float | None, float | None]
"""Of the median and of the 99th percentile, in milliseconds."""
_POLL_SECONDS = 0.2
_PRODUCERS = 16
_WAITERS = 16
_HANDLER_SECONDS = 0.01
_RATE = re.compile(r"^tps = ([\d.]+) ", re.MULTILINE)


def measure(bench: Bench) -> list[Figure]:
    """The figures of picking up, from the call of `enqueue`, and from its return, when the job is committed, until it is in
    the consumer's hands; of producers; and of waiting."""
    jobs = 50 if bench.quick else 400
    note(f"wake: {jobs} single jobs, picked up by a consumer that is notified, then by one that polls every 200 ms")
    bench.empty()
    with ExitStack() as stack:
        waiter = stack.enter_context(Waiter(bench.queue.catalog, SPEC.name, "bench"))
        notified, committed = _latencies(bench, jobs, lambda: waiter.wait(5.0), waiter.busy)
    polling, _ = _latencies(bench, jobs, lambda: time.sleep(_POLL_SECONDS))
    return [
        *_figures("pick-up, notified", notified),
        *_figures("pick-up from the commit, notified", committed, floors=(2.0, 5.0), aims=(1.0, 2.5)),
        *_figures("pick-up, polling every 200 ms", polling),
        *_producers(bench),
        *_waiting(bench),
    ]


def _figures(
    name: str, latencies: list[float], floors: _Bounds = (None, None), aims: _Bounds = (None, None)
) -> list[Figure]:
    last = statistics.quantiles(latencies, n=100)[98]
    return [
        Figure(f"{name}, p50", "ms", latencies, COMMAND, floors[0], at_most=True, aim=aims[0]),
        Figure("  p99", "ms", [last], COMMAND, floors[1], at_most=True, aim=aims[1]),
    ]


def _latencies(
    bench: Bench, jobs: int, wait: Callable[[], object], busy: Callable[[], object] = lambda: None
) -> tuple[list[float], list[float]]:
    """Milliseconds of each job from the call that enqueues it, and from its return; after a tenth as many to warm up."""
    warm_up = jobs // 10
    sent: dict[int, float] = {}
    committed: dict[int, float] = {}
    held: dict[int, float] = {}
    all_held = threading.Event()

    def consume() -> None:
        hints = HeadHints()
        while len(held) < jobs + warm_up:
            claimed = bench.queue.claim(SPEC.name, limit=100, worker="bench", hints=hints)
            now = time.perf_counter()
            for job in claimed:
                held[json.loads(job.payload)["number"]] = now
            if claimed:
                busy()
                bench.queue.finish([Ending(job, ArchiveState.SUCCEEDED) for job in claimed])
            else:
                wait()
        all_held.set()

    consumer = threading.Thread(target=consume, daemon=True)
    consumer.start()
    for number in range(jobs + warm_up):
        time.sleep(random.uniform(0.02, 0.06))
        sent[number] = time.perf_counter()
        bench.queue.enqueue(SPEC, event(number))
        committed[number] = time.perf_counter()
    if not all_held.wait(60):
        raise RuntimeError(f"{len(held)} of {jobs + warm_up} jobs were picked up")
    consumer.join()
    measured = range(warm_up, jobs + warm_up)
    return tuple([1_000 * (held[number] - since[number]) for number in measured] for since in (sent, committed))  # type: ignore[return-value]


def _producers(bench: Bench) -> list[Figure]:
    seconds = 2 if bench.quick else 5
    note(
        f"wake: {_PRODUCERS} clients of pgbench that enqueue for {seconds} s, in turns while nobody and while somebody waits"
    )
    with tempfile.TemporaryDirectory(prefix="sqlqueue-pgbench-") as directory:
        script = Path(directory) / "enqueue.sql"
        payload = json.dumps(event(1))
        script.write_text(f"SELECT \"{bench.queue.database.schema}_v1\".enqueue('{SPEC.name}', '{payload}');\n")

        def alone() -> float:
            bench.empty()
            bench.checkpoint()
            return _pgbench(bench, script, seconds)

        def beside_a_waiter() -> float:
            with _one_who_waits(bench):
                return alone()

        without, beside = rounds(3 if bench.quick else 7, alone, beside_a_waiter)
    bench.empty()
    shares = [100 * a / b for a, b in zip(beside, without, strict=True)]
    return [
        Figure(f"{_PRODUCERS} producers, nobody waits", "jobs/s", without, COMMAND),
        Figure("  one consumer waits", "jobs/s", beside, COMMAND),
        Figure("  share", "%", shares, COMMAND, floor=75, aim=90),
    ]


@contextmanager
def _one_who_waits(bench: Bench) -> Iterator[None]:
    """A consumer that is at work for a hundredth of a second when it is woken, and then waits again. It claims nothing: what
    is measured are the producers."""
    over = threading.Event()
    with Waiter(bench.queue.catalog, SPEC.name, "bench") as waiter:

        def work() -> None:
            while not over.is_set():
                if waiter.wait(5.0):
                    waiter.busy()
                    over.wait(_HANDLER_SECONDS)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            waiter.wake()
            thread.join()


def _pgbench(bench: Bench, script: Path, seconds: int) -> float:
    server = {name: str(value) for name, value in conninfo.conninfo_to_dict(bench.url).items()}
    # A command line can be read by every user of the machine: the password goes by the environment.
    password = {"PGPASSWORD": server.pop("password")} if server.get("password") else {}
    done = subprocess.run(
        [
            launch.programs() / "pgbench",
            "--no-vacuum",
            "--protocol=prepared",
            f"--client={_PRODUCERS}",
            "--jobs=2",
            f"--time={seconds}",
            f"--file={script}",
            conninfo.make_conninfo(**server),
        ],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **password},
    )
    rate = _RATE.search(done.stdout)
    if done.returncode or not rate:
        raise RuntimeError(f"pgbench failed: {done.stderr or done.stdout}")
    return float(rate[1])


def _waiting(bench: Bench) -> list[Figure]:
    """The server's CPU while consumers wait on an empty queue. Only where its processes can be seen."""
    seconds = 5 if bench.quick else 30
    if not Path("/proc/self/schedstat").exists():
        return []
    note(f"wake: {_WAITERS} consumers that have nothing to do, for rounds of {seconds} s")
    bench.empty()
    with SqlQueue(bench.url, schema=bench.queue.database.schema, pool_size=2 * _WAITERS) as queue:
        consumers = [Consumer(queue, SPEC, lambda job: None) for _ in range(_WAITERS)]
        threads = [threading.Thread(target=one.drain, kwargs={"linger_seconds": 3_600.0}) for one in consumers]
        for thread in threads:
            thread.start()
        try:
            time.sleep(seconds)
            found = []
            for _ in range(1 if bench.quick else 3):
                before = _server_cpu(bench)
                time.sleep(seconds)
                after = _server_cpu(bench)
                found.append(sum(spent - before.get(pid, 0.0) for pid, spent in after.items()) / seconds)
        finally:
            for one in consumers:
                one.stop()
            for thread in threads:
                thread.join()
    return [Figure(f"{_WAITERS} idle consumers, the server's CPU", "ms/s", found, COMMAND, floor=5, at_most=True)]


def _server_cpu(bench: Bench) -> dict[int, float]:
    """Milliseconds that each of the server's processes for clients has run, as far as they are on this machine."""
    spent: dict[int, float] = {}
    for (pid,) in bench.execute(
        "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
    ):
        file = Path(f"/proc/{pid}/schedstat")
        if file.exists():
            spent[pid] = int(file.read_text().split()[0]) / 1e6
    return spent
