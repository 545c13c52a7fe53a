"""Which jobs a verb would decide about: the same that it does decide about then."""

from uuid import uuid4

import pytest

from dagster_sqlqueue import SqlQueue
from dagster_sqlqueue.errors import InvalidInput, UnknownQueue
from dagster_sqlqueue.queue.preview import find
from dagster_sqlqueue.queue.selection import LIVE_STATES, Selection
from tests.support import rows
from tests.support.decisions import ALL, PLAIN, ids, kill, put, take

ENDED = ("failed", "cancelled")


def test_what_is_previewed_is_what_is_decided_about(queue: SqlQueue) -> None:
    put(queue, PLAIN, 6)
    (dead,) = kill(queue)
    (running,) = take(queue, 1)
    found = find(queue, "work", ALL, LIVE_STATES, limit=100)
    assert running.id in {job.id for job in found.jobs}
    decided = queue.cancel("work", ALL)
    assert {job.id for job in found.jobs} == {*decided.changed, *decided.requested}
    assert [job.id for job in find(queue, "work", ALL, ["failed"], limit=100).jobs] == [dead.id]
    assert queue.redrive("work", ALL).changed == [dead.id]
    assert find(queue, "work", ALL, ["failed"], limit=100).jobs == []
    assert [job.id for job in find(queue, "work", ALL, ["queued"], limit=100).jobs] == [dead.id]


def test_of_jobs_that_are_named_the_others_are_explained(queue: SqlQueue) -> None:
    put(queue, PLAIN, 2)
    (dead,) = kill(queue)
    (waiting,) = (job.id for job in queue.jobs("work", ALL))
    unknown = uuid4()
    found = find(queue, "work", ids(dead.id, waiting, unknown), ENDED, limit=1)
    assert [job.id for job in found.jobs] == [dead.id]
    assert found.skipped == {waiting: "it is queued", unknown: "queue work has no such job"}
    assert found.unknown == (unknown,)
    live = find(queue, "work", ids(dead.id, waiting), ["queued"], limit=1)
    assert ([job.id for job in live.jobs], live.skipped) == ([waiting], {dead.id: "it is failed"})


def test_a_job_that_lives_again_is_live(queue: SqlQueue) -> None:
    put(queue, PLAIN, 1)
    (dead,) = kill(queue)
    rows(
        queue,
        "INSERT INTO {s}.job (id, queue, bucket, priority, available_at, run_at, max_attempts, payload)"
        " SELECT id, queue, bucket, priority, now(), now(), max_attempts, payload FROM {s}.job_archive",
    )
    found = find(queue, "work", ids(dead.id), ENDED, limit=1)
    assert (found.jobs, found.skipped) == ([], {dead.id: "it is queued"})
    assert queue.redrive("work", ids(dead.id)).changed == []
    assert [job.id for job in find(queue, "work", ids(dead.id), ["queued"], limit=1).jobs] == [dead.id]


def test_what_is_wrong_is_said(queue: SqlQueue) -> None:
    with pytest.raises(UnknownQueue):
        find(queue, "mails", ALL, ["queued"], limit=1)
    with pytest.raises(InvalidInput, match="limit is 0"):
        find(queue, "work", Selection(tags=["a"]), ["queued"], limit=0)
