"""Consumers as the drain loop has them: they remember where their claims began, and end and claim in one go; and the verb
that ends one job, or says that its lease is lost.
"""

from collections.abc import Sequence

from hypothesis import strategies as st

from dagster_sqlqueue.consumer.settlement import settle
from dagster_sqlqueue.errors import LeaseLost
from dagster_sqlqueue.model.lifecycle import Event
from dagster_sqlqueue.model.outcome import Outcome
from dagster_sqlqueue.model.queue import PoisonPolicy
from dagster_sqlqueue.queue.claim_request import ClaimRequest
from dagster_sqlqueue.queue.head_hints import HeadHints
from tests.statemachine.agreeing import same
from tests.statemachine.drawing import BUCKETS, INDEX, INDEXES, OUTCOMES, event_of
from tests.statemachine.hints import ModelHints
from tests.statemachine.locked import LockedMachine
from tests.statemachine.machine import ENDS, lease, step

NEVER_BY_ITSELF = 1e9
LIMITS = st.sampled_from([1, 2, 3, 50])
LANES = st.sampled_from([None, None, None]) | BUCKETS
SWEEPS = st.sampled_from([False, False, False, True])


class DrawnHints(HeadHints):
    """Searches from the very beginning when the run says so, whatever the time is."""

    def __init__(self) -> None:
        super().__init__(sweep_seconds=NEVER_BY_ITSELF)
        self.sweeps = True

    def array(self, buckets: Sequence[int]) -> list[str | None]:
        self.sweep_next()
        beginning = super().array(buckets)
        if self.sweeps:
            return beginning
        self.saw_all()
        return super().array(buckets)


class RememberingMachine(LockedMachine):
    """A queue whose consumers remember."""

    def __init__(self) -> None:
        super().__init__()
        self.hints = [DrawnHints() for _ in self.server.consumers]
        self.remembered = [ModelHints() for _ in self.server.consumers]

    @step(8, consumer=st.integers(0, 1), limit=LIMITS, buckets=LANES, outcomes=OUTCOMES, sweeps=SWEEPS)
    def work(self, consumer: int, limit: int, buckets: list[int] | None, outcomes: list[Outcome], sweeps: bool) -> None:
        """Claim and end; what there is no outcome for stays under its lease."""
        self._turn_to(consumer, sweeps)
        jobs = self._claim(
            consumer, limit, buckets, None, hints=self.hints[consumer], remembered=self.remembered[consumer]
        )
        self._settle(consumer, list(zip(jobs, outcomes, strict=False)))

    @step(4, consumer=st.integers(0, 1), indexes=INDEXES, outcomes=OUTCOMES, limit=LIMITS, sweeps=SWEEPS)
    def end_and_claim(
        self, consumer: int, indexes: list[int], outcomes: list[Outcome], limit: int, sweeps: bool
    ) -> None:
        """Give back what does not end; end the others, and claim the next ones in the same round trip."""
        settled = list(zip(self._chosen(indexes), outcomes, strict=False))
        self._turn_to(consumer, sweeps)
        queue, remembered = self.server.consumers[consumer], self.remembered[consumer]
        stops = self.model.spec.on_poison is PoisonPolicy.STOP
        chosen = [(job, how) for job, how in settled if event_of(job, how, stops) in ENDS]
        self._settle(consumer, [one for one in settled if one not in chosen])
        written = settle(chosen, queue.leases.stops_key).endings
        if not written.jobs:
            return
        ended = [(lease(job), event_of(job, how, stops)) for job, how in chosen]
        before = {job.id: job.lease_no for job in self.model.live.values()}
        accepted, jobs = queue.leases.finish_and_claim(
            written, ClaimRequest("work", limit=limit, worker=f"worker {consumer}", hints=self.hints[consumer])
        )
        apart = any(job.order_no is not None for job, _ in chosen)
        same(accepted, self.model.finish(ended))
        once = not (apart or self.model.claims_apart)
        self._claimed(consumer, limit, None, None, before, jobs, remembered=remembered, once=once)

    @step(1, consumer=st.integers(0, 1))
    def learn_the_heads(self, consumer: int) -> None:
        """Take what the database knows of the heads, as a consumer does every few seconds."""
        queue = self.server.consumers[consumer]
        self.server.execute("UPDATE bucket SET swept_at = '-infinity'")
        queue.leases.note_sweep("work")
        heads = queue.leases.head_hints("work")
        self.hints[consumer].know(heads)
        self.remembered[consumer].know(self.model.heads(heads))

    @step(2, consumer=st.integers(0, 1), index=INDEX)
    def complete(self, consumer: int, index: int) -> None:
        (job,) = self._chosen([index]) or [None]
        if job is None:
            return
        expected = self.model.finish([(lease(job), Event.DONE)])
        try:
            self.server.consumers[consumer].complete([job])
        except LeaseLost:
            same(set(), expected)
        else:
            same({job.id}, expected)

    def _turn_to(self, consumer: int, sweeps: bool) -> None:
        """Have a consumer see the settings as they are, and say whether its next claim searches from the very beginning."""
        self.server.consumers[consumer].settings("work")
        self.seen[consumer] = self.model.spec
        self.hints[consumer].sweeps = self.remembered[consumer].sweeps = sweeps
