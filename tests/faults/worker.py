"""What the processes of a fault run do. Each writes its history, one line as soon as it knows."""

import contextlib
import itertools
import math
import random
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any
from uuid import UUID

from psycopg import sql
from uuid_utils.compat import uuid7

from dagster_sqlqueue import Consumer, Job, Mode, NewJob, QueueSpec, SqlQueue
from dagster_sqlqueue.consumer import ahead, ahead_policy, bucket_order
from dagster_sqlqueue.db.channel import Channel
from dagster_sqlqueue.db.executors import Transaction
from dagster_sqlqueue.errors import DatabaseUnavailable, LeaseLost
from dagster_sqlqueue.model.job import ClaimedJob
from dagster_sqlqueue.model.outcome import Cancel, Done, Hold, Outcome, Reject, Retry, Snooze
from dagster_sqlqueue.model.queue import QueueSettings
from dagster_sqlqueue.queue import Kept
from dagster_sqlqueue.queue.claim_ahead import SentClaim
from dagster_sqlqueue.queue.claim_request import ClaimRequest
from dagster_sqlqueue.queue.complete import Requeued
from dagster_sqlqueue.queue.endings import Endings
from dagster_sqlqueue.queue.leases import Leases
from dagster_sqlqueue.queue.lock import SentLock
from dagster_sqlqueue.results import Results
from tests.faults.task import History, Task, die, plant, wait_for
from tests.gate.patience import PATIENCE
from tests.support import Work, on_sigterm
from tests.support.around import Around

LONG = 1_000_000.0


