"""Helpers for users' tests: queues for the length of a block, the jobs that code has enqueued, calls of handlers, drains."""

from dagster_sqlqueue.testing.calls import JobForTest as JobForTest
from dagster_sqlqueue.testing.calls import call_handler as call_handler
from dagster_sqlqueue.testing.calls import job_for_test as job_for_test
from dagster_sqlqueue.testing.database import queue_for_test as queue_for_test
from dagster_sqlqueue.testing.enqueued import EnqueuedJob as EnqueuedJob
from dagster_sqlqueue.testing.enqueued import drain as drain
from dagster_sqlqueue.testing.enqueued import enqueued_jobs as enqueued_jobs

__all__ = [
    "EnqueuedJob",
    "JobForTest",
    "call_handler",
    "drain",
    "enqueued_jobs",
    "job_for_test",
    "queue_for_test",
]
