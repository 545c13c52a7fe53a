"""Queues for answers: there when they are wanted, gone when they are not, and never under somebody's hands."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest

from dagster_sqlqueue import Consumer, Done, Job, Mode, NewJob, QueueSpec, SqlQueue
from dagster_sqlqueue.consumer.waiter import Waiter
from dagster_sqlqueue.errors import InvalidInput, InvalidPayload, UnknownQueue, WaitTimedOut
from dagster_sqlqueue.followers import Callback, Followers, GroupEnded, Groups, JobEnded
from dagster_sqlqueue.people import HumanWork
from dagster_sqlqueue.queue.selection import Selection
from dagster_sqlqueue.results import ReplyQueue, Results
from dagster_sqlqueue.topics import Topics
from tests.cli.support import PROJECT
from tests.gate.patience import PATIENCE
from tests.support import Work, caller, claim, make_due, rows, until, value

WHAT_REFERS = (
    "SELECT conrelid::regclass::text FROM pg_constraint"
    " WHERE contype = 'f' AND confrelid = '{s}.queue'::regclass ORDER BY 1"
)


def there(queue: SqlQueue) -> set[str]:
    return {settings.name for settings in queue.queues()} - {"work", "ended"}


def expire(queue: SqlQueue) -> None:
    rows(queue, "UPDATE {s}.reply_queue SET expires_at = now() - interval '1 second'")
    rows(queue, "UPDATE {s}.waiter SET expires_at = now() - interval '1 second'")


@pytest.mark.parametrize("timeout", [-1, float("nan"), float("inf"), "5", True])
def test_a_timeout_that_is_none_is_refused(queue: SqlQueue, results: Results, timeout: Any) -> None:
    with results.reply_queue(Work) as reply:
        queue.enqueue(reply.spec, Work(n=7))
        with pytest.raises(InvalidInput, match=f"timeout_seconds is {timeout!r}; give seconds"):
            reply.receive(timeout_seconds=timeout)
        assert reply.receive(timeout_seconds=0) == Work(n=7)


def test_an_answer_is_received(queue: SqlQueue, results: Results) -> None:
    with results.reply_queue(Work) as reply:
        assert there(queue) == {reply.name}
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(reply.receive, timeout_seconds=PATIENCE)
            until(lambda: value(queue, "SELECT count(*) FROM {s}.waiter") == 1)
            queue.enqueue(reply.spec, Work(n=7))
            assert answer.result(PATIENCE) == Work(n=7)
        queue.enqueue_many(reply.spec, [Work(n=n) for n in range(3)])
        assert [reply.receive(timeout_seconds=0).n for _ in range(3)] == [0, 1, 2]
        with pytest.raises(WaitTimedOut, match=f"no answer came on queue '{reply.name}' within 0 seconds"):
            reply.receive(timeout_seconds=0)
    assert there(queue) == set()
    assert value(queue, "SELECT count(*) FROM {s}.reply_queue") == 0
    # What was answered stays in the archive.
    assert value(queue, "SELECT count(*) FROM {s}.job_archive WHERE queue = %s", reply.name) == 4


def test_as_the_queue_of_a_callback(queue: SqlQueue, spec: QueueSpec[Work], results: Results) -> None:
    id = queue.enqueue(spec, Work(n=20))
    assert id
    with results.reply_queue(JobEnded) as reply:
        Followers(queue).follow(id, Callback(reply.name, context="mine"))
        Consumer(queue, spec, lambda job: Done(job.payload.n + 1)).drain()
        ended = reply.receive(timeout_seconds=PATIENCE)
    assert (ended.job_id, ended.state, ended.result, ended.context) == (id, "succeeded", 21, "mine")


def test_a_callback_to_one_that_has_gone_hurts_nobody(queue: SqlQueue, spec: QueueSpec[Work], results: Results) -> None:
    id = queue.enqueue(spec, Work(n=1))
    assert id
    with results.reply_queue() as reply:
        Followers(queue).follow(id, Callback(reply.name))
    assert value(queue, "SELECT count(*) FROM {s}.follower") == 0
    assert Consumer(queue, spec, lambda job: Done()).drain().succeeded == 1


def test_for_the_end_of_a_group_and_while_that_is_notified(
    url: str, queue: SqlQueue, spec: QueueSpec[Work], results: Results
) -> None:
    groups = Groups(queue)
    with results.reply_queue(GroupEnded) as reply:
        group = groups.open(Callback(reply.name))
        groups.add(group, filter(None, [queue.enqueue(spec, Work(n=n)) for n in range(3)]))
        groups.close(group)
        assert Consumer(queue, spec, lambda job: Done()).drain().succeeded == 3
        assert reply.receive(timeout_seconds=PATIENCE).succeeded == 3
    lost = results.reply_queue(GroupEnded)
    group = groups.open(Callback(lost.name))
    with caller(url) as connection:
        # As a consumer that ends its last job, and is about to notify of it.
        connection.execute(f"SELECT FROM {queue.database.schema}.job_group WHERE id = %s FOR UPDATE", [group])  # type: ignore[arg-type]
        assert lost.close() is False
    until(lost.close)
    assert groups.group(group).queue is None
    groups.close(group)


def test_an_ordinary_consumer_works_it_off(queue: SqlQueue, results: Results) -> None:
    with results.reply_queue(Work) as reply:
        queue.enqueue_many(reply.spec, [Work(n=n) for n in range(5)])
        seen: list[int] = []

        def handler(job: Job[Work]) -> None:
            seen.append(job.payload.n)

        assert Consumer(queue, reply.spec, handler).drain().succeeded == 5
        assert sorted(seen) == [0, 1, 2, 3, 4]


def test_an_answer_that_does_not_fit(queue: SqlQueue, results: Results) -> None:
    with results.reply_queue(JobEnded) as reply:
        queue.enqueue(QueueSpec(reply.name, Work), Work(n=1))
        with pytest.raises(InvalidPayload, match="job_id"):
            reply.receive(timeout_seconds=0)
        (letter,) = queue.dead_letters(reply.name)
        assert "job_id" in str(letter.error)
        with pytest.raises(WaitTimedOut):
            reply.receive(timeout_seconds=0)


@pytest.mark.parametrize("ttl", [0, 0.5, -1, float("nan"), float("inf"), "60", None, True])
def test_a_time_that_is_none(queue: SqlQueue, results: Results, ttl: object) -> None:
    with pytest.raises(InvalidInput, match="ttl_seconds"):
        results.reply_queue(ttl_seconds=ttl)  # type: ignore[arg-type]
    assert there(queue) == set()


def test_maintenance_removes_what_expired_with_all_that_is_in_it(
    queue: SqlQueue, spec: QueueSpec[Work], results: Results
) -> None:
    """A process that died left it behind, with jobs in every state and a row wherever a queue can have one."""
    reply, kept = results.reply_queue(Work, ttl_seconds=60), results.reply_queue()
    queue.enqueue_many(reply.spec, [Work(n=n) for n in range(5)])
    ended, held, running = queue.claim(reply.name, limit=3, worker="w")
    queue.complete([ended])
    queue.hold([(held, "look")])
    (task,) = [job.id for job in queue.jobs(reply.name) if job.state == "queued"][:1]
    assert HumanWork(queue).hand_over(reply.name, Selection(ids=[task]), by="boss", reason="x").changed == [task]
    queue.leases.note_progress(running, 50)
    with Waiter(queue.catalog, reply.name, "somebody") as waiter:
        Followers(queue).follow(held.id, Callback(reply.name))
        assert waiter.listening
        for table, columns, values in [
            ("rate_start", "queue, started_at, starts", "%s, now(), 1"),
            ("stale_write", "queue, day, writes", "%s, now(), 1"),
            ("worker", "queue, name, wanted, expires_at", "%s, 'w', 1, now()"),
            ("assignment", "queue, worker, job_id, lease_no, alone", "%s, 'w', gen_random_uuid(), 1, false"),
            ("consumer_slot", "queue, slot, token, buckets, expires_at", "%s, 1, gen_random_uuid(), '{{0}}', now()"),
            ("limit_reservation", "id, queue, jobs, expires_at", "gen_random_uuid(), %s, 1, now()"),
            ("sensitive_field", "queue, name", "%s, 'token'"),
            ("queue_declaration", "queue, settings, worker, noted_at", "%s, '{{}}', 'w', now()"),
        ]:
            rows(queue, f"INSERT INTO {{s}}.{table} ({columns}) VALUES ({values})", reply.name)
        make_due(queue)
        expire(queue)
        rows(queue, "UPDATE {s}.reply_queue SET expires_at = now() + interval '1 hour' WHERE queue = %s", kept.name)
        assert queue.maintain().queues_removed == (reply.name,)
    assert there(queue) == {kept.name}
    assert value(queue, "SELECT count(*) FROM {s}.job") == 0
    for table in ("follower", "human_task", "job_event", "job_progress", "assignment"):
        assert rows(queue, f"SELECT FROM {{s}}.{table}") == []
    assert queue.maintain().queues_removed == ()
    with pytest.raises(UnknownQueue, match="was removed"):
        reply.renew()
    assert reply.close() is False
    assert kept.close() is True


def test_an_asker_that_is_killed_leaves_no_queue(url: str, queue: SqlQueue) -> None:
    command = [sys.executable, "-m", "tests.results.worker", url, queue.database.schema, "replying"]
    environment = {**os.environ, "PYTHONPATH": str(PROJECT)}
    with subprocess.Popen(command, cwd=PROJECT, env=environment, stdout=subprocess.PIPE, text=True) as asker:
        assert asker.stdout
        name = json.loads(asker.stdout.readline())["queue"]
        until(lambda: value(queue, "SELECT count(*) FROM {s}.waiter WHERE queue = %s", name) == 1)
        # It waits for longer than its queue is to be there unused, and so uses it.
        until(lambda: value(queue, "SELECT expires_at - interval '1.5 seconds' > %s FROM {s}.reply_queue", made(queue)))
        assert queue.maintain().queues_removed == ()
        asker.kill()
    expire(queue)
    until(lambda: queue.maintain().queues_removed == (name,))
    assert there(queue) == set()


def made(queue: SqlQueue) -> object:
    return value(queue, "SELECT created_at FROM {s}.queue WHERE name LIKE 'reply%%'")


def test_every_table_that_refers_to_queues_is_known(queue: SqlQueue) -> None:
    """A verb that adds one decides what becomes of its rows when a queue goes."""
    schema = queue.database.schema
    known = {
        *("automation_rule", "batch", "bucket", "consumer_slot", "follower", "human_task", "job_event"),
        *("job_group", "limit_reservation", "queue_declaration", "queue_priority", "rate_start", "schedule"),
        *("stale_write", "subscription", "waiter", "worker"),
    }
    assert {row[0].removeprefix(f"{schema}.") for row in rows(queue, WHAT_REFERS)} == known


USES: dict[str, Callable[[SqlQueue, ReplyQueue[Work]], Any]] = {
    "a live lease": lambda queue, reply: (
        queue.enqueue(reply.spec, Work(n=1)),
        queue.claim(reply.name, limit=1, worker="w"),
    ),
    "somebody who waits": lambda queue, reply: queue.database.run(
        "waiter_register", {"queue": reply.name, "worker": "w", "seconds": 60.0}
    ),
    "a subscription": lambda queue, reply: Topics(queue).subscribe("topic", "name", reply.name),
    "a rule": lambda queue, reply: HumanWork(queue).set_rule(reply.name, automatic_percent=50),
}


@pytest.mark.parametrize("use", list(USES))
def test_one_that_is_used_lives_on(queue: SqlQueue, results: Results, use: str) -> None:
    reply = results.reply_queue(Work, ttl_seconds=100_000)
    expire(queue)
    USES[use](queue, reply)
    assert queue.maintain().queues_removed == ()
    assert there(queue) == {reply.name}
    left = value(queue, "SELECT expires_at - now() FROM {s}.reply_queue")
    assert timedelta(seconds=90_000) < left <= timedelta(seconds=100_000)


def test_receiving_renews_it(queue: SqlQueue, results: Results) -> None:
    with results.reply_queue(Work, ttl_seconds=1) as reply:
        for n in range(3):
            expire(queue)
            until(lambda: _renewed(queue, reply))
            queue.enqueue(reply.spec, Work(n=n))
            assert reply.receive(timeout_seconds=PATIENCE) == Work(n=n)


def _renewed(queue: SqlQueue, reply: ReplyQueue[Work]) -> bool:
    with pytest.raises(WaitTimedOut):
        reply.receive(timeout_seconds=0)
    return bool(value(queue, "SELECT expires_at > now() FROM {s}.reply_queue"))


def test_a_transaction_that_enqueues_keeps_it(url: str, queue: SqlQueue, results: Results) -> None:
    reply = results.reply_queue(Work)
    with caller(url) as connection:
        queue.enqueue(reply.spec, Work(n=1), connection=connection)
        expire(queue)
        assert queue.maintain().queues_removed == ()
        assert reply.close() is False
        connection.commit()
    assert reply.receive(timeout_seconds=0) == Work(n=1)
    assert reply.close() is True


def test_a_job_that_is_worked_on_in_a_transaction_keeps_it(queue: SqlQueue, results: Results) -> None:
    reply = results.reply_queue(Work)
    queue.enqueue(reply.spec, Work(n=1))
    found: list[tuple[str, ...]] = []

    def handler(job: Job[Work]) -> None:
        expire(queue)
        found.append(queue.maintain().queues_removed)

    assert Consumer(queue, reply.spec, handler, mode=Mode.TRANSACTIONAL).drain().succeeded == 1
    assert found == [()]
    expire(queue)
    assert queue.maintain().queues_removed == (reply.name,)


def test_whoever_enqueues_while_it_goes_is_refused(url: str, queue: SqlQueue, results: Results) -> None:
    reply = results.reply_queue(Work)
    with caller(url) as connection, ThreadPoolExecutor(2) as pool:
        # The removal as maintenance does it, not committed yet.
        text = f"SELECT {queue.database.schema}.remove_reply_queue(%s, false)"
        assert connection.execute(text, [reply.name]).fetchone() == (True,)
        one = pool.submit(queue.enqueue, reply.spec, Work(n=1))
        many = pool.submit(queue.enqueue_many, reply.spec, [Work(n=1)])
        waiting = (
            f"SELECT count(*) FROM pg_stat_activity WHERE {connection.info.backend_pid} = ANY (pg_blocking_pids(pid))"
        )
        until(lambda: value(queue, waiting) == 2)
        connection.commit()
        for refused, why in ((one, "was removed while"), (many, "there is no queue")):
            with pytest.raises(UnknownQueue, match=f"{reply.name}.*{why}|{why}.*{reply.name}"):
                refused.result(PATIENCE)
    assert value(queue, "SELECT count(*) FROM {s}.job") == 0


def test_a_consumer_that_comes_too_late(queue: SqlQueue, results: Results) -> None:
    reply = results.reply_queue(Work)
    queue.enqueue(reply.spec, Work(n=1))
    jobs = queue.claim(reply.name, limit=1, worker="w")
    assert reply.close() is True
    assert queue.finish([]) == set()
    assert queue.release(jobs) == set()
    with pytest.raises(UnknownQueue):
        queue.claim(reply.name, limit=1, worker="w")


def test_one_with_very_many_jobs_goes_in_steps(queue: SqlQueue, results: Results) -> None:
    reply = results.reply_queue(Work)
    queue.enqueue_many(reply.spec, (Work(n=n) for n in range(20_500)))
    remove = {"queue": reply.name, "expired": False}
    steps = [queue.database.run("reply_queue_remove", remove)[0][0] for _ in range(3)]
    assert steps == [None, None, True]
    assert there(queue) == set()


def test_one_that_was_never_made(queue: SqlQueue) -> None:
    """Its asker died between saying that it will be, and making it."""
    queue.database.run("reply_queue_put", {"queue": "reply_x", "seconds": 60.0})
    expire(queue)
    assert queue.maintain().queues_removed == ("reply_x",)
    assert value(queue, "SELECT count(*) FROM {s}.reply_queue") == 0


def test_no_other_queue_is_removed(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    queue.enqueue(spec, NewJob(Work(n=1)))
    for expired in (True, False):
        assert queue.database.run("reply_queue_remove", {"queue": "work", "expired": expired})[0][0] is False
    assert claim(queue)


def test_made_and_removed_by_many_at_once(queue: SqlQueue, spec: QueueSpec[Work], results: Results) -> None:
    stop = threading.Event()

    def maintain() -> None:
        while not stop.is_set():
            queue.maintain()

    def ask(n: int) -> int:
        with results.reply_queue(Work) as reply:
            queue.enqueue(reply.spec, Work(n=n))
            return reply.receive(timeout_seconds=PATIENCE).n

    with ThreadPoolExecutor(1) as keeper, ThreadPoolExecutor(4) as pool:
        kept = keeper.submit(maintain)
        try:
            assert list(pool.map(ask, range(40))) == list(range(40))
        finally:
            stop.set()
        kept.result(PATIENCE)
    assert there(queue) == set()


def test_metrics_know_no_reply_queues(queue: SqlQueue, results: Results) -> None:
    with results.reply_queue() as reply:
        assert [row[0] for row in queue.database.run("queue_stats_all", {})] == ["work"]
        assert queue.stats(reply.name).ready == 0
