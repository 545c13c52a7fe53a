"""The state machine: one rule for each thing that can happen to a queue, done to the library and to the model."""

import contextlib
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any, ClassVar
from uuid import UUID

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from dagster_sqlqueue import NewJob, QueueSpec
from dagster_sqlqueue.consumer.settlement import settle
from dagster_sqlqueue.model.job import ClaimedJob
from dagster_sqlqueue.model.lifecycle import Event, LiveState
from dagster_sqlqueue.model.outcome import Outcome
from dagster_sqlqueue.model.queue import PoisonPolicy, Strategy
from dagster_sqlqueue.queue.claim_filter import ClaimFilter
from dagster_sqlqueue.queue.head_hints import HeadHints
from tests.statemachine.agreeing import as_claimed, limits_hold, promises_hold, same, tables_agree
from tests.statemachine.drawing import (
    ANY_SPECS,
    BUCKETS,
    HOUR,
    INDEX,
    INDEXES,
    JOBS,
    OUTCOMES,
    Wanted,
    due,
    event_of,
    specs,
)
from tests.statemachine.hints import ModelHints
from tests.statemachine.jobs import NEVER, Lease, ModelJob, Moment
from tests.statemachine.model import Model
from tests.statemachine.server import Server
from tests.support import Work

STALE_FROM = 5
ENDS = {Event.DONE, Event.REJECT, Event.CANCEL}
RETURNS = {Event.RETRY, Event.SNOOZE}


