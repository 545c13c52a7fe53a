"""Stopping a worker: what runs is finished or given back, what was not begun is given back, nothing is lost or twice."""

import os
import random
import signal
from pathlib import Path

import psutil
import pytest

from dagster_sqlqueue import NewJob, QueueSpec, SqlQueue
from dagster_sqlqueue.worker.shutdown import Signals
from dagster_sqlqueue.worker.supervisor import Assignment, Supervisor
from dagster_sqlqueue.worker.worker import WorkOptions
from tests.gate.patience import PATIENCE, sized
from tests.support import Work, make_due, own_server, rows, states, until
from tests.worker import jobs as handlers
from tests.worker.conftest import Shop, Worker

ALONE_OR_NOT = pytest.mark.parametrize("processes", [(), ("--processes", "1")], ids=["alone", "supervised"])
SUPERVISED_OR_NOT = pytest.mark.parametrize(
    "processes",
    [pytest.param((), id="alone", marks=pytest.mark.prove), pytest.param(("--processes", "1"), id="supervised")],
)
"""For tests whose handlers take seconds to leave."""
ALL = ("--batch", "100")
"""A claim takes all there is, also the first one."""
PATIENT = ("--grace", f"{PATIENCE}s")
"""A handler that leaves is never too late."""


def enqueue_first_and_others(
    queue: SqlQueue, spec: QueueSpec[Work], note: str, others: int = 20, *, do: str = ""
) -> None:
    queue.enqueue(spec, NewJob(Work(n=0, note=note), priority=9))
    queue.enqueue_many(spec, [Work(n=n, note=do) for n in range(1, others + 1)])


def due(queue: SqlQueue) -> int:
    """Jobs that anybody may claim now and that spent no attempt."""
    query = "SELECT count(*) FROM {s}.job WHERE state = 'queued' AND available_at <= now() AND attempt = 0"
    return int(rows(queue, query)[0][0])


def begun(shop: Shop, worker: Worker, jobs: int = 1) -> int:
    """Wait until handlers have begun jobs; gives the process of the last one."""

    def came() -> bool:
        assert worker.process.poll() is None, worker.errors
        return len(shop.history("begun")) >= jobs

    until(came, "the begin of a job")
    return int(shop.history("begun")[-1]["pid"])


def finish_the_rest(shop: Shop, jobs: int) -> None:
    shop.go.touch()
    shop.drain()
    assert states(shop.queue) == dict.fromkeys(range(jobs), "succeeded")
    assert shop.numbers("done") == list(range(jobs))


@ALONE_OR_NOT
def test_sigterm_finishes_what_runs_and_gives_the_rest_back_at_once(
    shop: Shop, queue: SqlQueue, spec: QueueSpec[Work], processes: tuple[str, ...]
) -> None:
    enqueue_first_and_others(queue, spec, "wait")
    worker = shop.start(*ALL, *processes)
    pid = begun(shop, worker)
    assert (pid == worker.process.pid) is (not processes)
    assert due(queue) == 0
    worker.signal()
    until(lambda: due(queue) == 20, "the others to be due while the first one runs")
    assert shop.history("done") == []
    assert queue.depth("work").running == 1
    shop.go.touch()
    assert worker.ended() == 0
    assert shop.numbers("done") == [0]
    assert (worker.events("stats")[-1]["succeeded"], worker.events("stats")[-1]["released"]) == (1, 20)
    assert worker.events("stopped")[-1]["exit_code"] == 0
    finish_the_rest(shop, 21)


def test_in_transactional_mode_the_batch_ends_with_the_job_in_hand(
    shop: Shop, queue: SqlQueue, spec: QueueSpec[Work]
) -> None:
    enqueue_first_and_others(queue, spec, "wait", do="pause for long")
    worker = shop.start("--mode", "transactional")
    begun(shop, worker)
    worker.signal()
    worker.event("stopping")
    shop.go.touch()
    assert worker.ended() == 0
    # It says so before it does it: one or the other job may have begun in between.
    done = shop.numbers("done")
    assert 0 in done
    assert len(done) < 21
    assert due(queue) == 21 - len(done)
    rows(queue, "UPDATE {s}.job SET payload = jsonb_set(payload, '{{note}}', '\"\"')")
    finish_the_rest(shop, 21)


