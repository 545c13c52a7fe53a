"""What the processes of a fault run do. Each writes its history, one line as soon as it knows."""

import contextlib
import itertools
import json
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

from psycopg import sql
from uuid_utils.compat import uuid7

from dagster_sqlqueue import Consumer, Job, Mode, NewJob, QueueSpec, SqlQueue
from dagster_sqlqueue.consumer import ahead_policy
from dagster_sqlqueue.db import statements
from dagster_sqlqueue.db.executors import Transaction
from dagster_sqlqueue.db.schema_name import DEFAULT_SCHEMA
from dagster_sqlqueue.errors import DatabaseUnavailable, LeaseLost
from dagster_sqlqueue.model.job import ClaimedJob
from dagster_sqlqueue.model.outcome import Cancel, Done, Hold, Outcome, Reject, Retry, Snooze
from dagster_sqlqueue.model.queue import QueueSettings
from dagster_sqlqueue.queue import Kept
from dagster_sqlqueue.queue.claim_ahead import Channels, SentClaim
from dagster_sqlqueue.queue.claim_request import ClaimRequest
from dagster_sqlqueue.queue.endings import Endings
from dagster_sqlqueue.queue.leases import Leases
from dagster_sqlqueue.queue.lock import SentLock
from dagster_sqlqueue.results import Results
from tests.gate.patience import PATIENCE
from tests.support import Work, on_sigterm
from tests.support.around import Around
from tests.support.run_by_functions import CALLED_AS

LONG = 1_000_000.0

PLANTS: dict[str, tuple[str, str, str]] = {
    "an ending without the fence": ("complete_plain", "AND j.lease_no = %(lease_no)s", "AND 0 <= %(lease_no)s"),
    "an outcome without the fence": ("complete", "AND j.lease_no = ended.lease_no", ""),
    "a claim that does not lock": ("claim_round_robin", "FOR UPDATE SKIP LOCKED", ""),
    "a lease number that does not grow": ("claim_round_robin", "lease_no = j.lease_no + 1", "lease_no = j.lease_no"),
    "an ending that does not reach the archive": (
        "complete_plain",
        "FROM finished",
        "FROM finished WHERE hashtext(id::text) %% 10 <> 0",
    ),
    "an ending that leaves the job": (
        "complete_plain",
        "DELETE FROM {job} AS j",
        "UPDATE {job} AS j SET state = 'queued', available_at = statement_timestamp()",
    ),
    "a claim that takes running jobs": (
        "claim_round_robin",
        "AND j.available_at <= statement_timestamp()",
        "AND (j.available_at <= statement_timestamp() OR j.state = 'running')",
    ),
    "a limit without its lock": ("limit_lock", "pg_advisory_xact_lock(", "int4larger("),
    "a limit that allows one more": ("claim_limited", "q.max_running - ", "q.max_running + 1 - "),
    "a rate that allows some more": ("claim_limited", "q.rate_limit - ", "q.rate_limit + 3 - "),
    "starts that are not noted": (
        "claim_limited",
        "SELECT count(*) AS starts FROM claimed",
        "SELECT LEAST(1, count(*)) AS starts FROM claimed",
    ),
    "a limit beside turns that allows one more": ("limit_allowance", "q.max_running - ", "q.max_running + 1 - "),
    "starts beside turns that are not noted": ("rate_note", "statement_timestamp(), ", "'-infinity', 0 * 1 + "),
    "a pick that does not lock": ("pick_round_robin", "FOR UPDATE SKIP LOCKED", ""),
    "a heartbeat that revives a lease": (
        "heartbeat",
        "AND (j.available_at > statement_timestamp() OR NOT (j.limited OR j.order_no IS NOT NULL))",
        "",
    ),
    "a turn without its lock": ("key_try", "pg_try_advisory_xact_lock(", "0 <= int4larger("),
    "a key that may run one more": ("key_turns", "free.ids[1:free.places]", "free.ids[1:free.places + 1]"),
    "a turn for any that comes": ("key_turns", "WHERE free.first IS NULL OR free.head = free.first", ""),
    "turns that nobody is given": ("key_promote", "AS promoted (id)", "AS promoted (id) LIMIT 0"),
}
"""Bugs by name: the statement, what is taken out of it, and what is put there."""


