"""An IO manager that enqueues: a graph or an asset whose output is jobs ends in a queue."""

from collections.abc import Sequence
from typing import Any

import dagster as dg

from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.model.queue import QueueSpec, check_queue_name
from dagster_sqlqueue.orchestration.repeating import each_job, spec_for, step_ids
from dagster_sqlqueue.queue import SqlQueue
from dagster_sqlqueue.schema import migrations

QUEUE_KEY = "sqlqueue/queue"
"""The metadata of an output or asset that names its queue."""


class SqlQueueIOManager(dg.IOManager):
    """Puts what an op or asset returns on a queue, all of it in one transaction. See `build_sqlqueue_io_manager`.

    Args:
        queue: where the queues are.
        specs: the queues whose models payloads are to fit.
        default: the queue of outputs that name none.
    """

    def __init__(self, queue: SqlQueue, specs: Sequence[QueueSpec[Any]] = (), default: str | None = None) -> None:
        self._queue = queue
        self._specs = {spec.name: spec for spec in specs}
        self._default = default

    def handle_output(self, context: dg.OutputContext, obj: Any) -> None:
        """Enqueue the jobs of an output. An attempt of the same step that has done so before, in this run or in one that it
        retries or re-executes, is noticed: then nothing is added.

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
                "all %d jobs had been enqueued before, by an earlier attempt of this step or run; to enqueue them anew,"
                " start a new run rather than re-execute this one",
                done.duplicates,
            )
        context.add_output_metadata({QUEUE_KEY: name, "jobs_enqueued": done.inserted, "duplicates": done.duplicates})

    def load_input(self, context: dg.InputContext) -> Any:
        """There is nothing to load: jobs are claimed, by their consumers.

        Raises:
            InvalidInput: always; the message says what to do instead.
        """
        source = context.upstream_output
        what = "the upstream output" if source is None else f"output {source.name!r} of {source.step_key!r}"
        if context.has_asset_key:
            what = f"asset {context.asset_key.to_user_string()!r}"
        raise InvalidInput(
            f"{what} was put on a queue, and cannot be loaded as an input: its jobs are handled by who consumes the queue."
            " To run after it without its value, depend on it by deps=[…] (an asset) or by an input of type dg.Nothing (an"
            " op); to work the jobs off, use queue_consumer or claim_jobs; to go on when they have ended, use enqueue_group"
            " and build_group_sensor"
        )

    def _queue_of(self, context: dg.OutputContext) -> str:
        given = context.output_metadata.get(QUEUE_KEY) or context.definition_metadata.get(QUEUE_KEY)
        # What comes with the output at run time is a value of Dagster's.
        given = given.value if isinstance(given, dg.MetadataValue) else given
        name = given or self._default or (next(iter(self._specs)) if len(self._specs) == 1 else None)
        if name is None:
            raise InvalidInput(
                f"output {context.name!r} does not say on which queue its jobs are to be put: give it"
                f" metadata={{{QUEUE_KEY!r}: 'name'}}, or the IO manager a default"
            )
        return check_queue_name(name)


def build_sqlqueue_io_manager(
    *specs: QueueSpec[Any], default: QueueSpec[Any] | str | None = None, resource_key: str = "sqlqueue"
) -> dg.IOManagerDefinition:
    """An IO manager that enqueues: what an op or asset with it returns becomes jobs.

    That may be a list or a generator of payloads or `NewJob`s, one of these alone, or a table or data frame whose rows are
    payloads. A generator, as `dg.Output(generator)`, is read in constant memory. All jobs are enqueued in one transaction
    or, if something is wrong with one, none. The ids of those that have none of their own come from the root run, the step,
    the output and their position, so a step that is retried and a run that is retried or re-executed enqueue them once; it
    has to make them in the same order.

    The queue is the one that the output's or asset's metadata names, `{"sqlqueue/queue": "emails"}`, else the default, else
    the only one of `specs`. The output's metadata tells `jobs_enqueued` and `duplicates`.

    Args:
        specs: the queues whose models payloads are to fit. Of others, the first payload's own model is that of all, and of
            dicts it is only checked that they are JSON.
        default: the queue of outputs that name none.
        resource_key: of the `SqlQueueResource`.

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
    name = default.name if isinstance(default, QueueSpec) else default
    if name is not None:
        check_queue_name(name)
    declared = [*specs, default] if isinstance(default, QueueSpec) else list(specs)

    @dg.io_manager(required_resource_keys={resource_key}, description="Enqueues outputs as jobs of a queue.")
    def sqlqueue_io_manager(context: dg.InitResourceContext) -> SqlQueueIOManager:
        return SqlQueueIOManager(getattr(context.resources, resource_key).queue, declared, name)

    return sqlqueue_io_manager
