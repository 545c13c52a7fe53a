"""Transactional mode: claim, work and end in one transaction; the model's part and the machine's rule."""

from collections.abc import Sequence
from uuid import UUID

from hypothesis import strategies as st

from dagster_sqlqueue.consumer.settlement import settle
from dagster_sqlqueue.db.executors import Transaction
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.model.job import ClaimedJob
from dagster_sqlqueue.model.lifecycle import Event
from dagster_sqlqueue.model.outcome import Cancel, Outcome, Reject
from dagster_sqlqueue.model.queue import Strategy
from dagster_sqlqueue.queue.claim_request import ClaimRequest
from tests.statemachine.agreeing import same
from tests.statemachine.deciding import DecidedMachine, DecidedModel
from tests.statemachine.drawing import OUTCOMES, due, event_of
from tests.statemachine.jobs import NEVER, Divergence, Moment, check_choice, together
from tests.statemachine.machine import ENDS, RETURNS, step


class Crash(Exception):
    """What a handler dies of."""


class LockedModel(DecidedModel):
    """A queue that may be worked off inside of transactions."""

    @property
    def lockable(self) -> bool:
        """Whether transactional mode can work it off."""
        return not (self.keyed or self.limited or self.spec.strategy in (Strategy.ASSIGN, Strategy.TOKEN))

    def locked(self, limit: int, locked: Sequence[UUID]) -> list[UUID]:
        """The jobs that are locked, in order, when the library locked these."""
        if self.paused:
            return []
        candidates = self._candidates(self.all_buckets, None)
        if self.spec.strategy is not Strategy.FANOUT:
            return [job.id for job in together(candidates[:limit])]
        by_id = {job.id: job for job in candidates}
        if any(job.by_itself for job in candidates):
            chosen = [by_id[job] for job in locked if job in by_id]
            return [job.id for job in together(chosen)] if len(chosen) == len(locked) and chosen else []
        if not set(locked) <= by_id.keys() or len(locked) != min(limit, len(candidates)):
            raise Divergence(f"{limit} of {list(by_id)} cannot be {locked}")
        check_choice(self.spec.strategy, [by_id[job] for job in locked], candidates, self.all_buckets)
        return list(locked)

    def begin_alone(self, id: UUID) -> None:
        """Begin a job by itself: this stays, whatever becomes of the transaction."""
        self.live[id].step(Event.CLAIM)
        self.live[id].alone, self.live[id].limited = True, False

    def end_locked(self, ended: Sequence[tuple[UUID, Event, Moment | float | None]], *, begun: bool) -> None:
        """End them: what a claim, unless they have begun, and an outcome do, in one step."""
        for job in (self.live[id] for id, event, _ in ended if event is not Event.BURY and event is not Event.DROP):
            if not begun:
                job.step(Event.CLAIM)
        self._end([(self.live[id], event) for id, event, _ in ended if event in {*ENDS, Event.BURY, Event.DROP}])
        now = self.now()
        for id, event, when in ended:
            if event in RETURNS and when is not None:
                job = self.live[id]
                job.step(event)
                job.at = max(when, now) if isinstance(when, tuple) else (when, now[1])
            elif event is Event.HOLD:
                self.live[id].step(event)
                self.live[id].at = NEVER


class LockedMachine(DecidedMachine):
    """A queue that is worked off by leases or in transactions."""

    model: LockedModel
    make_model = LockedModel

    @step(
        2,
        consumer=st.integers(0, 1),
        limit=st.sampled_from([1, 3, 50]),
        outcomes=OUTCOMES,
        crashes=st.sampled_from([True, False, False]),
    )
    def work_in_a_transaction(self, consumer: int, limit: int, outcomes: list[Outcome], crashes: bool) -> None:
        queue = self.server.consumers[consumer]
        queue.settings("work")
        self.seen[consumer] = self.model.spec
        ended: list[tuple[UUID, Event, Moment | float | None]] = []
        begun = False

        def work(transaction: Transaction) -> None:
            jobs = queue.leases.lock_due(transaction, ClaimRequest("work", limit=limit))
            same([job.id for job in jobs], self.model.locked(limit, [job.id for job in jobs]))
            nonlocal begun
            begun = any(job.alone for job in jobs)
            if begun:
                self.model.begin_alone(jobs[0].id)
            settled = [(job, self._outcome(job, outcome)) for job, outcome in zip(jobs, outcomes, strict=False)]
            ended.extend((job.id, *self._event(job, outcome)) for job, outcome in settled)
            writes = settle(settled, queue.leases.stops_key)
            if writes.endings.jobs:
                queue.leases.finish_locked(transaction, writes.endings, worker="w")
            if writes.back or writes.aside:
                queue.leases.return_locked(transaction, writes.back, writes.aside)
            if crashes:
                raise Crash

        try:
            queue.database.transact(work)
        except InvalidInput:
            same(self.model.lockable, False)
        except Crash:
            same(self.model.lockable, True)
        else:
            same(self.model.lockable, True)
            self.model.end_locked(ended, begun=begun)

    def _outcome(self, job: ClaimedJob, outcome: Outcome) -> Outcome:
        """As the consumer has it: a job that is not wanted any more, or has no attempt left, is not handled."""
        if job.cancel_requested:
            return Cancel("cancelled while it ran")
        return Reject("no attempt is left") if job.attempt > job.max_attempts else outcome

    def _event(self, job: ClaimedJob, outcome: Outcome) -> tuple[Event, Moment | float | None]:
        if job.cancel_requested:
            return Event.DROP, None
        if job.attempt > job.max_attempts:
            return Event.BURY, None
        event = event_of(job, outcome, stops=False)
        return event, due(outcome) if event in RETURNS else None
