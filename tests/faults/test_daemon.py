"""A deployment of Dagster with a daemon, a code server and runs, all of which are killed: each job's effect is there once.

Two queues of 16 buckets are worked off at the same time, one under leases and one in transactions. At each hand-over
between a tick and the end of its run somebody is caught at a gate, and killed there.
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest

from dagster_sqlqueue import QueueSpec
from tests.faults import aftermath
from tests.faults.deployment import Deployment
from tests.faults.location import BOOKED, LEASED, LETHAL, MIDDLE
from tests.gate.patience import FULL, PATIENCE, sized
from tests.gate.plugin import note_figures
from tests.support import OwnServer, Work, rows, until, value

JOBS = 20_000
PORTION = 1_600
FEW = 100
POINTS = {
    "leased.reserved", "booked.reserved", "submitting", "queued", "launching", "loading", "booked.opened",
    "leased.claiming", "booked.claiming", "leased.handling", "booked.handling", "leased.ending", "leased.ended",
    "leased.drained", "booked.drained", "leased.finished", "booked.finished", "daemon, idle", "code server, a run loads",
    "code server, runs work", "database, in a batch", "database, between batches", "database, a tick reads",
}  # fmt: skip
"""Where something is killed, or crashed."""


@pytest.fixture
def deployed(tmp_path: Path, server: OwnServer, request: pytest.FixtureRequest) -> Iterator[Deployment]:
    made = Deployment(tmp_path, server, **getattr(request, "param", {}))
    try:
        yield made
    finally:
        made.end()


disturbed = pytest.mark.parametrize("deployed", [{"gives_up": True}], indirect=True, ids=["disturbed"])
"""Leases run out, and runs that never start are given up after as long."""

undisturbed = pytest.mark.parametrize(
    "deployed", [{"SQLQUEUE_FAULTS_LEASE": "600"}], indirect=True, ids=["undisturbed"]
)
"""No lease runs out, however long a process is not given the processor."""


@undisturbed
@pytest.mark.timeout(1_200)
def test_a_daemon_and_runs_that_are_killed_leave_each_effect_once(deployed: Deployment) -> None:
    """What a killed run held is given back by the sensors that clean up: no lease has to run out."""
    d = deployed
    d.start_code_server()
    d.gates.arm(*sized([], ["submitting"]), "leased.handling", "booked.handling")
    for spec in (LEASED, BOOKED):
        d.enqueue(spec, 2 * FEW)
    d.start_daemon()
    if FULL:
        # The cursor is written, and none of the tick's runs is submitted.
        d.gates.wait("submitting")
        with d.daemon_killed("submitting"):
            for spec in (LEASED, BOOKED):
                d.enqueue(spec, FEW)
    d.kill_run("leased.handling")
    d.kill_run("booked.handling")
    d.drained()
    note(d)
    assert aftermath.wrong(d) == []
    assert aftermath.shared(d) == []
    assert aftermath.never_made(d) == []


@pytest.mark.prove
@pytest.mark.parametrize(
    "deployed",
    [{"SQLQUEUE_FAULTS_LEASE": "600", "SQLQUEUE_FAULTS_CLEANUP": "no"}],
    indirect=True,
    ids=["undisturbed, no cleanup"],
)
@pytest.mark.timeout(1_200)
def test_a_slot_ends_with_its_run_without_any_other_sensor(deployed: Deployment) -> None:
    """Slots would expire ten minutes later. What a killed run has leased waits for the leases, and all else for nothing;
    no more do the buckets of a run that was killed before it took a job.
    """
    d = deployed
    d.start_code_server()
    d.gates.arm("leased.handling", "loading")
    d.enqueue(LEASED, 3 * FEW)
    d.start_daemon()
    d.kill_run("loading")
    killed = d.kill_run("leased.handling")
    held = "SELECT count(*) FROM {s}.job WHERE claimed_by = 'run/' || %s AND state = 'running'"
    until(lambda: d.live() == value(d.queue, held, killed), "the end of what the killed run did not hold", 3 * PATIENCE)
    assert d.live() > 0
    rows(d.queue, "UPDATE {s}.job SET available_at = now() WHERE claimed_by = 'run/' || %s", killed)
    d.drained()
    assert aftermath.wrong(d) == []
    assert aftermath.never_made(d) == []


@pytest.mark.prove
@pytest.mark.parametrize(
    "deployed",
    [{"SQLQUEUE_FAULTS_LEASE": "60", "SQLQUEUE_FAULTS_CLEANUP": "no"}],
    indirect=True,
    ids=["usual lease, no cleanup"],
)
@pytest.mark.timeout(2_400)
def test_the_jobs_of_a_killed_run_wait_for_its_lease_and_not_for_its_slot(deployed: Deployment) -> None:
    """With the lease that a queue has unless it says otherwise. How long they waited after it is a figure."""
    d = deployed
    d.start_code_server()
    d.start_daemon()
    for _ in range(3):
        d.gates.arm("leased.handling")
        d.enqueue(LEASED, 3 * FEW)
        d.kill_run("leased.handling")
        d.drained()
    assert aftermath.wrong(d) == []
    orphans = [wait.seconds for wait in aftermath.waits(d) if wait.orphan]
    assert orphans
    note_figures(seconds_of_the_longest_wait_after_a_lease=round(max(orphans), 1))


@pytest.mark.prove
@disturbed
@pytest.mark.timeout(2_400)
def test_whatever_is_killed_each_effect_is_there_once(deployed: Deployment) -> None:
    d = deployed
    d.start_code_server()
    between_a_tick_and_its_runs(d)
    before_the_first_claim(d)
    with_the_code_server_away(d)
    with_the_database_away(d)
    while_a_tick_reads(d)
    while_nothing_is_to_be_done(d)

    note(d)
    assert aftermath.wrong(d) == []
    assert aftermath.shared(d) == []
    assert aftermath.never_made(d) == []
    assert d.enqueued == JOBS
    kills = [one.point for one in d.disturbances if one.kill]
    assert set(kills) == POINTS
    assert len(kills) >= 20

    assert {wait.orphan for wait in aftermath.waits(d)} == {True, False}


def note(d: Deployment) -> None:
    """Note the figures; among them how long buckets with due jobs waited, whatever was killed, beside the bound of it."""
    note_figures(
        kills=sum(one.kill for one in d.disturbances),
        jobs=d.enqueued,
        seconds_of_the_longest_wait=round(max((wait.seconds for wait in aftermath.waits(d)), default=0.0), 1),
        seconds_of_a_lease_two_ticks_and_the_slowest_start=round(aftermath.bound(d), 1),
        seconds_of_the_slowest_start=round(aftermath.slowest_start(d), 1),
    )


def between_a_tick_and_its_runs(d: Deployment) -> None:
    d.gates.arm("leased.reserved")
    d.enqueue(LEASED, PORTION)
    d.start_daemon()
    d.gates.wait("leased.reserved")
    with d.daemon_killed("leased.reserved"):
        d.gates.arm("submitting")
        d.enqueue(BOOKED, PORTION)
    # The cursor is written, and neither of the two runs is submitted.
    d.gates.wait("submitting")
    with d.daemon_killed("submitting"):
        d.configure(runs=0)
    queued = dg.RunsFilter(job_name="drain_booked", statuses=[dg.DagsterRunStatus.QUEUED])
    until(lambda: len(d.instance.get_runs(queued)) == 2, "the runs of the tick that was interrupted", 2 * PATIENCE)
    d.gates.arm("loading", "booked.handling")
    with d.daemon_killed("queued"):
        d.configure()
    d.kill_run("loading")
    d.kill_run("booked.handling")
    d.drained()


def before_the_first_claim(d: Deployment) -> None:
    d.gates.arm("launching", "leased.ended")
    d.enqueue(LEASED, PORTION)
    d.gates.wait("launching")
    d.gates.arm("booked.opened", "booked.claiming")
    with d.daemon_killed("launching"):
        d.enqueue(BOOKED, PORTION)
    d.kill_run("leased.ended")
    d.kill_run("booked.opened")
    d.kill_run("booked.claiming")
    d.drained()


def with_the_code_server_away(d: Deployment) -> None:
    d.gates.arm("loading", "leased.drained", "booked.drained")
    d.enqueue(LEASED, PORTION)
    d.enqueue(BOOKED, PORTION)
    d.gates.wait("loading")
    with d.code_server_killed("code server, a run loads"):
        d.let_go("loading")
    # Nobody notices the death of a run whose code server is another one by now.
    d.kill_run("leased.drained")
    d.kill_run("booked.drained")
    d.drained()


def with_the_database_away(d: Deployment) -> None:
    d.gates.arm("leased.handling", "booked.handling")
    d.enqueue(LEASED, PORTION)
    d.enqueue(BOOKED, PORTION)
    d.gates.wait("leased.handling")
    d.gates.wait("booked.handling")
    d.gates.arm("leased.ending", "booked.ended", "leased.finished", "booked.finished")
    d.crash_database("database, in a batch")
    d.let_go("leased.handling")
    d.let_go("booked.handling")
    d.gates.wait("leased.ending")
    d.gates.wait("booked.ended")
    d.crash_database("database, between batches")
    with d.code_server_killed("code server, runs work"):
        d.kill_run("leased.ending")
        d.let_go("booked.ended")
    d.kill_run("leased.finished")
    d.kill_run("booked.finished")
    d.drained()


def while_a_tick_reads(d: Deployment) -> None:
    d.gates.arm("leased.reading")
    d.gates.wait("leased.reading")
    d.crash_database("database, a tick reads")
    d.let_go("leased.reading")
    d.gates.arm("booked.reserved")
    d.enqueue(BOOKED, PORTION)
    d.gates.wait("booked.reserved")
    with d.code_server_killed("booked.reserved"):
        d.gates.arm("leased.claiming", "leased.handling")
    d.enqueue(LEASED, PORTION)
    d.kill_run("leased.claiming")
    d.kill_run("leased.handling")
    d.drained()


def while_nothing_is_to_be_done(d: Deployment) -> None:
    with d.daemon_killed("daemon, idle"):
        for spec in (LEASED, BOOKED):
            d.enqueue(spec, JOBS // 2 - 5 * PORTION)
    d.drained()


@pytest.mark.prove
@undisturbed
@pytest.mark.timeout(1_200)
def test_two_daemons_by_mistake_do_nothing_twice(deployed: Deployment) -> None:
    d = deployed
    d.start_code_server()
    daemons = [d.start_daemon() for _ in range(2)]
    for round_ in range(1, 6):
        d.enqueue(LEASED, 300)
        d.enqueue(BOOKED, 300)
        until(lambda: min(d.ticks(daemon) for daemon in daemons) >= 4 * round_, "ticks of both daemons", 2 * PATIENCE)  # noqa: B023
    d.drained()
    assert aftermath.wrong(d) == []
    assert aftermath.shared(d) == []
    assert aftermath.never_made(d) == []


@pytest.mark.prove
@undisturbed
@pytest.mark.timeout(1_200)
def test_a_run_that_is_cancelled_gives_its_jobs_back_at_once(deployed: Deployment) -> None:
    d = deployed
    d.start_code_server()
    d.start_daemon()
    d.gates.arm("leased.handling", "booked.handling")
    d.enqueue(LEASED, PORTION)
    d.enqueue(BOOKED, PORTION)
    for name in ("leased", "booked"):
        assert d.cancel_run(f"{name}.handling") == dg.DagsterRunStatus.CANCELED
    d.drained()
    assert aftermath.wrong(d) == []
    # No lease had to run out.
    assert not any(wait.orphan for wait in aftermath.waits(d))


@pytest.mark.prove
@pytest.mark.parametrize("spec", [LEASED, BOOKED], ids=["leased", "booked"])
@undisturbed
@pytest.mark.timeout(1_200)
def test_a_job_that_kills_its_run_dies_alone(deployed: Deployment, spec: QueueSpec[Work]) -> None:
    """Runs that the sensor requested: one dies with everything in hand, and the next ones with the culprit only."""
    d = deployed
    d.start_code_server()
    d.enqueue(spec, 50, lethal=17, max_attempts=3)
    d.start_daemon()
    d.drained()
    ended = rows(d.queue, "SELECT payload ->> 'note', state, attempt, count(*) FROM {s}.job_archive GROUP BY 1, 2, 3")
    assert sorted(ended) == [("", "succeeded", 1, 49), (LETHAL, "failed", 3, 1)]
    (letter,) = d.queue.dead_letters(spec.name)
    assert "its consumer died" in (letter.error or "")
    begun = Counter(event["id"] for history in d.histories() for event in history if event["event"] == "handled")
    # Once among the others, and three times by itself.
    assert begun[str(letter.id)] == 4
    died = d.instance.get_runs(dg.RunsFilter(statuses=[dg.DagsterRunStatus.FAILURE]))
    note_figures(runs_that_died=len(died))
    assert len(died) == 4
    if spec is BOOKED:
        assert value(d.queue, "SELECT count(*) = 49 AND count(DISTINCT job) = 49 FROM {s}.effect")
    assert aftermath.shared(d) == []
    assert aftermath.never_made(d) == []


@pytest.mark.prove
def test_an_effect_outside_of_the_transaction_is_seen(tmp_path: Path, server: OwnServer) -> None:
    d = Deployment(tmp_path, server, SQLQUEUE_FAULTS_PLANT="an effect outside of the transaction")
    try:
        d.enqueue(BOOKED, 100)
        d.gates.arm("booked.handling")
        d.start_run("booked")
        d.kill_run("booked.handling")
        assert d.start_run("booked").wait(PATIENCE) == 0
        assert aftermath.wrong(d) == [f"{MIDDLE} effects are there beyond the one of each job"]
    finally:
        d.end()


@pytest.mark.prove
def test_a_bucket_in_two_slots_is_seen(deployed: Deployment) -> None:
    reserve = """
        INSERT INTO {s}.consumer_slot (queue, sensor, slot, token, buckets, expires_at)
        VALUES ('leased', 'leased_sensor', %s, gen_random_uuid(), %s, now() + interval '1 minute')
    """
    rows(deployed.queue, reserve, 0, [0, 1])
    rows(deployed.queue, reserve, 1, [2, 3])
    assert aftermath.shared(deployed) == []
    rows(deployed.queue, reserve, 2, [3, 4])
    (seen,) = aftermath.shared(deployed)
    assert seen.startswith("slots 1 and 2 of leased covered [3]")
