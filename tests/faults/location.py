"""The code location of the tests with a daemon: two queues, one worked off under leases and one in transactions.

Its processes pass by gates at each hand-over, and the runs write a history. Where the tests have them:

- `loading`: a run's process, before it has loaded this module.
- `<queue>.reading`, `<queue>.reserved`: a tick, before it reads, and when it has reserved slots for its runs.
- `<queue>.opened`: a run that has not said yet that its slot is in use; `<queue>.claiming`: before its first claim.
- `<queue>.handling`: in the middle of its first batch; `<queue>.ending`: a batch was worked off and is about to be ended;
  `<queue>.ended`: it is, and the next one was taken.
- `<queue>.drained`: there is nothing left, and the slot is not given back yet; `<queue>.finished`: it is.
"""

import itertools
import multiprocessing
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dagster as dg
import psycopg
from psycopg import sql

from dagster_sqlqueue import Backoff, Done, Job, QueueSpec, SqlQueue
from dagster_sqlqueue.db.channel import Channel
from dagster_sqlqueue.db.database import Database
from dagster_sqlqueue.db.execution import Row, Step
from dagster_sqlqueue.db.executors import Transaction
from dagster_sqlqueue.model.job import ClaimedJob
from dagster_sqlqueue.model.queue import QueueSettings
from dagster_sqlqueue.orchestration import (
    QueueConsumer,
    SensorSettings,
    SqlQueueResource,
    build_cleanup_sensors,
    queue_consumer,
)
from dagster_sqlqueue.queue.claim_ahead import SentClaim
from dagster_sqlqueue.queue.claim_request import ClaimRequest
from dagster_sqlqueue.queue.endings import Endings
from dagster_sqlqueue.queue.lock import SentLock
from tests.faults.gates import Gates
from tests.faults.task import History
from tests.faults.worker import Witness
from tests.support import Work

LEASE_SECONDS = float(os.environ.get("SQLQUEUE_FAULTS_LEASE", "4"))
START_SECONDS = float(os.environ["SQLQUEUE_FAULTS_START"]) if "SQLQUEUE_FAULTS_START" in os.environ else None
CLEANUP = os.environ.get("SQLQUEUE_FAULTS_CLEANUP", "yes") == "yes"
"""Whether there are sensors that clean up after runs."""
BATCH = 100
RUNS = 2
LETHAL = "lethal"
"""The note of a job that kills its run's process."""
MIDDLE = 10
"""The job of a run's first batch at which it can be caught."""

HOME = Path(os.environ.get("SQLQUEUE_FAULTS", "."))
PLANT = os.environ.get("SQLQUEUE_FAULTS_PLANT")

LEASED = QueueSpec(
    "leased", Work, bucket_count=16, lease_seconds=LEASE_SECONDS, max_attempts=100, backoff=Backoff(0, jitter=0)
)
BOOKED = QueueSpec(
    "booked", Work, bucket_count=16, lease_seconds=LEASE_SECONDS, max_attempts=100, backoff=Backoff(0, jitter=0)
)

gates = Gates(HOME / "gates")
history = History(HOME / f"history-{os.getpid()}.jsonl" if "SQLQUEUE_FAULTS" in os.environ else Path(os.devnull))
effect = sql.SQL("INSERT INTO sqlqueue.effect (job) VALUES (%s)")
handled = itertools.count(1)
this_run: dict[str, Any] = {}
"""What a run's process says of itself."""

if multiprocessing.parent_process() is not None:
    gates.pass_by("loading")


class WatchedDatabase(Database):
    """Knows whether a tick has reserved slots."""

    reserved: str | None = None

    def run_together(self, *steps: Step) -> list[Sequence[Row]]:
        found = super().run_together(*steps)
        name, parameters = steps[-1]
        if name == "slot_acquire" and found[-1]:
            self.reserved = str(parameters["queue"])
        return found


class Watched(SqlQueue):
    """The queue of a run or tick, whose reads and leases pass by the gates."""

    def __init__(self, database: WatchedDatabase, run: dg.DagsterRun | None) -> None:
        super().__init__(database)
        self.leases = WatchedLeases(self.leases, history)  # type: ignore[assignment]
        if run is not None:
            run_config: Any = run.run_config
            (op,) = run_config["ops"].values()
            this_run.update(run=run.run_id, queue=run.tags["sqlqueue/queue"], buckets=op["config"]["buckets"])
            history.note("run", pid=os.getpid(), **this_run)

    def peek_heads(self, name: str) -> Any:
        gates.pass_by(f"{name}.reading", queue=name)
        return super().peek_heads(name)


