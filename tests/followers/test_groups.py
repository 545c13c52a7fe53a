"""Groups: filled by several transactions, notified of once, with counts by outcome."""

import threading
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pytest
from uuid_utils.compat import uuid7

from dagster_sqlqueue import Cancel, Consumer, Done, Mode, NewJob, QueueSpec, Reject, SqlQueue
from dagster_sqlqueue.db.executors import Transaction
from dagster_sqlqueue.errors import GroupClosed, InvalidInput, UnknownGroup, UnknownJob, UnknownQueue
from dagster_sqlqueue.followers import Callback, Followers, GroupEnded, Groups, Member
from dagster_sqlqueue.model.job import ArchiveState
from dagster_sqlqueue.queue import Ending
from dagster_sqlqueue.queue.selection import Selection
from tests.followers.support import ended_groups
from tests.gate.patience import PATIENCE
from tests.support import Work, caller, claim, rows, until, value
from tests.support.few import few


@pytest.fixture
def groups(queue: SqlQueue) -> Groups:
    return Groups(queue)


def mixed(job: Any) -> Any:
    """Of seven jobs, two fail and one is cancelled."""
    match job.payload.n % 7:
        case 1 | 2:
            return Reject("no")
        case 3:
            return Cancel("not wanted")
    return Done({"n": job.payload.n})


@pytest.mark.parametrize("mode", few(list(Mode), 1))
def test_the_last_end_notifies_with_the_counts(
    queue: SqlQueue, spec: QueueSpec[Work], followers: Followers, groups: Groups, mode: Mode
) -> None:
    group = groups.open(Callback("ended", context={"run": 7}))
    for begin in (0, 350):
        followers.enqueue_many(spec, [Work(n=begin + n) for n in range(350)], group=group)
    seen: list[Sequence[GroupEnded]] = []

    def handler(job: Any) -> Any:
        seen.append(ended_groups(queue))
        return mixed(job)

    before = groups.group(group)
    assert (before.members, before.pending, before.closed_at, before.ended_at) == (700, 700, None, None)
    groups.close(group)
    Consumer(queue, spec, handler, mode=mode, batch_size=100).drain()
    assert seen == [[]] * 700
    (end,) = ended_groups(queue)
    after = groups.group(group)
    assert end == GroupEnded(
        group_id=group,
        members=700,
        succeeded=400,
        failed=200,
        cancelled=100,
        created_at=after.created_at,
        ended_at=after.ended_at,  # type: ignore[arg-type]
        context={"run": 7},
    )
    assert (after.pending, after.succeeded, after.failed, after.cancelled, after.queue) == (0, 400, 200, 100, "ended")
    assert after.context == {"run": 7}
    assert value(queue, "SELECT count(*) FROM {s}.group_tally") == 0


def test_a_group_whose_jobs_have_all_ended_ends_when_it_is_closed(
    queue: SqlQueue, spec: QueueSpec[Work], followers: Followers, groups: Groups
) -> None:
    group = groups.open(Callback("ended"))
    followers.enqueue_many(spec, [Work(n=0), Work(n=4)], group=group)
    Consumer(queue, spec, mixed).drain()
    assert ended_groups(queue) == []
    assert groups.group(group).pending == 0
    groups.close(group)
    assert [end.succeeded for end in ended_groups(queue)] == [2]
    groups.close(group)
    assert len(ended_groups(queue)) == 1


def test_an_empty_group_ends_when_it_is_closed(queue: SqlQueue, groups: Groups) -> None:
    group = groups.open(Callback("ended"))
    silent = groups.open()
    for one in (group, silent):
        groups.close(one)
        assert groups.group(one).ended_at
    (end,) = ended_groups(queue)
    assert (end.group_id, end.members) == (group, 0)


