"""Ops for your own graphs: claim jobs, complete them, fail them, enqueue others. The ops of `build_…_op` take the resource
of any key, the others `sqlqueue`.
"""

from collections.abc import Iterable
from typing import Any, Literal, cast

import dagster as dg
from pydantic import Field

from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.model.backoff import Backoff, BackoffPolicy
from dagster_sqlqueue.model.outcome import Done, Outcome, Retry
from dagster_sqlqueue.model.queue import Payload, QueueSpec, check_spec
from dagster_sqlqueue.orchestration import leased_jobs
from dagster_sqlqueue.orchestration.chosen_buckets import check_chosen
from dagster_sqlqueue.orchestration.leased_jobs import LeasedJob as LeasedJob
from dagster_sqlqueue.orchestration.resource import RESOURCE_KEY, SqlQueueResource, under_key
from dagster_sqlqueue.orchestration.run_claims import note_claim, run_worker
from dagster_sqlqueue.orchestration.step_ids import each_job, ids_of, spec_for
from dagster_sqlqueue.queue import MAX_BATCH, SqlQueue
from dagster_sqlqueue.queue.claim_request import ClaimRequest
from dagster_sqlqueue.schema import migrations

_TAGS = {"kind": "sqlqueue"}
_NAMED = 5


class _Claim(dg.Config):
    """How many jobs to claim, and for how long."""

    limit: int = Field(default=100, ge=1, le=MAX_BATCH, description="The most jobs to claim.")
    lease_seconds: float | None = Field(
        default=None,
        description="How long the leases hold; they must cover the rest of the graph. Unset: the queue's lease.",
    )
    buckets: list[int] = Field(default=[], description="The buckets to claim from; empty: all.")


class ClaimConfig(_Claim):
    """The queue to claim jobs from, and how many."""

    queue: str = Field(description="The queue's name.")


class WriteConfig(dg.Config):
    """What to do about writes that were refused because the lease of their job had passed on."""

    fail_if_stale: bool = Field(
        default=False,
        description="Fail the step, after all other writes, if any was refused; else only count them.",
    )


class _Enqueue(dg.Config):
    """What to do about duplicates."""

    on_conflict: str = Field(
        default="ignore",
        description="What to do with a job whose unique key a live job has: 'ignore' leaves it out, 'replace' gives its"
        " content to the live one if that still waits.",
    )


class EnqueueConfig(_Enqueue):
    """The queue to enqueue on, and what to do about duplicates."""

    queue: str = Field(description="The queue's name.")


def build_claim_op(
    spec: QueueSpec[Payload],
    *,
    name: str | None = None,
    limit: int = 100,
    lease_seconds: float | None = None,
    resource_key: str = RESOURCE_KEY,
) -> dg.OpDefinition:
    """Build an op that claims due jobs of a queue and returns them as a list of `LeasedJob`s; empty if none is due.

    Its input `start` only orders ops: `claim(start=upstream())`. As a consumer does, it sends jobs whose payload does not
    fit the model to the dead letter, and holds those of an unknown version. End all others by `complete_jobs` and
    `fail_jobs` before the lease ends; nothing extends it in between.

    Args:
        spec: the queue.
        name: of the op; None: `claim_<queue>`.
        limit: the most jobs, unless the run's config has another.
        lease_seconds: how long the lease holds, unless the run's config has another; None: the queue's lease.
        resource_key: of the `SqlQueueResource`.

    Raises:
        InvalidInput: the queue is none, or a number is out of range.
    """
    check_spec(spec)
    ClaimRequest(spec.name, limit, lease_seconds=lease_seconds).checked()
    most, lease = limit, lease_seconds

    class Config(_Claim):
        """How many jobs to claim, and for how long."""

        limit: int = Field(default=most, ge=1, le=MAX_BATCH, description="The most jobs to claim.")
        lease_seconds: float | None = Field(
            default=lease, description="How long the leases hold; they must cover the rest of the graph."
        )

    @dg.op(
        name=name or f"claim_{spec.name}",
        description=f"Claims due jobs of the queue {spec.name!r}.",
        ins={"start": dg.In(dg.Nothing)},
        out=dg.Out(list, description="The jobs, each a LeasedJob."),
        tags=_TAGS,
    )
    @under_key(resource_key)
    def claim(
        context: dg.OpExecutionContext, config: Config, sqlqueue: SqlQueueResource
    ) -> dg.Output[list[LeasedJob[Any]]]:
        return _claim(context, sqlqueue.queue, spec.name, spec, config)

    return claim


@dg.op(ins={"start": dg.In(dg.Nothing)}, out=dg.Out(list, description="The jobs, each a LeasedJob."), tags=_TAGS)
def claim_jobs(
    context: dg.OpExecutionContext, config: ClaimConfig, sqlqueue: SqlQueueResource
) -> dg.Output[list[LeasedJob[Any]]]:
    """Claims due jobs of the queue that the config names. Their payloads are dicts."""
    return _claim(context, sqlqueue.queue, config.queue, None, config)


