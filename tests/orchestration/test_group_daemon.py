"""A group joined by a real Dagster daemon: its first run fails, the next one succeeds, and there is no third."""

import contextlib
import os
import signal
import subprocess
import sys
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
CODE = """
import os
from pathlib import Path

import dagster as dg

from dagster_sqlqueue import QueueSpec
from dagster_sqlqueue.followers import GroupEnded
from dagster_sqlqueue.orchestration import (
    GroupConfig, SqlQueueResource, build_group_sensor, group_of_run, group_results
)

SEEN = Path(os.environ["SEEN"])


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
    sensors=[
        build_group_sensor(
            QueueSpec("joins", GroupEnded, max_attempts=3),
            job,
            ops=["joined"],
            poll_seconds=1,
            minimum_interval_seconds=1,
            default_status=dg.DefaultSensorStatus.RUNNING,
        )
    ],
    resources={"sqlqueue": SqlQueueResource(url=dg.EnvVar("SQLQUEUE_URL"), schema_name=os.environ["SQLQUEUE_SCHEMA"])},
)
"""


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

    home, seen = tmp_path / "home", tmp_path / "seen"
    home.mkdir()
    (home / "dagster.yaml").write_text(SETTINGS)
    (tmp_path / "joining_location.py").write_text(CODE)
    environment = {
        **os.environ,
        "DAGSTER_HOME": str(home),
        "PYTHONPATH": str(PROJECT),
        "SEEN": str(seen),
        "SQLQUEUE_SCHEMA": queue.database.schema,
        "SQLQUEUE_URL": url,
    }
    log = (tmp_path / "log").open("wb")
    daemon = subprocess.Popen(
        [Path(sys.executable).with_name("dagster-daemon"), "run", "-f", "joining_location.py"],
        cwd=tmp_path,
        env=environment,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:

        def joined() -> bool:
            assert daemon.poll() is None, (tmp_path / "log").read_text()
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
    assert seen.read_text() == "50 50 the first\n"
    with DagsterInstance.from_config(str(home)) as instance:
        runs = instance.get_runs()
    assert [run.status for run in runs] == [DagsterRunStatus.SUCCESS, DagsterRunStatus.FAILURE]
    assert {run.tags["sqlqueue/group"] for run in runs} == {str(id)}
