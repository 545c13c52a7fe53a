"""Jobs in the model, and which of them a strategy that leaves something to chance may choose.

Time is symbolic. A moment is a pair: whole hours from now, and the number of the statement that wrote it, so that moments
compare as the database's timestamps do while a run takes seconds. A job is due when its hours are not positive.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias
from uuid import UUID

from dagster_sqlqueue.model.job import ArchiveState
from dagster_sqlqueue.model.lifecycle import Attempt, Event, LiveState, after
from dagster_sqlqueue.model.queue import Strategy

Moment: TypeAlias = tuple[float, int]

NEVER: Moment = (math.inf, 0)


@dataclass
class ModelJob:
    """One job, live or archived."""

    id: UUID
    bucket: int
    priority: int
    at: Moment
    run_at: Moment
    max_attempts: int
    content: int = 0
    unique_key: str | None = None
    unique_until_claim: bool = False
    ordering_key: str | None = None
    order_no: int | None = None
    tags: Sequence[str] = ()
    state: LiveState | ArchiveState = LiveState.QUEUED
    lease_no: int = 0
    attempt: int = 0
    created: int = 0
    ended: int = 0
    limited: bool = False
    alone: bool = False
    cancel_requested: bool = False

    @property
    def held_key(self) -> str | None:
        """The unique key, as long as no other job can have it."""
        return None if self.unique_until_claim and self.lease_no else self.unique_key

    @property
    def due(self) -> bool:
        return self.at[0] <= 0

    @property
    def leased(self) -> bool:
        return self.state is LiveState.RUNNING and not self.due

    @property
    def suspect(self) -> bool:
        """Whether its lease ran out."""
        return self.state is LiveState.RUNNING and self.due

    @property
    def by_itself(self) -> bool:
        """Whether a transaction has to show that it has begun before its handler does."""
        return self.suspect or (self.unique_until_claim and self.lease_no == 0)

    @property
    def attempts_spent(self) -> int:
        return self.attempt - (self.state is LiveState.RUNNING and not self.alone)

    @property
    def parked(self) -> bool:
        return self.order_no is not None and self.state is LiveState.QUEUED and self.at == NEVER

    @property
    def place(self) -> tuple[Any, ...]:
        """What a bucket is ordered by."""
        return (-self.priority, self.at, self.id)

    def step(self, event: Event) -> None:
        """Move as the lifecycle says."""
        assert isinstance(self.state, LiveState | ArchiveState)
        transition = after(self.state, event)
        assert transition.after is not None
        self.state = transition.after
        self.lease_no += transition.new_lease
        match transition.attempt:
            case Attempt.COUNTED:
                self.attempt = min(self.attempt + 1, self.max_attempts)
            case Attempt.COUNTED_IF_ALONE:
                self.attempt = min(self.attempt + self.alone, self.max_attempts)
            case Attempt.GIVEN_BACK:
                self.attempt -= 1
            case Attempt.KEPT_IF_ALONE:
                self.attempt -= not self.alone
            case Attempt.RESET:
                self.attempt = 0


@dataclass(frozen=True)
class Lease:
    """What a consumer holds, or believes that it holds."""

    id: UUID
    lease_no: int


def without_suspects(jobs: list[ModelJob]) -> list[ModelJob]:
    """The first one alone, if its lease ran out; else all before such a one."""
    before = list(itertools.takewhile(lambda job: not job.suspect, jobs))
    return before or jobs[:1]


def together(jobs: list[ModelJob]) -> list[ModelJob]:
    """The same for a transaction, in which one whose claim frees its unique key goes by itself too."""
    before = list(itertools.takewhile(lambda job: not job.by_itself, jobs))
    return before or jobs[:1]


class Divergence(AssertionError):
    """The library did what the model does not allow."""


def order(job: ModelJob) -> int:
    return job.order_no or 0


def check_choice(
    strategy: Strategy | str, chosen: Sequence[ModelJob], candidates: Sequence[ModelJob], buckets: Sequence[int]
) -> None:
    """Whether a strategy that leaves something to chance might have chosen these.

    Raises:
        Divergence: it might not.
    """
    most = len(chosen)
    ids = {job.id for job in chosen}
    jobs_of = {
        bucket: sorted((job for job in candidates if job.bucket == bucket), key=lambda job: job.place)
        for bucket in buckets
    }
    turns = [[*buckets[start:], *buckets[:start]] for start in range(len(buckets))]
    match strategy:
        case Strategy.ASSIGN:
            allowed = ids <= {job.id for jobs in jobs_of.values() for job in jobs[:most]}
        case Strategy.TOKEN:
            walks = ([job for bucket in turn for job in jobs_of[bucket]][:most] for turn in turns)
            in_order = list(chosen) == sorted(chosen, key=lambda job: (job.bucket, -job.priority, job.run_at, job.id))
            allowed = in_order and any(ids == {job.id for job in walk} for walk in walks)
        case _:
            allowed = any(_fans_out(list(chosen), [jobs_of[bucket] for bucket in turn]) for turn in turns)
    if not allowed:
        raise Divergence(f"{strategy} of {list(candidates)} cannot choose {list(chosen)}")


def _fans_out(chosen: list[ModelJob], buckets: Sequence[Sequence[ModelJob]]) -> bool:
    """Whether the jobs come bucket by bucket and priority by priority, each from some point on and then from its start."""
    for bucket in buckets:
        for _, level in itertools.groupby(bucket, key=lambda job: job.priority):
            jobs = list(level)
            taken, chosen = chosen[: len(jobs)], chosen[len(jobs) :]
            if not any([*jobs[start:], *jobs[:start]][: len(taken)] == taken for start in range(len(jobs))):
                return False
    return not chosen