class WatchedLeases(Witness):
    """The leases of a run, which writes down what it was answered and passes by the gates."""

    _claims = itertools.count(1)

    def claim(self, *arguments: Any, **named: Any) -> list[ClaimedJob]:
        self._first()
        return super().claim(*arguments, **named)

    def lock_due(self, *arguments: Any, **named: Any) -> list[ClaimedJob]:
        self._first()
        return super().lock_due(*arguments, **named)

    def finish_and_claim(self, *arguments: Any, **named: Any) -> Any:
        pass_by("ending")
        done = super().finish_and_claim(*arguments, **named)
        pass_by("ended")
        return done

    def send_claim_ahead(self, channel: Channel, endings: Endings | None, *arguments: Any, **named: Any) -> SentClaim:
        pass_by("ending")
        sent = super().send_claim_ahead(channel, endings, *arguments, **named)
        pass_by("ended")
        return sent

    def finish_and_lock(self, *arguments: Any, **named: Any) -> list[ClaimedJob]:
        pass_by("ending")
        jobs = super().finish_and_lock(*arguments, **named)
        pass_by("ended")
        return jobs

    def send_lock(
        self, transaction: Transaction, request: ClaimRequest, settings: QueueSettings, endings: Endings | None = None
    ) -> SentLock:
        if endings:
            pass_by("ending")
        sent: SentLock = super().send_lock(transaction, request, settings, endings)
        if endings:
            pass_by("ended")
        return sent

    def finish_and_go_on(self, *arguments: Any, **named: Any) -> None:
        pass_by("ending")
        super().finish_and_go_on(*arguments, **named)
        pass_by("ended")

    def release(self, jobs: Sequence[ClaimedJob]) -> set[Any]:
        pass_by("drained")
        return super().release(jobs)

    def _first(self) -> None:
        if next(self._claims) == 1:
            pass_by("claiming")


def pass_by(point: str) -> None:
    """Pass by a gate of this run."""
    gates.pass_by(f"{this_run.get('queue')}.{point}", **this_run)


class WatchedResource(SqlQueueResource):
    """The resource that opens such queues."""

    @contextmanager
    def yield_for_execution(self, context: dg.InitResourceContext) -> Iterator["SqlQueueResource"]:
        run = context.run
        name = f"faults/{run.run_id}" if run else "faults/tick"
        database = WatchedDatabase(self.url, application_name=name, statement_timeout=None if run else 10.0)
        with Watched(database, run) as queue:
            self._queue = queue
            if run is not None:
                pass_by("opened")
            yield self
            if run is not None:
                pass_by("finished")
            elif database.reserved is not None:
                gates.pass_by(f"{database.reserved}.reserved", queue=database.reserved)


def _work(job: Job[Work]) -> None:
    history.note("handled", id=str(job.id), lease_no=job.lease_no, queue=job.queue)
    if job.payload.note == LETHAL:
        os.kill(os.getpid(), signal.SIGKILL)
    if next(handled) == MIDDLE:
        gates.pass_by(f"{job.queue}.handling", **this_run)


SENSOR = {
    "settings": SensorSettings(
        max_runs=RUNS,
        jobs_per_run=100,
        start_seconds=START_SECONDS,
        starting_seconds=START_SECONDS,
        batch_size=BATCH,
        share=False,
    ),
    "minimum_interval_seconds": 1,
    "default_status": dg.DefaultSensorStatus.RUNNING,
}


@queue_consumer(LEASED, mode="batch", sensor=SENSOR)
def leased(job: Job[Work]) -> Done:
    _work(job)
    return Done()


@queue_consumer(BOOKED, mode="batch", transactional=True, sensor=SENSOR)
def booked(job: Job[Work]) -> Done:
    if PLANT == "an effect outside of the transaction":
        with psycopg.connect(os.environ["SQLQUEUE_URL"]) as another:
            another.execute(effect, [job.id])
    else:
        job.connection.execute(effect, [job.id])
    _work(job)
    return Done()


CONSUMERS: list[QueueConsumer[Any]] = [leased, booked]

defs = dg.Definitions(
    jobs=[consumer.job for consumer in CONSUMERS],
    sensors=[
        *[consumer.sensor for consumer in CONSUMERS],
        *(
            build_cleanup_sensors(CONSUMERS, minimum_interval_seconds=1, default_status=dg.DefaultSensorStatus.RUNNING)
            if CLEANUP
            else ()
        ),
    ],
    resources={"sqlqueue": WatchedResource(url=dg.EnvVar("SQLQUEUE_URL"))},
)


def drain(name: str) -> None:
    """A run of a queue's job without a daemon, in this process."""
    (consumer,) = (one for one in CONSUMERS if one.spec.name == name)
    buckets = {"ops": {consumer.op.name: {"config": {"buckets": list(range(consumer.spec.bucket_count))}}}}
    resource = WatchedResource(url=os.environ["SQLQUEUE_URL"])
    consumer.job.execute_in_process(run_config=buckets, resources={"sqlqueue": resource})
