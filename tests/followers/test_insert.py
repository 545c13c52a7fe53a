"""Enqueueing what is followed: merged by its key, sent again, refused; and following what is there."""

import asyncio
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import psycopg
import pytest
from uuid_utils.compat import uuid7

from dagster_sqlqueue import Consumer, NewJob, QueueSpec, SqlQueue
from dagster_sqlqueue.errors import InvalidInput, InvalidPayload, UnknownJob, UnknownQueue
from dagster_sqlqueue.followers import Callback, Followers, Groups, JobEnded, Submitted, SubmittedMany
from dagster_sqlqueue.queue.selection import Selection
from tests.followers.support import ended_jobs
from tests.gate.patience import PATIENCE
from tests.support import Work, claim, rows, value


def keyed(n: int, key: str = "k", id: UUID | None = None) -> NewJob[Work]:
    return NewJob(Work(n=n), unique_key=key, id=id)


def mine(who: str) -> Callback:
    return Callback("ended", context=who)


def count(queue: SqlQueue, name: str = "work") -> int:
    return int(value(queue, "SELECT count(*) FROM {s}.job WHERE queue = %s", name))


def work_off(queue: SqlQueue, spec: QueueSpec[Work]) -> int:
    return Consumer(queue, spec, lambda job: None).drain().succeeded


def test_the_second_joins_the_first(queue: SqlQueue, spec: QueueSpec[Work], followers: Followers) -> None:
    first = followers.enqueue(spec, keyed(1), callbacks=mine("ada"))
    second = followers.enqueue(spec, keyed(2), callbacks=mine("bob"))
    third = followers.enqueue(spec, keyed(3))
    assert (first.inserted, first.merged, first.job_id) == (True, False, first.id)
    assert second == Submitted(second.id, first.id, False)
    assert second.merged
    assert third.job_id == first.id
    assert first.job_id
    assert len(followers.of(first.job_id)) == 2
    assert work_off(queue, spec) == 1
    assert sorted((end.context, end.job_id) for end in ended_jobs(queue)) == [("ada", first.id), ("bob", first.id)]


def test_the_same_callback_of_two_submitters_is_two(
    queue: SqlQueue, spec: QueueSpec[Work], followers: Followers
) -> None:
    for n in range(2):
        followers.enqueue(spec, keyed(n), callbacks=Callback("ended"))
    work_off(queue, spec)
    assert len(ended_jobs(queue)) == 2


def test_a_running_job_is_joined_and_its_lease_is_not_disturbed(
    queue: SqlQueue, spec: QueueSpec[Work], followers: Followers
) -> None:
    queue.enqueue(spec, keyed(1))
    (job,) = claim(queue)
    before = rows(queue, "SELECT lease_no, available_at, attempt, state FROM {s}.job")
    second = followers.enqueue(spec, keyed(2), callbacks=mine("bob"))
    assert second.job_id == job.id
    assert rows(queue, "SELECT lease_no, available_at, attempt, state FROM {s}.job") == before
    assert queue.heartbeat([job], lease_seconds=300).held == {job.id}
    queue.complete([job])
    assert [end.context for end in ended_jobs(queue)] == ["bob"]


def test_a_heartbeat_does_not_wait_for_who_joins_a_followed_job(
    queue: SqlQueue, spec: QueueSpec[Work], followers: Followers
) -> None:
    followers.enqueue(spec, keyed(1), callbacks=mine("ada"))
    (job,) = claim(queue)
    with queue.database.transaction() as transaction:
        followers.enqueue(spec, keyed(2), callbacks=mine("bob"), connection=transaction.connection)
        with queue.database.connection() as other, other.transaction():
            other.execute(f"SET LOCAL lock_timeout = '{PATIENCE}s'".encode())
            parameters = {"ids": [job.id], "lease_nos": [job.lease_no], "lease_seconds": 300.0}
            from dagster_sqlqueue.db.executors import Transaction

            assert len(Transaction(other, queue.database).run("heartbeat", parameters)) == 1
    queue.complete([job])
    assert len(ended_jobs(queue)) == 2


