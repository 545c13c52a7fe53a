"""The work of the ops of graphs: claim jobs, complete and fail them under their leases. It does not import Dagster."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Generic, TypeVar
from uuid import UUID

from pydantic import BaseModel

from dagster_sqlqueue.consumer.failure_log import log_aside, log_back, log_buried, log_endings, log_lost
from dagster_sqlqueue.consumer.settlement import settle
from dagster_sqlqueue.errors import InvalidInput, InvalidPayload, UnknownVersion, UnreadablePayload
from dagster_sqlqueue.model.backoff import BackoffPolicy
from dagster_sqlqueue.model.job import ArchiveState, ClaimedJob
from dagster_sqlqueue.model.lifecycle import LiveState
from dagster_sqlqueue.model.outcome import Cancel, Done, Hold, Outcome, Reject, Retry, Snooze
from dagster_sqlqueue.model.queue import QueueSpec
from dagster_sqlqueue.payload import json_text, redacted_text, serialization
from dagster_sqlqueue.payload.redaction import scrubbed, values_in
from dagster_sqlqueue.payload.storable import storable_text
from dagster_sqlqueue.queue import SqlQueue
from dagster_sqlqueue.queue.claim_request import ClaimRequest
from dagster_sqlqueue.queue.endings import Endings
from dagster_sqlqueue.queue.leases import Leases
from dagster_sqlqueue.queue.selection import JobRow

T = TypeVar("T")

_AT_ONCE = 1_000


@dataclass(frozen=True, slots=True)
class LeasedJob(Generic[T]):
    """A job under a lease, passed from op to op: plain data that an IO manager can store.

    Attributes:
        claimed: the job as it was claimed, with its fence, for the verbs of `SqlQueue`.
        payload: as the queue's model; a dict if the op has only the queue's name.
    """

    claimed: ClaimedJob
    payload: T

    def __class_getitem__(cls, payload: Any) -> Any:
        # Dagster makes types of annotations, but not of parametrised ones.
        return cls

    @property
    def id(self) -> UUID:
        """The job's id."""
        return self.claimed.id

    @property
    def lease_no(self) -> int:
        """The fence: it grows with every lease of the job. Pass it on to systems that can check it."""
        return self.claimed.lease_no

    @property
    def lease_until(self) -> datetime:
        """When the lease ends, by the database's clock."""
        return self.claimed.lease_until

    @property
    def attempt(self) -> int:
        """Which attempt this is, from 1."""
        return self.claimed.attempt

    @property
    def last_attempt(self) -> bool:
        """Whether a failure now ends in the dead letter."""
        return self.claimed.last_attempt


@dataclass(frozen=True, slots=True)
class Taken:
    """The result of a claim.

    Attributes:
        jobs: the jobs to handle.
        rejected: how many went to the dead letter, or are held where their key stops, because their payload does not fit.
        held: how many are held, because their payload has a version that is unknown here.
    """

    jobs: list[LeasedJob[Any]]
    rejected: int
    held: int


@dataclass(slots=True)
class Written:
    """The result of writes about jobs.

    Attributes:
        counts: of `completed`, `retried`, `snoozed`, `dead_lettered`, `held` and `cancelled` jobs.
        stale: the jobs whose write was refused, because their lease had passed on.
    """

    counts: Counter[str] = field(default_factory=Counter)
    stale: list[UUID] = field(default_factory=list)


def take(
    leases: Leases,
    name: str,
    spec: QueueSpec[Any] | None,
    *,
    limit: int,
    lease_seconds: float | None,
    worker: str,
    buckets: Sequence[int] | None = None,
) -> Taken:
    """Claim due jobs, and read their payloads; reject or hold those that cannot be read, as a consumer does.

    Args:
        leases: where the queue is.
        name: the queue's.
        spec: the queue, for its model; None: payloads stay dicts.
        limit: the most jobs.
        lease_seconds: how long the leases hold; None: the queue's lease.
        worker: the name of the claimer.
        buckets: the buckets to claim from; None: all.
    """
    jobs: list[LeasedJob[Any]] = []
    unreadable: list[tuple[ClaimedJob, Outcome]] = []
    request = ClaimRequest(name, limit, worker=worker, buckets=buckets, lease_seconds=lease_seconds).checked()
    for claimed in leases.claim(request, on_spent=lambda dead, held, _: log_buried(dead, held)):
        try:
            payload = (
                json_text.strictly(claimed.payload) if spec is None else serialization.parse(spec, claimed.payload)
            )
            jobs.append(LeasedJob(claimed, payload))
        except (UnknownVersion, UnreadablePayload) as error:
            unreadable.append((claimed, Hold(str(error))))
        except InvalidPayload as error:
            unreadable.append((claimed, Reject(str(error))))
    settle_claimed(leases, unreadable)
    held = sum(isinstance(outcome, Hold) for _, outcome in unreadable)
    return Taken(jobs, len(unreadable) - held, held)


def extended(queue: SqlQueue, jobs: Sequence[LeasedJob[T]], *, lease_seconds: float | None) -> list[LeasedJob[T]]:
    """Extend the leases of jobs: `still_held`."""
    until: dict[UUID, datetime] = {}
    for name in {job.claimed.queue for job in jobs}:
        its = [job for job in jobs if job.claimed.queue == name]
        # By the clock that decides: that of the run's machine may differ by more than a lease.
        now: datetime = queue.database.run("clock", {})[0][0]
        left = max((job.lease_until - now).total_seconds() for job in its)
        seconds = lease_seconds or max(left, queue.settings(name).lease_seconds)
        for some in _slices(its):
            held = queue.leases.heartbeat([job.claimed for job in some], lease_seconds=seconds).held
            until |= dict.fromkeys(held, now + timedelta(seconds=seconds))
    return [replace(job, claimed=job.claimed._replace(lease_until=until[job.id])) for job in jobs if job.id in until]


