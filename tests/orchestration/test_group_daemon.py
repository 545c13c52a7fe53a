"""Groups under a real Dagster daemon: enqueued by a run, worked off by several at once, and joined by one."""

import contextlib
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from dagster import DagsterInstance, DagsterRunStatus

from dagster_sqlqueue import Backoff, Consumer, Done, QueueSpec, SqlQueue
from dagster_sqlqueue.followers import Callback, Followers, GroupEnded, Groups
from tests.gate.patience import PATIENCE
from tests.support import Work, until

PROJECT = Path(__file__).resolve().parents[2]
JOINS = QueueSpec("joins", GroupEnded, bucket_count=2, max_attempts=3, backoff=Backoff(0, jitter=0))
SETTINGS = """
telemetry: {enabled: false}
run_coordinator:
  module: dagster._core.run_coordinator
  class: QueuedRunCoordinator
  config: {dequeue_interval_seconds: 1}
"""
JOINED = """
import os
from pathlib import Path

import dagster as dg

from dagster_sqlqueue import QueueSpec
from dagster_sqlqueue.followers import GroupEnded
from dagster_sqlqueue.orchestration import (
    GroupConfig, SqlQueueResource, build_group_sensor, group_of_run, group_results
)

SEEN = Path(os.environ["SEEN"])
RUNNING = {"minimum_interval_seconds": 1, "default_status": dg.DefaultSensorStatus.RUNNING}
JOINS = QueueSpec("joins", GroupEnded, max_attempts=3)
RESOURCES = {"sqlqueue": SqlQueueResource(url=dg.EnvVar("SQLQUEUE_URL"), schema_name=os.environ["SQLQUEUE_SCHEMA"])}
"""
A_FAILURE_FIRST = (
    JOINED
    + """

@dg.asset
def joined(context: dg.AssetExecutionContext, config: GroupConfig, sqlqueue: SqlQueueResource) -> None:
    if not SEEN.exists():
        SEEN.touch()
        raise ValueError("the first run fails")
    jobs = sum(len(page) for page in group_results(sqlqueue.queue, group_of_run(context)))
    with SEEN.open("a") as file:
        file.write(f"{jobs} {config.succeeded} {config.context}\\n")


job = dg.define_asset_job("joining", [joined], executor_def=dg.in_process_executor)
defs = dg.Definitions(
    assets=[joined],
    jobs=[job],
    sensors=[build_group_sensor(JOINS, job, ops=["joined"], poll_seconds=1, **RUNNING)],
    resources=RESOURCES,
)
"""
)
FAN_OUT = (
    JOINED
    + """
import time

from dagster_sqlqueue import Done, Job
from dagster_sqlqueue.orchestration import SensorSettings, build_group_op, queue_consumer
from tests.gate.patience import PATIENCE
from tests.support import Work

SPEC = QueueSpec("work", Work)
settings = SensorSettings(max_runs=3, jobs_per_run=100, linger_seconds=0.0)


@queue_consumer(SPEC, mode="batch", sensor={"settings": settings, **RUNNING})
def handle(job: Job[Work], context: dg.OpExecutionContext) -> Done:
    # No run goes on alone: each waits here until there are three.
    here = SEEN.parent / "runs"
    here.mkdir(exist_ok=True)
    (here / context.run_id).touch()
    end = time.monotonic() + PATIENCE
    while len(list(here.iterdir())) < 3 and time.monotonic() < end:
        time.sleep(0.05)
    return Done({"run": context.run_id, "n": job.payload.n})


@dg.op
def batch() -> list[Work]:
    return [Work(n=n) for n in range(300)]


@dg.job(executor_def=dg.in_process_executor)
def fan_out():
    build_group_op(SPEC, joined_by=JOINS)(batch())


@dg.sensor(job=fan_out, **RUNNING)
def once(context):
    return dg.RunRequest(run_key="once")


@dg.op
def join(config: GroupConfig, sqlqueue: SqlQueueResource) -> None:
    for page in group_results(sqlqueue.queue, config.group_id):
        with SEEN.open("a") as file:
            file.writelines(f"{job.result['run']} {job.result['n']}\\n" for job in page)


@dg.job(executor_def=dg.in_process_executor)
def joining():
    join()


defs = dg.Definitions(
    jobs=[fan_out, handle.job, joining],
    sensors=[once, handle.sensor, build_group_sensor(JOINS, joining, ops=["join"], poll_seconds=1, **RUNNING)],
    resources=RESOURCES,
)
"""
)


