"""Progress, results and waits on every server: under the fence, notified of the end, and nothing left behind."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from dagster_sqlqueue import Consumer, Done, Job, NewJob, QueueSpec, SqlQueue
from dagster_sqlqueue.errors import LeaseLost, WaitTimedOut
from dagster_sqlqueue.results import Results
from tests.gate.patience import PATIENCE
from tests.support import Work, rows, until, value


def test_from_the_first_word_to_the_end(queues: SqlQueue) -> None:
    spec = QueueSpec("results_work", Work, bucket_count=2)
    queues.create_queue(spec)
    ids = [queues.enqueue(spec, NewJob(Work(n=n))) for n in range(3)]
    seen = []
    with Results(queues) as results:

        def handler(job: Job[Work]) -> Done:
            job.progress(50, "half")
            seen.append(results.outcome(job.id).progress)
            return Done({"n": job.payload.n})

        with pytest.raises(WaitTimedOut, match="3 of 3"):
            results.wait_many(filter(None, ids), timeout_seconds=0.05)
        with ThreadPoolExecutor(1) as pool:
            wait = pool.submit(results.wait_many, filter(None, ids), timeout_seconds=PATIENCE)
            until(lambda: value(queues, "SELECT count(*) FROM {s}.follower WHERE notify") == 3)
            until(lambda: results._end_listener.listening)
            assert Consumer(queues, spec, handler).drain().succeeded == 3
            assert [outcome.result for outcome in wait.result(PATIENCE).values()] == [{"n": n} for n in range(3)]
    assert [(progress.percent, progress.message) for progress in seen if progress] == [(50.0, "half")] * 3
    assert rows(queues, "SELECT FROM {s}.job_progress") == []
    assert rows(queues, "SELECT FROM {s}.follower WHERE notify") == []


def test_a_word_that_came_too_late(queues: SqlQueue) -> None:
    spec = QueueSpec("results_late", Work, bucket_count=1)
    queues.create_queue(spec)
    queues.enqueue(spec, Work(n=1))
    (job,) = queues.claim(spec.name, limit=1, worker="w")
    queues.complete([job])
    with pytest.raises(LeaseLost):
        queues.leases.note_progress(job, 50)


def test_a_reply_queue(queues: SqlQueue) -> None:
    with Results(queues) as results, results.reply_queue(Work) as reply:
        queues.enqueue(reply.spec, Work(n=7))
        assert reply.receive(timeout_seconds=PATIENCE) == Work(n=7)
        rows(queues, "UPDATE {s}.reply_queue SET expires_at = now() - interval '1 second'")
        rows(queues, "UPDATE {s}.waiter SET expires_at = now() - interval '1 second'")
        assert queues.maintain().queues_removed == (reply.name,)