def test_in_one_transaction(
    queue: SqlQueue, spec: QueueSpec[Work], followers: Followers, groups: Groups, url: str
) -> None:
    """Opened, filled and closed beside the caller's own rows; rolled back means never."""
    for commit in (False, True):
        with caller(url) as connection:
            group = groups.open(Callback("ended"), connection=connection)
            followers.enqueue_many(spec, [Work(n=n) for n in range(3)], group=group, connection=connection)
            one = queue.enqueue(spec, Work(n=4), connection=connection)
            assert one
            groups.add(group, [one], connection=connection)
            groups.close(group, connection=connection)
            if commit:
                connection.commit()
            else:
                connection.rollback()
    assert [found.members for found in groups.groups()] == [4]
    Consumer(queue, spec, lambda job: None).drain()
    assert [end.succeeded for end in ended_groups(queue)] == [4]


def test_jobs_that_are_there_are_added(
    queue: SqlQueue, spec: QueueSpec[Work], followers: Followers, groups: Groups
) -> None:
    live = queue.enqueue(spec, NewJob(Work(n=4), unique_key="k"))
    ended = queue.enqueue(spec, Work(n=1))
    assert live
    assert ended
    queue.cancel("work", Selection(ids=[ended]))
    group = groups.open(Callback("ended"))
    for _ in range(2):
        groups.add(group, [live, ended, live])
    followers.enqueue(spec, NewJob(Work(n=9), unique_key="k"), group=group)
    found = groups.group(group)
    assert (found.members, found.pending, found.cancelled) == (2, 1, 1)
    assert groups.members(group) == [Member(live, None), Member(ended, "cancelled")]
    assert groups.members(group, states=["cancelled"]) == [Member(ended, "cancelled")]
    assert groups.members(group, after=live) == [Member(ended, "cancelled")]
    groups.add(group, [])
    groups.close(group)
    Consumer(queue, spec, lambda job: None).drain()
    assert [(end.members, end.succeeded, end.cancelled) for end in ended_groups(queue)] == [(2, 1, 1)]


def test_a_job_of_several_groups(queue: SqlQueue, spec: QueueSpec[Work], groups: Groups) -> None:
    job_id = queue.enqueue(spec, Work(n=1))
    assert job_id
    many = [groups.open(Callback("ended")) for _ in range(5)]
    for group in reversed(many):
        groups.add(group, [job_id])
        groups.close(group)
    Consumer(queue, spec, lambda job: None).drain()
    assert {end.group_id for end in ended_groups(queue)} == set(many)


def test_what_was_brought_back_counts_as_it_ended_first(
    queue: SqlQueue, spec: QueueSpec[Work], followers: Followers, groups: Groups
) -> None:
    group = groups.open(Callback("ended"))
    sent = followers.enqueue(spec, Work(n=1), group=group)
    followers.enqueue(spec, Work(n=0), group=group)
    groups.close(group)
    assert sent.job_id
    (job,) = [job for job in claim(queue) if job.id == sent.job_id]
    queue.finish([Ending(job, ArchiveState.FAILED)])
    queue.redrive("work", Selection(ids=[job.id]))
    groups.add(group, [job.id])
    rows(queue, "UPDATE {s}.job SET available_at = now()")
    assert Consumer(queue, spec, lambda job: None).drain().succeeded == 2
    assert [(end.succeeded, end.failed) for end in ended_groups(queue)] == [(1, 1)]


def test_a_closed_group_takes_nothing_new_and_what_is_sent_again(
    queue: SqlQueue, spec: QueueSpec[Work], followers: Followers, groups: Groups
) -> None:
    own = uuid7()
    group = uuid7()
    for round_ in range(3):
        assert groups.open(Callback("ended"), id=group) == group
        sent = followers.enqueue(spec, NewJob(Work(n=1), id=own), group=group)
        assert sent.inserted is (round_ == 0)
        groups.add(group, [own])
        groups.close(group)
        if round_:
            Consumer(queue, spec, lambda job: None).drain()
    assert len(ended_groups(queue)) == 1
    other = queue.enqueue(spec, Work(n=2))
    assert other
    with pytest.raises(GroupClosed, match=f"group {group} is closed, and 1 of the jobs are none of it"):
        followers.enqueue(spec, Work(n=2), group=group)
    with pytest.raises(GroupClosed):
        groups.add(group, [own, other])
    assert value(queue, "SELECT count(*) FROM {s}.job WHERE queue = 'work'") == 1
    assert groups.group(group).members == 1


