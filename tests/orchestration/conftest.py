"""A Dagster instance, the resource on the test's schema, and a consumer of the tests' queue."""

from collections.abc import Iterator

import dagster as dg
import pytest

from dagster_sqlqueue import Done, Job, QueueSpec, Retry, SqlQueue
from dagster_sqlqueue.orchestration import QueueConsumer, SqlQueueResource, queue_consumer
from tests.core.support import Work


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.instance_for_test() as made:
        yield made


@pytest.fixture
def resource(url: str, schema: str, queue: SqlQueue) -> SqlQueueResource:
    return SqlQueueResource(url=url, schema_name=schema)


@pytest.fixture
def consumer(spec: QueueSpec[Work]) -> QueueConsumer[Work]:
    """Jobs whose note is `fail` fail; all others succeed with their number."""

    @queue_consumer(spec)
    def handle(job: Job[Work]) -> Done | Retry:
        if job.payload.note == "fail":
            return Retry(f"cannot do {job.payload.n}", after=0)
        return Done({"n": job.payload.n})

    return handle
