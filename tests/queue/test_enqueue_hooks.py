"""Hooks of enqueues: what they are called around, and what they may change."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from dagster_sqlqueue import Enqueued, NewJob, QueueSpec, SqlQueue
from dagster_sqlqueue.errors import InvalidPayload
from dagster_sqlqueue.queue import EnqueueCall, EnqueueHooks
from tests.support import Work, rows


class Tagging(EnqueueHooks):
    """Tags the jobs, and notes the calls."""

    def __init__(self, tag: str) -> None:
        self.tag = tag
        self.calls: list[EnqueueCall] = []
        self.failed: list[type[BaseException]] = []

    @contextmanager
    def around_enqueue(self, call: EnqueueCall) -> Iterator[None]:
        call.changes.append(self._tagged)
        try:
            yield
        except BaseException as error:
            self.failed.append(type(error))
            raise
        self.calls.append(call)

    def _tagged(self, job: Any) -> NewJob[Any]:
        new = job if isinstance(job, NewJob) else NewJob(job)
        return replace(new, tags=(*new.tags, self.tag))


def tags(queue: SqlQueue) -> list[list[str]]:
    return [row[0] for row in rows(queue, "SELECT tags FROM {s}.job ORDER BY payload ->> 'n'")]


async def _awaited(url: str, call: Callable[[Any], Any]) -> Any:
    async with await psycopg.AsyncConnection.connect(url) as connection:
        return await call(connection)


async def _some() -> AsyncIterator[Work]:
    for n in range(3):
        yield Work(n=n)


VERBS: dict[str, Callable[[SqlQueue, QueueSpec[Work], str], Any]] = {
    "one": lambda queue, spec, url: queue.enqueue(spec, Work(n=0)),
    "one of the producer's tags": lambda queue, spec, url: queue.enqueue(spec, NewJob(Work(n=0), tags=["eu"])),
    "many": lambda queue, spec, url: queue.enqueue_many(spec, [Work(n=n) for n in range(3)]),
    "a generator": lambda queue, spec, url: queue.enqueue_many(spec, (Work(n=n) for n in range(3))),
    "one, awaited": lambda queue, spec, url: asyncio.run(
        _awaited(url, lambda connection: queue.aenqueue(spec, Work(n=0), connection=connection))
    ),
    "many, awaited": lambda queue, spec, url: asyncio.run(
        _awaited(url, lambda connection: queue.aenqueue_many(spec, _some(), connection=connection))
    ),
}


@pytest.mark.parametrize("verb", VERBS)
def test_every_enqueue_goes_by_the_hooks(url: str, queue: SqlQueue, spec: QueueSpec[Work], verb: str) -> None:
    first, second = Tagging("first"), Tagging("second")
    made = VERBS[verb](SqlQueue(queue.database, hooks=[first, second]), spec, url)
    own = ["eu"] if "tags" in verb else []
    assert tags(queue) == [[*own, "first", "second"]] * (1 if "one" in verb else 3)
    assert first.calls == second.calls
    (call,) = first.calls
    assert (call.destination, call.operation, call.result) == ("work", "send", made)
    assert made == Enqueued(3, 0, 0, []) or "one" in verb


def test_what_an_enqueue_raises_goes_by_the_hooks(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    hooks = Tagging("x")
    sending = SqlQueue(queue.database, hooks=[hooks])
    with pytest.raises(InvalidPayload):
        sending.enqueue(spec, {"n": "x"})
    with pytest.raises(InvalidPayload):
        sending.enqueue_many(spec, [Work(n=1), {"n": "x"}])
    assert (hooks.calls, hooks.failed) == ([], [InvalidPayload, InvalidPayload])
    assert tags(queue) == []


def test_hooks_that_say_nothing_change_nothing(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    SqlQueue(queue.database, hooks=[EnqueueHooks()]).enqueue(spec, Work(n=1))
    assert tags(queue) == [[]]