@contextlib.contextmanager
def under_a_daemon(code: str, queue: SqlQueue, url: str, at: Path) -> Iterator[DagsterInstance]:
    """Run a code location under a daemon until its group is joined. Yields the instance."""
    home = at / "home"
    home.mkdir()
    (home / "dagster.yaml").write_text(SETTINGS)
    (at / "joining_location.py").write_text(code)
    environment = {
        **os.environ,
        "DAGSTER_HOME": str(home),
        "PYTHONPATH": str(PROJECT),
        "SEEN": str(at / "seen"),
        "SQLQUEUE_SCHEMA": queue.database.schema,
        "SQLQUEUE_URL": url,
    }
    log = (at / "log").open("wb")
    daemon = subprocess.Popen(
        [Path(sys.executable).with_name("dagster-daemon"), "run", "-f", "joining_location.py"],
        cwd=at,
        env=environment,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:

        def joined() -> bool:
            assert daemon.poll() is None, (at / "log").read_text()
            return queue.archived("joins", since_seconds=3_600) == {"succeeded": 1}

        until(joined, "the join", 4 * PATIENCE)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(daemon.pid, signal.SIGTERM)
        try:
            daemon.wait(PATIENCE)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(daemon.pid, signal.SIGKILL)
            daemon.wait()
            log.close()
    with DagsterInstance.from_config(str(home)) as instance:
        yield instance


@pytest.mark.prove
@pytest.mark.timeout(10 * PATIENCE)
def test_a_daemon_runs_it_again_after_a_failure_and_never_after_a_success(
    url: str, queue: SqlQueue, spec: QueueSpec[Work], tmp_path: Path
) -> None:
    queue.create_queue(JOINS)
    groups = Groups(queue)
    id = groups.open(Callback(JOINS, context="the first"))
    Followers(queue).enqueue_many(spec, [Work(n=n) for n in range(50)], group=id)
    groups.close(id)
    Consumer(queue, spec, lambda job: Done()).drain()
    with under_a_daemon(A_FAILURE_FIRST, queue, url, tmp_path) as instance:
        runs = instance.get_runs()
    assert (tmp_path / "seen").read_text() == "50 50 the first\n"
    assert [run.status for run in runs] == [DagsterRunStatus.SUCCESS, DagsterRunStatus.FAILURE]
    assert {run.tags["sqlqueue/group"] for run in runs} == {str(id)}


@pytest.mark.prove
@pytest.mark.timeout(10 * PATIENCE)
def test_a_batch_that_a_run_enqueues_is_worked_off_by_three_and_joined_by_another(
    url: str, queue: SqlQueue, spec: QueueSpec[Work], tmp_path: Path
) -> None:
    """Each job is done once, by three runs or more that are under way at the same time."""
    queue.create_queue(JOINS)
    with under_a_daemon(FAN_OUT, queue, url, tmp_path) as instance:
        runs = instance.get_runs()
    ended = [line.split() for line in (tmp_path / "seen").read_text().splitlines()]
    assert sorted(int(n) for _, n in ended) == list(range(300))
    started = Counter(run.job_name for run in runs)
    assert (started["fan_out"], started["joining"]) == (1, 1)
    drains = {run.run_id for run in runs if run.job_name == "drain_work"}
    worked = {run for run, _ in ended}
    # On a busy machine a run that is late to start is followed by another.
    assert len(worked) >= 3
    assert worked <= drains
    assert DagsterRunStatus.FAILURE not in {run.status for run in runs}
