"""Verbs that read a queue and change nothing: heads, depth, next jobs, ended jobs, statistics, and single jobs."""

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from dagster_sqlqueue.db.executors import CallerConnection, Executor
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.model.job import DeadLetter, Depth, Head, WaitingJob
from dagster_sqlqueue.model.numbers import is_delay, is_whole
from dagster_sqlqueue.model.queue import check_queue_name
from dagster_sqlqueue.queue.base import Verbs
from dagster_sqlqueue.queue.explain import Explanation
from dagster_sqlqueue.queue.selection import JobRow, Selection


@dataclass(frozen=True, slots=True)
class QueueStats:
    """How a queue is and how it did in the last hour: a row of the view `queue_stats`.

    Every count stops at `counted_up_to` and then means "at least". Times are in seconds, rates in jobs a minute, sizes in
    bytes. A job came in when it became due, and went out when it ended, in whatever way. What was measured are the jobs
    that ended in the last hour, of more than `counted_up_to` the latest; the rates are then those of the shorter time
    that these took. None: there is nothing to say it of.

    Attributes:
        queue: its name.
        paused_at: since when it is paused; None: it is not.
        counted_up_to: where counting stops.
        ready: jobs that are due now, those whose lease ran out among them.
        running: jobs under a lease.
        scheduled: jobs that are due later: first runs, retries and snoozes alike.
        held: jobs held until an operator decides.
        parked: jobs that wait for others of their ordering key.
        oldest_ready_seconds: how long the job that is due longest has been due.
        next_due_seconds: in how long the next scheduled job becomes due.
        in_per_minute: jobs that became due, a minute, over the last minute.
        in_per_minute_of_hour: the same over the last hour, still a minute.
        out_per_minute: jobs that ended, a minute, over the last minute.
        out_per_minute_of_hour: the same over the last hour, still a minute.
        measured: how many of the jobs that ended in the last hour, the latest, the numbers below are about.
        succeeded: how many of those succeeded.
        failed: how many of those went to the dead letter.
        cancelled: how many of those were cancelled.
        wait_seconds_p50: from when a job was wanted until its last start: half of the jobs waited no longer.
        wait_seconds_p95: 95 % of them waited no longer.
        wait_seconds_p99: 99 % of them waited no longer.
        run_seconds_p50: from a job's last start until its end: half of the jobs took no longer.
        run_seconds_p95: 95 % of them took no longer.
        run_seconds_p99: 99 % of them took no longer.
        payload_bytes_average: as stored; large payloads are compressed.
        payload_bytes_max: as stored.
        dead_letters: jobs in the archive that failed, of all time.
        stale_writes_today: writes refused since midnight UTC because the lease had passed on; all of them.
    """

    queue: str
    paused_at: datetime | None
    counted_up_to: int
    ready: int
    running: int
    scheduled: int
    held: int
    parked: int
    oldest_ready_seconds: float | None
    next_due_seconds: float | None
    in_per_minute: float
    in_per_minute_of_hour: float
    out_per_minute: float
    out_per_minute_of_hour: float
    measured: int
    succeeded: int
    failed: int
    cancelled: int
    wait_seconds_p50: float | None
    wait_seconds_p95: float | None
    wait_seconds_p99: float | None
    run_seconds_p50: float | None
    run_seconds_p95: float | None
    run_seconds_p99: float | None
    payload_bytes_average: float | None
    payload_bytes_max: int | None
    dead_letters: int
    stale_writes_today: int