def _complete_op(name: str, description: str | None = None, resource_key: str = RESOURCE_KEY) -> dg.OpDefinition:
    @dg.op(
        name=name,
        description=description,
        out=dg.Out(dict, description="How many jobs were completed, and how many writes were refused."),
        tags=_TAGS,
    )
    @under_key(resource_key)
    def complete_jobs(
        context: dg.OpExecutionContext, config: WriteConfig, sqlqueue: SqlQueueResource, jobs: list[Any]
    ) -> dg.Output[dict[str, int]]:
        """Completes claimed jobs: a list of `LeasedJob`s, or of pairs of one and its `Done(result)`. A write is refused if
        the job's lease has passed on.
        """
        return _complete(context, sqlqueue.queue, jobs, config)

    return complete_jobs


complete_jobs = _complete_op("complete_jobs")


def build_complete_op(
    spec: QueueSpec[Any], *, name: str | None = None, resource_key: str = RESOURCE_KEY
) -> dg.OpDefinition:
    """Build `complete_jobs` for a queue that has a resource of another key.

    Args:
        spec: the queue.
        name: of the op; None: `complete_<queue>`.
        resource_key: of the `SqlQueueResource`.

    Raises:
        InvalidInput: the queue is none.
    """
    check_spec(spec)
    return _complete_op(name or f"complete_{spec.name}", f"Completes jobs of the queue {spec.name!r}.", resource_key)


def _fail_op(
    name: str,
    description: str | None = None,
    resource_key: str = RESOURCE_KEY,
    backoff: BackoffPolicy | None = None,
) -> dg.OpDefinition:
    @dg.op(
        name=name,
        description=description,
        out=dg.Out(dict, description="How many jobs are retried, went to the dead letter, …"),
        tags=_TAGS,
    )
    @under_key(resource_key)
    def fail_jobs(
        context: dg.OpExecutionContext, config: WriteConfig, sqlqueue: SqlQueueResource, failures: list[Any]
    ) -> dg.Output[dict[str, int]]:
        """Fails claimed jobs: a list of pairs of a `LeasedJob` and its error or outcome.

        A text is an error, and the same as `Retry(error)`: another attempt after the queue's backoff, and after the last one
        the dead letter. `Reject(reason)` is the dead letter at once; `Snooze`, `Hold` and `Cancel` are as for handlers.
        """
        settled = [_failure(pair) for pair in failures]
        return _write(context, sqlqueue.queue, settled, config, backoff, "retried", "dead_lettered")

    return fail_jobs


fail_jobs = _fail_op("fail_jobs")


def build_fail_op(
    spec: QueueSpec[Any], *, name: str | None = None, resource_key: str = RESOURCE_KEY
) -> dg.OpDefinition:
    """Build `fail_jobs` for a queue: one whose backoff is a function, which the database does not have, or that has a
    resource of another key.

    Args:
        spec: the queue.
        name: of the op; None: `fail_<queue>`.
        resource_key: of the `SqlQueueResource`.

    Raises:
        InvalidInput: the queue is none.
    """
    check_spec(spec)
    return _fail_op(
        name or f"fail_{spec.name}",
        f"Fails jobs of the queue {spec.name!r}: retries them, or sends them to the dead letter.",
        resource_key,
        None if isinstance(spec.backoff, Backoff) else spec.backoff,
    )


def build_enqueue_op(
    spec: QueueSpec[Any], *, name: str | None = None, resource_key: str = RESOURCE_KEY
) -> dg.OpDefinition:
    """Build an op that enqueues its input `jobs`: all of them or, if it fails, none; and once, however often the step or the
    run is retried or re-executed.

    Jobs are payloads or `NewJob`s in anything iterable, or the rows of a table of pyarrow or pandas.

    Args:
        spec: the queue.
        name: of the op; None: `enqueue_<queue>`.
        resource_key: of the `SqlQueueResource`.

    Raises:
        InvalidInput: the queue is none.
    """
    check_spec(spec)

    @dg.op(
        name=name or f"enqueue_{spec.name}",
        description=f"Enqueues jobs on the queue {spec.name!r}.",
        out=dg.Out(dict, description="How many jobs were enqueued, and how many existed already."),
        tags=_TAGS,
    )
    @under_key(resource_key)
    def enqueue(
        context: dg.OpExecutionContext, config: _Enqueue, sqlqueue: SqlQueueResource, jobs: Any
    ) -> dg.Output[dict[str, int]]:
        return _enqueue(context, sqlqueue.queue, spec, each_job(jobs), config)

    return enqueue