def test_after_the_end_the_key_is_free(queue: SqlQueue, spec: QueueSpec[Work], followers: Followers) -> None:
    first = followers.enqueue(spec, keyed(1), callbacks=mine("ada"))
    work_off(queue, spec)
    second = followers.enqueue(spec, keyed(1), callbacks=mine("bob"))
    assert second.inserted
    work_off(queue, spec)
    assert [(end.context, end.job_id) for end in ended_jobs(queue)] == [("ada", first.id), ("bob", second.id)]


def test_ignore_leaves_out_and_notifies_nobody(queue: SqlQueue, spec: QueueSpec[Work], followers: Followers) -> None:
    followers.enqueue(spec, keyed(1), callbacks=mine("ada"))
    left = followers.enqueue(spec, keyed(2), callbacks=mine("bob"), on_conflict="ignore")
    assert (left.job_id, left.inserted, left.merged) == (None, False, False)
    work_off(queue, spec)
    assert [end.context for end in ended_jobs(queue)] == ["ada"]


def test_many_are_merged_with_each_other_and_with_what_is_there(
    queue: SqlQueue, spec: QueueSpec[Work], followers: Followers
) -> None:
    followers.enqueue(spec, keyed(0, "k0"), callbacks=mine("first"))
    jobs = [*(keyed(n, f"k{n % 3}") for n in range(9)), *(Work(n=n) for n in range(9, 12))]
    done = followers.enqueue_many(spec, jobs, callbacks=mine("many"))
    assert done == SubmittedMany(inserted=5, merged=7, duplicates=0)
    assert work_off(queue, spec) == 6
    contexts = [end.context for end in ended_jobs(queue)]
    assert (contexts.count("first"), contexts.count("many")) == (1, 12)


@pytest.mark.parametrize("ended", [False, True])
@pytest.mark.parametrize("taken", [False, True])
def test_a_merged_job_that_is_sent_again_lands_once(
    queue: SqlQueue, spec: QueueSpec[Work], followers: Followers, ended: bool, taken: bool
) -> None:
    """Also when the job that it was merged into has ended, and another one has the key by now."""
    first = followers.enqueue(spec, keyed(1), callbacks=mine("ada"))
    own = uuid7()
    assert followers.enqueue(spec, keyed(2, id=own), callbacks=mine("bob")).job_id == first.id
    if ended:
        work_off(queue, spec)
    if taken:
        followers.enqueue(spec, keyed(3), callbacks=mine("cy"))
    again = followers.enqueue(spec, keyed(2, id=own), callbacks=mine("bob"))
    assert again == Submitted(own, first.id, False)
    work_off(queue, spec)
    assert sorted(str(end.context) for end in ended_jobs(queue)) == ["ada", "bob", *(["cy"] if taken else [])]
    assert count(queue) == 0


@pytest.mark.parametrize("on_conflict", ["ignore", "merge"])
@pytest.mark.parametrize("ended", [False, True])
@pytest.mark.parametrize("done_with", [False, True])
def test_a_job_that_is_sent_again_is_notified_once(
    queue: SqlQueue, spec: QueueSpec[Work], followers: Followers, ended: bool, on_conflict: Any, done_with: bool
) -> None:
    own = uuid7()
    sent = [
        followers.enqueue(spec, NewJob(Work(n=1), id=own), callbacks=mine("ada"), on_conflict=on_conflict)
        for _ in range(2)
    ]
    if ended:
        work_off(queue, spec)
        if done_with:
            Consumer(queue, QueueSpec("ended", JobEnded), lambda job: None).drain()
        sent.append(followers.enqueue(spec, NewJob(Work(n=1), id=own), callbacks=mine("ada"), on_conflict=on_conflict))
    assert [one.inserted for one in sent] == [True, *[False] * (len(sent) - 1)]
    assert {one.job_id for one in sent} == {own}
    work_off(queue, spec)
    everything = value(queue, "SELECT count(*) FROM {s}.job_all WHERE queue = 'ended'")
    assert everything == 1


