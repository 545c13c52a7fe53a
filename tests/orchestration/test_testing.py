"""The helpers for tests of others, as these would use them, in a process that knows nothing of this project's fixtures."""

import os
import subprocess
import sys
from pathlib import Path

import dagster as dg
import pytest

from dagster_sqlqueue import Backoff, Done, Job, NewJob, QueueSpec, Retry, SqlQueue
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.orchestration import (
    SqlQueueResource,
    claim_jobs,
    complete_jobs,
    drain_in_process,
    queue_consumer,
    resource_of,
)
from dagster_sqlqueue.testing import queue_for_test
from tests.support import Work

PROJECT = Path(__file__).resolve().parents[2]
WORK = QueueSpec("work", Work, max_attempts=3, backoff=Backoff(0, jitter=0))

USERS_TESTS = """
import dagster as dg
import pytest
from pydantic import BaseModel

from dagster_sqlqueue import Backoff, Done, Job, QueueSpec, Retry
from dagster_sqlqueue.orchestration import drain_in_process, queue_consumer
from dagster_sqlqueue.testing import queue_for_test


class Email(BaseModel):
    to: str


emails = QueueSpec("emails", Email, max_attempts=2, backoff=Backoff(0, jitter=0))


@queue_consumer(emails)
def send(job: Job[Email]):
    return Retry("no such address") if "@" not in job.payload.to else Done({"sent": job.payload.to})


@pytest.fixture
def queue():
    with queue_for_test(emails) as queue:
        yield queue


@pytest.mark.parametrize("round", [1, 2])
def test_sends(queue, round):
    assert queue.depth("emails").live == 0
    queue.enqueue_many(emails, [Email(to="ada@example.org"), Email(to="bob")])
    drained = drain_in_process(send, queue)
    assert drained.success
    assert (drained.counts["succeeded"], drained.counts["retried"], drained.counts["failed"]) == (1, 1, 1)
    assert [letter.error for letter in queue.dead_letters("emails")] == ["no such address"]


def test_one_server_for_all():
    with queue_for_test(emails) as one, queue_for_test(emails) as other:
        assert one.database.where == other.database.where
        assert one.database.schema != other.database.schema
"""


@queue_consumer(WORK)
def handle(job: Job[Work]) -> Done | Retry:
    return Retry("no") if job.payload.note == "fail" else Done()


@pytest.mark.prove
def test_a_project_of_ones_own_tests_with_the_embedded_server_which_is_gone_afterwards(tmp_path: Path) -> None:
    (tmp_path / "test_emails.py").write_text(USERS_TESTS)
    place = tmp_path / "temporary"
    place.mkdir()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SQLQUEUE")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_emails.py"],
        cwd=tmp_path,
        env={**environment, "PYTHONPATH": str(PROJECT), "TMPDIR": str(place)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout
    assert not list(place.glob("sqlqueue-test-*"))


def test_a_drain_goes_to_the_end_whatever_names_the_queue(url: str) -> None:
    with queue_for_test(WORK, url=url) as queue:
        for where in (queue, resource_of(queue)):
            queue.enqueue_many(WORK, [Work(n=1), Work(n=2, note="fail")])
            drained = drain_in_process(handle, where)
            assert (drained.counts["claimed"], drained.counts["succeeded"], drained.counts["failed"]) == (4, 1, 1)
            assert queue.depth("work").live == 0
        for use in (lambda wrong: drain_in_process(handle, wrong), resource_of):
            with pytest.raises(InvalidInput, match="the queue is a str; give a SqlQueue"):
                use("work")


def test_a_drain_takes_config_and_an_instance_and_standing_runs_end_too(url: str, instance: dg.DagsterInstance) -> None:
    @queue_consumer(WORK, mode="standing")
    def standing(job: Job[Work]) -> None: ...

    with queue_for_test(WORK, url=url) as queue:
        queue.enqueue_many(WORK, [NewJob(Work(n=n), tags=["a"] if n % 2 else []) for n in range(10)])
        drained = drain_in_process(standing.job, queue, config={"tags": ["a"]}, instance=instance)
        assert drained.counts["succeeded"] == 5
        assert instance.get_run_by_id(drained.run.run_id) is not None
        assert queue.depth("work").ready == 5


def test_a_drain_gives_the_queue_to_the_resource_key_of_the_consumer(
    queue: SqlQueue, resource: SqlQueueResource
) -> None:
    @queue_consumer(WORK, name="drain_eu", resource_key="sqlqueue_eu")
    def eu(job: Job[Work]) -> None: ...

    queue.enqueue_many(WORK, [Work(n=1)])
    assert drain_in_process(eu, resource).counts["succeeded"] == 1
    queue.enqueue_many(WORK, [Work(n=2)])
    assert drain_in_process(eu.job, resource, resource_key="sqlqueue_eu").counts["succeeded"] == 1


def test_an_error_of_the_run_is_raised_or_shown(url: str, queue: SqlQueue, resource: SqlQueueResource) -> None:
    elsewhere = queue_consumer(QueueSpec("elsewhere", Work))(lambda job: None)
    with pytest.raises(Exception, match="there is no queue 'elsewhere'"):
        drain_in_process(elsewhere, resource)
    drained = drain_in_process(elsewhere, resource, raise_on_error=False)
    assert (drained.success, drained.counts) == (False, {})


def test_a_job_of_several_ops_is_refused(resource: SqlQueueResource) -> None:
    @dg.job
    def graph() -> None:
        complete_jobs(claim_jobs())

    with pytest.raises(InvalidInput, match="has the ops claim_jobs, complete_jobs"):
        drain_in_process(graph, resource)
