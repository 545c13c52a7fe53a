"""Submitters who race for the same keys and are killed, and groups whose consumers are: everybody is told, and told once."""

import itertools
import random
import signal
from pathlib import Path

import pytest
from uuid_utils.compat import uuid7

from dagster_sqlqueue import Mode, QueueSpec
from dagster_sqlqueue.followers import Callback, GroupEnded, Groups, JobEnded
from tests.core.support import rows, until, value
from tests.faults.conftest import Fleet
from tests.faults.followed import PLANTS, THREADS, Fill, Submit, judge, judge_groups, left_in_doubt

KEYS = 1_000
PROCESSES = 16


def verdict(fleet: Fleet, *, once: bool) -> list[str]:
    """What went wrong, by the histories and the database."""
    told = rows(
        fleet.queue,
        "SELECT payload ->> 'submitted_id', payload ->> 'job_id', payload ->> 'unique_key'"
        " FROM {s}.job WHERE queue = 'ended'",
    )
    ended = rows(fleet.queue, "SELECT CAST(id AS text), unique_key FROM {s}.job_archive WHERE queue = 'work'")
    histories = [fleet.read(history) for history in fleet.processes]
    return judge(histories, told, ended, once=once)  # type: ignore[arg-type]


def live(fleet: Fleet) -> int:
    return int(value(fleet.queue, "SELECT count(*) FROM {s}.job WHERE queue = 'work'"))


def race(
    fleet: Fleet, go: Path, *, keys: int, most: int, processes: int, kills: int, plant: str | None = None
) -> list[Path]:
    """Submitters of all keys, some of them killed; of what is in doubt, two of three are sent again. Gives who is left."""
    luck = random.Random(7)
    alive = [
        fleet.start(Submit(), jobs=keys, batch_size=most, seed=number, go=go, plant=plant)
        for number in range(processes)
    ]
    fleet.ready(alive)
    go.touch()
    for number in range(kills):
        victim = alive.pop(0)
        target = len(fleet.read(victim, "sending")) + luck.randint(2, 8)
        until(lambda: len(fleet.read(victim, "sending")) >= target or fleet.read(victim, "done"))  # noqa: B023
        if not fleet.read(victim, "done"):
            fleet.signal(victim, signal.SIGKILL)
        fleet.processes[victim].join(20)
        if number % 3:
            alive.append(fleet.start(Submit(victim), jobs=keys, batch_size=most, seed=100 + number, plant=plant))
    return alive


def test_64_submitters_of_1000_keys_are_all_told_of_one_run_each(fleet: Fleet, tmp_path: Path) -> None:
    fleet.queue.create_queue(QueueSpec("ended", JobEnded))
    race(fleet, tmp_path / "go", keys=KEYS, most=200, processes=PROCESSES, kills=6)
    fleet.join()
    assert live(fleet) == KEYS
    for _ in range(2):
        fleet.start(batch_size=50)
    fleet.join()
    assert live(fleet) == 0
    assert verdict(fleet, once=True) == []
    answered = sum(len(note["jobs"]) for note in fleet.all("sent"))
    assert answered >= (PROCESSES - 4) * THREADS * KEYS
    assert any(left_in_doubt(fleet.read(history)) for history in fleet.processes)


def race_consumers(fleet: Fleet, go: Path, *, keys: int, kills: int, plant: str | None = None) -> list[str]:
    """The same while consumers end what is there, and are killed too: a key is run more than once then."""
    fleet.queue.create_queue(QueueSpec("ended", JobEnded))
    consumers = [fleet.start(lease_seconds=1.0, batch_size=20, linger_seconds=60.0) for _ in range(3)]
    fleet.ready(consumers)
    submitters = race(fleet, go, keys=keys, most=40, processes=4, kills=kills, plant=plant)
    for _ in range(kills):
        fleet.kill(consumers.pop(0))
        consumers.append(fleet.start(lease_seconds=1.0, batch_size=20, linger_seconds=60.0))
        fleet.ready(consumers)
    until(lambda: all(fleet.read(history, "done") for history in submitters), "the end of the submitters", 60)
    until(lambda: live(fleet) == 0, "the end of the last job", 60)
    fleet.dismiss(consumers)
    return verdict(fleet, once=False)


def test_submitters_and_consumers_who_are_killed(fleet: Fleet, tmp_path: Path) -> None:
    assert race_consumers(fleet, tmp_path / "go", keys=300, kills=5) == []
    # All of what the judgement is about did happen.
    joined = [id != job for note in fleet.all("sent") for id, job in note["jobs"]]
    assert min(joined.count(True), joined.count(False)) > 50
    assert value(fleet.queue, "SELECT count(DISTINCT unique_key) < count(*) FROM {s}.job_archive")


@pytest.mark.parametrize("name", ["a follower who does not lock and a merge that does not lock", *list(PLANTS)[2:]])
def test_the_judgement_finds(fleet: Fleet, tmp_path: Path, name: str) -> None:
    """A bug that is put into the submitters' statements is seen."""
    assert race_consumers(fleet, tmp_path / "go", keys=100, kills=3, plant=name) != []


