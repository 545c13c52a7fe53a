"""Publishing: one job for each receiver that a message fits, under ids that make a message land once."""

import tracemalloc
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
import sqlalchemy as sa
from uuid_utils.compat import uuid7

from dagster_sqlqueue import ClaimFilter, Consumer, QueueSpec, SqlQueue
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.model.ids import bucket_hash
from dagster_sqlqueue.topics import Message, Published, PublishedMany, Topics
from tests.gate.patience import sized
from tests.support import Work, caller, rows, value
from tests.support.armed import Armed
from tests.topics.support import LATER, ORDERS, count, jobs, subscribed

CHUNKS = sized(1, 3)


def test_each_subscription_that_fits_gets_a_job(topics: Topics, queue: SqlQueue) -> None:
    subscribed(topics, "work", "mail")
    topics.subscribe("orders", "auditor", "audit", filter=ClaimFilter(payload={"n": 2}))
    topics.subscribe("others", "auditor", "audit")
    done = topics.publish(ORDERS, Work(n=1, note="é"), tags=["eu"], priority=4, run_at=LATER, ordering_key="k")
    assert (done.topic, done.matched) == ("orders", True)
    assert {(job.subscription, job.queue, job.inserted) for job in done.jobs} == {
        ("worker", "work", True),
        ("mailer", "mail", True),
    }
    found = rows(queue, "SELECT id, queue, payload, tags, priority, run_at, available_at, ordering_key FROM {s}.job")
    assert {(row[0], row[1]) for row in found} == {(job.id, job.queue) for job in done.jobs}
    for row in found:
        assert row[2:] == ({"n": 1, "note": "é"}, ["eu"], 4, LATER, LATER, "k")


def test_a_job_takes_the_settings_of_its_queue(topics: Topics, queue: SqlQueue) -> None:
    queue.create_queue(QueueSpec("mail", Work, max_attempts=2, timeout_seconds=9))
    subscribed(topics, "work", "mail")
    topics.publish("orders", {"n": 1})
    columns = "queue, max_attempts, timeout_seconds, backoff, region, state, order_no, available_at <= now()"
    assert jobs(queue, columns) == [
        ("mail", 2, 9.0, None, "local", "queued", None, True),
        ("work", 3, None, None, "local", "queued", None, True),
    ]


def test_a_subscription_may_set_the_priority_and_a_delay(topics: Topics, queue: SqlQueue) -> None:
    topics.subscribe("orders", "soon", "work", priority=9)
    topics.subscribe("orders", "late", "mail", delay_seconds=3_600)
    topics.publish("orders", {}, run_at=LATER, priority=2)
    assert jobs(queue, "queue, priority, run_at, available_at") == [
        ("mail", 2, LATER + timedelta(hours=1), LATER + timedelta(hours=1)),
        ("work", 9, LATER, LATER),
    ]
    end = datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
    topics.publish("orders", {"last": 1}, run_at=end)
    assert jobs(queue, "run_at", "run_at, id")[2:] == [(end,), (end,)]
    topics.publish("orders", {"now": 1})
    due = "SELECT EXTRACT(EPOCH FROM run_at - created_at) FROM {s}.job WHERE payload ? 'now' ORDER BY queue"
    assert [float(row[0]) for row in rows(queue, due)] == [3_600, 0]


def test_what_fits_nothing_says_so_and_leaves_nothing(topics: Topics, queue: SqlQueue) -> None:
    topics.subscribe("orders", "worker", "work", filter=ClaimFilter(tags=["eu"]))
    for topic in ("orders", "nobody"):
        done = topics.publish(topic, {"n": 1})
        assert (done.matched, done.jobs) == (False, ())
    assert topics.publish_many("orders", [{"n": 1}, Message({"n": 2}, tags=["eu"])]) == PublishedMany(2, 1, 1, 0)
    assert count(queue) == 1


