"""The verbs people call: enqueue, claim, complete, fail, and what looks at a queue."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, cast
from uuid import UUID

from dagster_sqlqueue import migrations, payloads
from dagster_sqlqueue.database import CallerConnection, Database, Executor
from dagster_sqlqueue.errors import InvalidInput, LeaseLost, UnknownQueue
from dagster_sqlqueue.model import (
    MAX_DELAY_SECONDS,
    ArchiveState,
    Backoff,
    ClaimedJob,
    DeadLetter,
    Depth,
    Head,
    NewJob,
    Payload,
    QueueSettings,
    QueueSpec,
    Retry,
    Snooze,
    WaitingJob,
    check_queue_name,
)

_CHUNK = 2_000
MAX_BATCH = 10_000


@dataclass(frozen=True, slots=True)
class Enqueued:
    """What `enqueue_many` did: jobs put on the queue, and jobs left out because they were there already."""

    inserted: int
    duplicates: int


@dataclass(frozen=True, slots=True)
class Ending:
    """How one claimed job is to end, for `SqlQueue.finish`."""

    job: ClaimedJob
    state: ArchiveState
    result: object = None
    error: str | None = None


class SqlQueue:
    """The queues of one schema.

    Args:
        database: the URL of the database, or a `Database` for more settings.
        settings: keyword arguments of `Database` when a URL is given.

    Raises:
        InvalidInput: the URL or a setting is not usable. Nothing is connected before the first verb.
    """

    def __init__(self, database: str | Database, **settings: Any) -> None:
        self.database = Database(database, **settings) if isinstance(database, str) else database

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the pool's connections."""
        self.database.close()

    def init(self) -> list[migrations.Migration]:
        """Make the schema or bring it to this library's version; gives the migrations that were applied."""
        return migrations.migrate(self.database)

    def check_schema(self) -> int:
        """The schema's version, when it is the one of this library.

        Raises:
            SchemaMissing, SchemaTooOld, SchemaTooNew: the message names the command that mends it.
        """
        return migrations.check(self.database)

    def create_queue(self, spec: QueueSpec[Any]) -> QueueSettings:
        """Make the queue, or bring the settings of an existing one up to date; its bucket count stays as it is."""
        rows = self.database.run(
            "create_queue",
            {
                "name": spec.name,
                "bucket_count": spec.bucket_count,
                "lease_seconds": spec.lease_seconds,
                "max_attempts": spec.max_attempts,
                "backoff_seconds": spec.backoff.seconds,
                "backoff_factor": spec.backoff.factor,
                "backoff_max_seconds": spec.backoff.max_seconds,
            },
        )
        return _settings(rows[0])

    def queues(self) -> list[QueueSettings]:
        """Every queue of the schema, by name."""
        return [_settings(row) for row in self.database.run("queues", {"name": None})]

    def settings(self, queue: str) -> QueueSettings:
        """One queue's settings.

        Raises:
            UnknownQueue: there is none of that name.
        """
        rows = self.database.run("queues", {"name": check_queue_name(queue)})
        if not rows:
            raise self._unknown(queue, self.database)
        return _settings(rows[0])

    def enqueue(
        self,
        spec: QueueSpec[Payload],
        job: "Payload | NewJob[Payload] | Mapping[str, Any]",
        *,
        connection: CallerConnection | None = None,
    ) -> UUID | None:
        """Put one job on the queue.

        Args:
            spec: the queue.
            job: its payload, or a `NewJob` with more to say.
            connection: a psycopg or SQLAlchemy connection or an ORM session whose transaction the job joins: rolled back
                means never enqueued. None: a transaction of its own, committed on return.

        Returns:
            The job's id; None when its unique key or id belongs to a live job.

        Raises:
            InvalidPayload, InvalidInput: nothing was enqueued.
            UnknownQueue: the queue does not exist.
        """
        values = payloads.values(spec, job)
        executor = self.database.joined(connection)
        if executor.run("enqueue", {"queue": spec.name, **values}):
            return cast(UUID, values["id"])
        self._check_exists(spec.name, executor)
        return None

    def enqueue_many(
        self,
        spec: QueueSpec[Payload],
        jobs: "Iterable[Payload | NewJob[Payload] | Mapping[str, Any]]",
        *,
        connection: CallerConnection | None = None,
        sent_before: bool = False,
    ) -> Enqueued:
        """Put many jobs on the queue, all of them or, if one is refused, none.

        Args:
            spec: the queue.
            jobs: payloads or `NewJob`s; a generator is read in constant memory.
            connection: as for `enqueue`.
            sent_before: the jobs carry their own ids and may have been enqueued, and even finished, before: those are
                left out. Costs a look into the archive for each job.

        Raises:
            InvalidPayload, InvalidInput: the message names the row, counted from 0; nothing was enqueued.
            UnknownQueue: the queue does not exist.
        """
        if connection is None:
            with self.database.transaction() as transaction:
                return self._enqueue_chunks(transaction, spec, jobs, sent_before)
        with self.database.joined(connection).atomic() as joined:  # type: ignore[union-attr]
            return self._enqueue_chunks(joined, spec, jobs, sent_before)

    def _enqueue_chunks(
        self, executor: Executor, spec: QueueSpec[Any], jobs: Iterable[Any], sent_before: bool
    ) -> Enqueued:
        self._check_exists(spec.name, executor)
        sent = inserted = 0
        for chunk in payloads.chunks(jobs, _CHUNK):
            arrays = payloads.columns(spec, chunk, first_row=sent)
            rows = executor.run("enqueue_many", {"queue": spec.name, **arrays})
            sent += len(chunk)
            inserted += len(rows)
            if sent_before and rows:
                inserted -= len(executor.run("forget_finished", {"ids": [row[0] for row in rows]}))
        return Enqueued(inserted, sent - inserted)

    def claim(
        self,
        queue: str,
        *,
        buckets: Sequence[int],
        limit: int,
        lease_seconds: float,
        worker: str,
    ) -> list[ClaimedJob]:
        """Claim due jobs under a lease.

        A job whose lease ran out on its last attempt is not handed out: it goes to the dead letter here.

        Args:
            queue: its name.
            buckets: where to look, in this order.
            limit: the most jobs to claim, 1 to 10,000.
            lease_seconds: how long the claim holds without a heartbeat.
            worker: who claims: unique for each start of a process, for people to read.

        Raises:
            InvalidInput: an argument is out of range.
        """
        check_queue_name(queue)
        if not 1 <= limit <= MAX_BATCH:
            raise InvalidInput(f"limit is {limit}; a claim takes 1 to {MAX_BATCH:,} jobs")
        if not 0 < lease_seconds <= MAX_DELAY_SECONDS:
            raise InvalidInput(f"lease_seconds is {lease_seconds}; it must be positive, at most a hundred years")
        if not buckets or min(buckets) < 0 or max(buckets) > 1023:
            raise InvalidInput(f"buckets is {list(buckets)}; name at least one, each 0 to 1023")
        rows = self.database.run(
            "claim_round_robin",
            {
                "queue": queue,
                "buckets": list(buckets),
                "limit": limit,
                "lease_seconds": lease_seconds,
                "worker": worker,
            },
        )
        claimed = [ClaimedJob(*row) for row in rows]
        spent = [job for job in claimed if job.attempt > job.max_attempts]
        if not spent:
            return claimed
        self.finish([Ending(job, ArchiveState.FAILED, error=_spent_error(job)) for job in spent])
        return [job for job in claimed if job.attempt <= job.max_attempts]

    def finish(self, endings: Sequence[Ending], *, executor: Executor | None = None) -> set[UUID]:
        """Move claimed jobs to the archive, each under its fence.

        Args:
            endings: the jobs and how each ended.
            executor: a `Database.transaction` to do it in together with other writes (exactly-once effect).

        Returns:
            The ids that were accepted; a job that is missing was refused, because its lease is not the current one.

        Raises:
            InvalidInput: a result cannot be stored as JSON; nothing was written.
        """
        rows = (executor or self.database).run(
            "finish",
            {
                **_fences([ending.job for ending in endings]),
                "states": [ending.state.value for ending in endings],
                "results": [payloads.result_text(ending.result) for ending in endings],
                "errors": [ending.error and payloads.storable_text(ending.error) for ending in endings],
            },
        )
        return {row[0] for row in rows}

    def complete(self, jobs: Sequence[ClaimedJob], *, executor: Executor | None = None) -> None:
        """End jobs as succeeded.

        Raises:
            LeaseLost: some were refused; the others are completed, unless `executor` is given and rolls back.
        """
        _demand_all(jobs, self.finish([Ending(job, ArchiveState.SUCCEEDED) for job in jobs], executor=executor))

    def fail(self, job: ClaimedJob, error: str, *, backoff: Backoff, after: float | None = None) -> bool:
        """Report a failed attempt: due again after the backoff, or the dead letter if it was the last.

        Args:
            job: as claimed.
            error: what went wrong, kept with the job.
            backoff: the queue's.
            after: seconds to wait instead.

        Returns:
            Whether the job will be tried again.

        Raises:
            LeaseLost: the write was refused.
        """
        if job.last_attempt:
            _demand_all([job], self.finish([Ending(job, ArchiveState.FAILED, error=error)]))
            return False
        _demand_all([job], self.requeue([(job, Retry(error, after))], backoff=backoff))
        return True

    def requeue(self, jobs: Sequence[tuple[ClaimedJob, Retry | Snooze]], *, backoff: Backoff) -> set[UUID]:
        """Give claimed jobs back to be due later: a retry spends the attempt, a snooze does not.

        Returns:
            The ids that were accepted.
        """
        delays = [_delay(job, back, backoff) for job, back in jobs]
        rows = self.database.run(
            "requeue",
            {
                **_fences([job for job, _ in jobs]),
                "delays": delays,
                "errors": [payloads.storable_text(back.error) if isinstance(back, Retry) else None for _, back in jobs],
                "spent": [isinstance(back, Retry) for _, back in jobs],
            },
        )
        return {row[0] for row in rows}

    def release(self, jobs: Sequence[ClaimedJob]) -> set[UUID]:
        """Give back jobs that were claimed and not begun; they are due at once. Gives the ids that were accepted."""
        return self.requeue([(job, Snooze(0)) for job in jobs], backoff=Backoff()) if jobs else set()

    def heartbeat(self, jobs: Sequence[ClaimedJob], *, lease_seconds: float) -> set[UUID]:
        """Extend leases, counted from now. Gives the ids that are still held."""
        return {row[0] for row in self.database.run("heartbeat", {**_fences(jobs), "lease_seconds": lease_seconds})}

    def ended_by_us(self, jobs: Sequence[ClaimedJob]) -> set[UUID]:
        """Which of these jobs were ended under exactly these leases: asked when the answer to `finish` got lost."""
        return {row[0] for row in self.database.run("finished_under", _fences(jobs))}

    def peek_heads(self, queue: str) -> list[Head]:
        """The first job of each bucket and priority.

        Raises:
            UnknownQueue: there is no such queue.
        """
        rows = self.database.run("heads", {"queue": check_queue_name(queue)})
        if not rows:
            self._check_exists(queue, self.database)
        return [Head(*row) for row in rows]

    def peek(self, queue: str, limit: int = 20) -> list[WaitingJob]:
        """The jobs that would be claimed next, without claiming them.

        Raises:
            UnknownQueue: there is no such queue.
        """
        rows = self.database.run("peek", {"queue": check_queue_name(queue), "limit": limit})
        if not rows:
            self._check_exists(queue, self.database)
        return [WaitingJob(*row) for row in rows]

    def depth(self, queue: str, *, cap: int = 10_000) -> Depth:
        """How many jobs the queue holds: those that are due counted up to `cap`, and the others together up to `cap`.

        Raises:
            UnknownQueue: there is no such queue.
        """
        ready, running, scheduled, held = self.database.run("depth", {"queue": check_queue_name(queue), "cap": cap})[0]
        depth = Depth(ready, running, scheduled, held, cap)
        if not depth.live:
            self._check_exists(queue, self.database)
        return depth

    def dead_letters(self, queue: str, limit: int = 20) -> list[DeadLetter]:
        """The jobs that ended as failed, the latest first."""
        rows = self.database.run("dead_letters", {"queue": check_queue_name(queue), "limit": limit})
        return [DeadLetter(*row) for row in rows]

    def archived(self, queue: str, *, since_seconds: float, cap: int = 100_000) -> dict[str, int]:
        """How many jobs ended within the last seconds, by archive state, counted up to `cap` together."""
        parameters = {"queue": check_queue_name(queue), "since_seconds": since_seconds, "cap": cap}
        return dict(self.database.run("archive_counts", parameters))

    def _check_exists(self, queue: str, executor: Executor) -> None:
        if not executor.run("queues", {"name": queue}):
            raise self._unknown(queue, executor)

    def _unknown(self, queue: str, executor: Executor) -> UnknownQueue:
        names = ", ".join(row[0] for row in executor.run("queues", {"name": None})) or "none"
        return UnknownQueue(
            f"there is no queue {queue!r} in schema {self.database.schema!r} of {self.database.where} (there are: {names})."
            " Make it with create_queue, or with: sqlqueue create"
        )


