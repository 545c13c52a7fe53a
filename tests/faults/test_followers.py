"""Submitters who race for the same keys and are killed, and groups whose consumers are: everybody is notified, and once."""

import contextlib
import itertools
import random
import signal
from pathlib import Path

import pytest
from uuid_utils.compat import uuid7

from dagster_sqlqueue import Mode, QueueSpec
from dagster_sqlqueue.followers import Callback, GroupEnded, Groups, JobEnded
from tests.faults.conftest import LINGER, RACE, WORKED_OFF, Fleet
from tests.faults.followed import PLANTS, THREADS, Fill, Submit, judge, judge_groups, left_in_doubt
from tests.gate.patience import FULL, PATIENCE, sized
from tests.support import rows, until, value

KEYS = sized(150, 1_000)
PROCESSES = sized(4, 16)
KILLS = sized(3, 6)
SEED = 7


def verdict(fleet: Fleet, *, once: bool) -> list[str]:
    """What went wrong, by the histories and the database."""
    called = rows(
        fleet.queue,
        "SELECT payload ->> 'submitted_id', payload ->> 'job_id', payload ->> 'unique_key'"
        " FROM {s}.job WHERE queue = 'ended'",
    )
    ended = rows(fleet.queue, "SELECT CAST(id AS text), unique_key FROM {s}.job_archive WHERE queue = 'work'")
    histories = [fleet.read(history) for history in fleet.processes]
    return judge(histories, called, ended, once=once)  # type: ignore[arg-type]


def live(fleet: Fleet) -> int:
    return int(value(fleet.queue, "SELECT count(*) FROM {s}.job WHERE queue = 'work'"))


def joined(fleet: Fleet, submitter: Path) -> int:
    """How many of a submitter's jobs became others'."""
    return sum(id != job for note in fleet.read(submitter, "sent") for id, job in note["jobs"])


def ended(fleet: Fleet, submitter: Path) -> bool:
    """Whether all has ended of what a submitter knows to be on the queue."""
    jobs = [job for note in fleet.read(submitter, "sent") for _, job in note["jobs"]]
    return not value(fleet.queue, "SELECT count(*) FROM {s}.job WHERE id = ANY (CAST(%s AS uuid[]))", jobs)


def race(
    fleet: Fleet,
    go: Path,
    *,
    keys: int,
    most: int,
    processes: int,
    kills: int,
    plant: str | None = None,
    late: bool = False,
) -> list[Path]:
    """Submitters of all keys, some of them killed; of what is in doubt, two of three are sent again. `late`: they are killed
    when some of what they sent was merged, and it is sent again when that has ended. Gives who is left.
    """
    luck = random.Random(SEED)
    alive = [
        fleet.start(Submit(), jobs=keys, batch_size=most, seed=number, go=go, plant=plant)
        for number in range(processes)
    ]
    fleet.ready(alive)
    go.touch()
    for number in range(kills):
        victim = alive.pop(0)
        target = len(fleet.read(victim, "sending")) + luck.randint(2, 8)
        until(
            lambda: (
                (len(fleet.read(victim, "sending")) >= target and (not late or joined(fleet, victim) > 20))  # noqa: B023
                or fleet.read(victim, "done")  # noqa: B023
            )
        )
        if not fleet.read(victim, "done"):
            with contextlib.suppress(ProcessLookupError):  # it ended by itself meanwhile
                fleet.signal(victim, signal.SIGKILL)
        fleet.processes[victim].join(PATIENCE)
        if number % 3:
            if late:
                until(lambda: ended(fleet, victim), "the end of what was sent")  # noqa: B023
            alive.append(fleet.start(Submit(victim), jobs=keys, batch_size=most, seed=100 + number, plant=plant))
    return alive