def step(weight: int, **drawn: st.SearchStrategy[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Something that can happen, and how often beside the others.

    All of them are one rule for Hypothesis: of many rules it would leave out a good half in each run, and a lifecycle is
    found out by what comes after what.
    """

    def noted(function: Callable[..., None]) -> Callable[..., None]:
        function.happens = (weight, drawn)  # type: ignore[attr-defined]
        return function

    return noted


def acting(machine: type["QueueMachine"]) -> Any:
    """The one rule of a machine: whatever can happen, as often as it weighs."""
    happens = {}
    for kind in reversed(machine.__mro__):
        happens |= {name: step.happens for name, step in vars(kind).items() if hasattr(step, "happens")}
    actions = [
        st.tuples(st.just(name), st.fixed_dictionaries(drawn))
        for name, (weight, drawn) in sorted(happens.items())
        for _ in range(weight)
    ]

    @rule(action=st.one_of(actions))
    def act(self: QueueMachine, action: tuple[str, dict[str, Any]]) -> None:
        name, values = action
        self.history.append(f"{name}({', '.join(f'{key}={value!r}' for key, value in values.items())})")
        with self.with_history():
            getattr(self, name)(**values)

    return act


class QueueMachine(RuleBasedStateMachine):
    """Everything that can happen to one queue."""

    server: ClassVar[Server]
    kind: ClassVar[str]
    make_model: ClassVar[type[Model]] = Model
    model: Model

    def __init__(self) -> None:
        super().__init__()
        self.began = self.server.reset()
        self.made = 0
        self.history: list[str] = []
        self.leases: list[ClaimedJob] = []
        self.seen: dict[int, QueueSpec[Work]] = {}

    @initialize(data=st.data(), buckets=st.integers(1, 4), jobs=st.lists(JOBS, min_size=3, max_size=6))
    def begin(self, data: st.DataObject, buckets: int, jobs: list[Wanted]) -> None:
        spec = data.draw(specs(self.kind), label="spec")
        self.history += [f"{spec}, {buckets} buckets", f"begin({jobs})"]
        self.model = self.make_model(spec, buckets)
        self.server.operator.create_queue(replace(spec, bucket_count=buckets))
        for number, consumer in enumerate(self.server.consumers):
            consumer.settings("work")
            self.seen[number] = spec
        self.enqueue(jobs)

    @contextlib.contextmanager
    def with_history(self) -> Iterator[None]:
        """Say what was done before, when it led to a divergence."""
        try:
            yield
        except AssertionError as divergence:
            divergence.add_note("\n".join(self.history))
            raise

    # Putting in

    @step(2, jobs=st.lists(JOBS, min_size=1, max_size=4))
    def put(self, jobs: list[Wanted]) -> None:
        self.enqueue(jobs)

    def enqueue(self, jobs: list[Wanted]) -> None:
        new = [self._new(job) for job in jobs]
        inserted = self.model.enqueue([self._as_model(job, wanted) for job, wanted in zip(new, jobs, strict=True)])
        if len(new) == 1:
            same(self.server.operator.enqueue(self.model.spec, new[0]), inserted[0] if inserted else None)
        else:
            done = self.server.operator.enqueue_many(self.model.spec, new)
            same((done.inserted, done.duplicates), (len(inserted), len(new) - len(inserted)))

    def _new(self, wanted: Wanted) -> NewJob[Work]:
        self.made += 1
        return NewJob(
            Work(n=self.made),
            run_at=None if wanted.hours is None else self.began + timedelta(hours=wanted.hours),
            priority=wanted.priority,
            ordering_key=wanted.ordering_key,
            unique_key=wanted.unique_key,
            unique_until=wanted.unique_until if wanted.unique_key else "end",
            max_attempts=wanted.max_attempts,
            tags=wanted.tags,
            id=self.id_of(self.made),
        )

    def id_of(self, number: int) -> UUID:
        """The id of the job that was made as the so-many-th."""
        return UUID(bytes=hashlib.sha256(str(number).encode()).digest()[:16])

    def _content_of(self, job: NewJob[Work]) -> int:
        assert isinstance(job.payload, Work)
        return job.payload.n

    def _as_model(self, job: NewJob[Work], wanted: Wanted) -> ModelJob:
        assert job.id is not None
        at: Moment = (0, 0) if wanted.hours is None else (wanted.hours, 0)
        return ModelJob(
            job.id,
            bucket=0,
            priority=job.priority,
            at=at,
            run_at=at,
            max_attempts=job.max_attempts or self.model.spec.max_attempts,
            content=self._content_of(job),
            unique_key=job.unique_key,
            unique_until_claim=job.unique_until == "claim",
            ordering_key=job.ordering_key,
            tags=job.tags,
        )

    # Taking out

    @step(3, consumer=st.integers(0, 1), limit=st.sampled_from([1, 2, 3, 50]))
    def claim(self, consumer: int, limit: int) -> None:
        self._claim(consumer, limit, None, None)

    @step(1, consumer=st.integers(0, 1), limit=st.sampled_from([1, 2, 3, 50]), buckets=BUCKETS)
    def claim_from(self, consumer: int, limit: int, buckets: list[int]) -> None:
        self._claim(consumer, limit, buckets, None)

    @step(1, consumer=st.integers(0, 1), limit=st.sampled_from([1, 2, 50]))
    def claim_some(self, consumer: int, limit: int) -> None:
        self._claim(consumer, limit, None, "red")

    def _claim(
        self,
        consumer: int,
        limit: int,
        buckets: list[int] | None,
        tag: str | None,
        *,
        hints: HeadHints | None = None,
        remembered: ModelHints | None = None,
    ) -> list[ClaimedJob]:
        before = {job.id: job.lease_no for job in self.model.live.values()}
        jobs = self.server.consumers[consumer].claim(
            "work",
            limit=limit,
            worker=f"worker {consumer}",
            buckets=buckets,
            filter=ClaimFilter(tags=[tag]) if tag else None,
            hints=hints,
        )
        self._claimed(consumer, limit, buckets, tag, before, jobs, remembered=remembered)
        return jobs

    def _claimed(
        self,
        consumer: int,
        limit: int,
        buckets: list[int] | None,
        tag: str | None,
        before: dict[UUID, int],
        jobs: list[ClaimedJob],
        *,
        remembered: ModelHints | None = None,
        once: bool = False,
    ) -> None:
        """Have the model claim too, and compare: `before` are the leases before, `jobs` what the library handed out."""
        now = self.server.execute("SELECT id, lease_no FROM job UNION ALL SELECT id, lease_no FROM job_archive")
        granted = {job for job, lease_no in now if lease_no > before.get(job, lease_no)}
        expected = self.model.claim(limit, buckets, tag, granted, [job.id for job in jobs], hints=remembered, once=once)
        by_chance = self.model.spec.strategy not in (Strategy.ROUND_ROBIN, Strategy.FIFO) and tag is None
        given = [as_claimed(job) for job in jobs]
        wanted = [as_claimed(self.model.live[job]) for job in expected]
        same(*((sorted(given), sorted(wanted)) if by_chance else (given, wanted)))
        limits_hold(self.model, [self.model.live[job.id] for job in jobs])
        self.leases.extend(jobs)
        self.seen[consumer] = self.model.spec

    # Under a lease, the current one or an older one

    @step(8, consumer=st.integers(0, 1), limit=st.sampled_from([1, 3, 50]), outcomes=OUTCOMES)
    def work(self, consumer: int, limit: int, outcomes: list[Outcome]) -> None:
        """Claim and end, as a consumer does; what there is no outcome for stays under its lease."""
        jobs = self._claim(consumer, limit, None, None)
        self._settle(consumer, list(zip(jobs, outcomes, strict=False)))

    @step(6, consumer=st.integers(0, 1), indexes=INDEXES, outcomes=OUTCOMES)
    def end(self, consumer: int, indexes: list[int], outcomes: list[Outcome]) -> None:
        self._settle(consumer, list(zip(self._chosen(indexes), outcomes, strict=False)))

    def _settle(self, consumer: int, settled: list[tuple[ClaimedJob, Outcome]]) -> None:
        queue = self.server.consumers[consumer]
        stops = self.seen[consumer].on_poison is PoisonPolicy.STOP
        events = [(lease(job), event_of(job, outcome, stops), outcome) for job, outcome in settled]
        written = settle(settled, queue.leases.stops_key)
        if written.endings.jobs:
            ended = self.model.finish([(job, event) for job, event, _ in events if event in ENDS])
            same(queue.leases.finish(written.endings), ended)
        if written.back:
            back = self.model.give_back([(job, event, due(how)) for job, event, how in events if event in RETURNS])
            same(queue.requeue(written.back), back)
        if written.aside:
            held = self.model.hold([(job, event) for job, event, _ in events if event not in ENDS | RETURNS])
            same(queue.hold(written.aside), held)

    @step(3, consumer=st.integers(0, 1), indexes=INDEXES)
    def heartbeat(self, consumer: int, indexes: list[int]) -> None:
        jobs = self._chosen(indexes)
        kept = self.server.consumers[consumer].heartbeat(jobs, lease_seconds=HOUR)
        same((kept.held, kept.cancel_requested), self.model.heartbeat([lease(job) for job in jobs]))

    def _chosen(self, indexes: list[int]) -> list[ClaimedJob]:
        """The low indexes count, from the latest one backwards, the leases that are believed to be current; the high ones
        those that are known to be stale, above all of jobs that run again. No job twice in one write.
        """
        believed = [job for job in self.leases if self._is_current(job)] or self._claim(0, 3, None, None)
        stale = sorted((job for job in self.leases if not self._is_current(job)), key=self._runs_again)
        chosen: dict[UUID, ClaimedJob] = {}
        for index in indexes:
            leases, place = (stale, index - STALE_FROM) if index >= STALE_FROM else (believed, index)
            if leases:
                job = leases[-1 - place % len(leases)]
                chosen.setdefault(job.id, job)
        return list(chosen.values())

    def _runs_again(self, lease: ClaimedJob) -> bool:
        return lease.id in self.model.live and self.model.live[lease.id].state is LiveState.RUNNING

    def _is_current(self, lease: ClaimedJob) -> bool:
        job = self.model.live.get(lease.id)
        return job is not None and job.state is LiveState.RUNNING and job.lease_no == lease.lease_no

    # Time, and consumers that crash

    @step(2, index=INDEX, hours_ago=st.sampled_from([0, 0, 3]))
    def a_lease_runs_out(self, index: int, hours_ago: int) -> None:
        self._shift(lambda job: job.leased, index, hours_ago)

    @step(2, hours_ago=st.sampled_from([0, 3]))
    def a_consumer_dies(self, hours_ago: int) -> None:
        """Every lease runs out, one after the other; what it held stays in `leases`, as zombies."""
        while self._shift(lambda job: job.leased, 0, hours_ago):
            pass

    @step(2, index=INDEX)
    def a_job_becomes_due(self, index: int) -> None:
        self._shift(lambda job: job.state is LiveState.QUEUED and not job.due and job.at != NEVER, index, 0)

    def _shift(self, fits: Callable[[ModelJob], bool], index: int, hours_ago: int) -> bool:
        jobs = sorted((job for job in self.model.live.values() if fits(job)), key=lambda job: job.id)
        if jobs:
            job = jobs[index % len(jobs)]
            self.model.shift(job, hours_ago)
            ago = "UPDATE job SET available_at = statement_timestamp() - make_interval(hours => %s) WHERE id = %s"
            self.server.execute(ago, hours_ago, job.id)
        return bool(jobs)

    @step(1)
    def an_interval_passes(self) -> None:
        self.model.starts = 0
        self.server.execute("UPDATE rate_start SET started_at = started_at - make_interval(secs => %s)", HOUR)

    # Running the queue

    @step(2, spec=ANY_SPECS)
    def reconfigure(self, spec: QueueSpec[Work]) -> None:
        self.model.reconfigure(spec)
        self.server.operator.create_queue(spec)

    @step(1, stays=st.sampled_from([True, False, False]))
    def pause(self, stays: bool) -> None:
        for paused in (True, stays):
            self.model.paused = paused
            settings = (self.server.operator.pause if paused else self.server.operator.resume)("work")
            same(settings.paused_at is not None, paused)
            self._claim(0, 1, None, None)

    @step(1, bucket_count=st.integers(1, 6))
    def rebucket(self, bucket_count: int) -> None:
        self.model.bucket_count = bucket_count
        settings = self.server.operator.rebucket("work", bucket_count)
        same((settings.bucket_count, settings.claim_buckets), (bucket_count, len(self.model.all_buckets)))

    # What holds after every step

    @invariant()
    def both_agree(self) -> None:
        with self.with_history():
            tables_agree(self.server, self.model, self.began)
            promises_hold(self.model)


def lease(job: ClaimedJob) -> Lease:
    return Lease(job.id, job.lease_no)
