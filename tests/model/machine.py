"""The state machine: one rule for each thing that can happen to a queue, done to the library and to the model."""

import hashlib
from collections.abc import Callable, Sequence
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
from dagster_sqlqueue.model import ArchiveState, ClaimedJob
from dagster_sqlqueue.outcomes import Retry, Snooze
from dagster_sqlqueue.queue import Ending
from dagster_sqlqueue.settings import PoisonPolicy, RateLimit, Strategy
from tests.core.support import Work
from tests.model.model import NEVER, Divergence, Lease, Model, ModelJob, Moment

HOUR = 3600.0
MOMENTS = {datetime(2020, 1, 1, tzinfo=UTC): -10_000.0, datetime(2100, 1, 1, tzinfo=UTC): 100_000.0}
TURNING = [strategy for strategy in Strategy if strategy is not Strategy.TOKEN]
INDEX = st.integers(0, 7)
BUCKETS = st.none() | st.lists(st.integers(0, 5), min_size=1, max_size=6, unique=True)


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
    ordered = {"plain": st.just(False), "ordered": st.just(True), "per_key": st.just(False)}
    rate = st.sampled_from([3, 6]).map(lambda starts: RateLimit(starts, HOUR))
    limits = st.sampled_from([(True, False), (False, True), (True, True)])
    return st.builds(
        lambda strategy, ordered, per_key, limited, max_running, rate, stop, attempts: QueueSpec(
            "work",
            Work,
            strategy=strategy,
            ordered=ordered,
            max_running_per_key=per_key if kind == "per_key" else None,
            max_running=max_running if kind == "limited" and limited[0] else None,
            rate=rate if kind == "limited" and limited[1] else None,
            on_poison=PoisonPolicy.STOP if stop else PoisonPolicy.DEAD_LETTER,
            lease_seconds=HOUR,
            max_attempts=attempts,
            backoff=Backoff(0, jitter=0),
        ),
        strategy=st.sampled_from(list(Strategy) if kind == "plain" else TURNING),
        ordered=ordered.get(kind, st.booleans()),
        per_key=st.integers(1, 2),
        limited=limits,
        max_running=st.integers(1, 3),
        rate=rate,
        stop=st.booleans(),
        attempts=st.integers(1, 3),
    )


