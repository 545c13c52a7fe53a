"""`sqlqueue work --metrics-port`: what a worker does, scraped over HTTP from real processes."""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request

import pytest

from dagster_sqlqueue import NewJob, QueueSpec, SqlQueue
from dagster_sqlqueue.consumer.settlement import HANDLER_BOUNDS
from dagster_sqlqueue.worker.stats import HandlerTimes, WorkerStats, added
from tests.cli.support import PROJECT, Cli
from tests.gate.patience import PATIENCE
from tests.metrics.support import Samples, key, parsed
from tests.support import Work, until
from tests.worker.conftest import Shop, Worker

ALONE_OR_NOT = pytest.mark.parametrize(
    "processes",
    [pytest.param((), id="alone"), pytest.param(("--processes", "2"), id="supervised", marks=pytest.mark.prove)],
)


def scrape(worker: Worker) -> Samples:
    served = worker.event("metrics")
    assert served["address"] == "127.0.0.1"
    with urllib.request.urlopen(f"http://127.0.0.1:{served['port']}/metrics", timeout=PATIENCE) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=")
        return parsed(answer.read().decode())


def outcome(samples: Samples, name: str, queue: str = "work") -> float:
    return samples[key("sqlqueue_consumer_outcomes_total", queue=queue, outcome=name)]


FLIGHT = key("sqlqueue_consumer_jobs_in_flight", queue="work")
HANDLED = key("sqlqueue_consumer_handler_seconds_count", queue="work")


@ALONE_OR_NOT
def test_a_worker_is_scraped_while_it_works(
    shop: Shop, queue: SqlQueue, spec: QueueSpec[Work], processes: tuple[str, ...]
) -> None:
    worker = shop.start("--metrics-port", "0", *processes)
    assert outcome(scrape(worker), "succeeded") == 0
    queue.enqueue_many(spec, [Work(n=n) for n in range(20)])
    queue.enqueue(spec, NewJob(Work(n=20, note="fail"), max_attempts=1))
    until(lambda: scrape(worker)[HANDLED] == 21, "21 jobs handled")
    until(lambda: outcome(scrape(worker), "failed") == 1, "the end of the last job")
    until(lambda: outcome(scrape(worker), "succeeded") == 20, "the ends of the others, of any process")
    samples = scrape(worker)
    assert samples[key("sqlqueue_consumer_claimed_jobs_total", queue="work")] == 21
    assert samples[FLIGHT] == 0

    queue.enqueue(spec, Work(n=21, note="wait"))
    until(lambda: scrape(worker)[FLIGHT] == 1, "a job in flight")
    shop.go.touch()
    until(lambda: scrape(worker)[FLIGHT] == 0, "its end")
    until(lambda: outcome(scrape(worker), "succeeded") == 21, "its end to be accepted")
    samples = scrape(worker)
    buckets = [
        samples[key("sqlqueue_consumer_handler_seconds_bucket", queue="work", le=le)]
        for le in [*map(str, HANDLER_BOUNDS), "+Inf"]
    ]
    assert buckets == sorted(buckets)
    assert buckets[-1] == samples[HANDLED] == 22
    # The test itself was waited for.
    assert samples[key("sqlqueue_consumer_handler_seconds_sum", queue="work")] > 0.001
    assert worker.stopped() == 0


@pytest.mark.prove
def test_the_counts_of_a_process_that_died_stay_and_its_job_is_not_in_flight(
    shop: Shop, queue: SqlQueue, spec: QueueSpec[Work]
) -> None:
    worker = shop.start("--metrics-port", "0", "--processes", "1", "--lease", "1h")
    queue.enqueue_many(spec, [Work(n=n) for n in range(5)])
    until(lambda: outcome(scrape(worker), "succeeded") == 5, "five jobs")
    queue.enqueue(spec, Work(n=5, note="wait"))
    until(lambda: scrape(worker)[FLIGHT] == 1, "a job in flight")
    os.kill(worker.event("process_started")["pid"], signal.SIGKILL)
    worker.event("process_started", times=2)
    samples = scrape(worker)
    assert (outcome(samples, "succeeded"), samples[FLIGHT]) == (5, 0)
    assert worker.stopped() == 0