def test_an_id_of_another_queue_is_refused(queue: SqlQueue, spec: QueueSpec[Work], followers: Followers) -> None:
    other = QueueSpec("other", Work)
    queue.create_queue(other)
    own = uuid7()
    queue.enqueue(other, NewJob(Work(n=1), id=own))
    with pytest.raises(InvalidInput, match=f"id {own} belongs to a job of queue 'other'"):
        followers.enqueue(spec, keyed(1, id=own), callbacks=mine("ada"))
    assert count(queue) == 0


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("awaited", [False, True])
def test_a_region_that_loses_its_buckets_meanwhile_is_named(
    queue: SqlQueue, followers: Followers, url: str, many: bool, awaited: bool
) -> None:
    class Overtaken(Work):
        """Its buckets are taken from the region after the queue's settings were read, and before the job is sent."""

        def model_post_init(self, context: Any, /) -> None:
            queue.set_region("work", "local", [0])

    spec = QueueSpec("work", Overtaken)
    queue.set_region("work", "eu", [0])
    group = Groups(queue).open()
    job = NewJob({"n": 1}, region="eu")
    wishes: Any = {"callbacks": mine("ada"), "group": group}

    jobs = [NewJob({"n": 0}), job]

    async def asend() -> None:
        async with await psycopg.AsyncConnection.connect(url) as connection:
            if many:
                await followers.aenqueue_many(spec, jobs, **wishes, connection=connection)
            else:
                await followers.aenqueue(spec, job, **wishes, connection=connection)

    def send() -> object:
        if awaited:
            return asyncio.run(asend())
        return followers.enqueue_many(spec, jobs, **wishes) if many else followers.enqueue(spec, job, **wishes)

    with pytest.raises(InvalidInput, match="region is 'eu', which has no bucket in queue 'work'; give it some"):
        send()
    assert count(queue) == 0


@pytest.mark.parametrize("many", [False, True])
def test_what_is_refused_leaves_nothing(
    queue: SqlQueue, spec: QueueSpec[Work], followers: Followers, many: bool
) -> None:
    def send(job: Any = None, **more: Any) -> object:
        given = {"callbacks": mine("ada"), **more}
        into = given.pop("spec", spec)
        job = job or keyed(1)
        return (
            followers.enqueue_many(into, [keyed(0, "other"), job], **given)
            if many
            else followers.enqueue(into, job, **given)
        )

    with pytest.raises(UnknownQueue, match="no queue 'nosuch'"):
        send(callbacks=[mine("ada"), Callback("nosuch")])
    with pytest.raises(UnknownQueue, match="no queue 'nosuch'"):
        send(spec=QueueSpec("nosuch", Work))
    with pytest.raises(InvalidPayload):
        send(job={"n": "x"})
    with pytest.raises(InvalidInput, match="region is 'eu'"):
        send(job=NewJob(Work(n=1), region="eu"))
    with pytest.raises(InvalidInput, match="on_conflict is 'replace'; it must be 'ignore' or 'merge'"):
        send(on_conflict="replace")
    with pytest.raises(InvalidInput, match="callbacks holds a str"):
        send(callbacks=["ended"])
    with pytest.raises(InvalidInput, match=r"callbacks is None; give a Callback\(queue, …\), several of them, or \(\)"):
        send(callbacks=None)
    with pytest.raises(InvalidInput, match="group is 'g'"):
        send(group="g")
    assert count(queue) == 0
    assert value(queue, "SELECT count(*) FROM {s}.follower") == 0


def test_bad_rows_can_be_left_out(queue: SqlQueue, spec: QueueSpec[Work], followers: Followers) -> None:
    done = followers.enqueue_many(spec, [Work(n=1), {"n": "x"}, Work(n=2)], callbacks=mine("ada"), on_bad_row="skip")
    assert (done.inserted, [bad.row for bad in done.rejected]) == (2, [1])


