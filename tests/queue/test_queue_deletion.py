"""A queue is deleted: what is in the way of that, what goes with it, and what stays."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated
from uuid import UUID

import psycopg
import pytest

from dagster_sqlqueue import Consumer, Done, Mode, NewJob, QueueSpec, Sensitive, SqlQueue
from dagster_sqlqueue.errors import InvalidInput, QueueInUse, UnknownQueue
from dagster_sqlqueue.followers import Callback, Followers, Groups
from dagster_sqlqueue.people import HumanWork
from dagster_sqlqueue.queue import queue_admin
from dagster_sqlqueue.queue.selection import Selection
from dagster_sqlqueue.schedules import Schedules
from dagster_sqlqueue.topics import Topics
from tests.gate.patience import PATIENCE
from tests.support import Work, caller, claim, rows, until, value
from tests.support.raw_rows import in_schema


class Order(Work):
    """A payload with something to hide."""

    card: Annotated[str, Sensitive()] = ""


ORDERS = QueueSpec("orders", Order, bucket_count=2, max_attempts=1, lease_seconds=300)
EVERYTHING = Selection(all=True)
WITH_A_QUEUE = (
    "SELECT c.table_name FROM information_schema.columns AS c JOIN information_schema.tables AS t"
    " USING (table_schema, table_name) WHERE c.table_schema = %s AND t.table_type = 'BASE TABLE'"
    " AND c.column_name IN ('queue', CASE c.table_name WHEN 'queue' THEN 'name' END)"
)


@pytest.fixture(autouse=True)
def orders(queue: SqlQueue) -> SqlQueue:
    queue.create_queue(ORDERS)
    return queue


def there(queue: SqlQueue) -> bool:
    return "orders" in {settings.name for settings in queue.queues()}


def traces(queue: SqlQueue) -> set[str]:
    """The tables that have rows of the queue."""
    schema = queue.database.schema
    found = set()
    for (table,) in rows(queue, WITH_A_QUEUE, schema):
        column = "name" if table == "queue" else "queue"
        if value(queue, f'SELECT EXISTS (SELECT FROM {{s}}."{table}" WHERE {column} = %s)', "orders"):
            found.add(table)
    return found


def ended(queue: SqlQueue) -> tuple[UUID, UUID]:
    """A job that succeeded, and one that failed."""
    succeeded, failed = (queue.enqueue(ORDERS, Order(n=n, card="4711")) for n in range(2))
    assert succeeded
    assert failed
    jobs = {job.id: job for job in queue.claim("orders", limit=2, worker="w")}
    queue.complete([jobs[succeeded]])
    queue.fail(jobs[failed], "no")
    return succeeded, failed


def test_it_goes_with_everything_but_what_has_ended(queue: SqlQueue) -> None:
    ids = ended(queue)
    queue.set_region("orders", "eu", [1])
    queue.pause("orders")
    HumanWork(queue).set_rule("orders", automatic_percent=50)
    group = Groups(queue).open(Callback("orders"))
    Groups(queue).close(group)
    assert len(queue.delete("orders", EVERYTHING, states=["queued"]).changed) == 1, "the callback of the group"
    for table, columns, row in (
        ("stale_write", "queue, day, writes", "'orders', '2020-01-01', 1"),
        ("rate_start", "queue, starts", "'orders', 1"),
        ("limit_reservation", "id, queue, jobs, expires_at", "gen_random_uuid(), 'orders', 1, now()"),
        ("waiter", "queue, worker, expires_at", "'orders', 'dead', now() - interval '1 second'"),
        ("worker", "queue, name, wanted, expires_at", "'orders', 'dead', 1, now() - interval '1 second'"),
        ("assignment", "queue, worker, job_id, lease_no, alone", "'orders', 'dead', gen_random_uuid(), 1, false"),
        (
            "transactional_consumer",
            "queue, worker, batch_size, believed_until",
            "'orders', 'dead', 1, now() - interval '1 second'",
        ),
        (
            "consumer_slot",
            "queue, slot, token, buckets, expires_at",
            "'orders', 1, gen_random_uuid(), '{{0}}', now() - interval '1 second'",
        ),
        (
            "human_task",
            "job_id, queue, stage, review, four_eyes, available_at, opened_at, revision",
            "gen_random_uuid(), 'orders', 'open', false, false, now(), now(), 1",
        ),
        ("queue_declaration", "queue, settings, worker, noted_at", "'orders', '{{}}', 'dead', now()"),
        (
            "batch",
            "id, key, queue, state, lease_until, owner",
            "gen_random_uuid(), 'k', 'orders', 'published', now(), 'me'",
        ),
    ):
        rows(queue, f"INSERT INTO {{s}}.{table} ({columns}) VALUES ({row})")
    before = queue.settings("orders")
    assert queue.delete_queue("orders", dry_run=True) == before
    assert queue.settings("orders") == before
    assert queue.delete_queue("orders") == before
    assert not there(queue)
    assert {table for table in traces(queue) if not table.startswith("job_archive")} == {"sensitive_field"}
    assert [queue.job(id).state for id in ids] == ["succeeded", "failed"]
    assert Groups(queue).group(group).ended_at is not None
    with pytest.raises(UnknownQueue, match="there is no queue 'orders'"):
        queue.enqueue(ORDERS, Order(n=1))
    for dry_run in (False, True):
        with pytest.raises(UnknownQueue, match=r"there is no queue 'orders' .* \(there are: .*work"):
            queue.delete_queue("orders", dry_run=dry_run)


def _jobs(queue: SqlQueue) -> Callable[[], object]:
    for _ in range(3):
        queue.enqueue(ORDERS, Order(n=1))
    held = queue.enqueue(ORDERS, Order(n=2))
    assert held
    queue.hold_queued("orders", Selection(ids=[held]), "wait")
    queue.enqueue(ORDERS, NewJob(Order(n=3), priority=9))
    (running,) = queue.claim("orders", limit=1, worker="w")

    def away() -> None:
        queue.complete([running])
        queue.delete("orders", EVERYTHING, states=["queued", "held"])

    return away


def _scheduled(queue: SqlQueue) -> Callable[[], object]:
    schedules = Schedules(queue)
    for n in range(7):
        schedules.put(ORDERS, f"s{n}", Order(n=1), every=3_600)
    return lambda: [schedules.remove("orders", f"s{n}") for n in range(7)]


def _subscribed(queue: SqlQueue) -> Callable[[], object]:
    Topics(queue).subscribe("shop", "mine", "orders")
    return lambda: Topics(queue).unsubscribe("shop", "mine")


def _followed(queue: SqlQueue) -> Callable[[], object]:
    job = queue.enqueue(QueueSpec("work", Work), Work(n=1))
    assert job
    Followers(queue).follow(job, Callback("orders"))

    def away() -> None:
        queue.cancel("work", EVERYTHING)
        assert len(queue.delete("orders", EVERYTHING, states=["queued"]).changed) == 1

    return away


def _grouped(queue: SqlQueue) -> Callable[[], object]:
    group = Groups(queue).open(Callback("orders"))

    def away() -> None:
        Groups(queue).close(group)
        assert len(queue.delete("orders", EVERYTHING, states=["queued"]).changed) == 1

    return away


def _batch(state: str, unmoved: bool) -> Callable[[SqlQueue], Callable[[], object]]:
    def put(queue: SqlQueue) -> Callable[[], object]:
        rows(
            queue,
            "INSERT INTO {s}.batch (id, key, queue, state, unmoved, lease_until, owner)"
            " VALUES (gen_random_uuid(), %s, 'orders', %s, %s, now(), 'me')",
            f"sizes/{state}",
            state,
            unmoved,
        )
        return lambda: rows(queue, "UPDATE {s}.batch SET state = 'abandoned', unmoved = false")

    return put


def _waiting(queue: SqlQueue) -> Callable[[], object]:
    queue.database.run("waiter_register", {"queue": "orders", "worker": "box/17", "seconds": 300.0})
    return lambda: queue.database.run("waiter_leave", {"queue": "orders", "worker": "box/17"})


def _managed(queue: SqlQueue) -> Callable[[], object]:
    given = {"queue": "orders", "worker": "box/18"}
    queue.database.run("register_demand", {**given, "wanted": 1, "seconds": 300.0})
    return lambda: queue.database.run("withdraw_worker", given)


def _transactional(queue: SqlQueue) -> Callable[[], object]:
    given = {"queue": "orders", "worker": "box/19"}
    noted = {**given, "buckets": None, "batch_size": 1, "seconds": 300.0, "own": False}
    queue.database.run("transactional_note", noted)
    return lambda: queue.database.run("transactional_leave", given)


def _run_of_dagster(queue: SqlQueue) -> Callable[[], object]:
    rows(
        queue,
        "INSERT INTO {s}.consumer_slot (queue, slot, token, run_id, buckets, expires_at)"
        " VALUES ('orders', 0, gen_random_uuid(), 'run-4', '{{0}}', now() + interval '5 minutes')",
    )
    return lambda: rows(queue, "DELETE FROM {s}.consumer_slot")


def _people(queue: SqlQueue) -> Callable[[], object]:
    id = queue.enqueue(ORDERS, Order(n=1))
    assert id
    people = HumanWork(queue)
    people.hand_over("orders", Selection(ids=[id]), by="boss", reason="look")
    people.assign(id, "ann", by="boss")
    people.submit(id, "ann", {"fine": True})
    assert queue.job(id).state == "succeeded"
    return lambda: queue.delete("orders", EVERYTHING)


IN_THE_WAY: dict[str, tuple[Callable[[SqlQueue], Callable[[], object]], str]] = {
    "jobs": (_jobs, r"its jobs, 3 queued, 1 running, 1 held \(.*sqlqueue cancel orders --all; sqlqueue purge orders"),
    "schedules": (_scheduled, r"schedules: s0, s1, s2, s3, s4 and 2 more \(.*sqlqueue schedule remove orders NAME\)"),
    "a subscription": (_subscribed, r"subscriptions: shop mine \(.*sqlqueue unsubscribe TOPIC NAME\)"),
    "a callback": (_followed, r"callbacks .* jobs have ended, which are: [0-9a-f-]{36} \(.*sqlqueue cancel ID\)"),
    "a group": (_grouped, r"callbacks .* groups have ended, which are: [0-9a-f-]{36} \(.*sqlqueue group close ID\)"),
    "a batch being sealed": (
        _batch("sealing", False),
        r"not published: sizes/sealing \(.*sqlqueue batch abandon KEY\)",
    ),
    "a sealed batch": (_batch("sealed", False), r"not published: sizes/sealed \(.*sqlqueue batch abandon KEY\)"),
    "files of a batch": (
        _batch("published", True),
        r"place: sizes/published \(.*sqlqueue batch forget KEY --unmoved\)",
    ),
    "a consumer": (_waiting, r"consumers: box/17 \(stop them"),
    "a worker of managers": (_managed, r"consumers: box/18 \(stop them"),
    "a transactional consumer": (_transactional, r"consumers: box/19 \(stop them"),
    "a run": (_run_of_dagster, r"runs of Dagster: run-4 \(turn off the sensor"),
    "history of people": (_people, r"people did with jobs: [0-9a-f-]{36}.*\(.*sqlqueue delete orders --all\)"),
}


@pytest.mark.parametrize("thing", IN_THE_WAY)
def test_what_is_in_the_way_is_named_with_its_remedy(queue: SqlQueue, thing: str) -> None:
    put, match = IN_THE_WAY[thing]
    away = put(queue)
    before = traces(queue)
    for dry_run in (True, False):
        with pytest.raises(QueueInUse, match=f"queue 'orders' was not deleted; in its way are: .*{match}") as refused:
            queue.delete_queue("orders", dry_run=dry_run)
        assert str(refused.value).count("; in its way") == 1
    assert traces(queue) == before
    away()
    queue.delete_queue("orders")
    assert not there(queue)


def test_everything_that_is_in_the_way_is_named_at_once(queue: SqlQueue) -> None:
    for put, _ in reversed(IN_THE_WAY.values()):
        put(queue)
    with pytest.raises(QueueInUse) as refused:
        queue.delete_queue("orders")
    for thing in ("jobs", "schedules", "subscriptions", "group close", "box/17", "box/18", "box/19", "run-4"):
        assert thing in str(refused.value)


def test_of_very_many_jobs_not_all_are_counted(queue: SqlQueue) -> None:
    queue.enqueue_many(ORDERS, (Order(n=n) for n in range(10_500)))
    with pytest.raises(QueueInUse, match="its jobs, at least 10,000 queued"):
        queue.delete_queue("orders")


def test_packed_jobs_of_a_batch_are_counted(queue: SqlQueue) -> None:
    queue.enqueue_many(ORDERS, (Order(n=n) for n in range(300)))
    (batch,) = rows(
        queue,
        "INSERT INTO {s}.batch (id, key, queue, state, lease_until, owner)"
        " VALUES (gen_random_uuid(), 'k', 'orders', 'sealing', now(), 'me') RETURNING id",
    )
    packed = value(queue, "SELECT {s}.pack_batch(%s, 1, '{{0,1}}', 300)", *batch)
    assert packed == 300
    with pytest.raises(QueueInUse, match=r"its jobs, 300 running .*not published: k "):
        queue.delete_queue("orders")


def test_an_enqueue_that_commits_first_keeps_it(queue: SqlQueue, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_admin, "_LATE_SECONDS", PATIENCE)
    with caller(url) as connection, ThreadPoolExecutor(1) as pool:
        queue.enqueue(ORDERS, Order(n=1), connection=connection)
        deleting = pool.submit(queue.delete_queue, "orders")
        tries = "SELECT count(*) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND query LIKE '%%delete_queue%%'"
        until(lambda: value(queue, tries) > 0)
        connection.commit()
        with pytest.raises(QueueInUse, match="its jobs, 1 queued"):
            deleting.result(PATIENCE)
    assert queue.depth("orders").ready == 1


def test_an_enqueue_that_is_rolled_back_does_not(queue: SqlQueue, url: str) -> None:
    with caller(url) as connection:
        queue.enqueue_many(ORDERS, [Order(n=1)], connection=connection)
        connection.rollback()
        queue.delete_queue("orders")
    assert not there(queue)


def test_a_transaction_that_stays_open_keeps_it(queue: SqlQueue, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_admin, "_LATE_SECONDS", 0.05)
    with caller(url) as connection:
        queue.enqueue(ORDERS, Order(n=1), connection=connection)
        with pytest.raises(QueueInUse, match=r"a transaction that enqueues on it.*\(let it end, and repeat\)"):
            queue.delete_queue("orders")
        assert queue.delete_queue("orders", dry_run=True).name == "orders", "it sees what is committed, and no lock"
        connection.rollback()
    queue.delete_queue("orders")


def test_whoever_enqueues_while_it_goes_is_refused(queue: SqlQueue, url: str) -> None:
    with caller(url) as connection, ThreadPoolExecutor(2) as pool:
        text = in_schema(queue, "SELECT * FROM {s}.delete_queue('orders', false)")
        assert connection.execute(text).fetchall() == []
        one = pool.submit(queue.enqueue, ORDERS, Order(n=1))
        many = pool.submit(queue.enqueue_many, ORDERS, [Order(n=1)])
        waiting = (
            f"SELECT count(*) FROM pg_stat_activity WHERE {connection.info.backend_pid} = ANY (pg_blocking_pids(pid))"
        )
        until(lambda: value(queue, waiting) == 2)
        connection.commit()
        for refused in (one, many):
            with pytest.raises(UnknownQueue, match="orders"):
                refused.result(PATIENCE)
    assert value(queue, "SELECT count(*) FROM {s}.job") == 0


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_a_transaction_that_does_not_see_new_jobs_deletes_no_queue(queue: SqlQueue, url: str, level: str) -> None:
    with caller(url) as connection:
        connection.execute(f"SET TRANSACTION ISOLATION LEVEL {level}".encode())
        assert connection.execute(in_schema(queue, "SELECT count(*) FROM {s}.job")).fetchone() == (0,)
        queue.enqueue(ORDERS, Order(n=1))
        with pytest.raises(psycopg.errors.InvalidTransactionState, match=f'"orders" cannot be deleted .* at {level}'):
            connection.execute(in_schema(queue, "SELECT * FROM {s}.delete_queue('orders', false)"))
    assert queue.depth("orders").ready == 1


@pytest.mark.parametrize("mode", list(Mode))
def test_a_consumer_that_waits_for_jobs(queue: SqlQueue, mode: Mode) -> None:
    """It is in the way, by its name. One that was taken for dead ends with an error when it looks for jobs again."""
    spec = QueueSpec("orders", Order)
    consumer = Consumer(queue, spec, lambda job: Done(), mode=mode, worker="box/20", warn=lambda line: None)
    with ThreadPoolExecutor(1) as pool:
        draining = pool.submit(consumer.drain, linger_seconds=3_600)
        try:
            until(lambda: value(queue, "SELECT count(*) FROM {s}.waiter WHERE queue = 'orders'") == 1)
            with pytest.raises(QueueInUse, match="consumers: box/20"):
                queue.delete_queue("orders")
            rows(queue, "UPDATE {s}.waiter SET expires_at = now() - interval '1 second'")
            rows(queue, "UPDATE {s}.transactional_consumer SET believed_until = now() - interval '1 second'")
            queue.delete_queue("orders")
            rows(queue, "SELECT pg_notify(%s, 'orders')", queue.database.schema)
            with pytest.raises(UnknownQueue, match="there is no queue 'orders'"):
                draining.result(PATIENCE)
        finally:
            consumer.stop()
    assert not there(queue), "it does not make it again while it runs"


def test_consumers_that_start_again_make_it_again(queue: SqlQueue) -> None:
    queue.delete_queue("orders")
    with pytest.raises(UnknownQueue):
        Consumer(queue, ORDERS, lambda job: Done(), create=False).drain()
    assert Consumer(queue, ORDERS, lambda job: Done()).drain().succeeded == 0
    assert there(queue)


def test_one_of_the_same_name_goes_on_with_the_archive(queue: SqlQueue) -> None:
    """Its jobs are those of the name: found, known by their ids, and redriven; it has other settings."""
    succeeded, failed = ended(queue)
    made_first = value(queue, "SELECT kept_from FROM {s}.queue WHERE name = 'orders'")
    earlier = queue.delete_queue("orders")
    assert [letter.id for letter in queue.dead_letters("orders")] == [failed]
    queue.create_queue(QueueSpec("orders", Order, bucket_count=7, retention_days=365))
    assert queue.settings("orders").bucket_count == 7
    assert queue.settings("orders").revision > earlier.revision
    assert queue.enqueue(ORDERS, NewJob(Order(n=0), id=succeeded)) is None
    assert queue.redrive("orders", Selection(ids=[failed])).changed == [failed]
    (job,) = queue.claim("orders", limit=1, worker="w")
    assert job.id == failed
    # What ended before it was made may have been trimmed meanwhile, whatever its retention is.
    made, kept_from = rows(queue, "SELECT created_at, kept_from FROM {s}.queue WHERE name = 'orders'")[0]
    assert made == kept_from > made_first
    assert queue.database.run("stream_now", {"queue": "orders"})[0][4] == kept_from


def test_a_process_that_knows_the_settings_of_the_earlier_one_goes_by_those_of_the_new_one(
    queue: SqlQueue, url: str
) -> None:
    with SqlQueue(url, schema=queue.database.schema) as other:
        assert other.claim("orders", limit=5, worker="w") == []
        queue.delete_queue("orders")
        queue.create_queue(QueueSpec("orders", Order, bucket_count=16, max_running=2))
        queue.enqueue_many(ORDERS, [Order(n=n) for n in range(100)])
        assert len(other.claim("orders", limit=5, worker="w")) == 2


def test_what_is_sensitive_in_its_archive_stays_so(queue: SqlQueue) -> None:
    ended(queue)
    queue.delete_queue("orders")
    assert queue.catalog.sensitive_names("orders") == {"card"}


def test_a_reply_queue_is_deleted_like_any_other(queue: SqlQueue) -> None:
    queue.database.run("reply_queue_put", {"queue": "orders", "seconds": 3_600.0})
    queue.delete_queue("orders")
    assert value(queue, "SELECT count(*) FROM {s}.reply_queue") == 0
    assert claim(queue) == []


def test_the_name_has_to_be_one(queue: SqlQueue) -> None:
    with pytest.raises(InvalidInput, match="'No Queue'"):
        queue.delete_queue("No Queue")