def test_of_a_group_that_competes_one_gets_it(topics: Topics, queue: SqlQueue) -> None:
    queues = ("work", "mail", "audit")
    subscribed(topics, *queues, mode="move")
    topics.subscribe("orders", "copy", "work", filter=ClaimFilter(payload={"n": 0}))
    topics.subscribe("orders", "eu", "audit", mode="move", group="eu")
    ids = [uuid7() for _ in range(1_200)]
    seen: list[Published] = []
    done = topics.publish_many(
        ORDERS, [Message(Work(n=n), id=id) for n, id in enumerate(ids)], on_published=seen.append
    )
    assert done == PublishedMany(1_200, 0, 2_401, 0)
    assert [found.id for found in seen] == ids
    assert seen[0].jobs[0].subscription == "copy"
    shares = Counter(job.subscription for found in seen for job in found.jobs)
    assert (shares["copy"], shares["eu"]) == (1, 1_200)
    competing = [shares[f"{name}er"] for name in queues]
    assert sum(competing) == 1_200
    # Three standard deviations of a share of a third are 49.
    assert all(330 <= share <= 470 for share in competing)


def test_when_one_of_a_group_leaves_only_its_share_moves(topics: Topics, queue: SqlQueue) -> None:
    subscribed(topics, "work", "mail", "audit", mode="move")
    ids = [uuid7() for _ in range(200)]

    def went() -> dict[UUID, str]:
        seen: list[Published] = []
        topics.publish_many("orders", [Message({}, id=id) for id in ids], on_published=seen.append)
        rows(queue, "DELETE FROM {s}.job")
        return {found.id: found.jobs[0].subscription for found in seen}

    before = went()
    assert went() == before
    topics.unsubscribe("orders", "mailer")
    after = went()
    assert set(after.values()) == {"worker", "auditer"}
    assert {id for id in ids if before[id] != after[id]} == {id for id in ids if before[id] == "mailer"}


def test_only_those_of_a_group_that_it_fits_compete(topics: Topics) -> None:
    topics.subscribe("orders", "eu", "work", mode="move", filter=ClaimFilter(tags=["eu"]))
    topics.subscribe("orders", "us", "mail", mode="move", filter=ClaimFilter(tags=["us"]))
    for _ in range(20):
        assert [job.subscription for job in topics.publish("orders", {}, tags=["us"]).jobs] == ["us"]
    assert topics.publish("orders", {}, tags=["au"]).jobs == ()


def test_the_ids_are_of_the_message_the_topic_and_the_receiver(topics: Topics, queue: SqlQueue) -> None:
    # Of a prime number of buckets every bit of the hash decides.
    for name in ("work", "mail"):
        queue.rebucket(name, 997)
    subscribed(topics, "work", "mail")
    topics.subscribe("others", "worker", "work")
    topics.subscribe("orders", "one", "work", mode="move")
    message = uuid7()
    done = [*topics.publish("orders", {}, id=message).jobs, *topics.publish("others", {}, id=message).jobs]
    made = {job.id for job in done}
    assert len(made) == 4
    for job in made:
        assert (job.version, job.variant) == (7, "specified in RFC 4122")
        assert job.int >> 80 == message.int >> 80
    for id, bucket in jobs(queue, "id, bucket"):
        assert bucket == bucket_hash(id, None) % 997


def test_buckets_are_used_evenly_and_by_the_key_where_there_is_one(topics: Topics, queue: SqlQueue) -> None:
    subscribed(topics, "work")
    topics.publish_many("orders", [{"n": n} for n in range(1_000)])
    spread = dict(rows(queue, "SELECT bucket, count(*) FROM {s}.job GROUP BY bucket"))
    assert set(spread) == {0, 1, 2, 3}
    # Seven standard deviations of a share of a quarter are 96.
    assert min(spread.values()) > 150
    for key in map(str, range(20)):
        topics.publish("orders", {}, ordering_key=key)
        found = value(queue, "SELECT bucket FROM {s}.job WHERE ordering_key = %s", key)
        assert found == bucket_hash(uuid4(), key) % 4


