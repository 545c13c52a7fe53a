"""Publishers that are killed while subscriptions come and go: a message has a job for each that stood, or none at all."""

import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dagster_sqlqueue import Consumer, QueueSpec
from dagster_sqlqueue.topics import Topics
from tests.faults.conftest import Fleet
from tests.faults.task import History
from tests.faults.topical import (
    COPY_NAMES,
    MOVE_NAMES,
    NAMES,
    PLANTS,
    STANDING,
    TOPIC,
    Publish,
    Run,
    Span,
    Spans,
    begun,
    change,
    fits,
    judge,
    left_behind,
    subscribe,
    work_off,
)
from tests.gate.patience import sized
from tests.support import Work, until, value
from tests.support.few import few

MESSAGES = 100_000
"""More than a publisher gets to send before it is killed."""

KILLS = sized(3, 30)
PUBLISHED = sized(10, 200)
"""Batches."""
CHANGES = sized(3, 50)
DUPLICATES = sized(1, 5)

SEEN_AGAIN = {
    "a group of which all get it": "went to more than one that compete",
    "ids that are new each time": "jobs for copy0",
    "a search past the archive": "jobs for copy0",
}
"""Bugs that show when a message is sent again, and how."""


def run(fleet: Fleet, *, kills: int, plant: str | None = None, enough: Callable[[Run], bool] = lambda _: True) -> Run:
    """Publishers that are killed and come back, while subscriptions come and go, and others work off; so often, and until
    there was enough of everything.
    """
    luck = random.Random(kills)
    topics = Topics(fleet.queue)
    for name in NAMES:
        fleet.queue.create_queue(QueueSpec(name, Work, bucket_count=2))
    for name in STANDING:
        subscribe(topics, name)
    others = [fleet.start(change, prefix=str(half), seed=half) for half in range(2)]
    others.append(fleet.start(work_off))
    fleet.ready(others)
    ended: dict[Path, float] = {}
    firsts = iter(range(0, 1_000 * MESSAGES, MESSAGES))

    def born(heir_of: Path | None = None) -> Path:
        first = next(firsts)
        return fleet.start(Publish(first, heir_of), jobs=MESSAGES, seed=first, plant=plant)

    def kill(victim: Path) -> None:
        fleet.kill(victim)
        ended[victim] = time.monotonic()

    alive = [born() for _ in range(3)]
    fleet.ready(alive)
    number = 0
    while number < kills or not enough(so_far(fleet, ended)):
        victim = alive.pop(0)
        target = len(fleet.read(victim, "publishing")) + luck.randint(1, 25)
        until(lambda: len(fleet.read(victim, "publishing")) >= target)  # noqa: B023
        kill(victim)
        # Of what is in doubt, a third stays so.
        alive.append(born(victim if number % 3 else None))
        fleet.ready(alive)
        number += 1
    until(lambda: len(fleet.all("published")) >= PUBLISHED, "so many batches")
    for victim in alive:
        kill(victim)
    fleet.dismiss(others)
    for history in others:
        ended[history] = time.monotonic()
    return so_far(fleet, ended)


def so_far(fleet: Fleet, ended: dict[Path, float]) -> Run:
    """What there is."""
    return Run({history: fleet.read(history) for history in fleet.processes}, dict(ended), left_behind(fleet.queue))


def happened(found: Run) -> bool:
    """Whether there was all of what the judgement is about."""
    events = [event for history in found.histories.values() for event in history]
    kinds = Counter(event["event"] for event in events)
    published = {n for event in events if event["event"] == "published" for n in event["numbers"]}
    late = [n for n in published if not found.jobs[COPY_NAMES[2], n]]
    return (
        kinds["published"] >= PUBLISHED
        and min(kinds["subscribed"], kinds["unsubscribed"]) >= CHANGES
        and any(begun(history) for history in found.ended)
        and sum(event["duplicates"] for event in events if event["event"] == "published") >= DUPLICATES
        and {name for name, _ in found.jobs} == set(NAMES)
        and 0 < len(late) < len(published)
    )


def test_killed_publishers_and_changing_subscriptions(fleet: Fleet) -> None:
    archived = "SELECT count(*) FROM {s}.job_archive"
    found = run(fleet, kills=KILLS, enough=lambda run: happened(run) and value(fleet.queue, archived) >= sized(20, 100))
    fleet.note(messages=len({number for _, number in found.jobs}), seed=KILLS)
    assert judge(found) == []