def test_groups_whose_fillers_and_consumers_are_killed(fleet: Fleet) -> None:
    fleet.queue.create_queue(QueueSpec("ended", GroupEnded))
    groups = Groups(fleet.queue)
    ids = [groups.open(Callback("ended")) for _ in range(4)]
    fillers = [fleet.start(Fill(ids), seed=number) for number in range(3)]
    lives = itertools.count()

    def consumer() -> Path:
        number = next(lives)
        mode = Mode.TRANSACTIONAL if number % 2 else Mode.LEASED
        return fleet.start(
            lease_seconds=1.0, batch_size=20, linger_seconds=60.0, mode=mode, outcomes="failing", seed=number
        )

    rows(fleet.queue, "CREATE TABLE {s}.effect (job uuid PRIMARY KEY)")
    consumers = [consumer() for _ in range(3)]
    fleet.ready([*fillers, *consumers])
    for number in range(6):
        target = len(fleet.all("filled")) + 8
        until(lambda: len(fleet.all("filled")) >= target)  # noqa: B023
        fleet.kill(consumers.pop(0))
        consumers.append(consumer())
        if number % 3 == 0:
            fleet.kill(fillers.pop(0))
            fillers.append(fleet.start(Fill(ids), seed=100 + number))
        fleet.ready([*fillers, *consumers])
        if number == 3:
            groups.close(ids[0])
    for history in fillers:
        fleet.signal(history, signal.SIGTERM)
        fleet.processes[history].join(20)
    for group in ids:
        groups.close(group)
    until(lambda: live(fleet) == 0, "the end of the last job", 60)
    fleet.dismiss(consumers)

    told = [row[0] for row in rows(fleet.queue, "SELECT payload FROM {s}.job WHERE queue = 'ended'")]
    states = rows(fleet.queue, "SELECT CAST(id AS text), state FROM {s}.job_archive WHERE queue = 'work'")
    histories = [fleet.read(history) for history in fleet.processes]
    assert judge_groups(histories, told, dict(states), ids) == []
    assert {state for _, state in states} == {"succeeded", "failed"}
    assert min(len(fleet.all("undone")), len(fleet.all("late"))) >= 5
    assert value(fleet.queue, "SELECT count(*) FROM {s}.group_tally") == 0


NOTES = [
    {"event": "sending", "of": 0, "jobs": [["a", "k1"], ["b", "k2"]]},
    {"event": "sent", "of": 0, "jobs": [["a", "a"], ["b", "x"]]},
    {"event": "sending", "of": 0, "jobs": [["c", "k1"], ["d", "k2"]]},
    {"event": "handled", "id": "a"},
    {"event": "handled", "id": "x"},
]
TOLD = [("a", "a", "k1"), ("b", "x", "k2")]
ENDED = [("a", "k1"), ("x", "k2")]
DOUBT = [("c", "a", "k1"), ("d", "x", "k2")]


def test_a_good_race_passes() -> None:
    assert judge([NOTES], TOLD, ENDED, once=True) == []
    assert judge([NOTES], TOLD + DOUBT, ENDED, once=True) == []


def test_a_bad_race_is_told() -> None:
    twice = [*NOTES, {"event": "handled", "id": "a"}]
    for notes, told, ended, why in (
        (NOTES, TOLD[1:], ENDED, "a was answered, and told 0 times"),
        (NOTES, TOLD * 2, ENDED, "a was answered, and told 2 times"),
        (NOTES, TOLD + DOUBT * 2, ENDED, "c was told 2 times"),
        (NOTES, TOLD + DOUBT[:1], ENDED, "some were enqueued"),
        (NOTES, [*TOLD, ("e", "a", "k1")], ENDED, "nobody had sent e"),
        (NOTES, [TOLD[0], ("b", "a", "k1")], ENDED, "and had joined x"),
        (NOTES, TOLD, ENDED[:1], "and had joined x"),
        (NOTES, TOLD[:1], ENDED[:1], "job x of b never ended"),
        (NOTES, TOLD, ENDED * 2, "ended 2 times"),
        (NOTES, TOLD, [*ENDED, ("y", "k2")], "k2 was run 2 times"),
        (twice, TOLD, ENDED, "job a was handled 2 times"),
    ):
        assert any(why in found for found in judge([notes], told, ended, once=True)), why


def test_a_bad_group_is_told() -> None:
    (group,) = ids = [uuid7()]
    filled = [{"event": kind, "group": str(group), "ids": ["a", "b"]} for kind in ("filling", "filled")]
    undone = [{"event": kind, "group": str(group), "ids": ["c"]} for kind in ("filling", "undone")]
    call = {"group_id": str(group), "members": 2, "succeeded": 1, "failed": 1, "cancelled": 0}
    ends = {"a": "succeeded", "b": "failed"}
    assert judge_groups([filled, undone], [call], ends, ids) == []
    for notes, told, ended, why in (
        (filled, [], ends, "was told 0 times"),
        (filled, [call, call], ends, "was told 2 times"),
        (filled, [{**call, "failed": 0, "succeeded": 2}], ends, "and its jobs ended as"),
        (filled, [{**call, "members": 3}], ends, "and its jobs ended as"),
        (filled, [call], {"a": "succeeded"}, "some were enqueued"),
        (filled, [call], {}, "never ended"),
        (undone, [call], {**ends, "c": "failed"}, "were undone or too late, and ended"),
    ):
        assert any(why in found for found in judge_groups([notes], told, ended, ids)), why