def test_sent_again_it_lands_once(topics: Topics, queue: SqlQueue) -> None:
    subscribed(topics, "work", "mail")
    topics.subscribe("orders", "a", "work", mode="move", group="g")
    topics.subscribe("orders", "b", "mail", mode="move", group="g")
    messages = [Message({"n": n}, id=uuid7()) for n in range(50)]
    assert topics.publish_many("orders", messages) == PublishedMany(50, 0, 150, 0)
    assert topics.publish_many("orders", messages) == PublishedMany(50, 0, 0, 150)
    again = topics.publish("orders", {"other": True}, id=messages[0].id)
    assert [job.inserted for job in again.jobs] == [False] * 3
    # Neither does a change of the group give a second one.
    topics.unsubscribe("orders", "a")
    topics.subscribe("orders", "c", "audit", mode="move", group="g")
    assert topics.publish_many("orders", messages).inserted == 0
    # A subscription that was not there gets what is sent again.
    topics.subscribe("orders", "new", "audit")
    assert topics.publish_many("orders", messages) == PublishedMany(50, 0, 50, 150)


def test_twice_in_one_call_it_lands_once(topics: Topics, queue: SqlQueue) -> None:
    subscribed(topics, "work")
    same = Message({"n": 1}, id=uuid7())
    seen: list[Published] = []
    assert topics.publish_many("orders", [same, same, same], on_published=seen.append) == PublishedMany(3, 0, 1, 2)
    assert [found.jobs[0].inserted for found in seen] == [True, False, False]


