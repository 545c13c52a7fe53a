"""Names that cannot be, refused before anything is written."""

from typing import Any

import pytest

from dagster_sqlqueue import QueueSpec, SqlQueue
from dagster_sqlqueue.errors import InvalidInput
from tests.support import Work, value

SCHEMAS = [
    "select",
    "Table",
    "user",
    'with"quotes',
    "with'quotes",
    "with space",
    "a.b",
    "1st",
    "",
    "pg_mine",
    "x" * 64,
    "a;b",
    "ä",
]
QUEUES = [
    "",
    "Upper",
    "1st",
    "_under",
    "with space",
    'with"quotes',
    "with'quotes",
    "a-b",
    "x" * 64,
    "ä",
    "a\n",
    None,
    7,
]


@pytest.mark.parametrize("schema", SCHEMAS)
def test_schemas(queues: SqlQueue, any_server: str, schema: str) -> None:
    before = value(queues, "SELECT count(*) FROM pg_namespace")
    with pytest.raises(InvalidInput, match="schema"):
        SqlQueue(any_server, schema=schema)
    assert value(queues, "SELECT count(*) FROM pg_namespace") == before


@pytest.mark.parametrize("name", QUEUES, ids=repr)
def test_queues(queues: SqlQueue, name: str) -> None:
    with pytest.raises(InvalidInput, match="queue name"):
        QueueSpec(name, Work)
    for call in (queues.settings, queues.depth, queues.pause, lambda queue: queues.claim(queue, limit=1, worker="w")):
        with pytest.raises(InvalidInput, match="queue name"):
            call(name)


def test_a_declaration_is_no_name(queues: SqlQueue) -> None:
    spec: Any = QueueSpec("work", Work)
    for call in (queues.settings, queues.depth, queues.pause, queues.stats, queues.dead_letters, queues.resume):
        with pytest.raises(InvalidInput, match="the queue was given as its declaration; give its name, 'work'"):
            call(spec)


@pytest.mark.parametrize("name", ["select", "table", "user"])
def test_a_queue_may_have_the_name_of_a_reserved_word(queues: SqlQueue, name: str) -> None:
    spec = QueueSpec(name, Work)
    queues.create_queue(spec)
    queues.enqueue(spec, Work(n=1))
    (job,) = queues.claim(name, limit=1, worker="w")
    queues.complete([job])
    assert queues.archived(name, since_seconds=3_600) == {"succeeded": 1}


@pytest.mark.parametrize("strategy", ["lifo", "", "FANOUT", None, 7], ids=repr)
def test_a_strategy_that_is_unknown(strategy: str) -> None:
    with pytest.raises(InvalidInput, match="must be one of 'fanout', 'fifo', 'assign', 'round_robin', 'token'"):
        QueueSpec("work", Work, strategy=strategy)


@pytest.mark.parametrize("limit", [{"ordered": True}, {"max_running": 3}, {"max_running_per_key": 1}])
def test_a_token_takes_no_turns_and_no_limits(limit: dict[str, object]) -> None:
    with pytest.raises(InvalidInput, match="token"):
        QueueSpec("work", Work, strategy="token", **limit)  # type: ignore[arg-type]
