"""Subscriptions: made, changed, taken away, and refused; and what their filters let pass."""

import threading
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from pydantic import BaseModel, RootModel

from dagster_sqlqueue import ClaimFilter, QueueSpec, SqlQueue
from dagster_sqlqueue.errors import InvalidInput, InvalidPayload, SchemaMissing, UnknownQueue, UnknownSubscription
from dagster_sqlqueue.topics import Subscription, SubscriptionMode, Topics, TopicSpec
from tests.gate.patience import PATIENCE
from tests.support import Work, caller, rows, until, value


def test_a_subscription_is_as_it_was_made(topics: Topics) -> None:
    made = topics.subscribe(
        "orders.paid",
        "billing-1",
        "work",
        filter=ClaimFilter(payload={"country": "NZ"}, tags=["b", "a", "b"]),
        mode="move",
        group="eu",
        priority=7,
        delay_seconds=90,
    )
    settings = (made.topic, made.name, made.queue, made.mode, made.group, made.priority, made.delay_seconds)
    assert settings == ("orders.paid", "billing-1", "work", SubscriptionMode.MOVE, "eu", 7, 90.0)
    assert (made.payload, made.tags) == ('{"country": "NZ"}', ("a", "b"))
    assert made.created_at.utcoffset() == timedelta(0)
    assert topics.subscriptions() == [made]


def test_the_defaults_let_everything_pass(topics: Topics) -> None:
    made = topics.subscribe(TopicSpec("orders", Work), "billing", "work")
    assert (made.mode, made.group, made.payload, made.tags) == (SubscriptionMode.COPY, None, None, ())
    assert (made.priority, made.delay_seconds) == (None, 0.0)
    assert topics.subscribe("orders", "all", "work", filter=ClaimFilter(payload={})).payload is None


def test_subscribing_again_brings_up_to_date(topics: Topics) -> None:
    first = topics.subscribe("orders", "billing", "work", filter=ClaimFilter(tags=["eu"]), priority=3, delay_seconds=5)
    second = topics.subscribe("orders", "billing", "mail", mode="move", group="g")
    expected = Subscription(
        "orders", "billing", "mail", SubscriptionMode.MOVE, "g", None, (), None, 0.0, first.created_at
    )
    assert second == expected
    assert topics.subscriptions("orders") == [expected]


def test_they_are_listed_by_topic_and_queue(topics: Topics) -> None:
    for topic, name, queue in (("b", "y", "work"), ("b", "x", "mail"), ("a", "z", "work")):
        topics.subscribe(topic, name, queue)

    def names(*arguments: Any, **named: Any) -> list[str]:
        return [found.name for found in topics.subscriptions(*arguments, **named)]

    assert names() == ["z", "x", "y"]
    assert names("b") == ["x", "y"]
    assert names(queue="work") == ["z", "y"]
    assert names("b", queue="work") == ["y"]
    assert names("nobody") == names(queue="audit") == []
    with pytest.raises(UnknownQueue, match="there is no queue 'missing'"):
        topics.subscriptions(queue="missing")


def test_unsubscribing_gives_what_was_there(topics: Topics) -> None:
    made = topics.subscribe("orders", "billing", "work")
    other = topics.subscribe("orders", "mail", "mail")
    assert topics.unsubscribe("orders", "billing") == made
    assert topics.subscriptions() == [other]
    with pytest.raises(UnknownSubscription, match=r"topic 'orders' has no subscription 'billing' .*there are: mail\)"):
        topics.unsubscribe("orders", "billing")
    with pytest.raises(UnknownSubscription, match=r"there are: none\)"):
        topics.unsubscribe("nobody", "billing")