class Witness(Around):
    """The leases of a queue, which writes down what the database answered."""

    def __init__(self, leases: Leases, history: History, task: "Task | None" = None) -> None:
        super().__init__(leases)
        self._history = history
        self._dies, self._after = task.dies if task and task.dies else (None, 0)
        self._luck = random.Random(task.seed if task else 0)

    def _begin(self, verb: str) -> None:
        if verb != self._dies:
            return
        self._after -= 1
        if self._after == 0:
            self._history.note("dies", verb=verb)
            pause = self._luck.uniform(0, 0.004)
            threading.Thread(target=die, args=(pause,), daemon=True).start()

    def _refused(self, kinds: Sequence[tuple[str, ClaimedJob]], accepted: set[UUID]) -> None:
        refused = [(kind, str(job.id), job.lease_no) for kind, job in kinds if job.id not in accepted]
        self._history.note("refused", jobs=[job[1:] for job in refused], kinds=[job[0] for job in refused])

    def claim(self, *arguments: Any, **named: Any) -> list[ClaimedJob]:
        self._begin("claim")
        jobs = self.inner.claim(*arguments, **named)
        if jobs:
            self._history.note("claimed", jobs=[(str(job.id), job.lease_no) for job in jobs])
        return jobs

    def finish(self, endings: Endings, **named: Any) -> set[UUID]:
        self._begin("finish")
        accepted = self.inner.finish(endings, **named)
        self._ended(endings, accepted)
        return accepted

    def _ended(self, endings: Endings, accepted: set[UUID]) -> None:
        jobs = [(str(job.id), job.lease_no) for job in endings.jobs if job.id in accepted]
        self._history.note("ended", jobs=jobs)
        states = [state.value for state in endings.states]
        self._refused(list(zip(states, endings.jobs, strict=True)), accepted)

    def finish_and_claim(self, endings: Endings, *arguments: Any, **named: Any) -> Any:
        self._begin("finish" if self._dies == "finish" else "claim")
        accepted, jobs = self.inner.finish_and_claim(endings, *arguments, **named)
        self._ended(endings, accepted)
        if jobs:
            self._history.note("claimed", jobs=[(str(job.id), job.lease_no) for job in jobs])
        return accepted, jobs

    def send_claim_ahead(self, channel: Channel, endings: Endings | None, *arguments: Any, **named: Any) -> SentClaim:
        self._begin("ahead" if self._dies == "ahead" else "finish" if endings and self._dies == "finish" else "claim")
        sent = self.inner.send_claim_ahead(channel, endings, *arguments, **named)
        claimed, ended = sent.claimed, sent.ended

        def noted_claim() -> list[ClaimedJob]:
            jobs = claimed()
            if jobs:
                self._history.note("claimed", jobs=[(str(job.id), job.lease_no) for job in jobs])
            return jobs

        def noted_ends() -> set[UUID] | None:
            accepted = ended()
            if endings:
                self._ended(endings, {job.id for job in endings.jobs} if accepted is None else accepted)
            return accepted

        sent.claimed, sent.ended = noted_claim, noted_ends  # type: ignore[method-assign]
        return sent

    def lock_due(self, *arguments: Any, **named: Any) -> list[ClaimedJob]:
        self._begin("claim")
        return self.inner.lock_due(*arguments, **named)

    def finish_locked(self, *arguments: Any, **named: Any) -> set[UUID]:
        self._begin("finish")
        return self.inner.finish_locked(*arguments, **named)

    def finish_and_lock(self, *arguments: Any, **named: Any) -> list[ClaimedJob]:
        self._begin("finish")
        return self.inner.finish_and_lock(*arguments, **named)

    def finish_and_go_on(self, *arguments: Any, **named: Any) -> None:
        self._begin("finish")
        self.inner.finish_and_go_on(*arguments, **named)

    def send_lock(
        self, transaction: Transaction, request: ClaimRequest, settings: QueueSettings, endings: Endings | None = None
    ) -> SentLock:
        self._begin("finish" if endings and self._dies == "finish" else "claim")
        sent: SentLock = self.inner.send_lock(transaction, request, settings, endings)
        return sent

    def requeue(self, jobs: Sequence[tuple[ClaimedJob, Retry | Snooze]], **named: Any) -> Requeued:
        self._begin("requeue")
        done: Requeued = self.inner.requeue(jobs, **named)
        self._refused([(type(how).__name__.lower(), job) for job, how in jobs], done.accepted)
        return done

    def release(self, jobs: Sequence[ClaimedJob]) -> set[UUID]:
        return self.requeue([(job, Snooze(0)) for job in jobs]).accepted if jobs else set()

    def hold(self, jobs: Sequence[tuple[ClaimedJob, str]], **named: Any) -> set[UUID]:
        self._begin("hold")
        accepted = self.inner.hold(jobs, **named)
        self._refused([("hold", job) for job, _ in jobs], accepted)
        return accepted

    def heartbeat(self, jobs: Sequence[ClaimedJob], **named: Any) -> Kept:
        self._begin("heartbeat")
        kept = self.inner.heartbeat(jobs, **named)
        self._refused([("heartbeat", job) for job in jobs], kept.held)
        return kept

    def note_progress(self, job: ClaimedJob, percent: float, message: str | None = None) -> None:
        self._begin("progress")
        try:
            self.inner.note_progress(job, percent, message)
        except LeaseLost:
            self._refused([("progress", job)], set())
            raise


_calls = itertools.count()


def _every(n: int, luck: random.Random) -> Outcome:
    said = [Done({"n": n}), Retry("again", 0), Snooze(0), Hold("look"), Reject("never"), Cancel("not now")]
    return said[next(_calls) % len(said)]


def _coming_back(n: int, luck: random.Random) -> Outcome:
    back: Outcome = Retry("again", luck.uniform(0, 0.03)) if luck.random() < 0.5 else Snooze(luck.uniform(0, 0.03))
    return back if luck.random() < 0.25 else Done()


def _failing(n: int, luck: random.Random) -> Outcome:
    return Reject("poisoned") if n % 7 == 3 else _coming_back(n, luck)


OUTCOMES: dict[str, Callable[[int, random.Random], Outcome]] = {
    "every": _every,
    "coming back": _coming_back,
    "failing": _failing,
}
"""What handlers say about the job with the number n: each outcome in turn; a quarter comes back; some never succeed."""


