"""Processes that publish, subscribe and work off, and the judgement over what became of each message.

Moments are those of the machine's monotonic clock, which its processes share.
"""

import bisect
import itertools
import json
import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

from uuid_utils.compat import uuid7

from dagster_sqlqueue import ClaimFilter, Consumer, QueueSpec, SqlQueue
from dagster_sqlqueue.topics import Message, Topics
from tests.faults.task import PLANTS as PLANTS_OF_ALL
from tests.faults.task import History, Task, plant, wait_for
from tests.gate.plugin import verdict
from tests.support import Work, on_sigterm, rows

TOPIC = "orders"
COPIES, MOVERS = 8, 4
COPY_NAMES = [f"copy{n}" for n in range(COPIES)]
MOVE_NAMES = [f"move{n}" for n in range(MOVERS)]
NAMES = [*COPY_NAMES, *MOVE_NAMES]
"""Of the subscriptions, and of the queue that each of them has for itself."""
STANDING = [COPY_NAMES[0], COPY_NAMES[1], MOVE_NAMES[0]]
"""Those that nobody takes away."""


PLANTS = {
    "a message that is left out for some": (
        "publish",
        "WHERE s.topic = %(topic)s",
        "WHERE s.topic = %(topic)s AND hashtext(s.name || m.id::text) %% 50 <> 0",
    ),
    "a group of which all get it": (
        "publish",
        "'UTF8')) AS digest",
        "'UTF8') || convert_to(one.name, 'UTF8')) AS digest",
    ),
    "ids that are new each time": (
        "publish",
        "sha256(uuid_send(m.id) || convert_to(one",
        "sha256(uuid_send(gen_random_uuid()) || convert_to(one",
    ),
    "a search past the archive": ("drop_already_finished", "WHERE j.id = ANY", "WHERE false AND j.id = ANY"),
    "filters that are not asked": ("publish", "m.payload @> s.payload", "true"),
}
"""Bugs by name, as those of `task`."""

PLANTS_OF_ALL.update(PLANTS)


def fits(name: str, n: int) -> bool:
    """Whether the message with this number fits the subscription."""
    number = int(name[-1])
    return name in MOVE_NAMES or number % 2 == 0 or n % 3 == number % 3


def subscribe(topics: Topics, name: str) -> None:
    if name in MOVE_NAMES:
        topics.subscribe(TOPIC, name, name, mode="move")
    elif int(name[-1]) % 2 == 0:
        topics.subscribe(TOPIC, name, name)
    else:
        filter = ClaimFilter(payload={"note": str(int(name[-1]) % 3)}, tags=["t"])
        topics.subscribe(TOPIC, name, name, filter=filter)


def message(n: int, id: UUID) -> Message[Any]:
    return Message({"n": n, "note": str(n % 3)}, id=id, tags=["t", "u"])