@dg.op(out=dg.Out(dict, description="How many jobs were enqueued, and how many existed already."), tags=_TAGS)
def enqueue_jobs(
    context: dg.OpExecutionContext, config: EnqueueConfig, sqlqueue: SqlQueueResource, jobs: Any
) -> dg.Output[dict[str, int]]:
    """Enqueues dicts, models or `NewJob`s on the queue that the config names: all of them or, if it fails, none; and once,
    however often the step or the run is retried or re-executed.

    The model of the first is that of all; dicts only have to be JSON.
    """
    spec, given = spec_for(config.queue, each_job(jobs))
    return _enqueue(context, sqlqueue.queue, spec, given, config)


def _claim(
    context: dg.OpExecutionContext, queue: SqlQueue, name: str, spec: QueueSpec[Any] | None, config: _Claim
) -> dg.Output[list[LeasedJob[Any]]]:
    migrations.check(queue.database)
    if config.buckets:
        check_chosen(queue.settings(name), config.buckets)
    taken = leased_jobs.take(
        queue.leases,
        name,
        spec,
        limit=config.limit,
        lease_seconds=config.lease_seconds,
        worker=run_worker(context.run_id),
        buckets=config.buckets or None,
    )
    if taken.jobs:
        note_claim(context, name, config.lease_seconds or queue.catalog.last_seen(name).lease_seconds)
    counts: dict[str, Any] = {"claimed": len(taken.jobs), "rejected": taken.rejected, "held": taken.held}
    if taken.jobs:
        counts["leased_until"] = dg.MetadataValue.timestamp(min(job.lease_until for job in taken.jobs))
    return dg.Output(taken.jobs, metadata=counts)


def _complete(
    context: dg.OpExecutionContext, queue: SqlQueue, jobs: list[Any], config: WriteConfig
) -> dg.Output[dict[str, int]]:
    settled = [(job, Done()) if isinstance(job, LeasedJob) else _pair(job) for job in jobs]
    for _, outcome in settled:
        if not isinstance(outcome, Done):
            raise InvalidInput(
                f"complete_jobs was given a job with {outcome!r:.100}; give it jobs, or pairs of a job and Done(result), and"
                " give all others to fail_jobs"
            )
    return _write(context, queue, settled, config, None, "completed")


def _write(
    context: dg.OpExecutionContext,
    queue: SqlQueue,
    settled: list[tuple[LeasedJob[Any], Outcome]],
    config: WriteConfig,
    backoff: BackoffPolicy | None,
    *always: str,
) -> dg.Output[dict[str, int]]:
    written = leased_jobs.write(queue.leases, settled, backoff)
    counts = {**dict.fromkeys(always, 0), **+written.counts, "stale": len(written.stale)}
    if written.stale:
        named = ", ".join(map(str, written.stale[:_NAMED])) + (", …" if len(written.stale) > _NAMED else "")
        refused = (
            f"{len(written.stale)} of {len(settled)} writes were refused, because the leases of their jobs had passed on"
            f" ({named}): another consumer has these jobs, or they have ended. If this happens often, give the claim more"
            " lease_seconds"
        )
        if context.retry_number:
            refused += (
                f". This is attempt {context.retry_number + 1} of the step: what an earlier one wrote about a job counts as"
                " refused here if the job was claimed since"
            )
        if config.fail_if_stale:
            raise dg.Failure(refused, metadata=counts, allow_retries=False)
        context.log.warning("%s", refused)
    return dg.Output(counts, metadata=counts)


def _enqueue(
    context: dg.OpExecutionContext, queue: SqlQueue, spec: QueueSpec[Any], jobs: Iterable[Any], config: _Enqueue
) -> dg.Output[dict[str, int]]:
    migrations.check(queue.database)
    ids = ids_of(context, "jobs")
    on_conflict = cast(Literal["ignore", "replace"], config.on_conflict)
    done = queue.enqueue_many(spec, ids.jobs(jobs), on_conflict=on_conflict)
    counts = {"enqueued": done.inserted, "duplicates": done.duplicates, "replaced": done.replaced}
    return dg.Output(counts, metadata=counts)


def _failure(given: object) -> tuple[LeasedJob[Any], Outcome]:
    job, how = _pair(given)
    if isinstance(how, Done):
        raise InvalidInput(f"fail_jobs was given job {job.id} as done; give it to complete_jobs")
    return job, Retry(how) if isinstance(how, str) else how


def _pair(given: object) -> tuple[LeasedJob[Any], Any]:
    if not (isinstance(given, tuple | list) and len(given) == 2 and isinstance(given[0], LeasedJob)):
        raise InvalidInput(
            f"there is a {type(given).__name__} where a pair was expected: give (job, outcome), the job as it was claimed"
        )
    return given[0], given[1]
