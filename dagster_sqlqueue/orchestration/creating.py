"""The job that makes a queue, for people who have the launchpad and no shell; and a sensor that says so."""

from typing import Any

import dagster as dg
from pydantic import Field

from dagster_sqlqueue.errors import SchemaMissing, UnknownQueue
from dagster_sqlqueue.model.queue import QueueSettings, QueueSpec
from dagster_sqlqueue.orchestration.resource import RESOURCE_KEY, SqlQueueResource, under_key
from dagster_sqlqueue.queue import SqlQueue
from dagster_sqlqueue.schema import migrations


class CreateConfig(dg.Config):
    """What else the run that makes a queue may do."""

    migrate: bool = Field(
        default=False,
        description="Bring the tables up to date first, as sqlqueue migrate does. Tables that are not there at all are made"
        " in any case.",
    )


def build_create_job(spec: QueueSpec[Any], *, resource_key: str = RESOURCE_KEY) -> dg.JobDefinition:
    """A job that makes the queue, or brings the settings of an existing one to what the code declares.

    Its run makes the tables too where there are none; tables of an older version it leaves alone unless it is told
    otherwise. Safe to run again. It needs the resource, with a user who may do that.

    Args:
        spec: the queue. The job is `create_<queue>`, with another resource key `<key>_create_<queue>`.
        resource_key: of the `SqlQueueResource`.
    """

    @dg.op(
        name=f"make_{spec.name}" if resource_key == RESOURCE_KEY else f"{resource_key}_make_{spec.name}",
        description=f"Makes the queue {spec.name!r}, or brings its settings up to date.",
        out=dg.Out(dict, description="The settings as the database has them."),
        tags={"kind": "sqlqueue"},
    )
    @under_key(resource_key)
    def make(
        context: dg.OpExecutionContext, config: CreateConfig, sqlqueue: SqlQueueResource
    ) -> dg.Output[dict[str, Any]]:
        queue = sqlqueue.queue
        if config.migrate:
            _say_applied(context, queue)
        try:
            migrations.check(queue.database)
        except SchemaMissing:
            _say_applied(context, queue)
        settings = queue.create_queue(spec)
        context.log.info("queue %s is there, with %d buckets", spec.name, settings.bucket_count)
        if settings.bucket_count != spec.bucket_count:
            context.log.warning(
                "an existing queue keeps its %d buckets; change them with: sqlqueue rebucket %s %d",
                settings.bucket_count,
                spec.name,
                spec.bucket_count,
            )
        return dg.Output(_shown(settings), metadata=_shown(settings))

    @dg.job(
        name=create_job_name(spec, resource_key),
        executor_def=dg.in_process_executor,
        description=f"Makes the queue {spec.name!r}, or brings its settings to what the code declares. Safe to run again.",
        tags={"sqlqueue/queue": spec.name},
    )
    def create_job() -> None:
        make()

    return create_job


def helping(
    sensor: dg.SensorDefinition, spec: QueueSpec[Any], *, create: bool = False, resource_key: str = RESOURCE_KEY
) -> dg.SensorDefinition:
    """A queue's sensor whose tick, where the queue or its tables are not there, says which job makes them.

    Args:
        sensor: the queue's.
        spec: the queue.
        create: make a queue that is not there instead. It changes no queue that is, and makes no tables.
        resource_key: of the queue's resource.
    """

    @dg.sensor(
        name=sensor.name,
        job_name=sensor.job_name,
        minimum_interval_seconds=sensor.minimum_interval_seconds,
        default_status=sensor.default_status,
        description=sensor.description,
    )
    @under_key(resource_key)
    def tick(context: dg.SensorEvaluationContext, sqlqueue: SqlQueueResource) -> Any:
        try:
            return sensor(context)
        except (SchemaMissing, UnknownQueue) as error:
            if not create or isinstance(error, SchemaMissing):
                raise type(error)(
                    f"{error}. Or launch the job {create_job_name(spec, resource_key)}, which makes what is missing"
                ) from None
        sqlqueue.queue.create_queue(spec)
        context.log.info("made the queue %s", spec.name)
        return sensor(context)

    return tick


def create_job_name(spec: QueueSpec[Any], resource_key: str) -> str:
    """Of the job that makes a queue."""
    return f"create_{spec.name}" if resource_key == RESOURCE_KEY else f"{resource_key}_create_{spec.name}"


def _say_applied(context: dg.OpExecutionContext, queue: SqlQueue) -> None:
    for migration in queue.migrate():
        context.log.info("applied %04d_%s", migration.version, migration.name)


def _shown(settings: QueueSettings) -> dict[str, Any]:
    return {
        "queue": settings.name,
        "buckets": settings.bucket_count,
        "strategy": str(settings.strategy),
        "lease_seconds": settings.lease_seconds,
        "max_attempts": settings.max_attempts,
    }
