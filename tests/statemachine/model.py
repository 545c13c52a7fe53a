"""A queue in pure Python: what the database should do, in as few words as possible."""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from dagster_sqlqueue import QueueSpec
from dagster_sqlqueue.model.ids import bucket_hash
from dagster_sqlqueue.model.lifecycle import Event, LiveState
from dagster_sqlqueue.model.queue import PoisonPolicy, Strategy
from dagster_sqlqueue.queue.head_hints import FROM_THE_HEAD
from tests.statemachine.hints import ModelHints, places
from tests.statemachine.jobs import NEVER, Divergence, Lease, ModelJob, Moment, check_choice, order, without_suspects

LEASE_HOURS = 1


@dataclass
class Model:
    """One queue."""

    spec: QueueSpec[Any]
    bucket_count: int
    paused: bool = False
    live: dict[UUID, ModelJob] = field(default_factory=dict)
    archive: dict[UUID, ModelJob] = field(default_factory=dict)
    starts: int = 0
    stale: int = 0
    statements: Any = field(default_factory=lambda: itertools.count(1))
    orders: Any = field(default_factory=lambda: itertools.count(1))

    def now(self, hours: float = 0) -> Moment:
        """The moment of a new statement, or so many hours from it."""
        return (hours, next(self.statements))

    @property
    def keyed(self) -> bool:
        return self.spec.ordered or self.spec.max_running_per_key is not None

    @property
    def limited(self) -> bool:
        return self.spec.max_running is not None or self.spec.rate is not None

    @property
    def counted(self) -> bool:
        return self.spec.max_running is not None

    @property
    def all_buckets(self) -> list[int]:
        return list(range(max([self.bucket_count, *(job.bucket + 1 for job in self.live.values())])))

    # Putting in

    def enqueue(self, jobs: Sequence[ModelJob], now: Moment | None = None) -> list[UUID]:
        """Put on what is not there already; returns the ids."""
        now = now or self.now()
        inserted = []
        for job in jobs:
            taken = {other.held_key for other in self.live.values()} - {None}
            if job.id in self.live or job.held_key in taken:
                continue
            job.run_at = job.at = now if job.at == (0, 0) else job.at
            job.created = now[1]
            job.bucket = bucket_hash(job.id, job.ordering_key) % self.bucket_count
            job.order_no = next(self.orders) if self.keyed and job.ordering_key else None
            self.live[job.id] = job
            inserted.append(job.id)
        return inserted

    # Taking out

    def claim(
        self,
        limit: int,
        buckets: Sequence[int] | None,
        tag: str | None,
        granted: set[UUID],
        handed: Sequence[UUID],
        *,
        hints: ModelHints | None = None,
        once: bool = False,
    ) -> list[UUID]:
        """Claim. Where the strategy leaves a choice, `granted` and `handed` say what the library chose, and it is checked
        that it might. Gives the jobs to hand out, in order.

        `hints` say where to begin, and learn where this began; `once`: it is not looked again where nothing could be handed
        out, and only what was handed out is remembered.
        """
        hints = hints or ModelHints()
        while not self.paused:
            searched = self.all_buckets if buckets is None else list(buckets)
            most = self._allowance(limit)
            if most <= 0:
                break
            candidates = [job for job in self._candidates(searched, tag) if hints.fits(job)]
            if tag is not None:
                candidates = candidates[:most]
            parked = self._park(candidates) if self.keyed else []
            candidates = [job for job in candidates if job not in parked]
            picked = self._picked(candidates, most, searched, tag, granted, handed)
            where = places(picked, by_run_at=self.spec.strategy is Strategy.TOKEN)
            out = self._grant(picked)
            if out and self.spec.strategy in FROM_THE_HEAD:
                ids = {job.id for job in out}
                hints.note([place for place in where if not once or place[2][1] in ids])
            if out or once or not (picked or parked):
                return [job.id for job in out]
        return []

    @property
    def claims_apart(self) -> bool:
        """Whether who ends and claims does so in two steps."""
        return self.keyed or self.spec.strategy in (Strategy.ASSIGN, Strategy.TOKEN)

    def heads(self, buckets: Iterable[int]) -> dict[int, Moment]:
        """Of these buckets, the moment before which there can be no job."""
        minute_ago = self.now(-1 / 60)
        return {
            bucket: min([minute_ago, *(job.at for job in self.live.values() if job.bucket == bucket)])
            for bucket in buckets
        }

    def _allowance(self, limit: int) -> int:
        if self.spec.max_running is not None:
            limit = min(limit, self.spec.max_running - sum(job.leased for job in self.live.values()))
        if self.spec.rate is not None:
            limit = min(limit, self.spec.rate.starts - self.starts)
        return limit

    def _candidates(self, buckets: Sequence[int], tag: str | None) -> list[ModelJob]:
        due = [job for job in self.live.values() if job.due and job.bucket in buckets]
        if tag is not None:
            return sorted((job for job in due if tag in job.tags), key=lambda job: (job.bucket, job.place))
        if self.spec.strategy is Strategy.FIFO:
            return sorted(due, key=lambda job: job.place)
        return sorted(due, key=lambda job: (buckets.index(job.bucket), job.place))

    def has_turn(self, job: ModelJob, among: Iterable[ModelJob]) -> bool:
        """Whether a job may run, of those that were looked at together."""
        if job.order_no is None:
            return True
        line = [other for other in self.live.values() if other.order_no and other.ordering_key == job.ordering_key]
        running = sum(other.leased for other in line)
        if self.spec.ordered:
            return running == 0 and job.order_no == min(other.order_no or 0 for other in line)
        before = sum(other.order_no < job.order_no for other in among if other in line and other.order_no)
        assert self.spec.max_running_per_key
        return running + before < self.spec.max_running_per_key

    def _park(self, candidates: list[ModelJob]) -> list[ModelJob]:
        parked = [job for job in candidates if not self.has_turn(job, candidates)]
        for job in parked:
            job.step(Event.PARK)
            job.at = NEVER
        if self.spec.ordered:
            self.promote(parked)
        return parked

    def _picked(
        self,
        candidates: list[ModelJob],
        most: int,
        buckets: Sequence[int],
        tag: str | None,
        granted: set[UUID],
        handed: Sequence[UUID],
    ) -> list[ModelJob]:
        if tag is not None or self.spec.strategy in (Strategy.ROUND_ROBIN, Strategy.FIFO):
            return without_suspects(candidates[:most])
        by_id = {job.id: job for job in candidates}
        chosen = [by_id[job] for job in handed if job in by_id]
        unfit = [job for job in candidates if not self._fit(job)]
        if any(job.suspect for job in candidates):
            return self._picked_beside_suspects(chosen, [job for job in unfit if job.id in granted], most)
        if len(candidates) <= most:
            if not unfit and not self.keyed:
                check_choice(self.spec.strategy, chosen, candidates, buckets)
            return [*unfit, *chosen, *(job for job in candidates if job not in unfit and job not in chosen)]
        met = [job for job in unfit if job.id in granted]
        picked = met[:most] if len(met) >= most else [*met, *chosen]
        if len(picked) != most:
            raise Divergence(f"a claim of {most} took {len(picked)} of {len(candidates)}")
        if not unfit and not self.keyed:
            check_choice(self.spec.strategy, picked, candidates, buckets)
        return picked

    def _picked_beside_suspects(self, chosen: list[ModelJob], unfit: list[ModelJob], most: int) -> list[ModelJob]:
        """What one pick of a strategy that leaves something to chance took, where some leases ran out: one of these jobs, or
        some of the others.
        """
        for job in [job for job in unfit if job.suspect]:
            return [job]
        picked = [*unfit, *chosen]
        if unfit and not self._may_be_together(picked, most):
            # Nothing that was picked could be handed out, and the library picked again.
            picked = unfit
        if not self._may_be_together(picked, most):
            raise Divergence(f"a claim of {most} took {picked} together")
        return picked

    def _may_be_together(self, picked: Sequence[ModelJob], most: int) -> bool:
        return len(picked) <= most and (len(picked) == 1 or not any(job.suspect for job in picked))

    def _fit(self, job: ModelJob) -> bool:
        return not job.cancel_requested and job.attempts_spent < job.max_attempts

    def _grant(self, picked: Sequence[ModelJob]) -> list[ModelJob]:
        until = self.now(LEASE_HOURS)
        if self.spec.rate is not None:
            self.starts += len(picked)
        out = [job for job in picked if self._fit(job)]
        for job in out:
            job.step(Event.CLAIM)
            job.at, job.limited, job.alone = until, self.counted, len(picked) == 1
        stopped = [job for job in picked if not self._fit(job) and job not in out and self._stops(job)]
        self._end([(job, self._burial(job)) for job in picked if job not in out and job not in stopped])
        self._aside([(job, Event.BURY_AND_STOP) for job in stopped])
        return out

    def _burial(self, job: ModelJob) -> Event:
        return Event.DROP if job.cancel_requested else Event.BURY

    def _stops(self, job: ModelJob) -> bool:
        return not job.cancel_requested and job.order_no is not None and self.spec.on_poison is PoisonPolicy.STOP

    # Ending

    def current(self, lease: Lease) -> ModelJob | None:
        """The job, if the lease is its current one; else the write is counted as stale."""
        job = self.live.get(lease.id)
        if job is not None and job.state is LiveState.RUNNING and job.lease_no == lease.lease_no:
            return job
        self.stale += 1
        return None

    def finish(self, endings: Sequence[tuple[Lease, Event]]) -> set[UUID]:
        """End jobs; returns those that were accepted."""
        ended = [(job, event) for lease, event in endings if (job := self.current(lease))]
        self._end(ended)
        return {job.id for job, _ in ended}

    def give_back(self, back: Sequence[tuple[Lease, Event, Moment | float]]) -> set[UUID]:
        """Requeue jobs, each at a moment or after so many hours; returns those that were accepted."""
        now = self.now()
        accepted = []
        for lease, event, when in back:
            if job := self.current(lease):
                job.step(event)
                job.at = max(when, now) if isinstance(when, tuple) else (when, now[1])
                if job.cancel_requested:
                    job.at = now
                accepted.append(job)
        self.promote(accepted)
        return {job.id for job in accepted}

    def hold(self, leases: Sequence[tuple[Lease, Event]]) -> set[UUID]:
        """Set jobs aside; returns those that were accepted."""
        accepted = [(job, event) for lease, event in leases if (job := self.current(lease))]
        self._aside(accepted)
        return {job.id for job, _ in accepted}

    def heartbeat(self, leases: Sequence[Lease]) -> tuple[set[UUID], set[UUID]]:
        """Extend leases; returns the jobs that are kept, and those of them that are to be cancelled."""
        until = self.now(LEASE_HOURS)
        kept = []
        for lease in leases:
            job = self.live.get(lease.id)
            if job and job.due and (job.limited or job.order_no is not None):
                self.stale += 1
            elif job := self.current(lease):
                job.step(Event.HEARTBEAT)
                job.at = until
                kept.append(job)
        return {job.id for job in kept}, {job.id for job in kept if job.cancel_requested}

    def _end(self, ended: Sequence[tuple[ModelJob, Event]]) -> None:
        statement = next(self.statements)
        for job, event in ended:
            job.step(event)
            job.ended = statement
            self.archive[job.id] = self.live.pop(job.id)
        self.promote([job for job, _ in ended])

    def _aside(self, held: Sequence[tuple[ModelJob, Event]]) -> None:
        for job, event in held:
            job.step(event)
            job.at = NEVER
        self.promote([job for job, _ in held])

    def promote(self, left: Sequence[ModelJob]) -> None:
        """Bring back parked jobs of the keys of jobs that made room: one for each, or in an ordered queue the first live
        one, if none of its key runs.
        """
        now = self.now()
        for gone in left:
            line = [job for job in self.live.values() if job.order_no and job.ordering_key == gone.ordering_key]
            waiting = [job for job in line if job.parked]
            if gone.order_no is None or not waiting:
                continue
            first = min(waiting, key=order)
            if not self.spec.ordered or (first is min(line, key=order) and not any(job.leased for job in line)):
                first.step(Event.PROMOTE)
                first.at = max(first.run_at, now)

    # Settings and time

    def reconfigure(self, spec: QueueSpec[Any]) -> None:
        """Change the settings; the bucket count stays. Jobs that wait for a turn are let out when the turns changed."""
        let_out = (self.spec.ordered, self.spec.max_running_per_key) != (spec.ordered, spec.max_running_per_key)
        self.spec = spec
        now = self.now()
        for job in sorted(self.live.values(), key=lambda job: (job.created, job.id)):
            if job.parked and let_out:
                job.at = max(job.run_at, now)
            if job.ordering_key is not None:
                number = job.order_no or next(self.orders)
                job.order_no = number if self.keyed else None
            job.limited = job.state is LiveState.RUNNING and self.counted

    def shift(self, job: ModelJob, hours_ago: float) -> None:
        """Let time pass for one job, until it was due for so long."""
        job.at = self.now(-hours_ago)