@dataclass(frozen=True)
class Task:
    """What one process is to do.

    Attributes:
        history: the file that it writes.
        lease_seconds, batch_size, job_timeout_seconds, linger_seconds: the consumer's.
        pause: seconds that each job takes.
        hang_until: the handler waits for this file to exist.
        hang_at: and does so from this job on, counted from 1.
        go: the process begins when this file exists.
        plant: a bug out of `PLANTS`.
        hesitate: a producer commits up to so many seconds after it has enqueued.
        jobs, keys: how many a producer makes, and of how many ordering keys; 0: without a key.
        goes_on_until: it makes more than that, until this file exists.
        prefix: what the keys begin with.
        outcomes: what the handler says, out of `OUTCOMES`.
        ids: the jobs that a process waits for.
        reports: it says that it begins, and after a hang that it is nearly done.
        dies: the process kills itself at a random moment of the nth call of this verb.
        quick: its batches count as quick ones, however slow the machine is, so that the next one is claimed beside each.
        burn_until: the handler computes until this file exists.
        mode: the consumer's; in transactional mode the handler writes the job's id into the table `effect`.
        seed: of its luck.
    """

    url: str
    schema: str
    history: Path
    lease_seconds: float = 300.0
    batch_size: int = 100
    job_timeout_seconds: float | None = None
    linger_seconds: float = 0.0
    pause: float = 0.0
    hang_until: Path | None = None
    hang_at: int = 1
    go: Path | None = None
    plant: str | None = None
    jobs: int = 0
    goes_on_until: Path | None = None
    keys: int = 0
    prefix: str = "key "
    hesitate: float = 0.0
    outcomes: str | None = None
    ids: Sequence[str] = ()
    reports: bool = False
    dies: tuple[str, int] | None = None
    quick: bool = False
    burn_until: Path | None = None
    mode: Mode = Mode.LEASED
    seed: int = 0


class History:
    """A file of events. A line is there as soon as the call returns, whatever happens to the process then."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(self, event: str, **facts: Any) -> None:
        os.write(self._file, (json.dumps({"event": event, **facts}) + "\n").encode())


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
            threading.Thread(target=_die, args=(pause,), daemon=True).start()

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

    def send_claim_ahead(self, channels: Channels, endings: Endings | None, *arguments: Any, **named: Any) -> SentClaim:
        self._begin("ahead" if self._dies == "ahead" else "finish" if endings and self._dies == "finish" else "claim")
        sent = self.inner.send_claim_ahead(channels, endings, *arguments, **named)
        claimed, ended = sent.claimed, sent.ended

        def noted_claim() -> list[ClaimedJob]:
            jobs = claimed()
            if jobs:
                self._history.note("claimed", jobs=[(str(job.id), job.lease_no) for job in jobs])
            return jobs

        def noted_ends() -> set[UUID]:
            accepted = ended()
            if endings:
                self._ended(endings, accepted)
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

    def requeue(self, jobs: Sequence[tuple[ClaimedJob, Retry | Snooze]], **named: Any) -> set[UUID]:
        self._begin("requeue")
        accepted = self.inner.requeue(jobs, **named)
        self._refused([(type(how).__name__.lower(), job) for job, how in jobs], accepted)
        return accepted

    def release(self, jobs: Sequence[ClaimedJob]) -> set[UUID]:
        return self.requeue([(job, Snooze(0)) for job in jobs]) if jobs else set()

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


def _die(after: float) -> None:
    threading.Event().wait(after)
    os.kill(os.getpid(), signal.SIGKILL)


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


def plant(name: str) -> None:
    """Put a bug into a statement of this process; one that a function runs for it is sent by itself then."""
    statement, old, new = PLANTS[name]
    load = statements.load
    called = CALLED_AS.get(statement, statement)

    def planted(wanted: str, schema: str = DEFAULT_SCHEMA, dialect: str = "postgresql") -> str:
        if wanted != called:
            return load(wanted, schema, dialect)
        text = load(statement, schema, dialect)
        job = f'"{schema}".job'
        before = old.replace("{job}", job)
        assert before in text, f"{statement} does not hold {before!r}"
        return text.replace(before, new.replace("{job}", job))

    statements.load = planted  # type: ignore[assignment]


def wait_for(path: Path) -> None:
    """Return when the file exists."""
    pause = threading.Event()
    while not path.exists():
        pause.wait(0.005)


def consume(task: Task) -> None:
    """Drain the queue; SIGTERM ends it after the job in hand."""
    if task.plant:
        plant(task.plant)
    if task.quick:
        ahead_policy.QUICK_SECONDS = LONG
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
