"""Groups joined: for each that has ended a sensor runs its job until that has succeeded once."""

import contextlib
import dataclasses
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.events import PIPELINE_RUN_STATUS_TO_EVENT_TYPE, DagsterEvent

from dagster_sqlqueue import SqlQueue, versioned
from dagster_sqlqueue.errors import DatabaseUnavailable, InvalidInput
from dagster_sqlqueue.followers import GroupEnded, Groups
from dagster_sqlqueue.orchestration import (
    await_group,
    build_group_sensor,
)
from dagster_sqlqueue.queue.selection import Selection
from tests.gate.patience import PATIENCE
from tests.orchestration.group_support import JOINS, Joining, ended_group
from tests.orchestration.support import WORK, Deployment
from tests.support import rows, until

pytestmark = pytest.mark.usefixtures("joins")


PROJECT = Path(__file__).resolve().parents[2]


@contextlib.contextmanager
def worker(url: str, schema: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.orchestration.group_worker", url, schema, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=PROJECT,
        env={**os.environ, "PYTHONPATH": str(PROJECT)},
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@contextlib.contextmanager
def worker_pair(url: str, schema: str, victim: subprocess.Popen[str]) -> Iterator[list[subprocess.Popen[str]]]:
    """Two workers that begin when the victim has jobs in hand."""
    assert victim.stdout is not None
    assert [victim.stdout.readline().strip() for _ in range(2)] == ["ready", "hangs"]
    with worker(url, schema, "one") as one, worker(url, schema, "other") as other:
        yield [one, other]


def test_a_thousand_jobs_worked_off_by_processes_of_which_one_is_killed_are_joined_once_and_whole(
    url: str, queue: SqlQueue, joining: Joining
) -> None:
    schema = queue.database.schema
    group = joining.fan_out()
    assert (group.enqueued, group.repeated) == (1000, False)
    requested: list[dg.RunRequest] = []
    with worker(url, schema, "victim", "hang") as victim, worker_pair(url, schema, victim) as others:
        assert Groups(queue).group(group.id).pending > 0
        assert joining.tick() == ([], "joins: no group has ended")
        victim.kill()
        victim.wait()
        ((held,),) = rows(queue, "SELECT count(*) FROM {s}.job WHERE state = 'running' AND claimed_by = 'victim'")
        assert held >= 1, "the one that was killed had jobs in hand"
        # Its leases run out.
        rows(queue, "UPDATE {s}.job SET available_at = now() - interval '1 s' WHERE claimed_by = 'victim'")
        ended = await_group(queue, group.id, timeout_seconds=PATIENCE)
        assert (ended.members, ended.succeeded, ended.failed) == (1000, 900, 100)
        requested += until(lambda: joining.tick()[0], "the request")
        for process in others:
            process.communicate()
            assert process.returncode == 0
    for _ in range(3):
        for request in requested[len(joining.seen) :]:
            assert joining.start(request).success
        joining.later()
        requested += joining.tick()[0]
    assert len(requested) == 1
    ((config, states),) = joining.seen
    assert states == {"succeeded": 900, "failed": 100}
    assert (config.members, config.succeeded, config.failed, config.cancelled) == (1000, 900, 100, 0)
    assert queue.depth("joins").live == 0
    assert queue.archived("joins", since_seconds=3_600) == {"succeeded": 1}


def test_a_run_that_fails_is_followed_by_another_until_the_dead_letter_and_on_after_a_redrive(
    queue: SqlQueue, joining: Joining
) -> None:
    joining.broken = True
    id = ended_group(queue)
    keys = []
    for attempt in range(JOINS.max_attempts):
        (request,), _ = joining.tick()
        keys.append(request.run_key)
        joining.later()
        assert not joining.start(request).success
        last = attempt == JOINS.max_attempts - 1
        assert joining.tick() == ([], "joins: 1 failed")
        assert len(queue.dead_letters("joins")) == last
    assert len(set(keys)) == len(keys)
    (letter,) = queue.dead_letters("joins")
    assert letter.error is not None
    assert f"of the group {id} ended as FAILURE" in letter.error
    joining.broken = False
    queue.redrive("joins", Selection(ids=(letter.id,)))
    (request,), _ = joining.tick()
    assert request.run_key not in keys
    joining.later()
    assert joining.start(request).success
    assert joining.tick() == ([], "joins: 1 joined")
    assert len(joining.seen) == 1
    assert queue.depth("joins").live == 0


def test_while_a_run_is_on_its_way_there_is_no_other(queue: SqlQueue, joining: Joining) -> None:
    ended_group(queue)
    (first,), _ = joining.tick()
    joining.later()
    # The daemon died before it submitted the run: the same is requested, under the same key.
    (again,), _ = joining.tick()
    assert again == first
    run = joining.instance.create_run_for_job(joining.job, run_config=first.run_config, tags=first.tags)
    for status in (None, dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING):
        if status is not None:
            _set(joining.instance, run.run_id, status)
        joining.later()
        assert joining.tick() == ([], "joins: 1 under way")
    _set(joining.instance, run.run_id, dg.DagsterRunStatus.FAILURE)
    joining.instance.add_run_tags(run.run_id, {"dagster/will_retry": "true"})
    joining.later()
    assert joining.tick() == ([], "joins: 1 under way"), "Dagster itself retries it"
    assert rows(queue, "SELECT attempt FROM {s}.job WHERE queue = 'joins'") == [(0,)]
    joining.instance.add_run_tags(run.run_id, {"dagster/will_retry": "false"})
    joining.later()
    assert joining.tick() == ([], "joins: 1 failed")


def _set(instance: dg.DagsterInstance, run_id: str, status: dg.DagsterRunStatus) -> None:
    event = DagsterEvent(PIPELINE_RUN_STATUS_TO_EVENT_TYPE[status].value, "join_job", message=None)
    instance.report_dagster_event(event, run_id)


def test_two_ticks_at_once_start_one_run(queue: SqlQueue, joining: Joining) -> None:
    """Two daemons on one deployment by mistake: many groups, many ticks, each group in one request."""
    joining.sensor = build_group_sensor(JOINS, joining.job, ops=["join"], max_groups=4, poll_seconds=600)
    ids = {str(ended_group(queue, jobs=1)) for _ in range(20)}
    found: list[str] = []

    def tick() -> bool:
        requests, _ = joining.tick()
        found.extend(request.tags["sqlqueue/group"] for request in requests)
        return len(found) >= len(ids)

    def daemon() -> None:
        # Ticks that meet one another may find fewer than they look for.
        until(tick, "the requests")
        tick()

    threads = [threading.Thread(target=daemon) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == sorted(ids)


def test_a_tick_that_dies_before_its_requests_are_there_loses_no_group(queue: SqlQueue, joining: Joining) -> None:
    ended_group(queue)
    assert len(queue.claim("joins", limit=10, worker="a tick that died")) == 1
    assert joining.tick() == ([], "joins: no group has ended")
    rows(queue, "UPDATE {s}.job SET available_at = now() - interval '1 second' WHERE queue = 'joins'")
    (request,), _ = joining.tick()
    joining.later()
    assert joining.start(request).success
    assert joining.tick() == ([], "joins: 1 joined")
    assert len(joining.seen) == 1


def test_a_request_of_ones_own_says_partition_and_config_and_context_comes_through(
    queue: SqlQueue, deployment: Deployment
) -> None:
    def request(ended: GroupEnded) -> dg.RunRequest:
        return dg.RunRequest(run_key="mine", partition_key=ended.context["day"], tags={"team": "a"})

    @dg.asset(partitions_def=dg.StaticPartitionsDefinition(["2026-01-01", "2026-01-02"]))
    def report() -> None: ...

    sensor = build_group_sensor(JOINS, [report], request=request)
    id = ended_group(queue, jobs=2, context={"day": "2026-01-02"})
    with dg.build_sensor_context(
        instance=deployment.instance,
        resources={"sqlqueue": deployment.resource},
        definitions=dg.Definitions(assets=[report], sensors=[sensor], resources={"sqlqueue": deployment.resource}),
    ) as context:
        (made,) = sensor.evaluate_tick(context).run_requests or []
    assert made.run_key == f"group {id}"
    assert made.partition_key == "2026-01-02"
    assert made.tags["team"] == "a"
    assert {key: made.tags[key] for key in made.tags if key.startswith("sqlqueue/")} == {
        "sqlqueue/group": str(id),
        "sqlqueue/group_members": "2",
        "sqlqueue/group_succeeded": "2",
        "sqlqueue/group_failed": "0",
        "sqlqueue/group_cancelled": "0",
    }


@pytest.mark.parametrize("of_assets", [False, True], ids=["a job", "assets"])
def test_a_group_without_a_usable_request_becomes_a_dead_letter_and_the_others_get_their_runs(
    queue: SqlQueue, deployment: Deployment, of_assets: bool
) -> None:
    days = dg.StaticPartitionsDefinition(["2026-01-01", "2026-01-02"])

    @dg.asset(partitions_def=days, config_schema={"size": dg.Field(int, default_value=1)})
    def made() -> None: ...

    @dg.op(config_schema={"size": dg.Field(int, default_value=1)})
    def make() -> None: ...

    @dg.job(partitions_def=days)
    def makes() -> None:
        make()

    def request(ended: GroupEnded) -> dg.RunRequest:
        if ended.context["day"] == "never":
            return None  # type: ignore[return-value]
        op = "made" if of_assets else "make"
        config = {"ops": {op: {"config": {"size": ended.context["size"]}}}} if "size" in ended.context else {}
        return dg.RunRequest(partition_key=ended.context["day"], run_config=config)

    sensor = build_group_sensor(JOINS, [made] if of_assets else makes, request=request, poll_seconds=600)
    definitions = dg.Definitions(
        assets=[made], jobs=[makes], sensors=[sensor], resources={"sqlqueue": deployment.resource}
    )
    bad: list[dict[str, object]] = [
        {"no_day": 1},
        {"day": "2031-01-01"},
        {"day": "never"},
        {"day": "2026-01-01", "size": "large"},
    ]
    refused = {str(ended_group(queue, jobs=1, context=context)) for context in bad}
    good = {
        str(ended_group(queue, jobs=1, context={"day": "2026-01-01"})),
        str(ended_group(queue, jobs=1, context={"day": "2026-01-02", "size": 2})),
    }
    requested = []
    for _ in range(JOINS.max_attempts):
        with dg.build_sensor_context(
            instance=deployment.instance, definitions=definitions, resources={"sqlqueue": deployment.resource}
        ) as context:
            requested += sensor.evaluate_tick(context).run_requests or []
    assert {one.tags["sqlqueue/group"] for one in requested} == good
    assert len(requested) == len(good)
    letters = queue.dead_letters("joins")
    assert len(letters) == len(bad)
    errors = "\n".join(letter.error or "" for letter in letters)
    assert {group for group in refused | good if group in errors} == refused
    assert "KeyError: 'day'" in errors
    assert "2031-01-01" in errors
    assert "request= returned None; return a dagster.RunRequest" in errors
    assert "DagsterInvalidConfigError" in errors


def test_a_group_that_is_refused_after_a_failed_run_spends_one_attempt_a_tick(
    queue: SqlQueue, joining: Joining
) -> None:
    patient = dataclasses.replace(JOINS, max_attempts=4)
    rows(queue, "UPDATE {s}.queue SET max_attempts = 4 WHERE name = 'joins'")
    joining.broken = True
    ended_group(queue)
    (request,), _ = joining.tick()
    joining.later()
    joining.start(request)
    assert joining.tick() == ([], "joins: 1 failed")
    fails = True

    def asked(ended: GroupEnded) -> dg.RunRequest:
        if fails:
            raise LookupError("the calendar has no such day")
        return dg.RunRequest()

    joining.sensor = build_group_sensor(patient, joining.job, request=asked)
    for attempt in (2, 3):
        assert joining.tick() == ([], "joins: 1 refused")
        assert rows(queue, "SELECT attempt FROM {s}.job WHERE queue = 'joins'") == [(attempt,)]
    fails = False
    (again,), _ = joining.tick()
    assert again.run_key != request.run_key


def test_the_end_of_a_group_that_only_newer_code_reads_is_held_and_released_to_it(
    queue: SqlQueue, joining: Joining
) -> None:
    @versioned(2, {1: lambda old: old})
    class Ended(GroupEnded):
        """What a deployment is about to read."""

    ended_group(queue)
    rows(queue, "UPDATE {s}.job SET payload = payload || '{{\"$version\": 3}}' WHERE queue = 'joins'")
    joining.sensor = build_group_sensor(dataclasses.replace(JOINS, payload=Ended), joining.job, ops=["join"])
    assert joining.tick() == ([], "joins: 1 held")
    (held,) = queue.jobs("joins", Selection(state="held"))
    assert (held.attempt, held.error) == (
        0,
        "the payload has version 3, this process knows versions 1 to 2; deploy the newer code, then release the job",
    )
    versioned(3, {1: lambda old: old, 2: lambda old: old})(Ended)
    queue.release_held("joins", Selection(state="held"))
    (request,), _ = joining.tick()
    assert request.tags["sqlqueue/group_members"] == "3"


def test_a_tick_that_breaks_gives_its_groups_back(queue: SqlQueue, joining: Joining) -> None:
    def request(ended: GroupEnded) -> dg.RunRequest:
        raise DatabaseUnavailable("the database of the calendar does not answer")

    joining.sensor = build_group_sensor(JOINS, joining.job, request=request)
    ended_group(queue)
    with pytest.raises(Exception, match="of the calendar does not answer"):
        joining.tick()
    assert queue.depth("joins").ready == 1
    assert rows(queue, "SELECT attempt FROM {s}.job WHERE queue = 'joins'") == [(0,)]


def test_what_cannot_be_a_group_sensor_is_refused(joining: Joining) -> None:
    with pytest.raises(InvalidInput, match="of groups are GroupEnded"):
        build_group_sensor(WORK, joining.job)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="max_groups"):
        build_group_sensor(JOINS, joining.job, max_groups=0)
