"""However a job ends, those who follow it are told, in the transaction that ends it."""

from dagster_sqlqueue import NewJob, QueueSpec, SqlQueue
from dagster_sqlqueue.ending import Ending
from dagster_sqlqueue.followers import Callback, Followers, JobEnded
from dagster_sqlqueue.model import ArchiveState
from tests.core.support import Work, claim, rows, value


def told(queue: SqlQueue, name: str = "ended") -> list[JobEnded]:
    """The callbacks on a queue, in the order of their ids."""
    found = rows(queue, "SELECT payload::text FROM {s}.job WHERE queue = %s ORDER BY id", name)
    return [JobEnded.model_validate_json(row[0]) for row in found]


def test_a_callback_when_a_job_succeeds(queue: SqlQueue, spec: QueueSpec[Work], followers: Followers) -> None:
    job_id = queue.enqueue(spec, NewJob(Work(n=1), unique_key="k"))
    assert job_id
    assert followers.follow(job_id, Callback("ended", context={"of": "me"}))
    (job,) = claim(queue)
    assert told(queue) == []
    queue.finish([Ending(job, ArchiveState.SUCCEEDED, {"sum": 3})])
    (end,) = told(queue)
    finished = value(queue, "SELECT finished_at FROM {s}.job_archive WHERE id = %s", job_id)
    assert end == JobEnded(
        job_id=job_id,
        queue="work",
        state="succeeded",
        result={"sum": 3},
        error=None,
        attempts=1,
        finished_at=finished,
        unique_key="k",
        context={"of": "me"},
    )
    assert value(queue, "SELECT count(*) FROM {s}.follower") == 0