@pytest.mark.parametrize(
    ("arguments", "named", "message"),
    [
        (("", "n", "work"), {}, "topic '' is not usable: 1 to 200 letters"),
        (("with space", "n", "work"), {}, "topic 'with space' is not usable"),
        (("t" * 201, "n", "work"), {}, "is not usable"),
        (("t\n", "n", "work"), {}, "is not usable"),
        ((7, "n", "work"), {}, "topic 7 is not usable"),
        (("t", "", "work"), {}, "subscription '' is not usable"),
        (("t", "a:b", "work"), {}, "subscription 'a:b' is not usable"),
        (("t", "n", "No Queue"), {}, "queue name 'No Queue' is not usable"),
        (("t", "n", "work"), {"mode": "share"}, "mode is 'share'; it must be 'copy' or 'move'"),
        (("t", "n", "work"), {"mode": None}, "mode is None"),
        (("t", "n", "work"), {"group": "g"}, "group is 'g' and mode is 'copy'"),
        (("t", "n", "work"), {"mode": "move", "group": ""}, "group '' is not usable"),
        (("t", "n", "work"), {"priority": 10}, "priority is 10; it must be 0 to 9"),
        (("t", "n", "work"), {"priority": True}, "priority is True"),
        (("t", "n", "work"), {"delay_seconds": -1}, "delay_seconds is -1"),
        (("t", "n", "work"), {"delay_seconds": float("nan")}, "delay_seconds is nan"),
        (("t", "n", "work"), {"delay_seconds": 1e12}, "at most a hundred years"),
        (("t", "n", "work"), {"delay_seconds": "1"}, "delay_seconds is '1'"),
        (("t", "n", "work"), {"filter": {"a": 1}}, "filter is a dict; give a ClaimFilter"),
        (("t", "n", "work"), {"filter": ClaimFilter(payload={"a": "x" * 10_000})}, "the limit is 10,000"),
        (("t", "n", "work"), {"filter": ClaimFilter(tags=[str(n) for n in range(101)])}, "has 101 tags"),
        (("t", "n", "work"), {"filter": ClaimFilter(tags=[""])}, "has the tag ''; a tag has 1 to 1,000"),
        (("t", "n", "work"), {"filter": ClaimFilter(tags=["x" * 1_001])}, "so no message has it"),
    ],
)
def test_what_cannot_be_is_refused_and_changes_nothing(
    topics: Topics, arguments: tuple[Any, ...], named: dict[str, Any], message: str
) -> None:
    before = topics.subscribe("t", "n", "mail", priority=1)
    with pytest.raises(InvalidInput, match=message):
        topics.subscribe(*arguments, **named)
    assert topics.subscriptions() == [before]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"payload": "{country: NZ}"}, "is not JSON"),
        ({"payload": "[1]"}, "is not a JSON object"),
        ({"payload": {"a": "\x00"}}, "NUL"),
        ({"payload": '{"a": 1e400}'}, "is not JSON"),
        ({"tags": ["\x00"]}, "NUL"),
        ({"tags": ["\ud800"]}, "surrogate"),
    ],
)
def test_a_filter_that_does_not_parse_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        ClaimFilter(**arguments)


def test_a_queue_that_is_not_there_cannot_be_subscribed_to(topics: Topics, url: str) -> None:
    before = topics.subscribe("orders", "billing", "work")
    with pytest.raises(UnknownQueue, match=r"there is no queue 'gone'.*there are: audit, mail, work"):
        topics.subscribe("orders", "billing", "gone")
    with caller(url) as connection:
        with pytest.raises(UnknownQueue):
            topics.subscribe("orders", "other", "gone", connection=connection)
        topics.subscribe("orders", "mail", "mail", connection=connection)
        assert topics.subscriptions() == [before]
        connection.commit()
    assert [found.name for found in topics.subscriptions()] == ["billing", "mail"]


def test_a_queue_that_is_subscribed_to_cannot_be_deleted(topics: Topics, queue: SqlQueue) -> None:
    topics.subscribe("orders", "billing", "audit")
    rows(queue, "DELETE FROM {s}.bucket WHERE queue = 'audit'")
    with pytest.raises(psycopg.errors.ForeignKeyViolation, match="subscription"):
        rows(queue, "DELETE FROM {s}.queue WHERE name = 'audit'")
    topics.unsubscribe("orders", "billing")
    rows(queue, "DELETE FROM {s}.queue WHERE name = 'audit'")


def test_a_queue_that_goes_meanwhile_is_unknown(topics: Topics, queue: SqlQueue, url: str) -> None:
    """The subscription waits for the transaction that deletes the queue, and then finds none."""
    rows(queue, "DELETE FROM {s}.bucket WHERE queue = 'audit'")
    failed: list[Exception] = []

    def subscribe() -> None:
        try:
            topics.subscribe("orders", "billing", "audit")
        except UnknownQueue as error:
            failed.append(error)

    with caller(url) as connection:
        connection.execute(f"DELETE FROM {queue.database.schema}.queue WHERE name = 'audit'".encode())
        waiting = threading.Thread(target=subscribe)
        waiting.start()
        until(
            lambda: value(
                queue,
                "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%subscription%'"
                " AND pid <> pg_backend_pid()",
            ),
            "the wait for the lock",
        )
        connection.commit()
        waiting.join(PATIENCE)
    assert len(failed) == 1
    assert topics.subscriptions() == []