def test_64_submitters_of_1000_keys_are_all_notified_of_one_run_each(fleet: Fleet, tmp_path: Path) -> None:
    fleet.queue.create_queue(QueueSpec("ended", JobEnded))
    race(fleet, tmp_path / "go", keys=KEYS, most=sized(60, 200), processes=PROCESSES, kills=KILLS)
    fleet.join()
    assert live(fleet) == KEYS
    for _ in range(2):
        fleet.start(batch_size=50)
    fleet.join()
    assert live(fleet) == 0
    in_doubt = sum(len(left_in_doubt(fleet.read(history))) for history in fleet.processes)
    fleet.note(submitters=PROCESSES * THREADS, keys=KEYS, batches_in_doubt=in_doubt, seed=SEED)
    assert verdict(fleet, once=True) == []
    answered = sum(len(note["jobs"]) for note in fleet.all("sent"))
    without_heirs = len(range(0, KILLS, 3))
    assert answered >= (PROCESSES - without_heirs) * THREADS * KEYS
    if FULL:
        assert in_doubt > 0


def race_consumers(fleet: Fleet, go: Path, *, keys: int, kills: int, plant: str | None = None) -> list[str]:
    """The same while consumers end what is there, and are killed too: a key is run more than once then."""
    fleet.queue.create_queue(QueueSpec("ended", JobEnded))
    consumers = [fleet.start(lease_seconds=1.0, batch_size=20, linger_seconds=LINGER) for _ in range(3)]
    fleet.ready(consumers)
    submitters = race(fleet, go, keys=keys, most=40, processes=4, kills=kills, plant=plant, late=bool(plant))
    for _ in range(kills):
        fleet.kill(consumers.pop(0))
        consumers.append(fleet.start(lease_seconds=1.0, batch_size=20, linger_seconds=LINGER))
        fleet.ready(consumers)
    until(lambda: all(fleet.read(history, "done") for history in submitters), "the end of the submitters", WORKED_OFF)
    until(lambda: live(fleet) == 0, "the end of the last job", WORKED_OFF)
    fleet.dismiss(consumers)
    return verdict(fleet, once=False)


def test_submitters_and_consumers_who_are_killed(fleet: Fleet, tmp_path: Path) -> None:
    found = race_consumers(fleet, tmp_path / "go", keys=sized(60, 300), kills=sized(2, 5))
    merged = [id != job for note in fleet.all("sent") for id, job in note["jobs"]]
    fleet.note(merged=merged.count(True), not_merged=merged.count(False), seed=SEED)
    assert found == []
    if FULL:
        # All of what the judgement is about did happen.
        assert min(merged.count(True), merged.count(False)) > 50
        assert value(fleet.queue, "SELECT count(DISTINCT unique_key) < count(*) FROM {s}.job_archive")


WITHOUT_A_RACE = "a job that is not always marked"


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.prove if name == WITHOUT_A_RACE else RACE)
        for name in ("a follower who does not lock and a merge that does not lock", *list(PLANTS)[2:])
    ],
)
def test_the_judgement_finds(fleet: Fleet, tmp_path: Path, name: str) -> None:
    """A bug that is put into the submitters' statements is seen."""
    kills = sized(0, 3) if name == WITHOUT_A_RACE else 3
    assert race_consumers(fleet, tmp_path / "go", keys=100, kills=kills, plant=name) != []


CLOSES_AT = sized(2, 3)
"""At this kill a group is closed; as many come after it."""


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
            lease_seconds=1.0, batch_size=20, linger_seconds=LINGER, mode=mode, outcomes="failing", seed=number
        )

    rows(fleet.queue, "CREATE TABLE {s}.effect (job uuid PRIMARY KEY)")
    consumers = [consumer() for _ in range(3)]
    fleet.ready([*fillers, *consumers])
    for number in range(2 * CLOSES_AT):
        target = len(fleet.all("filled")) + sized(3, 8)
        until(lambda: len(fleet.all("filled")) >= target)  # noqa: B023
        fleet.kill(consumers.pop(0))
        consumers.append(consumer())
        if number % 3 == 0:
            fleet.kill(fillers.pop(0))
            fillers.append(fleet.start(Fill(ids), seed=100 + number))
        fleet.ready([*fillers, *consumers])
        if number == CLOSES_AT:
            groups.close(ids[0])
    until(
        lambda: min(len(fleet.all("undone")), len(fleet.all("late"))) >= sized(2, 5),
        "what was undone, and what came late",
    )
    for history in fillers:
        fleet.signal(history, signal.SIGTERM)
        fleet.processes[history].join(PATIENCE)
    for group in ids:
        groups.close(group)
    until(lambda: live(fleet) == 0, "the end of the last job", WORKED_OFF)
    fleet.dismiss(consumers)
    fleet.note(groups=len(ids))

    called = [row[0] for row in rows(fleet.queue, "SELECT payload FROM {s}.job WHERE queue = 'ended'")]
    states = rows(fleet.queue, "SELECT CAST(id AS text), state FROM {s}.job_archive WHERE queue = 'work'")
    histories = [fleet.read(history) for history in fleet.processes]
    assert judge_groups(histories, called, dict(states), ids) == []
    assert {state for _, state in states} == {"succeeded", "failed"}
    assert value(fleet.queue, "SELECT count(*) FROM {s}.group_tally") == 0


