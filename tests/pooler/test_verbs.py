"""Everything of the queue through PgBouncer in transaction mode: verbs, strategies and modes, waits, runs of Dagster."""

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import dagster as dg
import pytest

from dagster_sqlqueue import Backoff, Consumer, Done, Job, Mode, NewJob, QueueSpec, Retry, SqlQueue, Strategy
from dagster_sqlqueue.consumer.manager import AssignedSource, Manager
from dagster_sqlqueue.doctor import examine, pooler_checks
from dagster_sqlqueue.doctor.server_checks import Verdict
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.orchestration import SqlQueueResource, build_sqlqueue_sensor, queue_consumer
from dagster_sqlqueue.results import Results
from tests.cli.support import Cli
from tests.gate.patience import PATIENCE
from tests.pooler.conftest import Pooled
from tests.roles.desk import Desk
from tests.roles.table import TABLE
from tests.support import Work, rows, states, until, value

DONE = {"succeeded"}
NO_WAIT = Backoff(0, jitter=0)


@pytest.mark.parametrize("attempted", [name for name, (may, _) in TABLE.items() if may and name != "wait_for_jobs"])
def test_every_verb(queue: SqlQueue, owner: SqlQueue, pooled: Pooled, attempted: str) -> None:
    rows(owner, "INSERT INTO {s}.maintenance (due_at) VALUES (now())")
    # What a caller does on a connection of its own, it does behind the same pooler.
    TABLE[attempted][1](queue, Desk(owner, pooled.through))


def test_a_migration_goes_to_the_database_itself(pooled: Pooled) -> None:
    for url in (pooled.through, pooled.url):
        with (
            SqlQueue(url, schema="elsewhere") as queue,
            pytest.raises(InvalidInput, match="give migrate the URL of the data"),
        ):
            queue.migrate()
    assert value(pooled.owner, "SELECT to_regnamespace('elsewhere')") is None


_CLAIMED = [strategy for strategy in Strategy if strategy is not Strategy.ASSIGN]


@pytest.mark.parametrize(
    ("strategy", "mode"),
    [
        *((strategy, Mode.LEASED) for strategy in _CLAIMED),
        *((strategy, Mode.TRANSACTIONAL) for strategy in _CLAIMED if strategy is not Strategy.TOKEN),
    ],
)
def test_a_drain(queue: SqlQueue, strategy: Strategy, mode: Mode) -> None:
    """One, several and so many that they are copied; some are tried twice."""
    spec = QueueSpec("work", Work, bucket_count=4, strategy=strategy, backoff=NO_WAIT)
    queue.create_queue(spec)
    queue.enqueue(spec, Work(n=0))
    queue.enqueue_many(spec, [Work(n=n) for n in range(1, 50)])
    queue.enqueue_many(spec, [Work(n=n) for n in range(50, 2_200)])
    tried: Counter[int] = Counter()

    def handler(job: Job[Work]) -> Any:
        tried[job.payload.n] += 1
        return Retry("once more") if job.payload.n % 100 == 7 and tried[job.payload.n] == 1 else Done()

    with ThreadPoolExecutor(4) as pool:
        drains = [pool.submit(Consumer(queue, spec, handler, mode=mode).drain) for _ in range(4)]
        done = [drain.result(PATIENCE) for drain in drains]
    assert sum(one.succeeded for one in done) == 2_200
    assert set(states(queue).values()) == DONE
    assert tried.total() == 2_200 + 22


@pytest.mark.parametrize("settings", [{"ordered": True}, {"max_running": 3}, {"max_running_per_key": 2}])
def test_turns_and_limits(queue: SqlQueue, settings: dict[str, Any]) -> None:
    spec = QueueSpec("work", Work, bucket_count=4, **settings)
    queue.create_queue(spec)
    queue.enqueue_many(spec, [NewJob(Work(n=n), ordering_key=f"k{n % 5}") for n in range(200)])
    seen: list[int] = []
    with ThreadPoolExecutor(3) as pool:
        drains = [
            pool.submit(Consumer(queue, spec, lambda job: seen.append(job.payload.n), batch_size=10).drain)
            for _ in range(3)
        ]
        assert sum(drain.result(PATIENCE).succeeded for drain in drains) == 200
    if "ordered" in settings:
        for key in range(5):
            assert [n for n in seen if n % 5 == key] == list(range(key, 200, 5))