KINDS = ("plain", "ordered", "per_key", "limited")
ANY_SPECS = st.sampled_from(KINDS).flatmap(specs)


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

    def __init__(self) -> None:
        super().__init__()
        self.began = self.server.reset()
        self.made = 0
        self.leases: list[ClaimedJob] = []

    @initialize(data=st.data(), buckets=st.integers(1, 4), jobs=st.lists(JOBS, min_size=3, max_size=6))
    def begin(self, data: st.DataObject, buckets: int, jobs: list[Wanted]) -> None:
        spec = data.draw(specs(self.kind), label="spec")
        self.model = Model(spec, buckets)
        self.server.operator.create_queue(replace(spec, bucket_count=buckets))
        self.enqueue(jobs)

    # Putting in

    @rule(jobs=st.lists(JOBS, min_size=1, max_size=4))
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
            id=UUID(bytes=hashlib.sha256(str(self.made).encode()).digest()[:16]),
        )

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

    @rule(consumer=st.integers(0, 1), limit=st.sampled_from([1, 2, 3, 50]), buckets=BUCKETS)
    def claim(self, consumer: int, limit: int, buckets: list[int] | None) -> None:
        self._claim(consumer, limit, buckets, None)

    @rule(consumer=st.integers(0, 1), limit=st.sampled_from([1, 2, 50]))
    def claim_some(self, consumer: int, limit: int) -> None:
        self._claim(consumer, limit, None, "red")

    def _claim(self, consumer: int, limit: int, buckets: list[int] | None, tag: str | None) -> None:
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
        self.leases.extend(jobs)

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

    @rule(
        consumer=st.integers(0, 1),
        choices=st.lists(st.tuples(INDEX, st.sampled_from(list(ArchiveState))), min_size=1, max_size=3),
    )
    def finish(self, consumer: int, choices: list[tuple[int, ArchiveState]]) -> None:
        events = {
            ArchiveState.SUCCEEDED: Event.DONE,
            ArchiveState.FAILED: Event.REJECT,
            ArchiveState.CANCELLED: Event.CANCEL,
        }
        chosen = self._chosen(choices)
        accepted = self.server.consumers[consumer].finish([Ending(job, state) for job, state in chosen])
        same(accepted, self.model.finish([(lease(job), events[state]) for job, state in chosen]))

    @rule(
        consumer=st.integers(0, 1),
        choices=st.lists(
            st.tuples(
                INDEX,
                st.sampled_from(
                    [Retry("now"), Retry("later", 2 * HOUR), Snooze(0), Snooze(3 * HOUR), *map(Snooze, MOMENTS)]
                ),
            ),
            min_size=1,
            max_size=3,
        ),
    )
    def give_back(self, consumer: int, choices: list[tuple[int, Retry | Snooze]]) -> None:
        back = []
        expected: list[tuple[Lease, Event, Moment | float]] = []
        for job, how in self._chosen(choices):
            event = Event.RETRY if isinstance(how, Retry) else Event.SNOOZE
            when = how.until if isinstance(how, Snooze) else how.after or 0
            back.append((job, how))
            moment = (MOMENTS[when], 0) if isinstance(when, datetime) else when / HOUR
            expected.append((lease(job), event, moment))
        same(self.server.consumers[consumer].requeue(back), self.model.give_back(expected))

    @rule(consumer=st.integers(0, 1), indexes=st.lists(INDEX, min_size=1, max_size=3))
    def hold(self, consumer: int, indexes: list[int]) -> None:
        jobs = [job for job, _ in self._chosen([(index, None) for index in indexes])]
        accepted = self.server.consumers[consumer].hold([(job, "look at it") for job in jobs])
        same(accepted, self.model.hold([(lease(job), Event.HOLD) for job in jobs]))

    @rule(consumer=st.integers(0, 1), indexes=st.lists(INDEX, min_size=1, max_size=4))
    def heartbeat(self, consumer: int, indexes: list[int]) -> None:
        jobs = [job for job, _ in self._chosen([(index, None) for index in indexes])]
        kept = self.server.consumers[consumer].heartbeat(jobs, lease_seconds=HOUR)
        same((kept.held, kept.cancel_requested), self.model.heartbeat([lease(job) for job in jobs]))

    def _chosen(self, choices: Sequence[tuple[int, Any]]) -> list[tuple[ClaimedJob, Any]]:
        """Each index counts the leases from the latest one backwards; no job twice in one write."""
        if not self.leases:
            self._claim(0, 3, None, None)
        chosen: dict[UUID, tuple[ClaimedJob, Any]] = {}
        for index, what in choices:
            if self.leases:
                job = self.leases[-1 - index % len(self.leases)]
                chosen.setdefault(job.id, (job, what))
        return list(chosen.values())

    # Time, and consumers that crash

    @rule(index=INDEX, hours_ago=st.sampled_from([0, 0, 3]))
    def a_lease_runs_out(self, index: int, hours_ago: int) -> None:
        self._shift(lambda job: job.leased, index, hours_ago)

    @rule(hours_ago=st.sampled_from([0, 3]))
    def a_consumer_dies(self, hours_ago: int) -> None:
        """Every lease runs out, one after the other; what it held stays in `leases`, as zombies."""
        while self._shift(lambda job: job.leased, 0, hours_ago):
            pass

    @rule(index=INDEX)
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

    @rule()
    def an_interval_passes(self) -> None:
        self.model.starts = 0
        self.server.look("UPDATE rate_start SET started_at = started_at - make_interval(secs => %s)", HOUR)

    # Running the queue

    @rule(spec=ANY_SPECS)
    def reconfigure(self, spec: QueueSpec[Work]) -> None:
        self.model.reconfigure(spec)
        self.server.operator.create_queue(spec)

    # What holds after every step

    @invariant()
    def both_agree(self) -> None:
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
                assert sum(job.leased for job in line) <= 1
                assert not line[0].parked or any(job.leased for job in line), "the first of a key waits for nobody"
            else:
                others = [job for job in line if not job.parked and job.state is not LiveState.HELD]
                assert others or not parked, "jobs of a key wait for nobody"


def _order(job: ModelJob) -> int:
    return job.order_no or 0


def lease(job: ClaimedJob) -> Lease:
    return Lease(job.id, job.lease_no)


def same(library: object, model: object) -> None:
    """Demand that both say the same.

    Raises:
        Divergence: they do not.
    """
    if library != model:
        raise Divergence(f"the library: {library}\nthe model:   {model}")
