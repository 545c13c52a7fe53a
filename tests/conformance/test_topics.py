"""Topics on every server: who gets a message, under which id, and in which order."""

from uuid import UUID

from uuid_utils.compat import uuid7

from dagster_sqlqueue import ClaimFilter, QueueSpec, SqlQueue
from dagster_sqlqueue.model.ids import bucket_hash
from dagster_sqlqueue.topics import Message, PublishedMany, Topics
from tests.support import Work, rows


def test_publishing_to_copies_and_to_those_that_compete(queues: SqlQueue) -> None:
    topics = Topics(queues)
    for name in ("topic_a", "topic_b"):
        queues.create_queue(QueueSpec(name, Work, bucket_count=4))
    queues.create_queue(QueueSpec("topic_turns", Work, bucket_count=4, ordered=True))
    topics.subscribe("orders", "turns", "topic_turns", delay_seconds=60)
    topics.subscribe("orders", "odd", "topic_a", filter=ClaimFilter(payload={"note": "odd"}), priority=9)
    topics.subscribe("orders", "tagged", "topic_b", filter=ClaimFilter(tags=["t"]))
    for name in ("topic_a", "topic_b"):
        topics.subscribe("orders", f"one-{name}", name, mode="move", group="g")
    messages = [
        Message(
            {"n": n, "note": "odd" if n % 2 else ""}, id=uuid7(), tags=["t"] if n % 4 == 0 else [], ordering_key="k"
        )
        for n in range(700)
    ]
    assert topics.publish_many("orders", messages) == PublishedMany(700, 0, 700 + 350 + 175 + 700, 0)
    assert topics.publish_many("orders", messages).inserted == 0

    columns = "id, queue, CAST(payload ->> 'n' AS integer), bucket, priority, order_no"
    found = rows(queues, f"SELECT {columns} FROM {{s}}.job WHERE queue LIKE 'topic%' ORDER BY order_no, id")
    assert [row[2] for row in found if row[1] == "topic_turns"] == list(range(700))
    assert {row[2] % 2 for row in found if row[4] == 9} == {1}
    ids = {n: message.id for n, message in enumerate(messages)}
    for id, _, n, bucket, _, _ in found:
        made: UUID = id
        own = ids[n]
        assert own
        assert (made.version, made.int >> 80) == (7, own.int >> 80)
        assert bucket == bucket_hash(made, "k") % 4
    competed = [row for row in found if row[1] != "topic_turns" and row[4] == 0]
    assert len(competed) == 875

    topics.unsubscribe("orders", "one-topic_a")
    assert topics.publish_many("orders", messages).inserted == 0
    for subscription in topics.subscriptions("orders"):
        topics.unsubscribe("orders", subscription.name)
    assert topics.publish("orders", {}).jobs == ()