def test_in_the_callers_transaction(topics: Topics, url: str) -> None:
    with caller(url) as connection:
        topics.subscribe("orders", "billing", "work", connection=connection)
        assert topics.subscriptions() == []
        connection.rollback()
        assert topics.subscriptions() == []
        topics.subscribe("orders", "billing", "work", connection=connection)
        connection.commit()
        topics.unsubscribe("orders", "billing", connection=connection)
        assert len(topics.subscriptions()) == 1
        with pytest.raises(UnknownSubscription):
            topics.unsubscribe("orders", "billing", connection=connection)
        connection.commit()
    assert topics.subscriptions() == []


def test_without_the_tables_the_command_is_named(url: str) -> None:
    with SqlQueue(url, schema="nowhere") as queue, pytest.raises(SchemaMissing, match="sqlqueue migrate"):
        Topics(queue).subscriptions()


class Order(BaseModel):
    country: str
    lines: list[dict[str, float]] = []


class Words(RootModel[list[str]]):
    pass


@pytest.mark.parametrize(
    ("filter", "payload", "tags", "fits"),
    [
        (ClaimFilter(), {"country": "NZ"}, (), True),
        (ClaimFilter(payload={"country": "NZ"}), {"country": "NZ", "more": 1}, (), True),
        (ClaimFilter(payload={"country": "NZ"}), {"country": "AU"}, (), False),
        (ClaimFilter(payload={"country": "NZ"}), {}, (), False),
        (ClaimFilter(payload={"country": None}), {}, (), False),
        (ClaimFilter(payload='{"n": 1}'), {"n": 1.0}, (), True),
        (ClaimFilter(payload={"lines": [{"n": 2}]}), Order(country="NZ", lines=[{"n": 1}, {"n": 2}]), (), True),
        (ClaimFilter(payload={"lines": [{"n": 3}]}), Order(country="NZ", lines=[{"n": 1}, {"n": 2}]), (), False),
        (ClaimFilter(tags=["eu", "big"]), {}, ["big", "new", "eu"], True),
        (ClaimFilter(tags=["eu", "big"]), {}, ["eu"], False),
        (ClaimFilter(tags=["eu"]), {}, (), False),
        (ClaimFilter(tags=["eu"]), Words(["a"]), ["eu"], True),
        (ClaimFilter(payload={"country": "NZ"}, tags=["eu"]), {"country": "NZ"}, ["eu"], True),
        (ClaimFilter(payload={"country": "NZ"}, tags=["eu"]), {"country": "NZ"}, [], False),
    ],
)
def test_a_filter_by_itself_and_in_a_subscription(
    topics: Topics, filter: ClaimFilter, payload: Any, tags: Any, fits: bool
) -> None:
    """What `matches` says is what publishing does."""
    assert topics.matches(filter, payload, tags=tags) is fits
    made = topics.subscribe("orders", "billing", "work", filter=filter)
    assert topics.matches(made, payload, tags=tags) is fits
    assert topics.publish("orders", payload, tags=tags).matched is fits


def test_what_could_not_be_published_is_not_matched(topics: Topics) -> None:
    for payload in ([1], {"a": "\x00"}, {"a": float("nan")}):
        with pytest.raises(InvalidPayload):
            topics.matches(ClaimFilter(), payload)
    with pytest.raises(InvalidInput, match="tags is 'eu'"):
        topics.matches(ClaimFilter(), {}, tags="eu")
    for given, kind in (({"country": "NZ"}, "dict"), ("billing", "str"), (None, "NoneType")):
        with pytest.raises(InvalidInput, match=rf"filter is a {kind}; give a ClaimFilter\(payload=…, tags=…\)"):
            topics.matches(given, {})  # type: ignore[arg-type]


def test_a_claim_sees_what_a_subscription_sees(topics: Topics, queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    filter = ClaimFilter(payload={"note": "x"}, tags=["t"])
    topics.subscribe("orders", "all", "work")
    topics.subscribe("orders", "some", "mail", filter=filter)
    for n in range(8):
        topics.publish("orders", Work(n=n, note="x" if n & 1 else ""), tags=["t"] if n & 2 else ["u"])
    claimed = queue.claim("work", limit=8, worker="w", filter=filter)
    mailed = queue.claim("mail", limit=8, worker="w")
    assert sorted(job.payload for job in claimed) == sorted(job.payload for job in mailed)
    assert sorted(Work.model_validate_json(job.payload).n for job in mailed) == [3, 7]