def test_sent_again_when_its_jobs_are_finished(topics: Topics, queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    subscribed(topics, "work", "mail", mode="move")
    topics.subscribe("orders", "all", "work")
    messages = [Message({"n": n}, id=uuid7()) for n in range(40)]
    topics.publish_many("orders", messages)
    assert Consumer(queue, spec, lambda job: None).drain().succeeded >= 40
    live = count(queue)
    again = topics.publish_many("orders", messages)
    assert again == PublishedMany(40, 0, 0, 80)
    one = topics.publish("orders", {"n": 0}, id=messages[0].id)
    assert [job.inserted for job in one.jobs] == [False, False]
    assert count(queue) == live
    # What was never sent is not held back by it.
    assert topics.publish("orders", {"n": 0}, id=uuid7()).jobs[0].inserted
    assert topics.publish("orders", {"n": 0}).jobs[0].inserted


def test_an_ordered_queue_keeps_the_order_of_the_messages(topics: Topics, queue: SqlQueue) -> None:
    queue.create_queue(QueueSpec("mail", Work, bucket_count=4, ordered=True))
    subscribed(topics, "work", "mail")
    # A later one that is due earlier, and ids that run backwards, change nothing.
    ids = sorted((uuid7() for _ in range(1_300)), reverse=True)
    topics.publish_many(
        ORDERS,
        (Message(Work(n=n), id=id, ordering_key=f"k{n % 3}", priority=n % 10) for n, id in enumerate(ids)),
    )
    in_order = "SELECT CAST(payload ->> 'n' AS integer) FROM {s}.job WHERE queue = 'mail' ORDER BY order_no"
    assert [row[0] for row in rows(queue, in_order)] == list(range(1_300))
    assert value(queue, "SELECT count(order_no) FROM {s}.job WHERE queue = 'work'") == 0


def test_each_queue_with_a_waiter_is_woken(topics: Topics, queue: SqlQueue, url: str) -> None:
    subscribed(topics, "work", "mail")
    topics.subscribe("orders", "too", "work")
    topics.subscribe("orders", "late", "audit", delay_seconds=60)
    with caller(url, autocommit=True) as connection:
        session = Armed(queue, connection)
        topics.publish("orders", {})
        assert session.notifications() == []
        for name in ("work", "audit"):
            session.arm(queue=name)
        topics.publish("orders", {})
        assert session.notifications() == [("own", "work")]
        session.arm()
        topics.publish("orders", {}, run_at=LATER)
        assert session.notifications() == []
        topics.publish_many("orders", [{}] * 1_200)
        assert session.notifications() == [("own", "work")]


@contextmanager
def sent() -> Iterator[list[str]]:
    """The statements that the driver's cursors are given."""
    texts: list[str] = []
    original = psycopg.Cursor.execute

    def execute(self: Any, query: Any, *arguments: Any, **named: Any) -> Any:
        texts.append(query.decode() if isinstance(query, bytes) else str(query))
        return original(self, query, *arguments, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(psycopg.Cursor, "execute", execute)
        yield texts


def test_a_hundred_subscriptions_cost_one_statement(topics: Topics, queue: SqlQueue) -> None:
    for n in range(100):
        topics.subscribe("orders", f"s{n}", ("work", "mail", "audit")[n % 3], filter=ClaimFilter(tags=[f"t{n % 2}"]))
    topics.publish("orders", {}, tags=["t0"])
    with sent() as texts:
        done = topics.publish("orders", {"n": 1}, tags=["t0", "t1"])
    assert len(done.jobs) == 100
    assert all(job.inserted for job in done.jobs)
    assert len(texts) == 1
    assert texts[0].startswith("WITH message AS")
    with sent() as texts:
        many = topics.publish_many("orders", [Message({"n": n}, tags=["t0", "t1"]) for n in range(400 * CHUNKS)])
    assert many.inserted == 40_000 * CHUNKS
    assert len([text for text in texts if "subscription" in text]) == CHUNKS
    assert [text for text in texts if "subscription" not in text] == ["BEGIN ISOLATION LEVEL READ COMMITTED"]


def test_a_generator_of_any_length_is_read_in_constant_memory(topics: Topics) -> None:
    topics.subscribe("orders", "few", "work", filter=ClaimFilter(payload={"n": 7}))
    note = "x" * 2_000

    def peak(messages: int) -> int:
        tracemalloc.start()
        done = topics.publish_many(ORDERS, (Work(n=n, note=note) for n in range(messages)))
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert (done.messages, done.inserted) == (messages, 1)
        return most

    peak(600)
    assert peak(6_000) < 1.5 * peak(1_500)


def test_a_consumer_takes_what_was_published(topics: Topics, queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    subscribed(topics, "work")
    topics.publish_many(ORDERS, [Work(n=n) for n in range(30)])
    seen: list[int] = []
    assert Consumer(queue, spec, lambda job: seen.append(job.payload.n)).drain().succeeded == 30
    assert sorted(seen) == list(range(30))


def test_a_queue_that_gets_more_buckets(topics: Topics, queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    subscribed(topics, "work")
    queue.rebucket("work", 64)
    topics.publish_many("orders", [{"n": n} for n in range(600)])
    assert value(queue, "SELECT max(bucket) FROM {s}.job") > 50


def test_a_changed_subscription_holds_from_the_next_message_on(topics: Topics, queue: SqlQueue) -> None:
    subscribed(topics, "work")
    assert topics.publish("orders", {"n": 1}).jobs[0].queue == "work"
    topics.subscribe("orders", "worker", "mail")
    assert topics.publish("orders", {"n": 1}).jobs[0].queue == "mail"
    topics.unsubscribe("orders", "worker")
    assert not topics.publish("orders", {"n": 1}).matched


def test_a_connection_to_another_kind_of_database_is_refused(topics: Topics) -> None:
    engine = sa.create_engine("sqlite://")
    with engine.connect() as connection, pytest.raises(InvalidInput, match="pysqlite"):
        topics.publish("orders", {}, connection=connection)
    engine.dispose()