def test_managers_and_workers(queue: SqlQueue, pooled: Pooled) -> None:
    spec = QueueSpec("work", Work, bucket_count=4, strategy="assign")
    queue.create_queue(spec)
    queue.enqueue_many(spec, [Work(n=n) for n in range(200)])
    stopping = threading.Event()
    with ThreadPoolExecutor(2) as pool, SqlQueue(pooled.url, schema="pooled") as own:
        with AssignedSource(own, "work", "w") as source:
            consumer = Consumer(own, spec, lambda job: Done(), source=source, worker="w", batch_size=20)
            work = pool.submit(consumer.drain, linger_seconds=3_600)
            manage = pool.submit(Manager(queue, "work").run, stopping, poll_seconds=0.02)
            until(lambda: set(states(queue).values()) == DONE, "the end of all jobs")
            consumer.stop()
            assert work.result(PATIENCE).succeeded == 200
        stopping.set()
        assert manage.result(PATIENCE) == 200


def test_a_consumer_that_waits_polls(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    consumer = Consumer(queue, spec, lambda job: Done())
    with ThreadPoolExecutor(1) as pool:
        drain = pool.submit(consumer.drain, linger_seconds=3_600)
        for n in range(3):
            queue.enqueue(spec, Work(n=n))
            until(lambda n=n: states(queue).get(n) == "succeeded", "the job")  # type: ignore[misc]
        assert value(queue, "SELECT count(*) FROM {s}.waiter") == 0
        consumer.stop()
        assert drain.result(PATIENCE).succeeded == 3
    assert value(queue, "SELECT count(*) FROM pg_listening_channels()") == 0


def test_no_session_is_kept_while_a_handler_runs(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    """With as few sessions as here, a claim whose answer was not taken would keep out those that could take it."""
    queue.enqueue_many(spec, [Work(n=n) for n in range(1_000)])
    threads: set[str] = set()

    def handler(job: Job[Work]) -> Done:
        threads.update(thread.name for thread in threading.enumerate())
        return Done()

    assert Consumer(queue, spec, handler).drain().succeeded == 1_000
    assert "sqlqueue-ahead" not in threads


def test_a_result_is_waited_for(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    id = queue.enqueue(spec, Work(n=1))
    assert id is not None
    with ThreadPoolExecutor(1) as pool, Results(queue) as results:
        waiting = pool.submit(results.wait, id, timeout_seconds=PATIENCE)
        Consumer(queue, spec, lambda job: Done({"n": 1})).drain()
        assert waiting.result(PATIENCE).result == {"n": 1}
    assert value(queue, "SELECT count(*) FROM {s}.follower") == 0


@queue_consumer(queue="work", payload=Work, bucket_count=4, mode="batch")
def handle(job: Job[Work]) -> Done:
    return Done()


def test_a_sensor_and_the_run_that_it_asks_for(queue: SqlQueue, spec: QueueSpec[Work], pooled: Pooled) -> None:
    queue.enqueue_many(spec, [Work(n=n) for n in range(20)])
    resource = SqlQueueResource(url=pooled.url, schema_name="pooled")
    with dg.DagsterInstance.ephemeral() as instance:
        with dg.build_sensor_context(instance=instance, resources={"sqlqueue": resource}) as context:
            (request, *_) = build_sqlqueue_sensor(handle)(context).run_requests  # type: ignore[union-attr]
        handle.job.execute_in_process(
            run_config=request.run_config, resources={"sqlqueue": resource}, instance=instance, run_id=request.run_key
        )
        Consumer(queue, spec, lambda job: Done()).drain()
    assert set(states(queue).values()) == DONE


def test_the_command_line(queue: SqlQueue, pooled: Pooled, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SQLQUEUE_URL", pooled.url)
    cli = Cli({"SQLQUEUE_URL": pooled.url, "SQLQUEUE_SCHEMA": "pooled"})
    cli.run("enqueue", "work", '{"n": 1}')
    assert cli.json("stats", "work")
    assert cli.json("maintain")["ran"] is True
    assert "in transaction mode, as was said" in " ".join(cli.run("doctor").stdout.split())
    assert "give migrate the URL of the database itself" in cli.refused(2, "migrate")


def test_doctor_sees_the_pooler(pooled: Pooled) -> None:
    for url, verdict, words in (
        (pooled.direct, Verdict.OK, "none"),
        (f"{pooled.direct}&pooler=transaction", Verdict.OK, "none is seen here"),
        (pooled.through, Verdict.WARN, "taken for one in transaction mode"),
        (pooled.url, Verdict.OK, "in transaction mode, as was said"),
    ):
        with SqlQueue(url, schema="pooled") as queue:
            found = pooler_checks.pooler(queue.database)
            assert (found.verdict, words in found.found) == (verdict, True), found
            assert "pooler" in {check.name for check in examine(queue.database)}
