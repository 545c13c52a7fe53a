"""The state machine: one rule for each thing that can happen to a queue, done to the library and to the model."""

import contextlib
import functools
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar
from uuid import UUID

import psycopg
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from dagster_sqlqueue import Backoff, NewJob, QueueSpec, SqlQueue
from dagster_sqlqueue.filters import ClaimFilter
from dagster_sqlqueue.lifecycle import Event, LiveState
from dagster_sqlqueue.model import ClaimedJob
from dagster_sqlqueue.outcomes import Cancel, Done, Hold, Outcome, Reject, Retry, Snooze
from dagster_sqlqueue.settings import PoisonPolicy, RateLimit, Strategy
from dagster_sqlqueue.settling import settle
from tests.core.support import Work
from tests.model.model import NEVER, Divergence, Lease, Model, ModelJob, Moment

HOUR = 3600.0
MOMENTS = {datetime(2020, 1, 1, tzinfo=UTC): -10_000.0, datetime(2100, 1, 1, tzinfo=UTC): 100_000.0}
TURNING = [strategy for strategy in Strategy if strategy is not Strategy.TOKEN]
STALE_FROM = 6
INDEX = st.integers(0, 7)
INDEXES = st.lists(INDEX, min_size=1, max_size=4)
OUTCOMES = st.lists(
    st.sampled_from(
        [
            *(Done(), Done(), Done()),
            *(Retry("now"), Retry("now"), Retry("later", 2 * HOUR)),
            *(Snooze(0), Snooze(3 * HOUR), *map(Snooze, MOMENTS)),
            *(Hold("look at it"), Reject("no"), Cancel("not wanted")),
        ]
    ),
    min_size=1,
    max_size=4,
)
ENDS = {Event.DONE, Event.REJECT, Event.CANCEL}
RETURNS = {Event.RETRY, Event.SNOOZE}
BUCKETS = st.lists(st.integers(0, 5), min_size=1, max_size=6, unique=True)


@dataclass(frozen=True)
class Wanted:
    """A job that a rule is to enqueue: `hours` from the start of the run; None for at once."""

    priority: int
    hours: int | None
    ordering_key: str | None
    unique_key: str | None
    max_attempts: int | None
    tags: tuple[str, ...]


JOBS = st.builds(
    Wanted,
    priority=st.sampled_from([0, 0, 5, 9]),
    hours=st.sampled_from([None, None, None, -2, -1, 4]),
    ordering_key=st.sampled_from([None, "a", "a", "b"]),
    unique_key=st.sampled_from([None, None, None, "u", "v"]),
    max_attempts=st.sampled_from([None, None, 1]),
    tags=st.sampled_from([(), ("red",)]),
)


def specs(kind: str) -> st.SearchStrategy[QueueSpec[Work]]:
    """Settings of a kind of queue: plain, ordered, per_key (a limit for each key) or limited."""
    keyed, limited = kind in ("ordered", "per_key"), kind == "limited"
    limits = st.sampled_from([(2, None), (None, 3), (1, 6), (3, 6)]) if limited else st.just((None, None))
    return st.builds(
        settings_of,
        strategy=st.sampled_from(TURNING if keyed or limited else list(Strategy)),
        ordered=st.booleans() if limited else st.just(kind == "ordered"),
        per_key=st.integers(1, 2) if kind == "per_key" else st.none(),
        limits=limits,
        on_poison=st.sampled_from(PoisonPolicy),
        max_attempts=st.integers(1, 3),
    )


def settings_of(
    strategy: Strategy,
    ordered: bool,
    per_key: int | None,
    limits: tuple[int | None, int | None],
    on_poison: PoisonPolicy,
    max_attempts: int,
) -> QueueSpec[Work]:
    """A queue; the limits are on what runs, and on starts in an hour."""
    return QueueSpec(
        "work",
        Work,
        strategy=strategy,
        ordered=ordered,
        max_running_per_key=per_key,
        max_running=limits[0],
        rate=limits[1] and RateLimit(limits[1], HOUR),
        on_poison=on_poison,
        lease_seconds=HOUR,
        max_attempts=max_attempts,
        backoff=Backoff(0, jitter=0),
    )


KINDS = ("plain", "ordered", "per_key", "limited")
ANY_SPECS = st.sampled_from(KINDS).flatmap(specs)


def step(**drawn: Any) -> Callable[[Callable[..., None]], Any]:
    """A rule of the machine that notes what it did: chance in the database can keep Hypothesis from doing it again."""

    def decorate(function: Callable[..., None]) -> Any:
        @functools.wraps(function)
        def noted(self: "QueueMachine", **values: Any) -> None:
            self.history.append(f"{function.__name__}({', '.join(f'{name}={v!r}' for name, v in values.items())})")
            with self.telling_history():
                function(self, **values)

        return rule(**drawn)(noted)

    return decorate