class StatsVerbs(Verbs):
    """What can be read of a queue."""

    def peek_heads(self, queue: str) -> list[Head]:
        """Return the first job of each bucket and priority.

        In buckets that a consumer searched less than five seconds ago, a job that was committed late, or moved
        back to an earlier time, is seen that much later.

        Raises:
            UnknownQueue: there is no such queue.
        """
        return self.leases.peek_heads(queue)

    def peek(self, queue: str, limit: int = 20) -> list[WaitingJob]:
        """Return the jobs that would be claimed next, without claiming them.

        Raises:
            InvalidInput: an argument is not usable.
            UnknownQueue: there is no such queue.
        """
        rows = self.database.run("peek", {"queue": check_queue_name(queue), "limit": _count("limit", limit)})
        if not rows:
            self.catalog.check_exists(queue)
        return [WaitingJob(*row) for row in rows]

    def depth(self, queue: str, *, cap: int = 10_000, others_cap: int | None = None) -> Depth:
        """Count how many jobs the queue holds.

        Beside others that are due, a job that was committed late, moved back in time, or enqueued with a `run_at` of more
        than a minute ago, is counted within five seconds. A queue that holds a job that is due never counts as empty.

        Args:
            queue: its name.
            cap: the jobs that are due are counted up to it.
            others_cap: and the others together up to it; None: the same.

        Raises:
            InvalidInput: an argument is not usable.
            UnknownQueue: there is no such queue.
        """
        others = cap if others_cap is None else others_cap
        caps = {"cap": _count("cap", cap), "others": _count("others_cap", others)}
        parameters = {"queue": check_queue_name(queue), **caps}
        ready, running, scheduled, held = self.database.run("depth", parameters)[0]
        depth = Depth(ready, running, scheduled, held, cap)
        if not depth.live:
            self.catalog.check_exists(queue)
        return depth

    def stats(self, queue: str) -> QueueStats:
        """Return how the queue is and how it did in the last hour, at a cost that does not grow with the backlog.

        Raises:
            UnknownQueue: there is no such queue.
        """
        rows = self.database.run("queue_stats", {"queue": check_queue_name(queue)})
        if not rows:
            self.catalog.check_exists(queue)
        return QueueStats(*rows[0])

    def dead_letters(self, queue: str, limit: int = 20) -> list[DeadLetter]:
        """Return the jobs that ended as failed, the latest first.

        Raises:
            InvalidInput: an argument is not usable.
            UnknownQueue: there is no such queue, nor jobs of an earlier one of its name.
        """
        rows = self.database.run("dead_letters", {"queue": check_queue_name(queue), "limit": _count("limit", limit)})
        if not rows:
            self.catalog.check_exists(queue)
        return [DeadLetter(*row) for row in rows]

    def archived(self, queue: str, *, since_seconds: float, cap: int = 100_000) -> dict[str, int]:
        """Count how many jobs ended within the last seconds, by archive state, counted up to `cap` together.

        Raises:
            InvalidInput: an argument is not usable.
            UnknownQueue: there is no such queue, nor jobs of an earlier one of its name.
        """
        if not is_delay(since_seconds):
            raise InvalidInput(
                f"since_seconds is {since_seconds!r}; give seconds back from now, not negative and at most a hundred years"
            )
        parameters = {"queue": check_queue_name(queue), "since_seconds": since_seconds, "cap": _count("cap", cap)}
        counts: dict[str, int] = dict(self.database.run("archive_counts", parameters))
        if not counts:
            self.catalog.check_exists(queue)
        return counts

    def jobs(
        self,
        queue: str,
        selection: Selection | None = None,
        *,
        limit: int = 50,
        archived: bool = False,
        connection: CallerConnection | None = None,
    ) -> list[JobRow]:
        """Return the first jobs that fit: of live ones by priority, then by when they are due, held ones last;
        of ended ones the latest first.

        Args:
            queue: its name.
            selection: which; None for every job.
            limit: the most jobs, 1 to 10,000.
            archived: of the jobs that ended, instead of the live ones.
            connection: the caller's, whose transaction sees what it has enqueued itself; None: what is committed.

        Raises:
            InvalidInput: an argument is not usable.
            UnknownQueue: there is no such queue.
        """
        return self._search.jobs(
            queue, selection, limit=limit, archived=archived, executor=self.database.within(connection)
        )

    def job(self, id: UUID | str, *, executor: Executor | None = None) -> JobRow:
        """Everything about one job, live or ended; of one that ended more than once, its latest end.

        Raises:
            InvalidInput: this is no job id.
            UnknownJob: there is no such job, or it was trimmed.
        """
        return self._search.job(id, executor=executor)

    def explain(self, id: UUID | str) -> Explanation:
        """Why a job is not claimed: it is scheduled, held or leased (by whom), its queue is paused, a limit is reached, its
        key lets others go first, or there are jobs before it.

        Raises:
            InvalidInput: this is no job id.
            UnknownJob: there is no such job, or it was trimmed.
        """
        return self._search.explain(id)


def _count(name: str, value: object) -> int:
    if not is_whole(value, 0):
        raise InvalidInput(f"{name} is {value!r}; it must be a whole number of at least 0")
    return value