def test_closing_waits_for_who_is_adding(
    queue: SqlQueue, spec: QueueSpec[Work], followers: Followers, groups: Groups, url: str
) -> None:
    """One that counts in the group meanwhile does not."""
    group = groups.open(Callback("ended"))
    followers.enqueue(spec, Work(n=1), group=group)
    with caller(url) as connection:
        followers.enqueue(spec, Work(n=2), group=group, connection=connection)
        closing = threading.Thread(target=groups.close, args=[group])
        closing.start()
        waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype IN ('transactionid', 'tuple')"
        until(lambda: value(queue, waiting), "the wait of the one who closes")
        assert Consumer(queue, spec, lambda job: None).drain().succeeded == 1
        assert groups.group(group).succeeded == 1
        connection.commit()
        closing.join(PATIENCE)
    assert not closing.is_alive()
    assert ended_groups(queue) == []
    assert groups.group(group).pending == 1
    Consumer(queue, spec, lambda job: None).drain()
    assert [end.succeeded for end in ended_groups(queue)] == [2]


def test_an_end_that_is_rolled_back_counts_nothing(
    queue: SqlQueue, spec: QueueSpec[Work], followers: Followers, groups: Groups
) -> None:
    group = groups.open(Callback("ended"))
    followers.enqueue_many(spec, [Work(n=n) for n in range(4)], group=group)
    groups.close(group)
    jobs = claim(queue)
    with queue.database.connection() as connection, connection.transaction():
        joined = Transaction(connection, queue.database)
        queue.complete(jobs[:1], executor=joined)
        with connection.transaction(force_rollback=True):
            queue.complete(jobs[1:2], executor=joined)
        queue.complete(jobs[2:3], executor=joined)
    found = groups.group(group)
    assert (found.succeeded, found.pending) == (2, 2)
    queue.complete([jobs[1], jobs[3]])
    assert [end.succeeded for end in ended_groups(queue)] == [4]


def test_what_is_refused(queue: SqlQueue, spec: QueueSpec[Work], followers: Followers, groups: Groups) -> None:
    unknown = uuid7()
    with pytest.raises(UnknownQueue, match="no queue 'nosuch'"):
        groups.open(Callback("nosuch"))
    with pytest.raises(InvalidInput, match="callback is a str"):
        groups.open("ended")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="id is 'x'"):
        groups.open(id="x")  # type: ignore[arg-type]
    for call in (
        lambda: groups.close(unknown),
        lambda: groups.group(unknown),
        lambda: groups.members(unknown),
        lambda: groups.add(unknown, []),
        lambda: followers.enqueue(spec, Work(n=1), group=unknown),
        lambda: followers.enqueue_many(spec, [Work(n=1)], group=unknown),
    ):
        with pytest.raises(UnknownGroup, match=f"there is no group {unknown}"):
            call()
    group = groups.open()
    with pytest.raises(InvalidInput, match="'x' is no id"):
        groups.add(group, ["x"])  # type: ignore[list-item]
    with pytest.raises(InvalidInput, match="is not several ids"):
        groups.add(group, unknown)  # type: ignore[arg-type]
    bad: Any
    for bad in ("x", None, 5):
        for call in (groups.close, groups.group, groups.members, lambda bad: groups.members(group, after=bad)):
            with pytest.raises(InvalidInput, match=f"{bad!r} is no id"):
                call(bad)
        with pytest.raises(InvalidInput, match=f"{bad!r} is no job id"):
            followers.of(bad)
    assert groups.group(str(group)).id == group  # type: ignore[arg-type]
    with pytest.raises(UnknownJob):
        groups.add(group, [unknown])
    for limit in (0, 10_001, True):
        with pytest.raises(InvalidInput, match="limit is"):
            groups.groups(limit)
        with pytest.raises(InvalidInput, match="limit is"):
            groups.members(group, limit=limit)
    with pytest.raises(InvalidInput, match="states holds 'queued'"):
        groups.members(group, states=["queued"])
    assert groups.group(group).members == 0
    assert value(queue, "SELECT count(*) FROM {s}.job") == 0


def test_a_member_that_is_not_there_is_none(groups: Groups) -> None:
    assert groups.members(groups.open()) == []
    assert isinstance(groups.open(), UUID)
