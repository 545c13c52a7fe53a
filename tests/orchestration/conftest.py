"""A Dagster instance, the resource on the test's schema, a consumer of the tests' queue, and what bundles them."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import dagster as dg
import pytest
from dagster.components.testing import create_defs_folder_sandbox

from dagster_sqlqueue import Done, Job, QueueSpec, Retry, SqlQueue
from dagster_sqlqueue.orchestration import QueueConsumer, SqlQueueResource, queue_consumer
from tests.gate.patience import FULL
from tests.orchestration.component_support import Loader, Location
from tests.orchestration.group_support import JOINS, Joining
from tests.orchestration.launchpad_support import Launchpad
from tests.orchestration.support import WORK, Deployment, NewInstance
from tests.support import Work
from tests.support.cleared import cleared, own_schema

IN_MEMORY = Path("/dev/shm")
"""Where files are written without waiting for the disk, if there is such a place."""


@pytest.fixture(scope="session")
def shared(url: str) -> Iterator[SqlQueue]:
    """The queues of a schema that the tests of this folder share."""
    with own_schema(url, "orchestration") as queue:
        yield queue


@pytest.fixture(autouse=True)
def ticks_in_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that a test's tick asked for, and that nobody made, is on its way for as long as the test takes."""
    monkeypatch.setattr("dagster_sqlqueue.orchestration.slot_runs.SUBMIT_SECONDS", 3_600.0)


@pytest.fixture
def spec() -> QueueSpec[Work]:
    return WORK


@pytest.fixture
def queue(shared: SqlQueue, spec: QueueSpec[Work]) -> SqlQueue:
    """With the queue `work`, and nothing in it. Tests that change tables or drop them take `fresh` instead."""
    return cleared(shared, spec)


@pytest.fixture(scope="session")
def new_instance() -> Iterator[NewInstance]:
    """Makes Dagster instances as `instance_for_test` does, from a copy of the files that one writes when it is made."""
    place = IN_MEMORY if IN_MEMORY.is_dir() else None
    with TemporaryDirectory(dir=place, ignore_cleanup_errors=True) as template:
        with dg.instance_for_test(temp_dir=template, set_dagster_home=False) as made:
            made.wipe()

        @contextmanager
        def new(**overrides: Any) -> Iterator[dg.DagsterInstance]:
            with TemporaryDirectory(dir=place, ignore_cleanup_errors=True) as home:
                shutil.copytree(template, home, dirs_exist_ok=True)
                with dg.instance_for_test(temp_dir=home, overrides=overrides or None) as instance:
                    yield instance

        yield new


@pytest.fixture
def persistent(new_instance: NewInstance) -> Iterator[dg.DagsterInstance]:
    """With its storage in files, as other processes find it."""
    with new_instance() as made:
        yield made


@pytest.fixture
def instance(request: pytest.FixtureRequest) -> dg.DagsterInstance:
    """With its storage in files for all tests of `make prove`; a run's events take longer to be written than it does."""
    made: dg.DagsterInstance = request.getfixturevalue("persistent" if FULL else "ephemeral")
    return made


@pytest.fixture
def ephemeral() -> Iterator[dg.DagsterInstance]:
    """In memory: nothing here outlives its runs."""
    with dg.DagsterInstance.ephemeral() as made:
        yield made


@pytest.fixture
def resource(url: str, queue: SqlQueue) -> SqlQueueResource:
    return SqlQueueResource(url=url, schema_name=queue.database.schema)


@pytest.fixture
def consumer(spec: QueueSpec[Work]) -> QueueConsumer[Work]:
    """Jobs whose note is `fail` fail; all others succeed with their number."""

    @queue_consumer(spec)
    def handle(job: Job[Work]) -> Done | Retry:
        if job.payload.note == "fail":
            return Retry(f"cannot do {job.payload.n}", after=0)
        return Done({"n": job.payload.n})

    return handle


@pytest.fixture
def deployment(
    queue: SqlQueue, spec: QueueSpec[Work], resource: SqlQueueResource, instance: dg.DagsterInstance
) -> Deployment:
    return Deployment(queue, spec, resource, instance)


@pytest.fixture
def in_memory(
    queue: SqlQueue, spec: QueueSpec[Work], resource: SqlQueueResource, ephemeral: dg.DagsterInstance
) -> Deployment:
    """A deployment that is enough where nothing reads a run once it has ended."""
    return Deployment(queue, spec, resource, ephemeral)


@pytest.fixture
def environment(url: str, queue: SqlQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    """The variables by which `of_environment` finds the test's schema."""
    monkeypatch.setenv("SQLQUEUE_TEST_SCHEMA", queue.database.schema)
    monkeypatch.setenv("SQLQUEUE_URL", url)


@pytest.fixture
def joins(queue: SqlQueue) -> None:
    """The queue that gets a job for each group that has ended."""
    queue.create_queue(JOINS)


@pytest.fixture
def joining(joins: None, deployment: Deployment) -> Joining:
    return Joining(deployment)


@pytest.fixture
def launchpad(resource: SqlQueueResource, ephemeral: dg.DagsterInstance) -> Launchpad:
    return Launchpad(resource, ephemeral)


@pytest.fixture
def project() -> Iterator[Loader]:
    with create_defs_folder_sandbox() as sandbox:
        yield Loader(sandbox)


@pytest.fixture
def location(
    project: Loader, url: str, schema: str, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Location]:
    monkeypatch.setenv("SQLQUEUE_URL", url)
    with SqlQueue(url, schema=schema) as queue:
        yield Location(project, queue, instance)