@SUPERVISED_OR_NOT
def test_a_drain_timeout_gives_the_running_job_back_and_says_so(
    shop: Shop, queue: SqlQueue, spec: QueueSpec[Work], processes: tuple[str, ...]
) -> None:
    enqueue_first_and_others(queue, spec, "wait")
    worker = shop.start(*ALL, "--drain-timeout", "200ms", *PATIENT, *processes)
    begun(shop, worker)
    assert worker.stopped() == 7
    assert worker.events("cutting_off")
    assert not worker.events("abandoned")
    assert due(queue) == 21
    finish_the_rest(shop, 21)
    assert [line["lease_no"] for line in shop.history("begun") if line["n"] == 0] == [1, 2]


@pytest.mark.prove
def test_a_drain_timeout_cancels_a_statement_of_the_handler(shop: Shop, queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    enqueue_first_and_others(queue, spec, "wait in the database")
    worker = shop.start("--drain-timeout", "200ms", *PATIENT, "--mode", "transactional")
    begun(shop, worker)
    assert worker.stopped() == 7
    assert not worker.events("abandoned")
    until(lambda: due(queue) == 21, "the end of the transaction")


@pytest.mark.prove
@SUPERVISED_OR_NOT
def test_a_handler_that_cannot_be_interrupted_ends_with_its_process(
    shop: Shop, queue: SqlQueue, spec: QueueSpec[Work], processes: tuple[str, ...]
) -> None:
    enqueue_first_and_others(queue, spec, "stubborn")
    worker = shop.start(*ALL, "--drain-timeout", "0", "--grace", "10s", *processes)
    begun(shop, worker)
    assert worker.stopped() == 7
    assert worker.events("abandoned")
    assert shop.numbers("interrupted") == [0]
    assert due(queue) == 21
    finish_the_rest(shop, 21)


@pytest.mark.prove
@SUPERVISED_OR_NOT
def test_a_handler_may_take_as_long_as_the_grace_to_leave(
    shop: Shop, queue: SqlQueue, spec: QueueSpec[Work], processes: tuple[str, ...]
) -> None:
    enqueue_first_and_others(queue, spec, "tidy up")
    worker = shop.start(*ALL, "--drain-timeout", "0", *PATIENT, *processes)
    begun(shop, worker)
    assert worker.stopped() == 7
    assert not worker.events("abandoned")
    assert shop.numbers("tidied up") == [0]
    assert due(queue) == 21
    finish_the_rest(shop, 21)


@SUPERVISED_OR_NOT
def test_a_second_signal_stops_at_once(
    shop: Shop, queue: SqlQueue, spec: QueueSpec[Work], processes: tuple[str, ...]
) -> None:
    enqueue_first_and_others(queue, spec, "wait")
    worker = shop.start(*ALL, "--drain-timeout", "none", *PATIENT, *processes)
    begun(shop, worker)
    worker.signal(signal.SIGINT)
    worker.event("stopping")
    until(lambda: due(queue) == 20, "the others to be due")
    worker.signal(signal.SIGINT)
    assert worker.ended() == 7
    assert due(queue) == 21
    finish_the_rest(shop, 21)


@pytest.mark.prove
def test_signals_to_every_process_count_once(shop: Shop, queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    enqueue_first_and_others(queue, spec, "wait")
    worker = shop.start(*ALL, "--processes", "1")
    child = begun(shop, worker)
    worker.signal(signal.SIGINT)  # as a terminal does, and a service manager
    os.kill(child, signal.SIGINT)
    os.kill(child, signal.SIGTERM)
    until(lambda: due(queue) == 20, "the others to be due")
    shop.go.touch()
    assert worker.ended() == 0
    assert shop.numbers("done") == [0]


# The queue as the handler's code has it: a process that is ready before the signals come would say what differs.
@pytest.mark.parametrize("spec", [handlers.work])
def test_signals_that_come_before_a_process_is_ready_wait(shop: Shop) -> None:
    worker = shop.start("--processes", "2")
    for event in until(lambda: worker.events("process_started"), "the first process"):
        os.kill(event["pid"], signal.SIGTERM)
        os.kill(event["pid"], signal.SIGINT)
    worker.signal()
    assert worker.ended() == 0
    assert [event["exit_code"] for event in worker.events("process_ended")] == [0] * len(
        worker.events("process_started")
    )
    assert worker.errors == ""


def test_an_order_to_stop_is_heard_before_all_processes_were_started(queue: SqlQueue, url: str) -> None:
    started = []

    def report(name: str, **facts: object) -> None:
        if name == "process_started":
            started.append(facts["pid"])
            if len(started) == 1:
                os.kill(os.getpid(), signal.SIGTERM)

    assignment = Assignment(url, queue.database.schema, (("tests.worker.jobs:handle", 1.0),), WorkOptions())
    with Signals() as signals:
        assert Supervisor(assignment, 4, signals=signals, report=report).run() == 0
    assert len(started) == 1


@pytest.mark.parametrize("claimed", [ALL, pytest.param(("--concurrency", "6"), marks=pytest.mark.prove)], ids=str)
def test_a_killed_process_is_replaced_and_its_jobs_come_again_after_the_lease(
    shop: Shop, queue: SqlQueue, spec: QueueSpec[Work], claimed: tuple[str, str]
) -> None:
    enqueue_first_and_others(queue, spec, "wait", others=5, do="wait" if claimed is not ALL else "")
    worker = shop.start(*claimed, "--processes", "2", "--lease", "10min")
    child = begun(shop, worker, 1 if claimed is ALL else 6)
    os.kill(child, signal.SIGKILL)
    assert worker.event("process_died")["reason"] == "killed by SIGKILL"
    worker.event("process_started", times=3)
    assert queue.depth("work").running == 6
    make_due(queue)
    shop.go.touch()
    until(lambda: states(queue) == dict.fromkeys(range(6), "succeeded"), "the end of every job")
    assert worker.stopped() == 0
    assert [line["attempt"] for line in shop.history("begun") if line["n"] == 0] == [1, 1]
    assert shop.numbers("done") == list(range(6))


KINDS = pytest.mark.parametrize(
    ("handler", "concurrency"),
    [
        pytest.param("tests.worker.jobs:handle", ("--concurrency", "3"), id="threads"),
        pytest.param("tests.worker.jobs:handle_async", (), id="async"),
    ],
)


@KINDS
def test_as_many_as_can_begin_are_claimed_and_a_stop_finishes_them(
    shop: Shop, queue: SqlQueue, spec: QueueSpec[Work], handler: str, concurrency: tuple[str, ...]
) -> None:
    queue.enqueue_many(spec, [Work(n=n, note="wait") for n in range(8)])
    worker = shop.start(*concurrency, "--every", "100ms", handler=handler)
    begun(shop, worker, 3)
    until(lambda: worker.events("stats")[-1:] and worker.events("stats")[-1]["in_flight"] == 3, "three jobs in flight")
    assert (queue.depth("work").running, due(queue)) == (3, 5)
    worker.signal()
    worker.event("stopping")
    shop.go.touch()
    assert worker.ended() == 0
    assert shop.numbers("begun") == shop.numbers("done")
    assert len(shop.numbers("done")) == 3
    assert (worker.events("stats")[-1]["succeeded"], worker.events("stats")[-1]["in_flight"]) == (3, 0)
    assert due(queue) == 5


def test_a_thread_that_never_ends_ends_with_its_process(shop: Shop, queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    queue.enqueue_many(spec, [Work(n=0, note="wait"), Work(n=1, note="leave when cancelled")])
    worker = shop.start("--concurrency", "2", "--drain-timeout", "0", "--grace", "1s", "--processes", "1")
    begun(shop, worker, 2)
    assert worker.stopped() == 7
    assert worker.events("abandoned")
    # A handler that was asked to leave says nothing about its job.
    assert due(queue) == 2
    for (job,) in rows(queue, "SELECT id FROM {s}.job"):
        assert worker.errors.count(str(job)) == 1, worker.errors


def test_async_handlers_are_cancelled_and_their_threads_do_not_keep_the_process(
    shop: Shop, queue: SqlQueue, spec: QueueSpec[Work]
) -> None:
    queue.enqueue_many(spec, [Work(n=0, note="wait"), Work(n=1, note="wait in a thread")])
    worker = shop.start("--drain-timeout", "none", "--grace", "1s", handler="tests.worker.jobs:handle_async")
    begun(shop, worker, 2)
    worker.signal()
    worker.event("stopping")
    worker.signal()
    assert worker.ended() == 7
    assert not worker.events("abandoned")
    assert due(queue) == 2
    finish_the_rest(shop, 2)


def test_the_children_of_a_killed_supervisor_stop_in_good_order(
    shop: Shop, queue: SqlQueue, spec: QueueSpec[Work]
) -> None:
    enqueue_first_and_others(queue, spec, "wait")
    worker = shop.start(*ALL, "--processes", "1")
    child = begun(shop, worker)
    worker.signal(signal.SIGKILL)
    until(lambda: due(queue) == 20, "the others to be due")
    shop.go.touch()
    until(lambda: shop.numbers("done") == [0], "the job in hand")
    until(lambda: gone(child), "the end of the process")
    assert states(queue)[0] == "succeeded"


def gone(pid: int) -> bool:
    """Whether a process has ended, also one that nobody has asked after yet."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def test_workers_come_and_go_and_every_job_is_done_once(shop: Shop, queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    (jobs, changes, apart), luck = sized((250, 2, 60), (1_500, 5, 100)), random.Random(7)
    queue.enqueue_many(spec, [Work(n=n, note="pause") for n in range(jobs)])
    alive = [shop.start("--batch", "40", *(["--processes", "2"] if n else [])) for n in range(2)]
    codes = []
    for _ in range(changes):
        target = len(shop.history("done")) + apart
        until(lambda: len(shop.history("done")) >= target or queue.depth("work").live == 0)  # noqa: B023
        leaving = alive.pop(luck.randrange(2))
        leaving.event("started")
        codes.append(leaving.stopped())
        alive.append(shop.start("--batch", "40"))
    until(lambda: queue.depth("work").live == 0, "the end of every job")
    for worker in alive:
        worker.event("started")
    codes += [worker.stopped() for worker in alive]
    assert codes == [0] * (changes + 2)
    assert shop.numbers("begun") == shop.numbers("done") == list(range(jobs))
    assert states(queue) == dict.fromkeys(range(jobs), "succeeded")


@pytest.mark.parametrize(
    "processes",
    [pytest.param((), id="alone"), pytest.param(("--processes", "1"), id="supervised", marks=pytest.mark.prove)],
)
def test_a_database_that_goes_away_is_waited_for(
    spec: QueueSpec[Work], tmp_path: Path, processes: tuple[str, ...]
) -> None:
    with own_server(settings=["fsync=off"]) as server, SqlQueue(server.url) as queue:
        queue.migrate()
        queue.create_queue(spec)
        shop = Shop(queue, server.url, tmp_path)
        try:
            worker = shop.start("--lease", "500ms", *processes)
            queue.enqueue(spec, Work(n=0))
            begun(shop, worker)
            until(lambda: states(queue) == {0: "succeeded"}, "the first job")
            server.stop()
            worker.event("database_away")
            server.start()
            queue.enqueue(spec, Work(n=1))
            until(lambda: states(queue) == {0: "succeeded", 1: "succeeded"}, "the second job")
            assert worker.stopped() == 0, worker.errors
            assert not worker.events("process_died")
        finally:
            shop.end()
