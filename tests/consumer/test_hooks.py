"""Hooks of consumers: what they are called around, in which order, and that without any there is nothing to call."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from dagster_sqlqueue import Consumer, DrainSummary, Job, Mode, QueueSpec, Retry, SqlQueue
from dagster_sqlqueue.consumer import ConsumerHooks, HandlerCall, hooked
from tests.support import Work, rows


class Noting(ConsumerHooks):
    """Notes when it is entered and left, under a name of its own."""

    def __init__(self, name: str = "", notes: list[str] | None = None) -> None:
        self.name = name
        self.notes: list[str] = [] if notes is None else notes
        self.calls: list[HandlerCall] = []
        self.summaries: list[DrainSummary] = []

    @contextmanager
    def _noted(self, what: str) -> Iterator[None]:
        self.notes.append(f"{self.name}>{what}")
        try:
            yield
        except BaseException as error:
            self.notes.append(f"{self.name}!{what} {type(error).__name__}")
            raise
        self.notes.append(f"{self.name}<{what}")

    @contextmanager
    def around_work(self, queue: str, summary: DrainSummary) -> Iterator[None]:
        self.summaries.append(summary)
        with self._noted(f"work {queue}"):
            yield

    @contextmanager
    def around_claim(self, queue: str, verb: str) -> Iterator[None]:
        with self._noted(f"{verb} {queue}"):
            yield

    @contextmanager
    def around_handler(self, call: HandlerCall) -> Iterator[None]:
        self.calls.append(call)
        with self._noted("handler"):
            yield


def begun(hooks: Noting, *words: str) -> list[str]:
    return [note for note in hooks.notes if note.startswith(">") and note[1:].split()[0] in words]


@pytest.mark.parametrize(
    ("mode", "first", "next_"),
    [(Mode.LEASED, "claim", "finish_and_claim"), (Mode.TRANSACTIONAL, "lock_due", "finish_and_lock")],
)
def test_what_a_drain_calls(queue: SqlQueue, mode: Mode, first: str, next_: str) -> None:
    spec = QueueSpec("single", Work, bucket_count=1)
    queue.create_queue(spec)
    queue.enqueue_many(spec, [Work(n=n) for n in range(4)])
    hooks = Noting()
    consumer = Consumer(queue, spec, lambda job: None, mode=mode, batch_size=2, hooks=[hooks])
    summary = consumer.drain()
    assert summary.succeeded == 4
    assert hooks.summaries == [summary]
    assert hooks.summaries[0] is consumer.summary
    assert hooks.notes[:8] == [
        ">work single",
        f">{first} single",
        f"<{first} single",
        *[">handler", "<handler"] * 2,
        f">{next_} single",
    ]
    assert hooks.notes[-1] == "<work single"
    assert len(begun(hooks, "handler")) == 4
    assert [call.returned for call in hooks.calls] == [None] * 4
    assert [job.payload.n for call in hooks.calls for job in call.jobs] == [0, 1, 2, 3]


def test_the_first_hook_is_the_outermost(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    queue.enqueue(spec, Work(n=1))
    notes: list[str] = []
    Consumer(queue, spec, lambda job: None, hooks=[Noting("a", notes), Noting("b", notes)]).drain()
    assert notes[:3] == ["a>work work", "b>work work", "a>claim work"]
    handling = notes.index("a>handler")
    assert notes[handling : handling + 4] == ["a>handler", "b>handler", "b<handler", "a<handler"]
    assert notes[-2:] == ["b<work work", "a<work work"]


def test_handlers_of_every_shape(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    async def later(job: Job[Work]) -> Retry:
        return Retry("later", after=3_600)

    async def all_later(jobs: list[Job[Work]]) -> list[Retry]:
        return [Retry("later", after=3_600)] * len(jobs)

    def all_now(jobs: list[Job[Work]]) -> list[Retry]:
        return [Retry("later", after=3_600)] * len(jobs)

    for handler, batch in ((later, False), (all_later, True), (all_now, True)):
        one = QueueSpec(handler.__name__, Work, bucket_count=1)
        queue.create_queue(one)
        queue.enqueue_many(one, [Work(n=n) for n in range(3)])
        hooks = Noting()
        assert Consumer(queue, one, handler, batch=batch, hooks=[hooks]).drain().retried == 3
        assert [len(call.jobs) for call in hooks.calls] == ([3] if batch else [1, 1, 1])
        assert {call.batch for call in hooks.calls} == {batch}
        assert all(call.returned for call in hooks.calls)


def test_what_a_handler_raises_goes_by_the_hooks(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    queue.enqueue(spec, Work(n=1))

    def fail(job: Job[Work]) -> None:
        raise LookupError("no such account")

    hooks = Noting()
    Consumer(queue, spec, fail, hooks=[hooks]).drain()
    assert hooks.notes.count("!handler LookupError") == 3
    assert [call.returned for call in hooks.calls] == [None] * 3
    assert rows(queue, "SELECT state, split_part(error, chr(10), 1) FROM {s}.job_archive") == [
        ("failed", "LookupError: no such account")
    ]


def test_what_a_hook_raises_is_the_handler_s(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    queue.enqueue(spec, Work(n=1))

    class Broken(ConsumerHooks):
        def around_handler(self, call: HandlerCall) -> Any:
            raise OSError("the disk is full")

    assert Consumer(queue, spec, lambda job: None, hooks=[Broken()]).drain().retried == 2
    assert rows(queue, "SELECT state, split_part(error, chr(10), 1) FROM {s}.job_archive") == [
        ("failed", "OSError: the disk is full")
    ]


def test_hooks_that_say_nothing_change_nothing(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    queue.enqueue_many(spec, [Work(n=n) for n in range(10)])
    assert Consumer(queue, spec, lambda job: None, hooks=[ConsumerHooks()]).drain().succeeded == 10


def test_a_payload_that_does_not_fit_meets_no_handler_and_no_hook(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    queue.enqueue(spec, Work(n=1))
    rows(queue, "UPDATE {s}.job SET payload = '{{}}'")
    hooks = Noting()
    assert Consumer(queue, spec, lambda job: None, hooks=[hooks]).drain().failed == 1
    assert hooks.calls == []


def test_without_hooks_there_is_nothing_to_call(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    def handle(job: Job[Work]) -> None: ...

    assert hooked(handle, []) is handle
    consumer = Consumer(queue, spec, handle)
    assert consumer._leases is queue.leases
    assert consumer._work.caller.handler is handle
