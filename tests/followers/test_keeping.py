"""What maintenance does about followers and groups."""

from datetime import UTC, datetime

import psycopg

from dagster_sqlqueue import Consumer, NewJob, QueueSpec, SqlQueue
from dagster_sqlqueue.db.executors import Transaction
from dagster_sqlqueue.followers import Callback, Followers, GroupEnded, Groups
from tests.followers.support import ended_groups, ended_jobs
from tests.support import Work, claim, rows, value


def test_groups_that_ended_long_ago_go(queue: SqlQueue, spec: QueueSpec[Work], followers: Followers) -> None:
    groups = Groups(queue)
    old, young, still = groups.open(), groups.open(), groups.open()
    for group in (old, young, still):
        followers.enqueue_many(spec, [Work(n=n) for n in range(3)], group=group)
    for group in (old, young):
        groups.close(group)
    Consumer(queue, spec, lambda job: None).drain()
    rows(queue, "UPDATE {s}.job_group SET ended_at = ended_at - interval '29 days 23 hours'")
    queue.maintain()
    assert {group.id for group in groups.groups()} == {old, young, still}
    rows(queue, "UPDATE {s}.job_group SET ended_at = ended_at - interval '2 hours' WHERE id = %s", old)
    rows(queue, "UPDATE {s}.job_group SET created_at = created_at - interval '1 year'")
    assert queue.maintain().expired_removed == 1
    assert {group.id for group in groups.groups()} == {young, still}
    assert value(queue, "SELECT count(*) FROM {s}.follower") == 6


def test_who_was_not_seen_is_notified_later(queue: SqlQueue, spec: QueueSpec[Work], followers: Followers) -> None:
    """A transaction with a stricter isolation ends the job; a follower came after it had begun."""
    followers.enqueue(spec, NewJob(Work(n=1), unique_key="k"), callbacks=Callback("ended", context="first"))
    (job,) = claim(queue)
    with queue.database.connection() as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        with connection.transaction():
            connection.execute("SELECT 1")
            followers.enqueue(spec, NewJob(Work(n=2), unique_key="k"), callbacks=Callback("ended", context="second"))
            queue.complete([job], executor=Transaction(connection, queue.database))
        connection.isolation_level = None
    assert [end.context for end in ended_jobs(queue)] == ["first"]
    assert queue.maintain().expired_removed == 1
    assert sorted(str(end.context) for end in ended_jobs(queue)) == ["first", "second"]
    assert queue.maintain().expired_removed == 0
    assert len(ended_jobs(queue)) == 2


def test_however_many_were_left_out_they_are_notified(
    queue: SqlQueue, spec: QueueSpec[Work], followers: Followers
) -> None:
    """Behind more of them who are still waiting than are looked at in one transaction."""
    later = datetime(2999, 1, 1, tzinfo=UTC)
    followers.enqueue_many(
        spec, [NewJob(Work(n=n), run_at=later) for n in range(1_200)], callbacks=Callback("ended", context="live")
    )
    followers.enqueue_many(
        spec, [Work(n=n) for n in range(2_500)], callbacks=Callback("ended", context="left"), group=Groups(queue).open()
    )
    rows(queue, "UPDATE {s}.job SET followed = false WHERE run_at < %s", later)
    Consumer(queue, spec, lambda job: None, batch_size=500).drain()
    assert ended_jobs(queue) == []
    assert queue.maintain().expired_removed == 5_000
    ends = ended_jobs(queue)
    assert len({end.job_id for end in ends}) == len(ends) == 2_500
    assert {str(end.context) for end in ends} == {"left"}
    assert queue.maintain().expired_removed == 0
    assert value(queue, "SELECT count(*) FROM {s}.follower WHERE state IS NULL") == 1_200
    (group,) = Groups(queue).groups()
    assert group.succeeded == group.members == 2_500


def test_however_many_groups_ended_long_ago_they_go(queue: SqlQueue, followers: Followers) -> None:
    rows(
        queue,
        "INSERT INTO {s}.job_group (id, priority, closed_at, ended_at)"
        " SELECT gen_random_uuid(), 0, now() - n * interval '24 hours', now() - n * interval '24 hours'"
        " FROM generate_series(1, 2540) AS n",
    )
    assert queue.maintain().expired_removed == 2_511
    assert len(Groups(queue).groups()) == 29


def test_a_job_that_was_deleted_by_hand_is_waited_for_no_more(
    queue: SqlQueue, spec: QueueSpec[Work], followers: Followers
) -> None:
    queue.create_queue(QueueSpec("runs", GroupEnded))
    groups = Groups(queue)
    group = groups.open(Callback("runs"))
    lost = followers.enqueue(spec, Work(n=1), group=group, callbacks=Callback("ended"))
    followers.enqueue(spec, Work(n=2), group=group)
    groups.close(group)
    rows(queue, "DELETE FROM {s}.job WHERE id = %s", lost.job_id)
    Consumer(queue, spec, lambda job: None).drain()
    assert ended_groups(queue, "runs") == []
    assert queue.maintain().expired_removed == 2
    assert [(end.members, end.succeeded) for end in ended_groups(queue, "runs")] == [(1, 1)]
    assert ended_jobs(queue) == []


def test_what_is_live_is_left_alone(queue: SqlQueue, spec: QueueSpec[Work], followers: Followers) -> None:
    followers.enqueue_many(spec, [Work(n=n) for n in range(5)], callbacks=Callback("ended"), group=Groups(queue).open())
    assert queue.maintain().expired_removed == 0
    assert value(queue, "SELECT count(*) FROM {s}.follower") == 10