def _delay(job: ClaimedJob, back: Retry | Snooze, backoff: Backoff) -> float:
    match back:
        case Snooze(seconds) | Retry(_, float() | int() as seconds):
            return float(seconds)
        case _:
            return backoff.delay(job.attempt)


def _fences(jobs: Sequence[ClaimedJob]) -> dict[str, list[object]]:
    return {"ids": [job.id for job in jobs], "lease_nos": [job.lease_no for job in jobs]}


def _demand_all(jobs: Sequence[ClaimedJob], accepted: set[UUID]) -> None:
    lost = [str(job.id) for job in jobs if job.id not in accepted]
    if lost:
        raise LeaseLost(
            f"the lease of {len(lost)} of {len(jobs)} jobs is not current any more ({', '.join(lost[:5])}"
            f"{', …' if len(lost) > 5 else ''}): they were claimed by somebody else, ended or cancelled; drop the work"
        )


def _spent_error(job: ClaimedJob) -> str:
    before = f"; the attempt before it: {job.error}" if job.error else ""
    return f"the lease ran out on the last of {job.max_attempts} attempts: its consumer died or hung{before}"


def _settings(row: Sequence[Any]) -> QueueSettings:
    name, bucket_count, lease_seconds, max_attempts, seconds, factor, max_seconds = row
    return QueueSettings(name, bucket_count, lease_seconds, max_attempts, Backoff(seconds, factor, max_seconds))
