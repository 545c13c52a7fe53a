"""Payloads replaced beside consumers, redrives and transactions of others."""

import itertools
import threading
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

import pytest

from dagster_sqlqueue import SqlQueue
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.model.job import ArchiveState
from dagster_sqlqueue.model.outcome import Retry
from dagster_sqlqueue.queue import Ending, payload_replacement
from dagster_sqlqueue.queue.claim_request import ClaimRequest
from dagster_sqlqueue.queue.selection import Decided, Selection
from tests.gate.patience import PATIENCE
from tests.support import Work, asked, caller, numbers, take_time, until
from tests.support.decisions import (
    ALL,
    NEW,
    ORDERED,
    PLAIN,
    STORED,
    finish_all,
    ids,
    kill,
    put,
    stored_payload,
    take,
    unchanged,
    waiting_for_the_key,
)

LOCATING = "SELECT j.id, j.queue, j.state, NULL FROM"
"""Part of the statement that asks for the states of jobs which others have locked."""


def test_a_dead_letter_comes_back_before_or_after_a_decision_about_its_key(queue: SqlQueue) -> None:
    put(queue, ORDERED, 2, ordering_key="k")
    (first,) = kill(queue)
    with waiting_for_the_key(queue, queue.replace_payload, ORDERED, first.id, NEW) as replaced:
        assert queue.job(first.id).state == "failed"
    assert replaced.result(PATIENCE).changed == [first.id]
    assert finish_all(queue) == [77, 1]


