"""The batches that are claimed while another one is worked on: two or three are under lease, and nothing is lost of any."""

import math
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from dagster_sqlqueue import Job, QueueSpec, RateLimit, Retry, SqlQueue, Strategy
from dagster_sqlqueue.db.channel import Channel
from dagster_sqlqueue.model.job import ClaimedJob
from dagster_sqlqueue.queue.claim_ahead import SentClaim
from dagster_sqlqueue.queue.claim_filter import ClaimFilter
from tests.gate.patience import PATIENCE
from tests.support import Work, caller, claim, leases_go_on, make_due, rows, until, value
from tests.support.around import Around
from tests.support.claimed_ahead import SendingClaims, consumer_of, fill_evenly, gone_before, running
from tests.support.locked_ahead import SIZE, fill
from tests.support.raw_rows import in_schema

pytestmark = pytest.mark.usefixtures("quick")


class AtJob:
    """A handler that does something at one job, counted from 1; at the others nothing."""

    def __init__(self, number: int, act: Callable[[], object]) -> None:
        self.seen: list[int] = []
        self._number, self._act = number, act

    def __call__(self, job: Job[Work]) -> None:
        self.seen.append(job.payload.n)
        if len(self.seen) == self._number:
            self._act()


@pytest.fixture(params=[1, 2], autouse=True)
def ahead(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """The number of batches that a consumer claims ahead: a second one always or never, however long it waits."""
    monkeypatch.setattr("dagster_sqlqueue.consumer.ahead_policy._SECOND_SECONDS", math.inf)
    monkeypatch.setattr("dagster_sqlqueue.consumer.ahead._MUCH", 0.0 if request.param == 2 else math.inf)
    number: int = request.param
    return number


@pytest.mark.parametrize("strategy", [Strategy.ROUND_ROBIN, Strategy.FANOUT])
def test_while_a_batch_is_worked_on_the_next_ones_are_claimed(
    queue: SqlQueue, spec: QueueSpec[Work], ahead: int, strategy: Strategy
) -> None:
    spec = replace(spec, strategy=strategy)
    queue.create_queue(spec)
    # So many that two buckets hold what six claims take.
    jobs = 12 * SIZE + 5
    fill_evenly(queue, spec, jobs)
    handler = AtJob(3 * SIZE + 1, lambda: until(lambda: running(queue) == (1 + ahead) * SIZE, "batches under lease"))
    summary = consumer_of(queue, spec, handler).drain()
    assert sorted(handler.seen) == list(range(jobs))
    assert (summary.claimed, summary.succeeded, summary.stale, summary.released) == (jobs, jobs, 0, 0)
    assert rows(queue, "SELECT DISTINCT state, lease_no, attempt FROM {s}.job_archive") == [("succeeded", 1, 1)]


def test_ends_are_seen_while_the_next_batch_is_worked_on(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    """The server commits without waiting for the consumer, who may be in a handler for hours."""
    fill_evenly(queue, spec, 6 * SIZE)
    archived = "SELECT count(*) FROM {s}.job_archive"
    handler = AtJob(3 * SIZE + 1, lambda: until(lambda: value(queue, archived) == 3 * SIZE, "the ends"))
    assert consumer_of(queue, spec, handler).drain().succeeded == 6 * SIZE


def test_a_batch_is_worked_on_while_the_ends_of_the_one_before_wait(
    queue: SqlQueue, spec: QueueSpec[Work], url: str
) -> None:
    fill_evenly(queue, spec, 6 * SIZE)
    seen: list[int] = []
    archived: list[int] = []
    with caller(url) as other:

        def handle(job: Job[Work]) -> None:
            seen.append(job.payload.n)
            if len(seen) == 3 * SIZE:
                other.execute(in_schema(queue, "SELECT FROM {s}.job WHERE id = %s FOR UPDATE"), [job.id])
            if len(seen) == 4 * SIZE:
                archived.append(value(queue, "SELECT count(*) FROM {s}.job_archive"))
                other.rollback()

        summary = consumer_of(queue, spec, handle).drain()
    assert (archived, summary.succeeded, summary.stale) == ([2 * SIZE], 6 * SIZE, 0)
    assert rows(queue, "SELECT DISTINCT state, lease_no FROM {s}.job_archive") == [("succeeded", 1)]


def test_a_stop_gives_back_all_batches(queue: SqlQueue, spec: QueueSpec[Work], ahead: int) -> None:
    fill_evenly(queue, spec, 6 * SIZE)
    handler = AtJob(3 * SIZE + 3, lambda: consumer.stop())
    consumer = consumer_of(queue, spec, handler)
    summary = consumer.drain()
    assert (summary.succeeded, summary.released, summary.claimed) == (33, 7 + 10 * ahead, 40 + 10 * ahead)
    assert rows(queue, "SELECT state, attempt, count(*) FROM {s}.job GROUP BY 1, 2") == [("queued", 0, 27)]


def test_an_interrupt_gives_back_all_batches(queue: SqlQueue, spec: QueueSpec[Work], ahead: int) -> None:
    fill_evenly(queue, spec, 6 * SIZE)

    def interrupt() -> None:
        raise KeyboardInterrupt

    consumer = consumer_of(queue, spec, AtJob(3 * SIZE + 3, interrupt))
    with pytest.raises(KeyboardInterrupt):
        consumer.drain()
    assert (consumer.summary.succeeded, consumer.summary.released) == (32, 8 + 10 * ahead)
    assert rows(queue, "SELECT state, attempt, count(*) FROM {s}.job GROUP BY 1, 2") == [("queued", 0, 28)]


def test_all_batches_are_given_back_while_a_handler_is_at_it(
    queue: SqlQueue, spec: QueueSpec[Work], ahead: int
) -> None:
    fill_evenly(queue, spec, 6 * SIZE)
    begun, go_on = threading.Event(), threading.Event()

    def hang() -> None:
        begun.set()
        go_on.wait(2 * PATIENCE)

    consumer = consumer_of(queue, spec, AtJob(3 * SIZE + 1, hang))
    with ThreadPoolExecutor(1) as pool:
        draining = pool.submit(consumer.drain)
        assert begun.wait(PATIENCE)
        consumer.stop()
        assert consumer.give_back() == (1 + ahead) * SIZE - 1
        assert running(queue) == 1
        go_on.set()
        summary = draining.result(PATIENCE)
    assert (summary.succeeded, summary.released, summary.stale, summary.claimed) == (
        31,
        9 + 10 * ahead,
        0,
        40 + 10 * ahead,
    )
    assert rows(queue, "SELECT state, attempt, count(*) FROM {s}.job GROUP BY 1, 2") == [("queued", 0, 29)]


def test_the_leases_of_all_batches_are_extended(queue: SqlQueue, spec: QueueSpec[Work], ahead: int) -> None:
    fill_evenly(queue, spec, (4 + ahead) * SIZE)

    def hang() -> None:
        until(lambda: running(queue) == (1 + ahead) * SIZE, "batches under lease")
        until(leases_go_on(queue), "leases that go on")

    consumer = consumer_of(queue, spec, AtJob(3 * SIZE + 1, hang), lease_seconds=0.8, job_timeout_seconds=3_600)
    # Whether the leases are long enough beside a batch is another matter: on a busy machine each takes a while.
    consumer._ahead._worth = consumer._ahead._policy.allows  # type: ignore[method-assign]
    summary = consumer.drain()
    assert (summary.succeeded, summary.stale) == ((4 + ahead) * SIZE, 0)
    assert rows(queue, "SELECT DISTINCT lease_no FROM {s}.job_archive") == [(1,)]


def test_a_batch_that_others_took_meanwhile_is_not_begun_or_is_refused(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    """The fence holds for a batch that nobody has begun as for any other."""
    fill(queue, spec, 4 * SIZE)
    taken: list[Any] = []

    def overtake() -> None:
        until(lambda: running(queue) == 2 * SIZE, "two batches under lease")
        make_due(queue)
        while jobs := claim(queue):
            taken.extend(jobs)

    consumer = consumer_of(queue, spec, AtJob(SIZE + 1, overtake))
    summary = consumer.drain()
    assert (summary.succeeded, summary.stale) == (SIZE, 2 * SIZE)
    queue.complete(taken)
    assert rows(queue, "SELECT count(*), count(DISTINCT id) FROM {s}.job_archive") == [(40, 40)]


def gone_after(channel: Channel, send: Callable[[], SentClaim]) -> SentClaim:
    sent = send()
    receive = sent.receive

    def lose() -> int:
        receive()
        channel.close()
        raise psycopg.OperationalError("the connection was lost, and the answer with it")

    sent.receive = lose  # type: ignore[method-assign]
    return sent


def gone_meanwhile(channel: Channel, send: Callable[[], SentClaim]) -> SentClaim:
    sent = send()
    assert channel._session is not None
    channel._session.connection.pgconn.finish()
    return sent


@pytest.mark.parametrize("lost_at", [2, 3])
@pytest.mark.parametrize("lose", [gone_before, gone_after, gone_meanwhile])
def test_a_connection_that_is_lost_loses_nothing_and_ends_nothing_twice(
    queue: SqlQueue, spec: QueueSpec[Work], sending_claims: SendingClaims, lose: Any, lost_at: int
) -> None:
    fill(queue, spec, 8 * SIZE)
    sending_claims.lost_at, sending_claims.lose = lost_at, lose
    summary = consumer_of(queue, spec, lambda job: None).drain()
    # What it claimed without anyone having the answer is due when its lease is over.
    left = running(queue)
    assert left == (SIZE if lose in (gone_after, gone_meanwhile) else 0) or (lose is gone_meanwhile and left == 0)
    assert (summary.succeeded, summary.stale, summary.claimed) == (8 * SIZE - left, 0, 8 * SIZE - left)
    make_due(queue)
    assert consumer_of(queue, spec, lambda job: None).drain().succeeded == left
    assert rows(queue, "SELECT DISTINCT state, attempt FROM {s}.job_archive") == [("succeeded", 1)]
    assert value(queue, "SELECT count(*) FROM {s}.job_archive") == 8 * SIZE


def test_a_job_whose_lease_ran_out_has_nothing_beside_it(
    queue: SqlQueue, spec: QueueSpec[Work], sending_claims: SendingClaims
) -> None:
    fill(queue, spec, 4 * SIZE)
    dead = {job.id for job in queue.claim("work", limit=3, worker="dead")}
    make_due(queue)
    beside: list[int] = []

    def handler(job: Job[Work]) -> None:
        if job.id in dead:
            beside.append(running(queue))

    summary = consumer_of(queue, spec, handler).drain()
    assert (summary.succeeded, beside) == (4 * SIZE, [1, 1, 1])
    assert rows(queue, "SELECT DISTINCT attempt FROM {s}.job_archive") == [(1,)]


KINDS: dict[str, dict[str, Any]] = {
    "limited": {"max_running": 1_000},
    "a rate": {"rate": RateLimit(1_000_000, 1.0)},
    "ordered": {"ordered": True},
    "a limit of keys": {"max_running_per_key": 100},
    "fifo": {"strategy": Strategy.FIFO},
    "token": {"strategy": Strategy.TOKEN},
}


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_claimed_ahead_where_others_could_do_less_by_it(
    queue: SqlQueue, spec: QueueSpec[Work], sending_claims: SendingClaims, kind: str
) -> None:
    other = replace(spec, **KINDS[kind])
    queue.create_queue(other)
    fill(queue, other, 4 * SIZE)
    assert consumer_of(queue, other, lambda job: None).drain().succeeded == 4 * SIZE
    assert sending_claims.sent == 0


def test_nothing_is_claimed_ahead_by_a_filter_or_of_a_slow_handler(
    queue: SqlQueue, spec: QueueSpec[Work], sending_claims: SendingClaims, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(queue, spec, 4 * SIZE, tags=["a"])
    assert consumer_of(queue, spec, lambda job: None, filter=ClaimFilter(tags=["a"])).drain().succeeded == 4 * SIZE
    monkeypatch.setattr("dagster_sqlqueue.consumer.ahead_policy.QUICK_SECONDS", 0.0)
    fill(queue, spec, 4 * SIZE)
    assert consumer_of(queue, spec, lambda job: None).drain().succeeded == 4 * SIZE
    assert sending_claims.sent == 0


def test_one_job_at_a_time_is_the_only_one(
    queue: SqlQueue, spec: QueueSpec[Work], sending_claims: SendingClaims
) -> None:
    fill(queue, spec, 5)
    most: list[int] = []
    assert consumer_of(queue, spec, lambda job: most.append(running(queue)), batch_size=1).drain().succeeded == 5
    assert (most, sending_claims.sent) == ([1] * 5, 0)


def test_a_claim_that_was_not_filled_is_followed_by_none_ahead(
    queue: SqlQueue, spec: QueueSpec[Work], sending_claims: SendingClaims
) -> None:
    """What little there is belongs to those with nothing to do."""
    fill(queue, spec, 2 * SIZE - 1)
    assert consumer_of(queue, spec, lambda job: None).drain().succeeded == 2 * SIZE - 1
    assert sending_claims.sent == 0


def test_a_batch_that_nothing_of_ends_is_followed_by_the_one_claimed_ahead(
    queue: SqlQueue, spec: QueueSpec[Work]
) -> None:
    fill(queue, spec, 5 * SIZE)
    summary = consumer_of(queue, spec, lambda job: Retry("later", 3_600)).drain()
    assert (summary.retried, summary.claimed, summary.released) == (50, 50, 0)
    assert rows(queue, "SELECT DISTINCT state, attempt FROM {s}.job") == [("queued", 1)]


def test_an_answer_that_nobody_takes_is_taken_for_the_consumer(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    """One that is larger than what is on its way would hold its transaction open: its jobs would be under no lease."""
    queue.enqueue_many(spec, [Work(n=n, note="x" * 900_000) for n in range(4 * SIZE)])
    handler = AtJob(2 * SIZE + 1, lambda: until(lambda: running(queue) == 2 * SIZE, "a claim that is committed"))
    assert consumer_of(queue, spec, handler).drain().succeeded == 4 * SIZE


class Collected(Around):
    """A claim that was sent, whose answer the thread that collects answers is receiving until it may go on."""

    def __init__(self, inner: SentClaim) -> None:
        super().__init__(inner)
        self.receiving, self.go_on = threading.Event(), threading.Event()

    def receive(self) -> int:
        if threading.current_thread().name == "sqlqueue-ahead":
            self.receiving.set()
            assert self.go_on.wait(PATIENCE)
        received: int = self.inner.receive()
        return received


def test_a_batch_is_not_forgotten_while_its_answer_is_being_received(
    queue: SqlQueue, spec: QueueSpec[Work], sending_claims: SendingClaims, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its leases would be kept for as long as the consumer lives."""
    monkeypatch.setattr("dagster_sqlqueue.consumer.ahead._UNCOLLECTED_SECONDS", 0.01)
    fill(queue, spec, 5 * SIZE)
    collected: list[Collected] = []

    def send(channel: Channel, send: Callable[[], SentClaim]) -> SentClaim:
        collected.append(Collected(send()))
        return collected[0]  # type: ignore[return-value]

    def without_spent(jobs: list[ClaimedJob], **given: Any) -> list[ClaimedJob]:
        # The third batch was claimed beside the second, and the fourth with the ends of the second.
        if collected:
            assert collected[0].receiving.wait(PATIENCE), "nobody collects the answer"
        handed_out: list[ClaimedJob] = sending_claims.inner.without_spent(jobs, **given)
        return handed_out

    monkeypatch.setattr(sending_claims, "without_spent", without_spent, raising=False)
    sending_claims.lost_at, sending_claims.lose = 2, send
    handler = AtJob(2 * SIZE + 1, lambda: collected[0].go_on.set())
    summary = consumer_of(queue, spec, handler).drain()
    assert (summary.claimed, summary.succeeded, summary.stale) == (5 * SIZE, 5 * SIZE, 0)
    assert running(queue) == 0


class Interrupted(Around):
    """A claim that was sent, whose answer the consumer is interrupted waiting for once."""

    interrupted = False

    def receive(self) -> int:
        if not self.interrupted:
            self.interrupted = True
            raise KeyboardInterrupt
        received: int = self.inner.receive()
        return received


@pytest.mark.parametrize("interrupted_at", [1, 2, 3])
def test_an_interrupt_while_an_answer_is_waited_for_loses_no_outcome(
    queue: SqlQueue, spec: QueueSpec[Work], sending_claims: SendingClaims, interrupted_at: int
) -> None:
    fill_evenly(queue, spec, 8 * SIZE)
    sending_claims.lost_at = interrupted_at
    sending_claims.lose = lambda channel, send: Interrupted(send())  # type: ignore[assignment,return-value]
    seen: list[int] = []

    def handle(job: Job[Work]) -> Retry | None:
        seen.append(job.payload.n)
        return Retry("later", after=3_600) if job.payload.n % 5 == 0 else None

    consumer = consumer_of(queue, spec, handle)
    with pytest.raises(KeyboardInterrupt):
        consumer.drain()
    later = sum(n % 5 == 0 for n in seen)
    assert value(queue, "SELECT count(*) FROM {s}.job_archive") == len(seen) - later
    assert value(queue, "SELECT count(*) FROM {s}.job WHERE attempt = 1 AND state = 'queued'") == later
    assert (consumer.summary.succeeded, consumer.summary.retried) == (len(seen) - later, later)
