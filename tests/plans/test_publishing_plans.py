"""Plans of publishing: the topic's subscriptions by their key, whatever other topics have, and one insert."""

from typing import Any

import pytest

from dagster_sqlqueue import ClaimFilter, SqlQueue
from dagster_sqlqueue.topics import Message, Topics
from dagster_sqlqueue.topics.publication import new_row
from tests.gate.patience import sized
from tests.plans.explaining import SLACK, Explainer, Plan
from tests.support import rows
from tests.support.few import few

OTHERS = 20_000
TAKERS = 100


@pytest.fixture(scope="session")
def topics(backlog: SqlQueue) -> Topics:
    """The topic `wide` with 100 subscriptions, one of them for each tag; `group`, where as many compete; `narrow` with one;
    and 20,000 subscriptions of 5,000 other topics.
    """
    made = Topics(backlog)
    for n in range(TAKERS):
        queue = ("work", "keyed", "other")[n % 3]
        made.subscribe("wide", f"s{n}", queue, filter=ClaimFilter(tags=[f"t{n}"]))
        made.subscribe("group", f"s{n}", queue, mode="move", filter=ClaimFilter(payload={"n": 1}))
    made.subscribe("narrow", "only", "other")
    rows(
        backlog,
        "INSERT INTO {s}.subscription (topic, name, queue, mode, payload, tags, delay_seconds)"
        " SELECT 'topic-' || n / 4, 'name-' || n %% 4, 'other', 'copy', '{{\"n\": 1}}', '{{eu}}', 0"
        " FROM generate_series(1, %s) AS n",
        OTHERS,
    )
    rows(backlog, "ANALYZE {s}.subscription")
    return made


def published(explain: Explainer, topic: str, messages: list[Message[Any]]) -> Plan:
    found = [new_row(topic, message).columns for message in messages]
    return explain(
        "publish",
        topic=topic,
        ids=[row["id"] for row in found],
        hashes=[row["hash"] for row in found],
        priorities=[row["priority"] for row in found],
        run_ats=[row["run_at"] for row in found],
        ordering_keys=[row["ordering_key"] for row in found],
        tags=[row["tags"] for row in found],
        payloads=[row["payload"] for row in found],
    )


def subscriptions(plan: Plan) -> list[dict[str, Any]]:
    return [node for node in plan.nodes if node.get("Relation Name") == "subscription"]


def by_the_key(plan: Plan) -> None:
    """The topic's subscriptions are found through the primary key, and no table of jobs is read."""
    for node in subscriptions(plan):
        below = {node.get("Index Name"), *(part.get("Index Name") for part in node.get("Plans", []))}
        assert below & {"subscription_pkey"}, node["Node Type"]
    assert subscriptions(plan)
    assert plan.scans() == set()
    # What was inserted is looked through, and compared with nothing.
    for node in plan.nodes:
        if node["Node Type"] in ("Nested Loop", "Hash Join", "Merge Join"):
            assert not any(part.get("CTE Name") == "put" for part in node["Plans"])


def filtered(plan: Plan) -> int:
    """The subscriptions that were looked at, with those that a filter threw away."""
    return sum(
        round((node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"])
        for node in subscriptions(plan)
    )


def test_one_subscription_among_many_of_others(explain: Explainer, topics: Topics) -> None:
    plan = published(explain, "narrow", [Message({"n": 1})])
    by_the_key(plan)
    assert plan.root["Actual Rows"] == 1
    assert filtered(plan) == 1
    assert plan.buffers <= SLACK


def test_a_topic_that_nobody_subscribes_to(explain: Explainer, topics: Topics) -> None:
    plan = published(explain, "nobody", [Message({"n": 1})] * 100)
    by_the_key(plan)
    assert plan.root["Actual Rows"] == 0
    assert filtered(plan) == 0
    assert plan.buffers <= 4 * 100 + SLACK


def test_a_hundred_subscriptions(explain: Explainer, topics: Topics) -> None:
    """The filters of the topic are read, and what fits is inserted."""
    plan = published(explain, "wide", [Message({"n": 1}, tags=["t7", "t8"])])
    by_the_key(plan)
    assert plan.root["Actual Rows"] == 2
    assert filtered(plan) == TAKERS
    assert plan.buffers <= TAKERS + SLACK
    everybody = published(explain, "wide", [Message({"n": 1}, tags=[f"t{n}" for n in range(TAKERS)])])
    by_the_key(everybody)
    assert everybody.root["Actual Rows"] == TAKERS
    assert everybody.buffers <= 45 * TAKERS + SLACK


@pytest.mark.parametrize("count", few([1, 500, 100], 2))
def test_a_hundred_that_compete(explain: Explainer, topics: Topics, count: int) -> None:
    plan = published(explain, "group", [Message({"n": 1}, ordering_key=f"key {n}") for n in range(count)])
    by_the_key(plan)
    assert plan.root["Actual Rows"] == count
    assert filtered(plan) <= TAKERS * count
    assert plan.buffers <= (TAKERS + 45) * count + SLACK


@pytest.mark.parametrize("count", [sized(50, 500)])
def test_a_batch_for_everybody(explain: Explainer, topics: Topics, count: int) -> None:
    """A hundred jobs for each message, in one statement: what is read grows with what is written, and no faster."""
    tags = [f"t{n}" for n in range(TAKERS)]
    plan = published(explain, "wide", [Message({"n": n}, tags=tags) for n in range(count)])
    by_the_key(plan)
    assert plan.root["Actual Rows"] == count * TAKERS
    assert max(node["Actual Rows"] * node["Actual Loops"] for node in plan.nodes) <= count * TAKERS
    assert plan.buffers <= 45 * count * TAKERS + SLACK