def sent_again(fleet: Fleet, tmp_path: Path, plant: str | None) -> Run:
    """Messages that are sent again, for their publisher was killed before it had an answer: others compete by then, and the
    jobs of the first time have ended.
    """
    topics = Topics(fleet.queue)
    for name in NAMES:
        fleet.queue.create_queue(QueueSpec(name, Work, bucket_count=2))
    for name in STANDING:
        subscribe(topics, name)
    first = fleet.start(Publish(0), jobs=1, plant=plant, hang_until=tmp_path / "never")
    until(lambda: left_behind(fleet.queue), "the messages")
    fleet.kill(first)
    ended = {first: time.monotonic()}
    changes = tmp_path / "changes"
    for name in set(MOVE_NAMES) - set(STANDING):
        began = time.monotonic()
        subscribe(topics, name)
        History(changes).note("subscribed", name=name, began=began, at=time.monotonic())
    for name in STANDING:
        Consumer(fleet.queue, QueueSpec(name, Work), lambda job: None).drain()
    heir = fleet.start(Publish(0, heir_of=first), jobs=0, plant=plant)
    fleet.join()
    ended[heir] = time.monotonic()
    found = so_far(fleet, ended)
    return replace(found, histories={**found.histories, changes: fleet.read(changes)})


def test_messages_that_are_sent_again_land_once(fleet: Fleet, tmp_path: Path) -> None:
    found = sent_again(fleet, tmp_path, None)
    (published,) = [event for history in found.histories.values() for event in history if event["event"] == "published"]
    assert len(published["numbers"]) == len({number for _, number in found.jobs}) == 60
    assert judge(found) == []


@pytest.mark.parametrize("name", few(list(PLANTS), 1))
def test_the_judgement_finds(fleet: Fleet, tmp_path: Path, name: str) -> None:
    """A bug that is put into the publishers' statements is seen."""
    if name in SEEN_AGAIN:
        assert any(SEEN_AGAIN[name] in found for found in judge(sent_again(fleet, tmp_path, name)))
    else:
        assert judge(run(fleet, kills=sized(1, 3), plant=name)) != []


def made_up(jobs: dict[tuple[str, int], int]) -> Run:
    """Message 1 was published from 10 to 11, 2 and 4 begun at 12 and in doubt; `copy2` was there from 5 to 20."""
    events: list[dict[str, Any]] = [
        {"event": "publishing", "at": 10.0, "messages": [(1, "")]},
        {"event": "published", "at": 11.0, "numbers": [1]},
        {"event": "publishing", "at": 12.0, "messages": [(2, ""), (4, "")]},
        {"event": "subscribed", "name": "copy2", "began": 4.0, "at": 5.0},
        {"event": "unsubscribed", "name": "copy2", "began": 20.0, "at": 21.0},
    ]
    path = Path("made up")
    return Run({path: events}, {path: 13.0}, Counter(jobs))


GOOD = {("copy0", 1): 1, ("copy1", 1): 1, ("copy2", 1): 1, ("move0", 1): 1}


def test_a_good_run_passes() -> None:
    assert judge(made_up(GOOD)) == []
    everything = {**GOOD, ("copy0", 2): 1, ("copy2", 2): 1, ("move0", 2): 1}
    assert judge(made_up({**everything, ("copy0", 4): 1, ("copy1", 4): 1, ("copy2", 4): 1, ("move0", 4): 1})) == []
    assert fits("copy1", 1)
    assert not fits("copy1", 2)
    assert Span(1, 4).holds(Span(2, 3))
    assert not Span(2, 4).holds(Span(1, 3))
    assert {*COPY_NAMES, *MOVE_NAMES} == set(NAMES)
    assert TOPIC


def test_many_spans_answer_as_each_would() -> None:
    chosen = random.Random(1)
    for count in range(40):
        moments = [sorted((chosen.randrange(30), chosen.randrange(30))) for _ in range(count)]
        every = [Span(begin, end) for begin, end in moments]
        many = Spans(every)
        for begin in range(30):
            for end in range(begin, 30):
                span = Span(begin, end)
                assert many.hold(span) == any(one.holds(span) for one in every)
                assert many.meet(span) == any(one.meets(span) for one in every)


BAD: dict[str, dict[tuple[str, int], int]] = {
    "message 1 has no job for copy2": {("copy2", 1): 0},
    "message 1 went to none that compete": {("move0", 1): 0},
    "message 1 has 2 jobs for copy0": {("copy0", 1): 2},
    "message 1 went to more than one that compete": {("move1", 1): 1},
    "message 1 has a job for copy4, which": {("copy4", 1): 1},
    "message 2 has a job for copy1, which it does not fit": {("copy1", 2): 1},
    "message 2 has no job for copy0": {("copy2", 2): 1, ("move0", 2): 1},
    "of the messages [2, 4] only [2] were published": {("copy0", 2): 1, ("copy2", 2): 1, ("move0", 2): 1},
    "nobody published message 7": {("copy0", 7): 1},
}


@pytest.mark.parametrize("wrong", list(BAD))
def test_a_bad_run_is_found(wrong: str) -> None:
    jobs = {key: count for key, count in {**GOOD, **BAD[wrong]}.items() if count}
    assert any(wrong in found for found in judge(made_up(jobs)))
