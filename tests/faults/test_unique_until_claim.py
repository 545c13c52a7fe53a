"""Enqueuers who race with consumers for unique keys that are held until the claim: never two that wait, never one lost."""

import itertools
import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from dagster_sqlqueue import Consumer, Done, Job, Mode, NewJob, QueueSpec, Retry, SqlQueue
from dagster_sqlqueue.db import statements
from tests.gate.patience import PATIENCE, sized
from tests.support import Work, rows, value
from tests.support.few import few

KEYS = sized(25, 250)
ROUNDS = sized(6, 12)
ENQUEUERS = 2
CONSUMERS = 2
SEED = 11
FREES_KEY = "j.unique_until_claim AND j.lease_no = 0 AS frees_key"
TWO_WAITING = "SELECT unique_key FROM {s}.job WHERE lease_no = 0 GROUP BY unique_key HAVING count(*) > 1"


@dataclass
class History:
    """What happened to the jobs of each key, by the ticks of one clock: of each enqueue its number, begin and end; of each
    run the number that its payload has, and its begin.
    """

    enqueued: dict[str, list[tuple[int, int, int]]] = field(default_factory=dict)
    began: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    tick: Iterator[int] = field(default_factory=itertools.count)
    guard: threading.Lock = field(default_factory=threading.Lock)

    def now(self) -> int:
        with self.guard:
            return next(self.tick)

    def enqueue(self, key: str, number: int, put: Callable[[], object]) -> None:
        begin = self.now()
        put()
        end = self.now()
        with self.guard:
            self.enqueued.setdefault(key, []).append((number, begin, end))

    def run(self, key: str, number: int) -> None:
        begin = self.now()
        with self.guard:
            self.began.setdefault(key, []).append((number, begin))


def judge(history: History, *, replacing: bool) -> list[str]:
    """What went wrong: an enqueue after whose begin no run of its key began; or, where enqueues replace, none of its content
    or of one that may have replaced it.
    """
    found = []
    for key, puts in history.enqueued.items():
        ends = {number: end for number, _, end in puts}
        for number, begin, _ in puts:
            after = [content for content, began in history.began.get(key, []) if began > begin]
            if not after:
                found.append(f"{key}: {number} was lost")
            elif replacing and not any(content == number or ends[content] > begin for content in after):
                found.append(f"{key}: the content of {number} was lost")
    return found


def race(queue: SqlQueue, spec: QueueSpec[Work], mode: Mode, on_conflict: Any) -> History:
    """Enqueuers and consumers at the same keys, until all is worked off."""
    history, numbers, over = History(), itertools.count(1), threading.Event()
    errors: list[BaseException] = []

    def put(key: str) -> None:
        with history.guard:
            number = next(numbers)
        new = NewJob(Work(n=number, note=key), unique_key=key, unique_until="claim")
        history.enqueue(key, number, lambda: queue.enqueue(spec, new, on_conflict=on_conflict))

    def enqueuer(seed: int) -> None:
        luck = random.Random(seed)
        for _ in range(ROUNDS):
            for key in luck.sample(range(KEYS), KEYS):
                put(f"k{key}")

    def handle(job: Job[Work]) -> Any:
        first = job.payload.note not in history.began
        history.run(job.payload.note, job.payload.n)
        if first:
            put(job.payload.note)
        return Retry("again", after=0) if job.attempt == 1 and job.payload.n % 5 == 0 else Done()

    def consume() -> None:
        consumer = Consumer(queue, spec, handle, mode=mode, batch_size=5)
        while not over.is_set():
            consumer.drain()
        consumer.drain()

    def watch() -> None:
        while not over.wait(0.02):
            assert rows(queue, TWO_WAITING) == []

    def guarded(work: Callable[[], None]) -> threading.Thread:
        def run() -> None:
            try:
                work()
            except BaseException as error:
                errors.append(error)
                over.set()

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    others = [guarded(consume) for _ in range(CONSUMERS)] + [guarded(watch)]
    for thread in [guarded(lambda seed=seed: enqueuer(seed)) for seed in range(SEED, SEED + ENQUEUERS)]:  # type: ignore[misc]
        thread.join(PATIENCE)
    over.set()
    for thread in others:
        thread.join(PATIENCE)
    if errors:
        raise errors[0]
    assert value(queue, "SELECT count(*) FROM {s}.job") == 0
    return history


@pytest.mark.parametrize("on_conflict", ["ignore", "replace"])
@pytest.mark.parametrize("mode", few(list(Mode), 1))
def test_nothing_is_lost(queue: SqlQueue, spec: QueueSpec[Work], mode: Mode, on_conflict: str) -> None:
    history = race(queue, spec, mode, on_conflict)
    assert judge(history, replacing=on_conflict == "replace") == []
    assert sum(map(len, history.enqueued.values())) == KEYS * (ENQUEUERS * ROUNDS + 1)


def test_a_key_that_is_free_only_when_the_transaction_commits_is_found(
    queue: SqlQueue, spec: QueueSpec[Work], monkeypatch: pytest.MonkeyPatch
) -> None:
    load = statements.load

    def planted(wanted: str, *given: str) -> str:
        return load(wanted, *given).replace(
            "j.unique_until_claim AND j.lease_no = 0 AS frees_key", "false AS frees_key"
        )

    monkeypatch.setattr(statements, "load", planted)
    history = History()

    def handle(job: Job[Work]) -> None:
        history.run("k", job.payload.n)
        if job.payload.n == 1:
            history.enqueue("k", 2, lambda: queue.enqueue(spec, new(2)))

    def new(n: int) -> NewJob[Work]:
        return NewJob(Work(n=n), unique_key="k", unique_until="claim")

    history.enqueue("k", 1, lambda: queue.enqueue(spec, new(1)))
    Consumer(queue, spec, handle, mode=Mode.TRANSACTIONAL).drain()
    assert judge(history, replacing=False) == ["k: 2 was lost"]


def test_the_checker_finds_content_that_was_lost() -> None:
    history = History({"k": [(1, 0, 1), (2, 2, 3)]}, {"k": [(1, 4)]})
    assert judge(history, replacing=False) == []
    assert judge(history, replacing=True) == ["k: the content of 2 was lost"]
    assert judge(History({"k": [(1, 0, 3), (2, 2, 5)]}, {"k": [(1, 6)]}), replacing=True) == []
