"""An IO manager that enqueues outputs as jobs."""

from collections.abc import Sequence
from typing import Any

import dagster as dg

from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.model.queue import QueueSpec, check_queue_name, check_spec
from dagster_sqlqueue.orchestration.resource import RESOURCE_KEY, check_resource_key
from dagster_sqlqueue.orchestration.step_ids import each_job, spec_for, step_ids
from dagster_sqlqueue.queue import SqlQueue
from dagster_sqlqueue.schema import migrations

QUEUE_KEY = "sqlqueue/queue"
"""The metadata key of an output or asset with the name of its queue."""


class SqlQueueIOManager(dg.IOManager):
    """Enqueues the output of an op or asset, in one transaction. See `build_sqlqueue_io_manager`.

    Args:
        queue: where the queues are.
        specs: the queues with the models to validate payloads by.
        default: the queue of outputs that name none.
    """

    def __init__(self, queue: SqlQueue, specs: Sequence[QueueSpec[Any]] = (), default: str | None = None) -> None:
        self._queue = queue
        self._specs = {spec.name: spec for spec in specs}
        self._default = default

    def handle_output(self, context: dg.OutputContext, obj: Any) -> None:
        """Enqueue the jobs of an output; add nothing if an earlier attempt of the same step has done so, in this run or in
        one that it retries or re-executes.

        Raises:
            InvalidPayload, InvalidInput, UnknownQueue: nothing was enqueued.
        """
        name = self._queue_of(context)
        migrations.check(self._queue.database)
        spec, jobs = (self._specs[name], each_job(obj)) if name in self._specs else spec_for(name, each_job(obj))
        ids = step_ids(context.step_context, "output", context.name, context.mapping_key or "")
        done = self._queue.enqueue_many(spec, ids.jobs(jobs))
        if done.duplicates and not done.inserted:
            context.log.warning(
                "an earlier attempt of this step or run had enqueued all %d jobs; to enqueue them anew, start a new run"
                " rather than re-execute this one",
                done.duplicates,
            )
        context.add_output_metadata({QUEUE_KEY: name, "jobs_enqueued": done.inserted, "duplicates": done.duplicates})

    def load_input(self, context: dg.InputContext) -> Any:
        """Refuse to load: only consumers take jobs from a queue.

        Raises:
            InvalidInput: always; the message says what to do instead.
        """
        source = context.upstream_output
        what = "the upstream output" if source is None else f"output {source.name!r} of {source.step_key!r}"
        if context.has_asset_key:
            what = f"asset {context.asset_key.to_user_string()!r}"
        raise InvalidInput(
            f"{what} was enqueued, and cannot be loaded as an input: the queue's consumers handle its jobs."
            " To run after it without its value, depend on it by deps=[…] (an asset) or by an input of type dg.Nothing (an"
            " op); to work the jobs off, use queue_consumer or claim_jobs; to go on when they have ended, use enqueue_group"
            " and build_group_sensor"
        )

    def _queue_of(self, context: dg.OutputContext) -> str:
        given = context.output_metadata.get(QUEUE_KEY) or context.definition_metadata.get(QUEUE_KEY)
        # Metadata of the output at run time is a value of Dagster's.
        given = given.value if isinstance(given, dg.MetadataValue) else given
        name = given or self._default or (next(iter(self._specs)) if len(self._specs) == 1 else None)
        if name is None:
            raise InvalidInput(
                f"output {context.name!r} does not name the queue of its jobs: give it"
                f" metadata={{{QUEUE_KEY!r}: 'name'}}, or the IO manager a default"
            )
        return check_queue_name(name)


def build_sqlqueue_io_manager(
    *specs: QueueSpec[Any], default: QueueSpec[Any] | str | None = None, resource_key: str = RESOURCE_KEY
) -> dg.IOManagerDefinition:
    """Build an IO manager that enqueues the output of an op or asset as jobs.

    An output is a list or a generator of payloads or `NewJob`s, one of these alone, or a table or data frame with a payload
    in each row. The manager reads a generator, as `dg.Output(generator)`, in constant memory. It enqueues all jobs in one
    transaction or, if one is not usable, none. It makes the ids of jobs without one from the root run, the step, the output
    and the position, so that a retried step, and a retried or re-executed run, enqueue them once; the step has to make them
    in the same order.

    The queue is the one in the output's or asset's metadata, `{"sqlqueue/queue": "emails"}`, else the default, else the only
    one of `specs`. The output's metadata counts `jobs_enqueued` and `duplicates`.

    Args:
        specs: the queues with the models to validate payloads by. For other queues, the first payload's own model is that
            of all; dicts only have to be JSON.
        default: the queue of outputs that name none.
        resource_key: of the `SqlQueueResource`.

    Raises:
        InvalidInput: one of the queues, or the resource's key, is none.

    Example:
        ```python
        dg.Definitions(
            assets=[invitations],  # @dg.asset(io_manager_key="queue_io", metadata={"sqlqueue/queue": "emails"})
            resources={
                "sqlqueue": SqlQueueResource(url=dg.EnvVar("SQLQUEUE_URL")),
                "queue_io": build_sqlqueue_io_manager(emails),
            },
        )
        ```
    """
    check_resource_key(resource_key)
    for spec in specs:
        check_spec(spec)
    name = default.name if isinstance(default, QueueSpec) else default
    if name is not None:
        check_queue_name(name)
    declared = [*specs, default] if isinstance(default, QueueSpec) else list(specs)

    @dg.io_manager(required_resource_keys={resource_key}, description="Enqueues outputs as jobs of a queue.")
    def sqlqueue_io_manager(context: dg.InitResourceContext) -> SqlQueueIOManager:
        return SqlQueueIOManager(getattr(context.resources, resource_key).queue, declared, name)

    return sqlqueue_io_manager