def write(
    leases: Leases, settled: Sequence[tuple[LeasedJob[Any], Outcome]], backoff: BackoffPolicy | None = None
) -> Written:
    """Write the outcomes of jobs, each under its fence. What was written before under the same lease counts as written now:
    an earlier attempt of the step may have done that, and died before it returned.

    Args:
        leases: where the queues are.
        settled: the jobs with their outcomes.
        backoff: for retries that name no delay and have no backoff of their own; None: the queue's.

    Raises:
        InvalidInput: a result cannot be stored as JSON, or the arguments are not jobs and outcomes; nothing was written.
    """
    written = Written()
    sensitive: dict[str, frozenset[str]] = {}
    for job, outcome in settled:
        _check(job, outcome)
        if not isinstance(job.payload, BaseModel) and job.claimed.queue not in sensitive:
            sensitive[job.claimed.queue] = leases.catalog.sensitive_names(job.claimed.queue)
    for some in _slices(settled):
        some_discreet = [(job.claimed, _discreet(job, outcome, sensitive)) for job, outcome in some]
        done = settle_claimed(leases, some_discreet, backoff)
        written.counts += done.counts
        written.stale += done.stale
    return written


def settle_claimed(
    leases: Leases, settled: Sequence[tuple[ClaimedJob, Outcome]], backoff: BackoffPolicy | None = None
) -> Written:
    """Write outcomes as `write` does, for claimed jobs and texts that quote nothing sensitive."""
    written = Written()
    writes = settle(settled, leases.stops_key)
    accepted: set[UUID] = set()
    if writes.endings.jobs:
        done = _finish(leases, writes.endings)
        accepted |= done
        names = {ArchiveState.SUCCEEDED: "completed", ArchiveState.FAILED: "dead_lettered"}
        log_endings(writes.endings.among(done))
        for job, state in zip(writes.endings.jobs, writes.endings.states, strict=True):
            written.counts[names.get(state, "cancelled")] += job.id in done
    if writes.back:
        delays = leases.delays(writes.back, backoff=backoff)
        requeued = leases.requeue(writes.back, delays=delays)
        log_back(writes.back, delays, requeued.accepted, requeued.cancel_requested)
        done = requeued.accepted | _returned_before(leases, writes.back, requeued.accepted)
        accepted |= done
        for job, how in writes.back:
            written.counts["retried" if isinstance(how, Retry) else "snoozed"] += job.id in done
    if writes.aside:
        done = leases.hold(writes.aside)
        done |= _returned_before(leases, writes.aside, done)
        accepted |= done
        written.counts["held"] += len(done)
        log_aside(writes, done)
    log_lost(job for job, _ in settled if job.id not in accepted)
    written.stale += [job.id for job, _ in settled if job.id not in accepted]
    return written


def _finish(leases: Leases, endings: Endings) -> set[UUID]:
    accepted = leases.finish(endings)
    refused = [job for job in endings.jobs if job.id not in accepted]
    return accepted | leases.ended_by_us(refused) if refused else accepted


def _returned_before(
    leases: Leases, returned: Sequence[tuple[ClaimedJob, Retry | Snooze | str]], accepted: set[UUID]
) -> set[UUID]:
    """Return which of the refused jobs were given back, or held for this reason, under the same lease, which nobody has
    claimed since.
    """
    refused = {job.id: (job, how) for job, how in returned if job.id not in accepted}
    rows = [JobRow(*row) for row in leases.database.run("live_rows", {"ids": list(refused)})] if refused else []
    return {row.id for row in rows if _stands(*refused[row.id], row)}


def _stands(job: ClaimedJob, how: Retry | Snooze | str, row: JobRow) -> bool:
    if row.lease_no != job.lease_no:
        return False
    match how:
        case Retry(error, _):
            wanted = LiveState.QUEUED, job.attempt, storable_text(error)
            return (row.state, row.attempt, row.error) == wanted
        case str():
            return (row.state, row.error) == (LiveState.HELD, storable_text(how))
    return (row.state, row.attempt) == (LiveState.QUEUED, job.attempt - 1)


def _check(job: object, outcome: object) -> None:
    if not isinstance(job, LeasedJob):
        raise InvalidInput(
            f"there is a {type(job).__name__} among the jobs; give each as the LeasedJob that was claimed"
        )
    if not isinstance(outcome, Done | Retry | Snooze | Hold | Reject | Cancel):
        raise InvalidInput(
            f"job {job.id} came with a {type(outcome).__name__}; give an error as a text, or Done(…), Retry(…), Snooze(…),"
            " Hold(…), Reject(…) or Cancel(…)"
        )
    if isinstance(outcome, Done):
        serialization.result_text(outcome.result)


def _discreet(job: LeasedJob[Any], outcome: Outcome, sensitive: Mapping[str, frozenset[str]]) -> Outcome:
    """The outcome without the sensitive values of the payload."""

    def scrub(text: str) -> str:
        if isinstance(job.payload, BaseModel):
            return redacted_text.scrub(type(job.payload), text, job.claimed.payload, job.payload)
        return scrubbed(text, values_in(job.payload, sensitive[job.claimed.queue]))

    match outcome:
        case Retry(error, after):
            return Retry(scrub(error), after)
        case Hold(reason) | Reject(reason) | Cancel(reason):
            return type(outcome)(scrub(reason))
    return outcome


def _slices(things: Sequence[T]) -> Iterator[Sequence[T]]:
    for at in range(0, len(things), _AT_ONCE):
        yield things[at : at + _AT_ONCE]