def test_one_that_others_bring_back_meanwhile_is_replaced_where_it_is_then(
    queue: SqlQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(queue, PLAIN, 1)
    (job,) = kill(queue)
    bring_back = payload_replacement.Redriving.bring_back
    ended = iter([True, False])

    def late(*arguments: Any, **more: Any) -> None:
        if next(ended):
            queue.redrive("work", ALL)
        bring_back(*arguments, **more)

    monkeypatch.setattr(payload_replacement.Redriving, "bring_back", late)
    assert queue.replace_payload(PLAIN, job.id, NEW) == Decided([job.id])
    assert stored_payload(queue, job.id) == STORED
    assert queue.job(job.id).state == "queued"


def test_one_that_never_stays_where_it_is_looked_for_is_left(queue: SqlQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    put(queue, PLAIN, 1)
    (job,) = kill(queue)
    monkeypatch.setattr(payload_replacement.Redriving, "bring_back", lambda *_, **__: None)
    with unchanged(queue):
        assert "try again" in queue.replace_payload(PLAIN, job.id, NEW).skipped[job.id]


@pytest.mark.parametrize("state", ["queued", "held", "failed"])
def test_it_joins_the_callers_transaction(queue: SqlQueue, url: str, state: str) -> None:
    (job,) = put(queue, PLAIN, 1)
    if state == "held":
        queue.hold_queued("work", ids(job), "look")
    elif state == "failed":
        kill(queue)
    with caller(url) as connection:
        with unchanged(queue):
            assert queue.replace_payload(PLAIN, job, NEW, release=True, connection=connection).changed == [job]
            connection.rollback()
        assert queue.replace_payload(PLAIN, job, NEW, release=True, connection=connection).changed == [job]
        connection.commit()
    assert stored_payload(queue, job) == STORED
    assert numbers(take(queue)) == [77]


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_a_strict_transaction_brings_no_job_back_into_a_line(queue: SqlQueue, url: str, level: str) -> None:
    put(queue, ORDERED, 2, ordering_key="k")
    (job,) = kill(queue)
    with unchanged(queue), caller(url) as connection:
        connection.execute(f"SET TRANSACTION ISOLATION LEVEL {level}".encode())
        with pytest.raises(InvalidInput, match="has keys that take turns"):
            queue.replace_payload(ORDERED, job.id, NEW, connection=connection)


def test_one_that_a_transaction_works_on_is_waited_for_a_little_and_left(
    queue: SqlQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dagster_sqlqueue.queue.decision._PATIENCE_SECONDS", 0.2)
    (job,) = put(queue, PLAIN, 1)
    with unchanged(queue), queue.database.transaction() as claim:
        claim.run("lock_live", {"queue": "work", "ids": [job]})
        assert "somebody else is at it" in queue.replace_payload(PLAIN, job, NEW).skipped[job]


def test_a_transaction_that_ends_it_meanwhile_is_waited_for(queue: SqlQueue) -> None:
    """It is a dead letter then, and comes back with the new payload."""
    (job,) = put(queue, PLAIN, 1)
    with ThreadPoolExecutor(1) as pool:
        with queue.database.transaction() as claim:
            take_time(claim)
            claim.run("lock_live", {"queue": "work", "ids": [job]})
            future = pool.submit(queue.replace_payload, PLAIN, job, NEW)
            until(lambda: asked(queue, LOCATING))
            claim.run("cancel_waiting", {"ids": [job], "reason": "no"})
        assert future.result(PATIENCE).changed == [job]
    assert (queue.job(job).state, stored_payload(queue, job)) == ("queued", STORED)


@dataclass
class Attempts:
    """What consumers were handed out, and who replaced what, while all were at the same jobs."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    handed: dict[UUID, dict[int, tuple[Work, str]]] = field(default_factory=lambda: defaultdict(dict))
    stored: dict[UUID, set[int]] = field(default_factory=lambda: defaultdict(set))
    skipped: set[int] = field(default_factory=set)

    @property
    def enough(self) -> bool:
        with self.lock:
            return sum(map(len, self.handed.values())) >= 400 and sum(map(len, self.stored.values())) >= 150


def work_off(queue: SqlQueue, worker: str, attempts: Attempts) -> None:
    """Claim some jobs, and have them fail, be held or be retried."""
    for job in queue.claim("work", limit=2, worker=worker):
        content = Work.model_validate_json(job.payload)
        outcome = ("failed", "held", "retried")[(content.n + job.lease_no) % 3]
        with attempts.lock:
            attempts.handed[job.id][job.lease_no] = content, outcome
        if outcome == "failed":
            queue.finish([Ending(job, ArchiveState.FAILED, error="no")])
        elif outcome == "held":
            queue.hold([(job, "look")])
        else:
            queue.requeue([(job, Retry("again", after=0))])


def test_no_attempt_has_a_payload_that_was_not_there_and_none_an_earlier_one(queue: SqlQueue) -> None:
    """Consumers, and two who replace the payloads of half of the jobs each, by ever higher numbers. Of the first half dead
    letters come back by that alone, as do all that are held: no attempt after it has the payload from before. Of the second
    half they are redriven as well.
    """
    spec = replace(PLAIN, max_attempts=1_000_000)
    halves = [put(queue, spec, 4), put(queue, spec, 4, tags=["redriven"])]
    attempts, stop = Attempts(), threading.Event()
    count = itertools.count(1)

    def replace_all(own: SqlQueue, jobs: list[UUID]) -> None:
        for job in jobs:
            number = next(count)
            decided = own.replace_payload(spec, job, Work(n=number, note=str(number)), release=True)
            with attempts.lock:
                if decided.changed:
                    attempts.stored[job].add(number)
                else:
                    attempts.skipped.add(number)

    def again(step: Callable[..., object], *arguments: Any) -> None:
        with SqlQueue(queue.database.beside()) as own:
            while not stop.is_set():
                step(own, *arguments)

    for half in halves:
        replace_all(queue, half)
    steps: list[tuple[Any, ...]] = [(work_off, f"w{n}", attempts) for n in range(3)]
    steps += [(replace_all, half) for half in halves]
    steps += [(lambda own: own.redrive("work", Selection(tags=["redriven"])),)]
    with ThreadPoolExecutor(len(steps)) as pool:
        running = [pool.submit(again, *step) for step in steps]
        try:
            until(lambda: attempts.enough or any(future.done() for future in running))
        finally:
            stop.set()
        for future in running:
            future.result(PATIENCE)
    assert attempts.skipped, "no claim was in the way"
    for job in itertools.chain(*halves):
        found = [attempts.handed[job][lease_no] for lease_no in sorted(attempts.handed[job])]
        assert all(content.note == str(content.n) for content, _ in found)
        assert {content.n for content, _ in found} <= attempts.stored[job]
        for (content, outcome), (later, _) in itertools.pairwise(found):
            again_as_it_was = outcome == "retried" or (outcome == "failed" and job in halves[1])
            assert content.n <= later.n if again_as_it_was else content.n < later.n, outcome
        assert stored_payload(queue, job)["n"] == max(attempts.stored[job])


def test_of_a_claim_and_a_replacement_one_is_first(queue: SqlQueue) -> None:
    """A claim that is not committed keeps the payload from being replaced: what it hands out is what is stored."""
    (job,) = put(queue, PLAIN, 1)
    with ThreadPoolExecutor(1) as pool:
        with queue.database.transaction() as claim:
            take_time(claim)
            claimed = queue.leases.claim_within(claim, ClaimRequest("work", limit=1, worker="w"))
            assert [one.id for one in claimed] == [job]
            future = pool.submit(queue.replace_payload, PLAIN, job, NEW)
            until(lambda: asked(queue, LOCATING))
        assert "it is running" in future.result(PATIENCE).skipped[job]
    assert stored_payload(queue, job) == {"n": 0, "note": ""}
