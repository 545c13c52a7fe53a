"""The job that creates a queue, for users of the launchpad without a shell; and a sensor that names it."""

from typing import Any

import dagster as dg
from pydantic import Field

from dagster_sqlqueue.errors import SchemaMissing, UnknownQueue
from dagster_sqlqueue.model.queue import QueueSettings, QueueSpec, check_spec
from dagster_sqlqueue.orchestration.queue_sensor import queue_sensor
from dagster_sqlqueue.orchestration.resource import RESOURCE_KEY, SqlQueueResource, under_key
from dagster_sqlqueue.queue import SqlQueue
from dagster_sqlqueue.schema import migrations


class CreateConfig(dg.Config):
    """Options of the run that creates a queue."""

    migrate: bool = Field(
        default=False,
        description="Migrate the tables first, as sqlqueue migrate does. Missing tables are created in any case.",
    )


def build_create_job(spec: QueueSpec[Any], *, resource_key: str = RESOURCE_KEY) -> dg.JobDefinition:
    """Build the job that creates a queue, or changes the settings of an existing one to those in the code.

    Its run creates the tables too if they are missing; it migrates tables of an older version only with `migrate: true`.
    Safe to run again. It needs the resource, with a database user who may create tables and queues.

    Args:
        spec: the queue. The job is `create_<queue>`, with another resource key `<key>_create_<queue>`.
        resource_key: of the `SqlQueueResource`.

    Raises:
        InvalidInput: the queue is none.
    """
    check_spec(spec)

    @dg.op(
        name=f"make_{spec.name}" if resource_key == RESOURCE_KEY else f"{resource_key}_make_{spec.name}",
        description=f"Creates the queue {spec.name!r}, or updates its settings.",
        out=dg.Out(dg.Nothing, description="Stores nothing; the settings in the database are its metadata."),
        tags={"kind": "sqlqueue"},
    )
    @under_key(resource_key)
    def make(context: dg.OpExecutionContext, config: CreateConfig, sqlqueue: SqlQueueResource) -> dg.Output[None]:
        queue = sqlqueue.queue
        if config.migrate:
            _say_applied(context, queue)
        try:
            migrations.check(queue.database)
        except SchemaMissing:
            _say_applied(context, queue)
        settings = queue.create_queue(spec)
        context.log.info("queue %s exists, with %d buckets", spec.name, settings.bucket_count)
        if settings.bucket_count != spec.bucket_count:
            context.log.warning(
                "an existing queue keeps its %d buckets; change them with: sqlqueue rebucket %s %d",
                settings.bucket_count,
                spec.name,
                spec.bucket_count,
            )
        return dg.Output(None, metadata=_shown(settings))

    @dg.job(
        name=create_job_name(spec, resource_key),
        executor_def=dg.in_process_executor,
        description=f"Creates the queue {spec.name!r}, or changes its settings to those in the code. Safe to run again.",
        tags={"sqlqueue/queue": spec.name},
    )
    def create_job() -> None:
        make()

    return create_job


def helping(
    sensor: dg.SensorDefinition, spec: QueueSpec[Any], *, create: bool = False, resource_key: str = RESOURCE_KEY
) -> dg.SensorDefinition:
    """Wrap a queue's sensor: a tick that finds no queue or no tables names the job that creates them, or creates the queue.

    Args:
        sensor: the queue's sensor.
        spec: the queue.
        create: whether a tick creates a missing queue. It changes no existing queue, and creates no tables.
        resource_key: of the queue's resource.
    """

    @dg.sensor(
        name=sensor.name,
        job_name=None if sensor.has_jobs else sensor.job_name,
        jobs=sensor.jobs if sensor.has_jobs else None,
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
                    f"{error}. Or launch the job {create_job_name(spec, resource_key)}, which creates what is missing"
                ) from None
        sqlqueue.queue.create_queue(spec)
        context.log.info("created the queue %s", spec.name)
        return sensor(context)

    return queue_sensor(tick)


def create_job_name(spec: QueueSpec[Any], resource_key: str) -> str:
    """The name of the job that creates a queue."""
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
