"""What the tests of groups share: the queues, a graph that fans out, and a sensor with the job that it starts."""

from collections import Counter
from typing import Any
from uuid import UUID

import dagster as dg

from dagster_sqlqueue import Backoff, Consumer, Done, QueueSpec, SqlQueue
from dagster_sqlqueue.followers import Callback, Followers, GroupEnded, Groups
from dagster_sqlqueue.orchestration import (
    EnqueuedGroup,
    GroupConfig,
    SqlQueueResource,
    build_group_op,
    build_group_sensor,
    group_of_run,
    group_results,
)
from tests.orchestration.support import WORK, Deployment
from tests.support import Work, rows

JOINS = QueueSpec("joins", GroupEnded, bucket_count=2, max_attempts=2, backoff=Backoff(0, jitter=0))


@dg.op
def batch() -> list[Work]:
    return [Work(n=n) for n in range(1000)]


enqueue = build_group_op(WORK, joined_by=JOINS)


@dg.job(executor_def=dg.in_process_executor)
def fan_out() -> None:
    enqueue(batch())


class Joining:
    """A sensor of the queue `joins` and its job, as the daemon has them: the job sees each group's results."""

    def __init__(self, deployment: Deployment) -> None:
        self.deployment = deployment
        self.queue, self.resource, self.instance = deployment.queue, deployment.resource, deployment.instance
        self.seen: list[tuple[GroupConfig, Counter[str]]] = []
        self.broken = False
        self.job = self._job()
        self.sensor = build_group_sensor(JOINS, self.job, ops=["join"])

    def fan_out(self) -> EnqueuedGroup:
        group: EnqueuedGroup = self.deployment.execute(fan_out).output_for_node("enqueue_group_of_work")
        return group

    def tick(self) -> tuple[list[dg.RunRequest], str]:
        """The runs that it asks for, and what it says if there are none."""
        with dg.build_sensor_context(instance=self.instance, resources={"sqlqueue": self.resource}) as context:
            result = self.sensor.evaluate_tick(context)
        return list(result.run_requests or []), result.skip_message or ""

    def start(self, request: dg.RunRequest) -> dg.ExecuteInProcessResult:
        """Run what was requested, as the daemon would."""
        return self.job.execute_in_process(
            run_config=request.run_config,
            tags={**request.tags, "dagster/run_key": request.run_key or ""},
            resources={"sqlqueue": self.resource},
            instance=self.instance,
            raise_on_error=False,
        )

    def later(self) -> None:
        """Let the time pass after which a group's run is looked at again."""
        rows(
            self.queue,
            "UPDATE {s}.job SET available_at = now() - interval '1 second' WHERE queue = 'joins' AND state = 'queued'",
        )

    def _job(self) -> dg.JobDefinition:
        @dg.op
        def join(context: dg.OpExecutionContext, config: GroupConfig, sqlqueue: SqlQueueResource) -> None:
            if self.broken:
                raise ValueError("the join breaks")
            assert str(group_of_run(context)) == config.group_id
            states = Counter(str(one.state) for page in group_results(sqlqueue.queue, config.group_id) for one in page)
            self.seen.append((config, states))

        @dg.job(executor_def=dg.in_process_executor)
        def join_job() -> None:
            join()

        return join_job


def group_of(queue: SqlQueue, jobs: int, callback: Callback | None = None) -> UUID:
    """A closed group of so many jobs."""
    groups = Groups(queue)
    id = groups.open(callback)
    Followers(queue).enqueue_many(WORK, [Work(n=n) for n in range(jobs)], group=id)
    groups.close(id)
    return id


def ended_group(queue: SqlQueue, jobs: int = 3, context: Any = None) -> UUID:
    """A group that has ended, with its job on the queue `joins`."""
    id = group_of(queue, jobs, Callback(JOINS, context=context))
    Consumer(queue, WORK, lambda job: Done({"n": job.payload.n})).drain()
    return id
