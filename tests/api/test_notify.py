"""Followers are notified of a job that ends by an SQL function as of every other end."""

import json

from dagster_sqlqueue import NewJob, QueueSpec, SqlQueue
from dagster_sqlqueue.followers import Callback, Followers, Groups
from dagster_sqlqueue.results import Results
from tests.api.conftest import SPEC, Caller
from tests.support import Work


def test_every_end_by_a_function_is_notified(line: SqlQueue, sqlc: Caller) -> None:
    ended = QueueSpec("ended", Work, bucket_count=1)
    line.create_queue(ended)
    followers, groups = Followers(line), Groups(line)
    group = groups.open(Callback("ended"))
    jobs = [
        followers.enqueue(SPEC, NewJob(Work(n=n), max_attempts=1), callbacks=Callback("ended", context=n), group=group)
        for n in range(6)
    ]
    groups.close(group)
    leased = {n: (id, lease_no) for id, lease_no, n in sqlc.claim(5)}
    (waiting,) = {job.id for job in jobs} - {id for id, _ in leased.values()}
    ns = sorted(leased)
    sqlc.rows("SELECT {v1}.complete(%s, %s, '{{\"sum\": 3}}')", *leased[ns[0]])
    many = [leased[ns[1]], leased[ns[2]]]
    sqlc.rows("SELECT {v1}.complete_many(%s, %s)", [id for id, _ in many], [lease_no for _, lease_no in many])
    sqlc.rows("SELECT {v1}.fail(%s, %s, 'no')", *leased[ns[3]])
    sqlc.rows("SELECT {v1}.reject(%s, %s, 'never')", *leased[ns[4]])
    sqlc.rows("SELECT * FROM {v1}.cancel('work', ARRAY[%s]::uuid[], 'not wanted')", waiting)
    ends = [
        json.loads(text) for (text,) in sqlc.rows("SELECT CAST(payload AS text) FROM {s}.job WHERE queue = 'ended'")
    ]
    states = {end["job_id"]: end["state"] for end in ends if "job_id" in end}
    assert states == {
        **{str(leased[n][0]): "succeeded" for n in ns[:3]},
        **{str(leased[n][0]): "failed" for n in ns[3:]},
        str(waiting): "cancelled",
    }
    (whole,) = [end for end in ends if "group_id" in end]
    assert (whole["succeeded"], whole["failed"], whole["cancelled"]) == (3, 2, 1)
    with Results(line) as results:
        assert results.wait(leased[ns[0]][0], timeout_seconds=0).result == {"sum": 3}
