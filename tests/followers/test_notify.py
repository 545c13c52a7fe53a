"""Every statement that ends a job notifies its followers, in the same transaction."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated
from uuid import UUID

import pytest
from pydantic import BaseModel

from dagster_sqlqueue import Cancel, Consumer, Done, Mode, NewJob, QueueSpec, Reject, Sensitive, SqlQueue
from dagster_sqlqueue.db import statements
from dagster_sqlqueue.db.executors import Transaction
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.followers import Callback, Followers, Groups, JobEnded
from dagster_sqlqueue.model.job import ArchiveState
from dagster_sqlqueue.queue.endings import Ending
from dagster_sqlqueue.queue.job_admin import Completed
from dagster_sqlqueue.queue.redaction import discreet
from dagster_sqlqueue.queue.selection import Selection
from dagster_sqlqueue.spark import batches
from tests.followers.support import ended_groups, ended_jobs
from tests.gate.patience import PATIENCE
from tests.support import Work, caller, claim, make_due, rows, until, value
from tests.support.armed import armed


def _finish(queue: SqlQueue, spec: QueueSpec[Work], job_id: UUID) -> None:
    (job,) = claim(queue)
    queue.finish([Ending(job, ArchiveState.SUCCEEDED, {"sum": 3})])


def _succeed(queue: SqlQueue, spec: QueueSpec[Work], job_id: UUID) -> None:
    queue.complete(claim(queue))


def _fail(queue: SqlQueue, spec: QueueSpec[Work], job_id: UUID) -> None:
    for _ in range(3):
        (job,) = claim(queue)
        queue.fail(job, "it broke", after=0)


def _finish_locked(queue: SqlQueue, spec: QueueSpec[Work], job_id: UUID) -> None:
    Consumer(queue, spec, lambda job: Cancel("not wanted"), mode=Mode.TRANSACTIONAL).drain()


def _succeed_locked(queue: SqlQueue, spec: QueueSpec[Work], job_id: UUID) -> None:
    Consumer(queue, spec, lambda job: None, mode=Mode.TRANSACTIONAL).drain()


def _cancel_waiting(queue: SqlQueue, spec: QueueSpec[Work], job_id: UUID) -> None:
    queue.cancel("work", Selection(ids=[job_id]), reason="customer left")


def _complete_held(queue: SqlQueue, spec: QueueSpec[Work], job_id: UUID) -> None:
    queue.hold_queued("work", Selection(ids=[job_id]), "by hand")
    queue.complete_held("work", [Completed(job_id, "anna", {"paid": True})])


def _bury_spent(queue: SqlQueue, spec: QueueSpec[Work], job_id: UUID) -> None:
    for _ in range(3):
        claim(queue)
        make_due(queue)
    queue.database.run("bury_spent", {"queue": "work", "buckets": [0, 1, 2, 3]})


def _batch_publish(queue: SqlQueue, spec: QueueSpec[Work], job_id: UUID) -> None:
    batch = batches.seal(queue, "work", "day", owner="me")
    with queue.database.transaction() as transaction:
        batches.publish(queue, batch, transaction, output={})


def _batch_settle(queue: SqlQueue, spec: QueueSpec[Work], job_id: UUID) -> None:
    batch = batches.seal(queue, "work", "day", owner="me")
    batches.report(queue, batch, [(job_id, Done({"paid": True}))])
    with batches.publication(queue, batch, output={}):
        pass


def _batch_move(queue: SqlQueue, spec: QueueSpec[Work], job_id: UUID) -> None:
    """A transactional batch gives itself up for a leased one where somebody follows a job: so it never ends one itself."""
    batch = batches.seal(queue, "work", "day", owner="me", mode=Mode.TRANSACTIONAL)
    with batches.publication(queue, batch, output={}):
        pass


ENDS: dict[str, tuple[Callable[[SqlQueue, QueueSpec[Work], UUID], None], str, object, str | None, int]] = {
    "complete": (_finish, "succeeded", {"sum": 3}, None, 1),
    "complete_plain": (_succeed, "succeeded", None, None, 1),
    "complete_locked": (_finish_locked, "cancelled", None, "not wanted", 1),
    "complete_plain_locked": (_succeed_locked, "succeeded", None, None, 1),
    "cancel_waiting": (_cancel_waiting, "cancelled", None, "customer left", 0),
    "complete_held": (_complete_held, "succeeded", {"paid": True}, "by hand", 0),
    "bury_spent": (_bury_spent, "failed", None, "the lease ran out on the last attempt: its consumer died or hung", 3),
    "batch_succeed": (_batch_publish, "succeeded", None, None, 1),
    "batch_settle": (_batch_settle, "succeeded", {"paid": True}, None, 1),
    "batch_move": (_batch_move, "succeeded", None, None, 1),
}
"""By statement: what calls it; and the state, result, error and attempts in the callback."""


def test_every_statement_that_deletes_jobs_is_known() -> None:
    deletion = re.compile(r"DELETE FROM sqlqueue\.(new_|replaceable_|parked_)?job\b")
    deleting = {name for name in statements.names() if deletion.search(statements.source(name))}
    # The one statement that ends them by a function is batch_settle.
    assert deleting == {*ENDS, "drop_already_finished"} - {"batch_settle"}


@pytest.mark.parametrize("statement", ENDS)
def test_the_follower_is_notified_of_the_end(
    queue: SqlQueue, spec: QueueSpec[Work], followers: Followers, statement: str
) -> None:
    end, state, result, error, attempts = ENDS[statement]
    sent = followers.enqueue(
        spec, NewJob(Work(n=1), unique_key="k"), callbacks=Callback("ended", context={"of": "me", "n": [1]})
    )
    assert sent.job_id
    queue.create_queue(replace(spec, name="other"))
    end(queue, spec, sent.job_id)
    (payload,) = ended_jobs(queue)
    finished = value(queue, "SELECT finished_at FROM {s}.job_archive WHERE id = %s", sent.job_id)
    assert payload == JobEnded(
        job_id=sent.job_id,
        queue="work",
        state=ArchiveState(state),
        result=result,
        error=error,
        attempts=attempts,
        finished_at=finished,
        unique_key="k",
        submitted_id=sent.id,
        context={"of": "me", "n": [1]},
    )
    assert value(queue, "SELECT count(*) FROM {s}.follower") == 0


def test_failing_for_good_is_notified_and_no_attempt_before(
    queue: SqlQueue, spec: QueueSpec[Work], followers: Followers
) -> None:
    followers.enqueue(spec, Work(n=1), callbacks=[Callback("ended", states=["failed"])])
    for _ in range(3):
        assert ended_jobs(queue) == []
        (job,) = claim(queue)
        queue.fail(job, "it broke", after=0)
    (end,) = ended_jobs(queue)
    assert (end.state, end.error, end.attempts) == ("failed", "it broke", 3)


def test_only_the_ends_that_are_wanted_are_notified(
    queue: SqlQueue, spec: QueueSpec[Work], followers: Followers
) -> None:
    queue.create_queue(QueueSpec("good", JobEnded))
    queue.create_queue(QueueSpec("bad", JobEnded))
    calls = [Callback("good", states=["succeeded"]), Callback("bad", states=["failed", "cancelled"])]
    followers.enqueue_many(spec, [Work(n=n) for n in range(3)], callbacks=calls)
    Consumer(queue, spec, lambda job: Cancel("no") if job.payload.n == 2 else Done({"n": job.payload.n})).drain()
    assert sorted(end.result["n"] for end in ended_jobs(queue, "good")) == [0, 1]  # type: ignore[index, call-overload]
    assert [(end.state, end.error) for end in ended_jobs(queue, "bad")] == [("cancelled", "no")]
    assert value(queue, "SELECT count(*) FROM {s}.follower") == 0


def test_a_rolled_back_end_notifies_nobody(queue: SqlQueue, spec: QueueSpec[Work], followers: Followers) -> None:
    followers.enqueue(spec, Work(n=1), callbacks=Callback("ended"))
    jobs = claim(queue)
    with queue.database.connection() as connection, connection.transaction(force_rollback=True):
        queue.complete(jobs, executor=Transaction(connection, queue.database))
    assert ended_jobs(queue) == []
    queue.complete(jobs)
    assert len(ended_jobs(queue)) == 1


def test_a_callback_goes_by_the_rules_of_its_queue(
    queue: SqlQueue, spec: QueueSpec[Work], followers: Followers, url: str
) -> None:
    """What an enqueue on that queue would have made: bucket, attempts, timeout, place in line, notification."""
    ordered = QueueSpec("in_order", JobEnded, ordered=True, bucket_count=7, max_attempts=2, timeout_seconds=9)
    queue.create_queue(ordered)
    callback = Callback(ordered, priority=4, ordering_key="clé")
    followers.enqueue_many(spec, [Work(n=n) for n in range(5)], callbacks=callback)
    followers.enqueue_many(spec, [Work(n=n) for n in range(5)], callbacks=Callback("ended"))
    with armed(queue, url, 1, queue="in_order") as (session,):
        for job in claim(queue):
            queue.complete([job])
        assert session.notifications() == [("own", "in_order")]
    like = NewJob({}, ordering_key="clé")
    mine = queue.enqueue(QueueSpec("in_order", Work), replace(like, payload=Work(n=9)))
    found = rows(
        queue,
        "SELECT DISTINCT bucket, ordering_key FROM {s}.job WHERE queue = 'in_order'",
    )
    assert len(found) == 1
    lines = rows(
        queue,
        "SELECT id, priority, max_attempts, timeout_seconds, order_no FROM {s}.job WHERE queue = 'in_order'"
        " ORDER BY order_no",
    )
    assert lines[-1][0] == mine
    assert {line[1:4] for line in lines[:-1]} == {(4, 2, 9.0)}
    assert all(line[4] for line in lines)
    assert all(line[0].version == 7 for line in lines)
    plain = rows(queue, "SELECT id, bucket, order_no FROM {s}.job WHERE queue = 'ended'")
    assert len(plain) == 5
    for job_id, bucket, order_no in plain:
        assert bucket == (int.from_bytes(job_id.bytes[-4:]) & 0x7FFFFFFF) % 4
        assert order_no is None
    drained = Consumer(queue, QueueSpec("ended", JobEnded), lambda job: None).drain()
    assert drained.succeeded == 5


def test_a_queue_that_has_gone_does_not_fail_the_end(
    queue: SqlQueue, spec: QueueSpec[Work], followers: Followers
) -> None:
    queue.create_queue(QueueSpec("gone", JobEnded))
    followers.enqueue(spec, Work(n=1), callbacks=[Callback("gone"), Callback("ended")])
    group = Groups(queue).open(Callback("gone"))
    followers.enqueue(spec, Work(n=2), group=group)
    Groups(queue).close(group)
    rows(queue, "DELETE FROM {s}.bucket WHERE queue = 'gone'")
    rows(queue, "DELETE FROM {s}.queue WHERE name = 'gone'")
    assert Consumer(queue, spec, lambda job: None).drain().succeeded == 2
    assert len(ended_jobs(queue)) == 1
    done = Groups(queue).group(group)
    assert (done.queue, done.succeeded) == (None, 1)
    assert done.ended_at


def test_a_job_taken_back_is_no_end(queue: SqlQueue, spec: QueueSpec[Work], followers: Followers) -> None:
    """`drop_already_finished` deletes what had ended before; a row that is deleted by hand has no end either."""
    sent = followers.enqueue(spec, Work(n=1), callbacks=Callback("ended"))
    rows(queue, "DELETE FROM {s}.job WHERE id = %s", sent.job_id)
    assert ended_jobs(queue) == []
    assert value(queue, "SELECT count(*) FROM {s}.follower") == 1


def test_a_redriven_job_had_a_callback_before(queue: SqlQueue, spec: QueueSpec[Work], followers: Followers) -> None:
    """Those are notified of its next end who follow it from then on."""
    sent = followers.enqueue(spec, Work(n=1), callbacks=Callback("ended"))
    assert sent.job_id
    Consumer(queue, spec, lambda job: Reject("no")).drain()
    queue.redrive("work", Selection(ids=[sent.job_id]))
    assert followers.of(sent.job_id) == []
    Consumer(queue, spec, lambda job: None).drain()
    assert [end.state for end in ended_jobs(queue)] == ["failed"]
    queue.create_queue(QueueSpec("again", JobEnded))
    followers.follow(sent.job_id, Callback("again"))
    assert [end.state for end in ended_jobs(queue, "again")] == ["succeeded"]


def test_what_the_job_hides_its_callback_hides_too(queue: SqlQueue, followers: Followers) -> None:
    class Login(BaseModel):
        user: str
        password: Annotated[str, Sensitive()]

    logins = QueueSpec("logins", Login, bucket_count=1)
    queue.create_queue(logins)
    followers.enqueue(logins, Login(user="ada", password="correct horse"), callbacks=Callback("ended"))
    Consumer(queue, logins, lambda job: Done({"password": job.payload.password})).drain()
    (end,) = ended_jobs(queue)
    assert end.result == {"password": "correct horse"}
    (shown,) = discreet(queue, "ended", queue.jobs("ended"))
    assert "correct horse" not in shown.payload
    assert '"password": "***"' in shown.payload


def test_an_end_is_notified_to_who_waits(queue: SqlQueue, spec: QueueSpec[Work], url: str) -> None:
    from dagster_sqlqueue.db.steps import drive
    from dagster_sqlqueue.followers.follow import follow
    from dagster_sqlqueue.followers.model import FollowerRow
    from dagster_sqlqueue.model.ids import derived_id

    job_id = queue.enqueue(spec, Work(n=1))
    other = queue.enqueue(spec, Work(n=2))
    assert job_id
    with caller(url, autocommit=True) as connection:
        connection.execute(f'LISTEN "{queue.database.schema}_ended"')
        row = FollowerRow(derived_id(job_id, "me"), job_id, notify=True)
        done = queue.database.transact(lambda transaction: drive(follow([row]), transaction))
        assert done.live == {job_id}
        queue.cancel("work", Selection(ids=[other]))  # type: ignore[list-item]
        Consumer(queue, spec, lambda job: None).drain()
        heard = [note.payload for note in connection.notifies(timeout=PATIENCE, stop_after=1)]
    assert heard == [str(job_id)]
    until(lambda: value(queue, "SELECT count(*) FROM {s}.follower") == 0)
    assert ended_groups(queue) == []


def test_a_schema_with_the_longest_name_has_a_channel(url: str, spec: QueueSpec[Work]) -> None:
    with SqlQueue(url, schema="s" * 63) as queue:
        queue.migrate()
        queue.create_queue(spec)
        queue.create_queue(QueueSpec("ended", JobEnded))
        Followers(queue).enqueue(spec, Work(n=1), callbacks=Callback("ended"))
        rows(queue, "UPDATE {s}.follower SET notify = true")
        Consumer(queue, spec, lambda job: None).drain()
        assert len(ended_jobs(queue)) == 1


def test_a_finish_of_many_notifies_each(queue: SqlQueue, spec: QueueSpec[Work], followers: Followers) -> None:
    followers.enqueue_many(spec, [Work(n=n) for n in range(300)], callbacks=Callback("ended"))
    queue.enqueue_many(spec, [Work(n=n) for n in range(300, 400)])
    Consumer(queue, spec, lambda job: None, batch_size=100).drain()
    ends = ended_jobs(queue)
    assert len({end.job_id for end in ends}) == len(ends) == 300


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"queue": "No"}, "queue name 'No' is not usable"),
        ({"queue": "q", "states": ["done"]}, "states holds 'done'"),
        ({"queue": "q", "states": []}, r"states is \[\]"),
        ({"queue": "q", "states": "failed"}, "states is 'failed'"),
        ({"queue": "q", "context": {1, 2}}, "context cannot be written as JSON"),
        ({"queue": "q", "context": float("nan")}, "context cannot be written as JSON"),
        ({"queue": "q", "context": "\x00"}, "context cannot be stored"),
        ({"queue": "q", "context": "x" * 200_000}, "context has 200,002 bytes"),
        ({"queue": "q", "priority": 10}, "priority is 10"),
        ({"queue": "q", "ordering_key": ""}, "ordering_key must be a text"),
    ],
)
def test_a_bad_callback_is_refused(given: dict[str, object], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        Callback(**given)  # type: ignore[arg-type]