@pytest.mark.prove
def test_each_queue_has_figures_of_its_own(shop: Shop, queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    other = QueueSpec("other", Work)
    queue.create_queue(other)
    queue.enqueue_many(spec, [Work(n=n) for n in range(3)])
    queue.enqueue_many(other, [Work(n=n) for n in range(4)])
    worker = shop.start("tests.worker.jobs:handle_other", "--metrics-port", "0")
    until(lambda: outcome(scrape(worker), "succeeded", "other") == 4, "the other queue's jobs")
    until(lambda: outcome(scrape(worker), "succeeded") == 3, "the queue's jobs")
    assert worker.stopped() == 0


def test_a_port_that_is_taken_ends_the_command_at_its_start(cli: Cli) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        refused = cli.run("work", "tests.worker.jobs:handle", "--metrics-port", str(taken.getsockname()[1]))
    assert refused.exit_code == 2
    assert "cannot listen on port" in refused.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--metrics-port", "70000"), "port is 70000; it must be 0 to 65535"),
        (("--metrics-port", "http"), "--metrics-port is 'http'"),
        (("--metrics-address", "127.0.0.1"), "--metrics-address was given without --metrics-port"),
        (("--metrics-port", "0", "--metrics-address", "203.0.113.1"), "of address '203.0.113.1'"),
    ],
)
def test_what_is_not_usable_is_refused(cli: Cli, words: tuple[str, ...], said: str) -> None:
    refused = cli.run("work", "tests.worker.jobs:handle", *words)
    assert refused.exit_code == 2
    assert said in refused.stderr


def test_without_the_extra_the_command_says_what_to_install(queue: SqlQueue, url: str) -> None:
    code = (
        "import sys; sys.modules['prometheus_client'] = None\n"
        "from dagster_sqlqueue.cli import main\n"
        "sys.argv = ['sqlqueue', 'work', 'tests.worker.jobs:handle', '--drain', *sys.argv[1:]]; main()"
    )
    environment = {**os.environ, "SQLQUEUE_URL": url, "SQLQUEUE_SCHEMA": queue.database.schema}

    def ended(*words: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-c", code, *words],
            env={**environment, "PYTHONPATH": str(PROJECT)},
            cwd=PROJECT,
            capture_output=True,
            text=True,
            check=False,
        )

    refused = ended("--metrics-port", "0")
    assert refused.returncode == 2
    assert refused.stderr.startswith("error: the package prometheus_client is not installed")
    assert "dagster-sqlqueue[metrics]" in refused.stderr
    # Nobody else needs it.
    assert ended().returncode == 0


def test_times_are_put_in_order_and_added_up() -> None:
    times = HandlerTimes()
    began = time.perf_counter()
    with times.measured():
        assert times.in_flight == 1
    with pytest.raises(ValueError, match="no"), times.measured():
        raise ValueError("no")
    assert (times.in_flight, sum(times.spread)) == (0, 2)
    assert 0 < times.seconds <= time.perf_counter() - began
    assert times.now() == (0, times.seconds, times.spread)
    first, last = [0] * len(times.spread), [0] * len(times.spread)
    first[0], last[-1] = 2, 3
    one, two = (
        WorkerStats("work", in_flight=1, handler_seconds=seconds, spread=spread)
        for seconds, spread in ((0.5, first), (5_000.0, last))
    )
    (both,) = added([[one.landed()], [two]], ["work"])
    assert (both.in_flight, both.handler_seconds) == (1, 5_000.5)
    assert (both.spread[0], both.spread[-1], sum(both.spread)) == (2, 3, 5)