def begun(history: Path | None) -> list[tuple[int, UUID]]:
    """What the publisher of a history had begun and had no answer for, when it was killed."""
    if history is None or not history.exists():
        return []
    text = history.read_text()
    events = [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
    published = {n for event in events if event["event"] == "published" for n in event["numbers"]}
    doubtful = {n: UUID(id) for event in events if event["event"] == "publishing" for n, id in event["messages"]}
    return [(n, id) for n, id in doubtful.items() if n not in published]


@dataclass(frozen=True)
class Publish:
    """A publisher. With `task.hang_until` its first batch is a large one, of which it says nothing until that file exists.

    Attributes:
        first: the number of its first message.
        heir_of: the history of a publisher that was killed: what was in doubt there is sent again first.
    """

    first: int
    heir_of: Path | None = None

    def __call__(self, task: Task) -> None:
        """Publish batch after batch until it has done so many, or is killed."""
        if task.plant:
            plant(task.plant)
        history = History(task.history)
        luck = random.Random(task.seed)
        with SqlQueue(task.url, schema=task.schema) as queue:
            topics = Topics(queue)
            history.note("ready")
            if doubtful := begun(self.heir_of):
                self._batch(topics, history, luck, doubtful, True)
            number = self.first
            while number < self.first + task.jobs:
                size = luck.randint(1, 12) if task.hang_until is None else 60
                batch = [(n, uuid7()) for n in range(number, number + size)]
                number += len(batch)
                self._batch(topics, history, luck, batch, False, task.hang_until)

    def _batch(
        self,
        topics: Topics,
        history: History,
        luck: random.Random,
        batch: Sequence[tuple[int, UUID]],
        again: bool,
        hang_until: Path | None = None,
    ) -> None:
        messages = [message(n, id) for n, id in batch]
        history.note("publishing", at=time.monotonic(), messages=[(n, str(id)) for n, id in batch])
        way = luck.randrange(3)
        duplicates = 0
        if way == 0 or again or hang_until:
            duplicates = topics.publish_many(TOPIC, messages).duplicates
            # It may be killed when all is done and nobody has the answer.
            threading.Event().wait(0 if again else luck.uniform(0, 0.05))
            if hang_until:
                wait_for(hang_until)
        else:
            # Several statements of one transaction, which hesitates before its commit.
            with topics.database.transaction() as transaction:
                theirs = transaction.connection
                topics.publish_many(TOPIC, messages[1:], connection=theirs)
                if way == 2:
                    threading.Event().wait(luck.uniform(0, 0.02))
                one = messages[0]
                topics.publish(TOPIC, one.payload, id=one.id, tags=one.tags, connection=theirs)
        history.note("published", at=time.monotonic(), numbers=[n for n, _ in batch], duplicates=duplicates)


def change(task: Task) -> None:
    """Add and remove the subscriptions that may go, at random, until SIGTERM; `prefix` says which half of them."""
    history = History(task.history)
    luck = random.Random(task.seed)
    mine = [name for name in NAMES if name not in STANDING and int(name[-1]) % 2 == int(task.prefix)]
    ended = threading.Event()
    on_sigterm(ended.set)
    there: set[str] = set()
    with SqlQueue(task.url, schema=task.schema) as queue:
        topics = Topics(queue)
        history.note("ready")
        while not ended.wait(luck.uniform(0, 0.01)):
            name = luck.choice(mine)
            began = time.monotonic()
            if name in there:
                topics.unsubscribe(TOPIC, name)
                there.discard(name)
                history.note("unsubscribed", name=name, began=began, at=time.monotonic())
            else:
                subscribe(topics, name)
                there.add(name)
                history.note("subscribed", name=name, began=began, at=time.monotonic())


def work_off(task: Task) -> None:
    """Finish what is on every queue until SIGTERM, so that what is sent again meets jobs that are in the archive."""
    ended = threading.Event()
    on_sigterm(ended.set)
    with SqlQueue(task.url, schema=task.schema) as queue:
        History(task.history).note("ready")
        consumers = [Consumer(queue, QueueSpec(name, Work), lambda job: None) for name in NAMES]
        while not ended.wait(0.005):
            for consumer in consumers:
                consumer.drain()


@dataclass(frozen=True)
class Span:
    """From one moment to another."""

    begin: float
    end: float

    def holds(self, other: "Span") -> bool:
        return self.begin < other.begin and other.end < self.end

    def meets(self, other: "Span") -> bool:
        return self.begin <= other.end and other.begin <= self.end


class Spans:
    """Many spans, which answers for a span by bisection: a run of a busy machine has tens of thousands of each."""

    def __init__(self, spans: Iterable[Span]) -> None:
        ordered = sorted(spans, key=lambda span: span.begin)
        self._begins = [span.begin for span in ordered]
        self._ends = list(itertools.accumulate((span.end for span in ordered), max))
        """The latest end of each span and those that begin before it."""

    def hold(self, span: Span) -> bool:
        """Whether one of them holds it."""
        return self._latest(bisect.bisect_left(self._begins, span.begin)) > span.end

    def meet(self, span: Span) -> bool:
        """Whether one of them meets it."""
        return self._latest(bisect.bisect_right(self._begins, span.end)) >= span.begin

    def _latest(self, count: int) -> float:
        return self._ends[count - 1] if count else float("-inf")


@dataclass(frozen=True)
class Run:
    """What a run left behind.

    Attributes:
        histories: of all processes, in the order in which they were started.
        ended: by history, when its process was seen to be dead.
        jobs: by queue and number of a message, how many there are, live and ended.
    """

    histories: Mapping[Path, Sequence[Mapping[str, Any]]]
    ended: Mapping[Path, float]
    jobs: Counter[tuple[str, int]]


def left_behind(queue: SqlQueue) -> Counter[tuple[str, int]]:
    """By queue and number of a message, how many jobs there are."""
    found = rows(
        queue,
        "SELECT queue, CAST(payload ->> 'n' AS integer) FROM {s}.job"
        " UNION ALL SELECT queue, CAST(payload ->> 'n' AS integer) FROM {s}.job_archive",
    )
    return Counter((name, number) for name, number in found)


@verdict
def judge(run: Run) -> list[str]:
    """What is wrong with a run; nothing, if each message that was acknowledged has exactly one job for each receiver that
    stood all the while, never two, none for who was not there, and no message is half.
    """
    surely, perhaps = _standing(event for events in run.histories.values() for event in events)
    first: dict[int, float] = {}
    published: dict[int, float] = {}
    dead: dict[int, float] = {}
    batches: list[list[int]] = []
    for history, events in run.histories.items():
        for event in events:
            if event["event"] == "publishing":
                batches.append([n for n, _ in event["messages"]])
                for n, _ in event["messages"]:
                    first.setdefault(n, event["at"])
                    dead[n] = run.ended[history]
            elif event["event"] == "published":
                published.update(dict.fromkeys(event["numbers"], event["at"]))
    wrong: list[str] = []
    landed = {number for _, number in run.jobs}
    for n, began in first.items():
        span = Span(began, published.get(n, dead[n]))
        if n in published or n in landed:
            wrong += _missing(run, n, span, surely)
        wrong += _too_many(run, n, span, perhaps)
    for batch in batches:
        # A message fits at least one subscription that always stands: without a job it was not published.
        if 0 < len(landed.intersection(batch)) < len(batch):
            wrong.append(f"of the messages {batch} only {sorted(landed.intersection(batch))} were published")
    wrong += [f"nobody published message {n}" for n in landed - set(first)]
    return wrong


def _missing(run: Run, n: int, span: Span, surely: Mapping[str, Spans]) -> list[str]:
    stood = {name for name in NAMES if fits(name, n) and surely[name].hold(span)}
    wrong = [f"message {n} has no job for {name}" for name in COPY_NAMES if name in stood and not run.jobs[name, n]]
    if stood.intersection(MOVE_NAMES) and not any(run.jobs[name, n] for name in MOVE_NAMES):
        wrong.append(f"message {n} went to none that compete")
    return wrong


def _too_many(run: Run, n: int, span: Span, perhaps: Mapping[str, Spans]) -> list[str]:
    got = {name: run.jobs[name, n] for name in NAMES if run.jobs[name, n]}
    wrong = [f"message {n} has {count} jobs for {name}" for name, count in got.items() if count > 1]
    if sum(got.get(name, 0) for name in MOVE_NAMES) > 1:
        wrong.append(f"message {n} went to more than one that compete")
    for name in got:
        if not fits(name, n) or not perhaps[name].meet(span):
            wrong.append(f"message {n} has a job for {name}, which it does not fit or which was not there")
    return wrong


def _standing(events: Iterable[Mapping[str, Any]]) -> tuple[dict[str, Spans], dict[str, Spans]]:
    """When each subscription was there for sure, and when it may have been."""
    surely: dict[str, list[Span]] = defaultdict(list)
    perhaps: dict[str, list[Span]] = defaultdict(list)
    open_: dict[str, Mapping[str, Any]] = {}
    for event in sorted((e for e in events if e["event"] in ("subscribed", "unsubscribed")), key=lambda e: e["at"]):
        name = event["name"]
        if event["event"] == "subscribed":
            open_[name] = event
        else:
            made = open_.pop(name)
            surely[name].append(Span(made["at"], event["began"]))
            perhaps[name].append(Span(made["began"], event["at"]))
    for name, made in open_.items():
        surely[name].append(Span(made["at"], float("inf")))
        perhaps[name].append(Span(made["began"], float("inf")))
    for name in STANDING:
        surely[name] = perhaps[name] = [Span(float("-inf"), float("inf"))]
    return {name: Spans(surely[name]) for name in NAMES}, {name: Spans(perhaps[name]) for name in NAMES}
