"""What following says to the database, and what it makes of the answers. No I/O of its own.

Each verb is a generator of requests that is sent the rows of each, as those of an enqueue are.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from dagster_sqlqueue.db.steps import Statement, Steps
from dagster_sqlqueue.errors import UnknownJob
from dagster_sqlqueue.followers.model import FollowerRow
from dagster_sqlqueue.queue.insert import seeing_ends

_ROUNDS = 5
"""A job that is neither live nor in the archive may be on its way from one to the other; so often both are read."""


@dataclass(frozen=True, slots=True)
class Followed:
    """What became of following jobs.

    Attributes:
        live: the jobs whose end is still to come.
        ended: those that have ended, each with the moment of its end; their followers have been notified.
    """

    live: set[UUID] = field(default_factory=set)
    ended: dict[UUID, datetime] = field(default_factory=dict)


def follow(followers: Sequence[FollowerRow]) -> Steps[Followed]:
    """Add followers to jobs, in one transaction; followers of a job that has ended are notified at once.

    Raises:
        UnknownJob: a job is neither live nor in the archive; nothing of the transaction may stay.
        InvalidInput: a callback would follow a job that has ended, and the transaction may not see whether it was enqueued
            before; nothing of the transaction may stay.
    """
    done = Followed()
    rest = list(followers)
    for _ in range(_ROUNDS):
        done.live.update(row[0] for row in (yield Statement("follow", _columns(rest))))
        yield from _note_sent([follower for follower in rest if follower.job_id in done.live])
        rest = [follower for follower in rest if follower.job_id not in done.live]
        if not rest:
            return done
        ended = yield Statement("follow_ended", _columns(rest))
        if ended:
            if called := next((row for row in rest if row.queue is not None), None):
                yield from seeing_ends(f"the job {called.job_id} has ended, and is followed by a callback")
            ids, moments = zip(*ended, strict=True)
            done.ended.update(ended)
            yield from _note_sent([follower for follower in rest if follower.job_id in done.ended])
            yield Statement("notify_followers", {"ids": list(ids), "finished_ats": list(moments)})
        rest = [follower for follower in rest if follower.job_id not in done.ended]
        if not rest:
            return done
    raise UnknownJob(
        f"there is no job {rest[0].job_id}, live or ended; an ended job is trimmed when its queue does not keep it any"
        " longer"
    )


def _note_sent(followers: Sequence[FollowerRow]) -> Steps[None]:
    merged = [row for row in followers if row.submitted_id not in (None, row.job_id)]
    if merged:
        ids, submitted = [row.id for row in merged], [row.submitted_id for row in merged]
        yield Statement("follow_sent", {"ids": ids, "submitted_ids": submitted})


def _columns(followers: Sequence[FollowerRow]) -> dict[str, list[Any]]:
    return {
        "ids": [follower.id for follower in followers],
        "job_ids": [follower.job_id for follower in followers],
        "states": ["{" + ",".join(follower.states) + "}" for follower in followers],
        "queues": [follower.queue for follower in followers],
        "priorities": [follower.priority for follower in followers],
        "ordering_keys": [follower.ordering_key for follower in followers],
        "contexts": [follower.context for follower in followers],
        "group_ids": [follower.group_id for follower in followers],
        "notifies": [follower.notify for follower in followers],
    }