class Server:
    """The library under test: two consumers and an operator, each with what it remembers, and a look at the tables."""

    def __init__(self, url: str, schema: str) -> None:
        self.consumers = [SqlQueue(url, schema=schema, pool_size=1) for _ in range(2)]
        self.operator = SqlQueue(url, schema=schema, pool_size=1)
        self.operator.init()
        self._look = psycopg.connect(url, autocommit=True, options=f"-c search_path={schema} -c timezone=UTC")

    def close(self) -> None:
        for queue in (*self.consumers, self.operator):
            queue.close()
        self._look.close()

    def reset(self) -> datetime:
        """Empty the tables; gives the time."""
        tables = "job, job_archive, rate_start, stale_write, waiter, worker, assignment, bucket, queue"
        self._look.execute(";".join(f"DELETE FROM {table}" for table in tables.split(", ")))
        for queue in (*self.consumers, self.operator):
            queue._seen.clear()
        self._look.execute("SELECT setseed(0.5)")
        return self.look("SELECT statement_timestamp()")[0][0]

    def look(self, query: str, *parameters: object) -> list[tuple[Any, ...]]:
        cursor = self._look.execute(query, parameters or None, prepare=True)
        return cursor.fetchall() if cursor.description else []


LIVE = """
SELECT id, bucket, priority, state, lease_no, attempt, max_attempts, order_no, limited, cancel_requested_at IS NOT NULL,
    unique_key, ordering_key, available_at <= statement_timestamp(), available_at = 'infinity'
FROM job ORDER BY bucket, priority DESC, available_at, id
"""
ARCHIVED = "SELECT id, state, lease_no, attempt, bucket, priority, unique_key, ordering_key, order_no FROM job_archive"
STALE = "SELECT COALESCE(sum(writes), 0) FROM stale_write"


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
        self.enqueue(jobs)

    @contextlib.contextmanager
    def telling_history(self) -> Iterator[None]:
        """Say what was done before, when it led to a divergence."""
        try:
            yield
        except AssertionError as divergence:
            divergence.add_note("\n".join(self.history))
            raise

    # Putting in

    @step(jobs=st.lists(JOBS, min_size=1, max_size=4))
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
            max_attempts=wanted.max_attempts,
            tags=wanted.tags,
            id=self.id_of(self.made),
        )

    def id_of(self, number: int) -> UUID:
        """The id of the job that was made as the so-many-th."""
        return UUID(bytes=hashlib.sha256(str(number).encode()).digest()[:16])

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
            unique_key=job.unique_key,
            ordering_key=job.ordering_key,
            tags=job.tags,
        )

    # Taking out

    @step(consumer=st.integers(0, 1), limit=st.sampled_from([1, 2, 3, 50]))
    def claim(self, consumer: int, limit: int) -> None:
        self._claim(consumer, limit, None, None)

    @step(consumer=st.integers(0, 1), limit=st.sampled_from([1, 2, 3, 50]), buckets=BUCKETS)
    def claim_from(self, consumer: int, limit: int, buckets: list[int]) -> None:
        self._claim(consumer, limit, buckets, None)

    @step(consumer=st.integers(0, 1), limit=st.sampled_from([1, 2, 50]))
    def claim_some(self, consumer: int, limit: int) -> None:
        self._claim(consumer, limit, None, "red")

    def _claim(self, consumer: int, limit: int, buckets: list[int] | None, tag: str | None) -> list[ClaimedJob]:
        before = {job.id: job.lease_no for job in self.model.live.values()}
        jobs = self.server.consumers[consumer].claim(
            "work",
            limit=limit,
            worker=f"worker {consumer}",
            buckets=buckets,
            filter=ClaimFilter(tags=[tag]) if tag else None,
        )
        now = self.server.look("SELECT id, lease_no FROM job UNION ALL SELECT id, lease_no FROM job_archive")
        granted = {job for job, lease_no in now if lease_no > before.get(job, lease_no)}
        expected = self.model.claim(limit, buckets, tag, granted, [job.id for job in jobs])
        by_chance = self.model.spec.strategy not in (Strategy.ROUND_ROBIN, Strategy.FIFO) and tag is None
        given = [self._claimed_as(job) for job in jobs]
        wanted = [self._modelled_as(self.model.live[job]) for job in expected]
        same(*((sorted(given), sorted(wanted)) if by_chance else (given, wanted)))
        self._check_limits([self.model.live[job.id] for job in jobs])
        self.leases.extend(jobs)
        self.seen[consumer] = self.model.spec
        return jobs

    def _check_limits(self, granted: list[ModelJob]) -> None:
        """The limits hold for what a claim grants; leases from before a limit was set may go beyond it."""
        spec, leased = self.model.spec, [job for job in self.model.live.values() if job.leased]
        assert not granted or spec.max_running is None or len(leased) <= spec.max_running
        assert not granted or spec.rate is None or self.model.starts <= spec.rate.starts
        for job in granted:
            line = [
                other for other in self.model.live.values() if other.order_no and other.ordering_key == job.ordering_key
            ]
            running = [other for other in line if other.leased]
            if job.order_no and spec.ordered:
                assert running == [job]
                assert job is min(line, key=_order)
            elif job.order_no:
                assert len(running) <= (spec.max_running_per_key or 0)

    def _claimed_as(self, job: ClaimedJob) -> tuple[Any, ...]:
        return (
            job.id, job.bucket, job.priority, job.lease_no, job.attempt, job.max_attempts, job.order_no is not None,
            job.limited, job.unique_key or "", job.ordering_key or "",
        )  # fmt: skip

    def _modelled_as(self, job: ModelJob) -> tuple[Any, ...]:
        return (
            job.id, job.bucket, job.priority, job.lease_no, job.attempt, job.max_attempts, job.order_no is not None,
            job.limited, job.unique_key or "", job.ordering_key or "",
        )  # fmt: skip

    # Under a lease, the current one or an older one

    @step(consumer=st.integers(0, 1), limit=st.sampled_from([1, 3, 50]), outcomes=OUTCOMES)
    def work(self, consumer: int, limit: int, outcomes: list[Outcome]) -> None:
        """Claim and end, as a consumer does; what there is no outcome for stays under its lease."""
        jobs = self._claim(consumer, limit, None, None)
        self._settle(consumer, list(zip(jobs, outcomes, strict=False)))

    @step(consumer=st.integers(0, 1), indexes=INDEXES, outcomes=OUTCOMES)
    def end(self, consumer: int, indexes: list[int], outcomes: list[Outcome]) -> None:
        self._settle(consumer, list(zip(self._chosen(indexes), outcomes, strict=False)))

    def _settle(self, consumer: int, settled: list[tuple[ClaimedJob, Outcome]]) -> None:
        queue = self.server.consumers[consumer]
        stops = self.seen.setdefault(consumer, self.model.spec).on_poison is PoisonPolicy.STOP
        events = [(lease(job), event_of(job, outcome, stops), outcome) for job, outcome in settled]
        written = settle(settled, queue.stops_key)
        if written.endings:
            ended = self.model.finish([(job, event) for job, event, _ in events if event in ENDS])
            same(queue.finish(written.endings), ended)
        if written.back:
            back = self.model.give_back([(job, event, due(how)) for job, event, how in events if event in RETURNS])
            same(queue.requeue(written.back), back)
        if written.aside:
            held = self.model.hold([(job, event) for job, event, _ in events if event not in ENDS | RETURNS])
            same(queue.hold(written.aside), held)

    @step(consumer=st.integers(0, 1), indexes=INDEXES)
    def heartbeat(self, consumer: int, indexes: list[int]) -> None:
        jobs = self._chosen(indexes)
        kept = self.server.consumers[consumer].heartbeat(jobs, lease_seconds=HOUR)
        same((kept.held, kept.cancel_requested), self.model.heartbeat([lease(job) for job in jobs]))

    def _chosen(self, indexes: list[int]) -> list[ClaimedJob]:
        """The low indexes count, from the latest one backwards, the leases that are believed to be current; the high ones
        those that are known to be stale. No job twice in one write.
        """
        believed = [job for job in self.leases if self._is_current(job)] or self._claim(0, 3, None, None)
        stale = [job for job in self.leases if not self._is_current(job)]
        chosen: dict[UUID, ClaimedJob] = {}
        for index in indexes:
            if leases := stale if index >= STALE_FROM else believed:
                job = leases[-1 - index % len(leases)]
                chosen.setdefault(job.id, job)
        return list(chosen.values())

    def _is_current(self, lease: ClaimedJob) -> bool:
        job = self.model.live.get(lease.id)
        return job is not None and job.state is LiveState.RUNNING and job.lease_no == lease.lease_no

    # Time, and consumers that crash

    @step(index=INDEX, hours_ago=st.sampled_from([0, 0, 3]))
    def a_lease_runs_out(self, index: int, hours_ago: int) -> None:
        self._shift(lambda job: job.leased, index, hours_ago)

    @step(hours_ago=st.sampled_from([0, 3]))
    def a_consumer_dies(self, hours_ago: int) -> None:
        """Every lease runs out, one after the other; what it held stays in `leases`, as zombies."""
        while self._shift(lambda job: job.leased, 0, hours_ago):
            pass

    @step(index=INDEX)
    def a_job_becomes_due(self, index: int) -> None:
        self._shift(lambda job: job.state is LiveState.QUEUED and not job.due and job.at != NEVER, index, 0)

    def _shift(self, fits: Callable[[ModelJob], bool], index: int, hours_ago: int) -> bool:
        jobs = sorted((job for job in self.model.live.values() if fits(job)), key=lambda job: job.id)
        if jobs:
            job = jobs[index % len(jobs)]
            self.model.shift(job, hours_ago)
            ago = "UPDATE job SET available_at = statement_timestamp() - make_interval(hours => %s) WHERE id = %s"
            self.server.look(ago, hours_ago, job.id)
        return bool(jobs)

    @step()
    def an_interval_passes(self) -> None:
        self.model.starts = 0
        self.server.look("UPDATE rate_start SET started_at = started_at - make_interval(secs => %s)", HOUR)

    # Running the queue

    @step(spec=ANY_SPECS)
    def reconfigure(self, spec: QueueSpec[Work]) -> None:
        self.model.reconfigure(spec)
        self.server.operator.create_queue(spec)

    @step(stays=st.sampled_from([True, False, False]))
    def pause(self, stays: bool) -> None:
        for paused in (True, stays):
            self.model.paused = paused
            settings = (self.server.operator.pause if paused else self.server.operator.resume)("work")
            same(settings.paused_at is not None, paused)
            self._claim(0, 1, None, None)

    @step(bucket_count=st.integers(1, 6))
    def rebucket(self, bucket_count: int) -> None:
        self.model.bucket_count = bucket_count
        settings = self.server.operator.rebucket("work", bucket_count)
        same((settings.bucket_count, settings.lanes), (bucket_count, len(self.model.lanes)))

    # What holds after every step

    @invariant()
    def both_agree(self) -> None:
        with self.telling_history():
            self._check_tables()
            self._check_promises()

    def _check_tables(self) -> None:
        rows = self.server.look(LIVE)
        live = sorted(self.model.live.values(), key=lambda job: (job.bucket, job.place))
        same(
            [row[:7] + row[9:14] for row in rows],
            [
                (
                    job.id, job.bucket, job.priority, job.state, job.lease_no, job.attempt, job.max_attempts,
                    job.cancel_requested, job.unique_key, job.ordering_key, job.due, job.at == NEVER,
                )
                for job in live
            ],
        )  # fmt: skip
        same([row[8] for row in rows if row[3] == "running"], [job.limited for job in live if job.state == "running"])
        numbered = sorted((row[7], row[0]) for row in rows if row[7] is not None)
        same([job for _, job in numbered], [job.id for job in sorted(live, key=_order) if job.order_no])
        archived = sorted(self.server.look(ARCHIVED))
        same(
            [row[:8] for row in archived],
            [
                (
                    job.id, job.state, job.lease_no, job.attempt, job.bucket, job.priority, job.unique_key,
                    job.ordering_key,
                )
                for job in sorted(self.model.archive.values(), key=lambda job: job.id)
            ],
        )  # fmt: skip
        same(int(self.server.look(STALE)[0][0]), self.model.stale)

    def _check_promises(self) -> None:
        jobs = list(self.model.live.values())
        unique = [job.unique_key for job in jobs if job.unique_key]
        assert len(unique) == len(set(unique))
        for key in {job.ordering_key for job in jobs if job.order_no}:
            line = sorted((job for job in jobs if job.order_no and job.ordering_key == key), key=_order)
            parked = [job for job in line if job.parked]
            if self.model.spec.ordered:
                runs = any(job.state is LiveState.RUNNING for job in line)
                assert not line[0].parked or runs, "the first of a key waits for nobody"
            else:
                others = [job for job in line if not job.parked and job.state is not LiveState.HELD]
                assert others or not parked, "jobs of a key wait for nobody"


def _order(job: ModelJob) -> int:
    return job.order_no or 0


def lease(job: ClaimedJob) -> Lease:
    return Lease(job.id, job.lease_no)


def event_of(job: ClaimedJob, outcome: Outcome, stops: bool) -> Event:
    """What an outcome is for the lifecycle."""
    match outcome:
        case Done():
            return Event.DONE
        case Snooze():
            return Event.SNOOZE
        case Hold():
            return Event.HOLD
        case Cancel():
            return Event.CANCEL
        case Retry() if job.attempt < job.max_attempts:
            return Event.RETRY
        case Retry() | Reject():
            return Event.REJECT_AND_STOP if stops and job.order_no is not None else Event.REJECT


def due(how: Outcome) -> Moment | float:
    """When a job that goes back is due: at a moment, or after so many hours."""
    assert isinstance(how, Retry | Snooze)
    when = how.until if isinstance(how, Snooze) else how.after or 0
    return (MOMENTS[when], 0) if isinstance(when, datetime) else when / HOUR


def same(library: object, model: object) -> None:
    """Demand that both say the same.

    Raises:
        Divergence: they do not.
    """
    if library != model:
        raise Divergence(f"the library: {library}\nthe model:   {model}")
