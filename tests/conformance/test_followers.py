"""Callbacks when jobs have ended, on every server: of jobs, merged jobs, groups."""

from collections import Counter

from uuid_utils.compat import uuid7

from dagster_sqlqueue import Cancel, Consumer, Job, Mode, NewJob, QueueSpec, Reject, SqlQueue
from dagster_sqlqueue.followers import Callback, Followers, GroupEnded, Groups, JobEnded, SubmittedMany
from dagster_sqlqueue.model.ids import bucket_hash
from tests.support import Work, rows


def test_callbacks_merges_and_groups(queues: SqlQueue) -> None:
    spec = QueueSpec("followed", Work, bucket_count=4)
    turns = QueueSpec("ended", JobEnded, bucket_count=4, ordered=True)
    runs = QueueSpec("ended_runs", GroupEnded)
    for made in (spec, turns, runs):
        queues.create_queue(made)
    followers, groups = Followers(queues), Groups(queues)
    group, empty = groups.open(Callback(runs, context="g")), groups.open(Callback(runs, context="e"))
    callback = Callback(turns, context={"n": [1]}, ordering_key="k")
    jobs = [NewJob(Work(n=n), unique_key=f"k{n % 50}", id=uuid7()) for n in range(150)]
    assert followers.enqueue_many(spec, jobs, callbacks=callback, group=group) == SubmittedMany(50, 100, 0)
    assert followers.enqueue_many(spec, jobs, callbacks=callback, group=group) == SubmittedMany(0, 100, 50)
    groups.close(empty)
    groups.close(group)

    def handler(job: Job[Work]) -> Reject | Cancel | None:
        leased.stop()
        return {1: Reject("no"), 2: Cancel("no")}.get(job.payload.n % 5)

    leased = Consumer(queues, spec, handler, batch_size=20)
    leased.drain()
    assert 0 < queues.depth("followed").live < 50
    Consumer(queues, spec, handler, mode=Mode.TRANSACTIONAL, batch_size=20).drain()
    assert queues.depth("followed").live == 0
    columns = "id, bucket, order_no, CAST(payload AS text)"
    callbacks = rows(queues, f"SELECT {columns} FROM {{s}}.job WHERE queue = 'ended' ORDER BY order_no")
    ends = [JobEnded.model_validate_json(row[3]) for row in callbacks]
    assert Counter(str(end.state) for end in ends) == {"succeeded": 90, "failed": 30, "cancelled": 30}
    assert {end.submitted_id for end in ends} == {job.id for job in jobs}
    assert {(row[0].version, row[1]) for row in callbacks} == {(7, bucket_hash(callbacks[0][0], "k") % 4)}
    assert [row[2] for row in callbacks] == sorted({row[2] for row in callbacks})
    assert followers.enqueue_many(spec, jobs, callbacks=callback, group=group) == SubmittedMany(0, 100, 50)
    assert len(rows(queues, "SELECT id FROM {s}.job WHERE queue = 'ended'")) == 150

    found = [GroupEnded.model_validate_json(job.payload) for job in queues.peek("ended_runs")]
    assert {(one.context, one.members, one.succeeded, one.failed, one.cancelled) for one in found} == {
        ("g", 50, 30, 10, 10),
        ("e", 0, 0, 0, 0),
    }
    queues.maintain()
    assert groups.group(group).pending == 0
