"""Jobs for people, and what the tables say of them."""

from typing import Any
from uuid import UUID

from uuid_utils.compat import uuid7

from dagster_sqlqueue import NewJob, QueueSpec
from dagster_sqlqueue.people import HumanWork
from dagster_sqlqueue.queue.selection import Selection
from tests.support import Work, rows


def enqueued(people: HumanWork, count: int, queue: str = "work", **settings: Any) -> list[UUID]:
    """Jobs in the automatic line."""
    jobs = [NewJob(Work(n=n), id=uuid7(), **settings) for n in range(count)]
    people.queue.enqueue_many(QueueSpec(queue, Work), jobs)
    return [job.id for job in jobs if job.id]


def handed_over(people: HumanWork, count: int, queue: str = "work", **settings: Any) -> list[UUID]:
    """Jobs that are people's, handed over in the order given, each later than the one before."""
    ids = enqueued(people, count, queue)
    for id in ids:
        done = people.hand_over(queue, Selection(ids=[id]), by="boss", reason="too hard", **settings)
        assert done.changed == [id]
    return ids


def everything(people: HumanWork) -> tuple[list[Any], ...]:
    """Every row that a verb of people could change."""
    tables = ("human_task", "job_event", "job", "job_archive", "automation_rule")
    return tuple(rows(people.queue, f"SELECT t::text FROM {{s}}.{table} AS t ORDER BY 1") for table in tables)