def consume(task: Task) -> None:
    """Drain the queue; SIGTERM ends it after the job in hand."""
    if task.plant:
        plant(task.plant)
    # All begin at one bucket: claims shall meet each other.
    bucket_order.random = random.Random(0)  # type: ignore[attr-defined]
    if task.ahead:
        ahead_policy.QUICK_SECONDS = ahead_policy._SECOND_SECONDS = LONG
        ahead._MUCH = 0.0 if task.ahead == 2 else math.inf
    history = History(task.history)
    pause = threading.Event()
    luck = random.Random(task.seed)
    handled = itertools.count(1)

    def handler(job: Job[Work]) -> Outcome | None:
        history.note("handled", id=str(job.id), lease_no=job.lease_no)
        if task.reports:
            job.progress(0, "begun")
        if task.hang_until and next(handled) >= task.hang_at:
            wait_for(task.hang_until)
            if task.reports:
                job.progress(99, "nearly done")
        if task.mode is Mode.TRANSACTIONAL:
            job.connection.execute(effect, [job.id])
        if task.pause:
            pause.wait(task.pause)
        while task.burn_until and not task.burn_until.exists():
            for _ in range(1_000_000):
                pass
        return OUTCOMES[task.outcomes](job.payload.n, luck) if task.outcomes else None

    effect = sql.SQL("INSERT INTO {} (job) VALUES (%s)").format(sql.Identifier(task.schema, "effect"))
    spec = QueueSpec("work", Work)
    with SqlQueue(task.url, schema=task.schema) as queue:
        queue.leases = Witness(queue.leases, history, task)  # type: ignore[assignment]
        consumer = Consumer(
            queue,
            spec,
            handler,
            batch_size=task.batch_size,
            lease_seconds=task.lease_seconds,
            job_timeout_seconds=task.job_timeout_seconds,
            mode=task.mode,
        )
        on_sigterm(consumer.stop)
        history.note("ready")
        if task.go:
            wait_for(task.go)
        history.note("drained", **asdict(consumer.drain(linger_seconds=task.linger_seconds)))


def await_ends(task: Task) -> None:
    """Wait for jobs, each in a thread of its own, and for all of them together."""
    history = History(task.history)

    def one(id: str) -> None:
        outcome = results.wait(id, timeout_seconds=2 * PATIENCE)
        history.note("answered", id=id, state=outcome.state, result=outcome.result)

    with SqlQueue(task.url, schema=task.schema) as queue, Results(queue) as results, ThreadPoolExecutor(8) as pool:
        history.note("ready")
        together = pool.submit(results.wait_many, task.ids, timeout_seconds=2 * PATIENCE)
        for _ in pool.map(one, task.ids):
            pass
        history.note("all answered", states=[outcome.state for outcome in together.result().values()])


def produce(task: Task) -> None:
    """Enqueue one batch after another; what got no answer is sent again with the same ids."""
    history = History(task.history)
    luck = random.Random(task.seed)
    spec = QueueSpec("work", Work)
    with SqlQueue(task.url, schema=task.schema) as queue:
        history.note("ready")
        if task.go:
            wait_for(task.go)
        for first in itertools.count(step=task.batch_size):
            if first >= task.jobs and (task.goes_on_until is None or task.goes_on_until.exists()):
                break
            last = first + task.batch_size
            batch = [
                NewJob(Work(n=n), id=uuid7(), ordering_key=f"{task.prefix}{n % task.keys}" if task.keys else None)
                for n in range(first, last if task.goes_on_until else min(last, task.jobs))
            ]
            deadline = time.monotonic() + PATIENCE
            tries = 0
            while True:
                tries += 1
                with contextlib.suppress(DatabaseUnavailable):
                    if task.hesitate:
                        with queue.database.transaction() as transaction:
                            queue.enqueue_many(spec, batch, connection=transaction.connection)
                            threading.Event().wait(luck.uniform(0, task.hesitate))
                    else:
                        queue.enqueue_many(spec, batch)
                    break
                assert time.monotonic() < deadline
                threading.Event().wait(0.02)
            history.note("enqueued", ids=[str(job.id) for job in batch], tries=tries)
            if task.pause:
                threading.Event().wait(task.pause)
