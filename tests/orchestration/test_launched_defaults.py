"""Every job that the library makes for a queue, launched by GraphQL with the configuration that its launchpad opens with."""

from pathlib import Path

import pytest
import yaml
from dagster._core.workspace.context import WorkspaceProcessContext

from dagster_sqlqueue import SqlQueue
from tests.definitions.launchpad import Webserver
from tests.orchestration.support import WORK, NewInstance, code_location
from tests.support import Work

JOBS = {
    *("drain_work", "create_work", "observe_work", "work_show", "work_redrive"),
    "sqlqueue_maintenance_job",
}
CODE = """
import dagster as dg
from dagster_sqlqueue.orchestration import build_maintenance_schedule, build_sqlqueue_definitions
from dagster_sqlqueue.orchestration import queue_consumer
from tests.orchestration.support import WORK, of_environment

@queue_consumer(WORK, mode="batch")
def handle(job): ...

defs = dg.Definitions.merge(
    build_sqlqueue_definitions(handle, resource=of_environment()),
    dg.Definitions(schedules=[build_maintenance_schedule()]),
)
"""


@pytest.mark.filterwarnings("ignore:Property `ScheduleDefinition.environment_vars`:DeprecationWarning")
# A run within the webserver's event loop, which Dagster's launcher for tests makes of it.
@pytest.mark.filterwarnings("ignore:coroutine 'BaseEventLoop.shutdown_asyncgens':RuntimeWarning")
@pytest.mark.filterwarnings("ignore:Exception ignored in:pytest.PytestUnraisableExceptionWarning")
@pytest.mark.usefixtures("environment")
def test_every_job_runs_with_what_the_launchpad_fills_in(
    queue: SqlQueue, new_instance: NewInstance, tmp_path: Path
) -> None:
    queue.enqueue_many(WORK, [Work(n=n) for n in range(3)])
    file = tmp_path / "code_location.py"
    file.write_text(CODE)
    overrides = {
        "run_launcher": {
            "module": "dagster._core.launcher.sync_in_memory_run_launcher",
            "class": "SyncInMemoryRunLauncher",
        },
        "run_coordinator": {"module": "dagster._core.run_coordinator", "class": "DefaultRunCoordinator"},
    }
    with new_instance(**overrides) as instance, WorkspaceProcessContext(instance, code_location(file)) as process:
        webserver = Webserver(instance, process)
        jobs = list(webserver.launchables())
        assert {job.name for job in jobs} == JOBS
        for job in jobs:
            text = webserver.filled_in(job)
            assert "url" not in text, job.name
            assert "****" not in text, job.name
            ended = webserver.launch(job, yaml.safe_load(text) or {}, "")
            assert ended["status"] == "SUCCESS", (job.name, ended)
    assert queue.archived("work", since_seconds=3_600) == {"succeeded": 3}