def test_a_generator_of_many_chunks(queue: SqlQueue, spec: QueueSpec[Work], followers: Followers) -> None:
    def jobs() -> Iterator[Any]:
        for n in range(5_000):
            yield keyed(n, f"k{n % 4_000}")

    assert followers.enqueue_many(spec, jobs(), callbacks=mine("ada")) == SubmittedMany(4_000, 1_000, 0)
    assert value(queue, "SELECT count(*) FROM {s}.follower") == 5_000
    assert value(queue, "SELECT count(*) FROM {s}.job WHERE followed") == 4_000


def test_following_a_live_job(queue: SqlQueue, spec: QueueSpec[Work], followers: Followers) -> None:
    job_id = queue.enqueue(spec, Work(n=1))
    assert job_id
    for _ in range(2):
        assert followers.follow(job_id, [mine("ada"), mine("bob")])
    followed = followers.of(job_id)
    assert {(one.queue, tuple(one.states)) for one in followed} == {("ended", ("succeeded", "failed", "cancelled"))}
    assert len(followed) == 2
    work_off(queue, spec)
    assert sorted(str(end.context) for end in ended_jobs(queue)) == ["ada", "bob"]


def test_following_an_ended_job_notifies_at_once(queue: SqlQueue, spec: QueueSpec[Work], followers: Followers) -> None:
    job_id = queue.enqueue(spec, Work(n=1))
    assert job_id
    work_off(queue, spec)
    assert not followers.follow(job_id, mine("ada"))
    assert [end.context for end in ended_jobs(queue)] == ["ada"]
    followers.follow(job_id, mine("ada"))
    Consumer(queue, QueueSpec("ended", JobEnded), lambda job: None).drain()
    followers.follow(job_id, mine("ada"))
    assert ended_jobs(queue) == []
    assert value(queue, "SELECT count(*) FROM {s}.follower") == 0
    followers.follow(job_id, Callback("ended", states=["failed"]))
    assert ended_jobs(queue) == []


def test_following_what_is_not_there(queue: SqlQueue, spec: QueueSpec[Work], followers: Followers) -> None:
    unknown = uuid7()
    with pytest.raises(UnknownJob, match=f"there is no job {unknown}"):
        followers.follow(unknown, mine("ada"))
    job_id = queue.enqueue(spec, Work(n=1))
    assert job_id
    with pytest.raises(UnknownQueue, match="no queue 'nosuch'"):
        followers.follow(job_id, [mine("ada"), Callback("nosuch")])
    with pytest.raises(InvalidInput, match="no callback"):
        followers.follow(job_id, [])
    with pytest.raises(InvalidInput, match="give its id"):
        followers.follow("x", mine("ada"))  # type: ignore[arg-type]
    assert value(queue, "SELECT count(*) FROM {s}.follower") == 0
    queue.cancel("work", Selection(ids=[job_id]))
    with pytest.raises(UnknownQueue, match="no queue 'nosuch'"):
        followers.follow(job_id, [mine("ada"), Callback("nosuch")])
    assert ended_jobs(queue) == []


def test_a_merge_in_a_keyed_queue(queue: SqlQueue, followers: Followers) -> None:
    ordered = QueueSpec("in_order", Work, ordered=True, bucket_count=2)
    queue.create_queue(ordered)
    for n in range(3):
        for who in ("ada", "bob"):
            job = NewJob(Work(n=n), unique_key=f"u{n}", ordering_key="o")
            followers.enqueue_many(ordered, [job], callbacks=mine(f"{who}{n}"))
    seen: list[int] = []
    Consumer(queue, ordered, lambda job: seen.append(job.payload.n)).drain()
    assert seen == [0, 1, 2]
    assert sorted(str(end.context) for end in ended_jobs(queue)) == ["ada0", "ada1", "ada2", "bob0", "bob1", "bob2"]