NOTES = [
    {"event": "sending", "of": 0, "jobs": [["a", "k1"], ["b", "k2"]]},
    {"event": "sent", "of": 0, "jobs": [["a", "a"], ["b", "x"]]},
    {"event": "sending", "of": 0, "jobs": [["c", "k1"], ["d", "k2"]]},
    {"event": "handled", "id": "a"},
    {"event": "handled", "id": "x"},
]
CALLED = [("a", "a", "k1"), ("b", "x", "k2")]
ENDED = [("a", "k1"), ("x", "k2")]
DOUBT = [("c", "a", "k1"), ("d", "x", "k2")]


def test_a_good_race_passes() -> None:
    assert judge([NOTES], CALLED, ENDED, once=True) == []
    assert judge([NOTES], CALLED + DOUBT, ENDED, once=True) == []


def test_a_bad_race_is_found() -> None:
    twice = [*NOTES, {"event": "handled", "id": "a"}]
    for notes, called, ended, why in (
        (NOTES, CALLED[1:], ENDED, "a was answered, and notified 0 times"),
        (NOTES, CALLED * 2, ENDED, "a was answered, and notified 2 times"),
        (NOTES, CALLED + DOUBT * 2, ENDED, "c was notified 2 times"),
        (NOTES, CALLED + DOUBT[:1], ENDED, "some were enqueued"),
        (NOTES, [*CALLED, ("e", "a", "k1")], ENDED, "nobody had sent e"),
        (NOTES, [CALLED[0], ("b", "a", "k1")], ENDED, "and had joined x"),
        (NOTES, CALLED, ENDED[:1], "and had joined x"),
        (NOTES, CALLED[:1], ENDED[:1], "job x of b never ended"),
        (NOTES, CALLED, ENDED * 2, "ended 2 times"),
        (NOTES, CALLED, [*ENDED, ("y", "k2")], "k2 was run 2 times"),
        (twice, CALLED, ENDED, "job a was handled 2 times"),
    ):
        assert any(why in found for found in judge([notes], called, ended, once=True)), why


def test_a_bad_group_is_found() -> None:
    (group,) = ids = [uuid7()]
    filled = [{"event": kind, "group": str(group), "ids": ["a", "b"]} for kind in ("filling", "filled")]
    undone = [{"event": kind, "group": str(group), "ids": ["c"]} for kind in ("filling", "undone")]
    call = {"group_id": str(group), "members": 2, "succeeded": 1, "failed": 1, "cancelled": 0}
    ends = {"a": "succeeded", "b": "failed"}
    assert judge_groups([filled, undone], [call], ends, ids) == []
    for notes, called, ended, why in (
        (filled, [], ends, "was notified 0 times"),
        (filled, [call, call], ends, "was notified 2 times"),
        (filled, [{**call, "failed": 0, "succeeded": 2}], ends, "and its jobs ended as"),
        (filled, [{**call, "members": 3}], ends, "and its jobs ended as"),
        (filled, [call], {"a": "succeeded"}, "some were enqueued"),
        (filled, [call], {}, "never ended"),
        (undone, [call], {**ends, "c": "failed"}, "were undone or too late, and ended"),
    ):
        assert any(why in found for found in judge_groups([notes], called, ended, ids)), why
