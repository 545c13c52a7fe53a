"""What graphs do, as a user who has the role that the documentation says and no more."""

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import dagster as dg
import pytest

from dagster_sqlqueue import Done, QueueSpec, SqlQueue
from dagster_sqlqueue.db.permissions import Role
from dagster_sqlqueue.followers import GroupEnded
from dagster_sqlqueue.orchestration import (
    EnqueuedGroup,
    LeasedJob,
    SqlQueueResource,
    build_claim_op,
    build_enqueue_op,
    build_group_sensor,
    build_sqlqueue_io_manager,
    complete_jobs,
    enqueue_group,
    fail_jobs,
    give_back_on_failure,
    group_results,
    wait_for_group,
)
from tests.roles.support import Staff, dropping_roles, staff_of, url_of
from tests.support import Work

WORK = QueueSpec("work", Work, bucket_count=4)
JOINS = QueueSpec("joins", GroupEnded)


@pytest.fixture
def schema(url: str) -> Iterator[str]:
    """A name that no role of the server was named after."""
    name = f"r_{uuid4().hex[:12]}"
    with dropping_roles(url, name):
        yield name


@pytest.fixture
def queue(fresh: SqlQueue) -> SqlQueue:
    return fresh


@pytest.fixture
def staff(queue: SqlQueue, url: str) -> Iterator[Staff]:
    """A user for each role."""
    queue.create_queue(JOINS)
    queue.install_roles()
    with staff_of(queue, url) as staff:
        yield staff


def resource(staff: Staff, role: Role) -> SqlQueueResource:
    return SqlQueueResource(url=url_of(staff.url, staff.user(role)), schema_name=staff.schema)


def succeeds(staff: Staff, role: Role, job: dg.JobDefinition) -> bool:
    resources = {"sqlqueue": resource(staff, role), "queue_io": build_sqlqueue_io_manager(WORK)}
    return job.execute_in_process(resources=resources, raise_on_error=False).success


def test_ops_that_claim_and_end_are_consumers(staff: Staff) -> None:
    @dg.op(out={"done": dg.Out(), "failed": dg.Out()})
    def part(jobs: list[LeasedJob[Work]]) -> Iterator[dg.Output[Any]]:
        yield dg.Output([(job, Done({"n": 1})) for job in jobs[:2]], "done")
        yield dg.Output([(job, "no") for job in jobs[2:4]], "failed")

    @dg.op
    def break_it(completed: Any, failed: Any) -> None:
        raise ValueError("broken")

    @dg.job(hooks={give_back_on_failure})
    def graph() -> None:
        done, failed = part(build_claim_op(WORK)())
        break_it(complete_jobs(done), fail_jobs(failed))

    staff.users[Role.PRODUCER].enqueue_many(WORK, [Work(n=n) for n in range(5)])
    for role in (Role.PRODUCER, Role.OBSERVER):
        assert not succeeds(staff, role, graph)
        assert staff.owner.depth("work").ready == 5
    assert not succeeds(staff, Role.CONSUMER, graph)
    depth = staff.owner.depth("work")
    assert (depth.ready, depth.running) == (3, 0), "two of them are tried again, and one was given back"
    assert staff.owner.archived("work", since_seconds=3_600) == {"succeeded": 2}


def test_ops_and_outputs_that_enqueue_are_producers(staff: Staff) -> None:
    @dg.op
    def make() -> list[Work]:
        return [Work(n=1)]

    @dg.op(out=dg.Out(io_manager_key="queue_io"))
    def put() -> list[Work]:
        return [Work(n=2)]

    @dg.op
    def group(context: dg.OpExecutionContext, sqlqueue: SqlQueueResource) -> EnqueuedGroup:
        return [enqueue_group(context, sqlqueue.queue, WORK, [Work(n=3)], joined_by=JOINS) for _ in range(2)][-1]

    @dg.job
    def graph() -> None:
        build_enqueue_op(WORK)(make())
        put()
        group()

    for role in (Role.CONSUMER, Role.OBSERVER):
        assert not succeeds(staff, role, graph)
    assert staff.owner.depth("work").live == 0
    assert succeeds(staff, Role.PRODUCER, graph)
    assert staff.owner.depth("work").ready == 3


@pytest.mark.prove
def test_the_sensor_of_groups_is_a_consumer_and_who_waits_and_reads_an_observer(
    staff: Staff, instance: dg.DagsterInstance
) -> None:
    made: list[EnqueuedGroup] = []

    @dg.op
    def group(context: dg.OpExecutionContext, sqlqueue: SqlQueueResource) -> None:
        made.append(enqueue_group(context, sqlqueue.queue, WORK, [Work(n=3)], joined_by=JOINS))

    @dg.job
    def enqueuing() -> None:
        group()

    @dg.op
    def read(sqlqueue: SqlQueueResource, group: Any) -> None:
        assert [one.state for page in group_results(sqlqueue.queue, made[0].id) for one in page] == ["succeeded"]

    @dg.op
    def which() -> EnqueuedGroup:
        return made[0]

    @dg.job
    def joining() -> None:
        read(wait_for_group(which()))

    assert succeeds(staff, Role.PRODUCER, enqueuing)
    consumer = staff.users[Role.CONSUMER]
    consumer.complete(consumer.claim("work", limit=10, worker="w"))
    sensor = build_group_sensor(JOINS, joining)

    def tick(role: Role) -> list[dg.RunRequest]:
        with dg.build_sensor_context(instance=instance, resources={"sqlqueue": resource(staff, role)}) as context:
            return list(sensor.evaluate_tick(context).run_requests or [])

    for role in (Role.PRODUCER, Role.OBSERVER):
        with pytest.raises(Exception, match="it takes the role"):
            tick(role)
    assert len(tick(Role.CONSUMER)) == 1
    assert not succeeds(staff, Role.CONSUMER, joining)
    assert succeeds(staff, Role.OBSERVER, joining)
