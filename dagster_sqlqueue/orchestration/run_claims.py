"""Jobs that a run of a graph has claimed and not ended: recorded on the run, and given back when its steps have failed.

Nothing depends on it: leases expire by themselves. Consumers then claim the jobs one by one, or one that breaks the graph
would break it for all others for ever.
"""

import contextlib
from collections.abc import Collection, Mapping, Sequence
from typing import TypeVar

import dagster as dg
from dagster._core.events import EngineEventData

from dagster_sqlqueue.errors import UnknownQueue
from dagster_sqlqueue.orchestration.leased_jobs import LeasedJob, extended
from dagster_sqlqueue.orchestration.resource import RESOURCE_KEY, check_queues, check_resource_key
from dagster_sqlqueue.queue import SqlQueue

RETRY_ALL_STEPS = {"dagster/retry_strategy": "ALL_STEPS"}
"""Tags for a job whose graph claims: a run retry of Dagster begins with the claim, instead of taking over the jobs of the
failed run, which were given back.
"""

T = TypeVar("T")

_QUEUE = "sqlqueue/claimed_from"
_LEASE = "sqlqueue/lease_seconds"
_NAMED = 5


def run_worker(run_id: str) -> str:
    """The worker name of a run in the database, under which its consumers claim."""
    return f"run/{run_id}"


def note_claim(context: dg.OpExecutionContext, queue: str, lease_seconds: float) -> None:
    """Record on the run what it claims, for the hook and the sensors that give it back; not without a run, as in a test."""
    run = context.instance.get_run_by_id(context.run_id)
    if run is None:
        return
    # An event and no tag: Dagster writes all tags of a run at once, and steps side by side would overwrite each other's.
    context.instance.report_engine_event(
        f"Claimed jobs of the queue {queue!r} under leases of {lease_seconds:g} s.",
        run,
        EngineEventData({_QUEUE: queue, _LEASE: dg.MetadataValue.float(float(lease_seconds))}),
    )


def still_held(
    queue: SqlQueue, jobs: Sequence[LeasedJob[T]], *, lease_seconds: float | None = None
) -> list[LeasedJob[T]]:
    """Return those of the jobs that nobody has claimed or ended since, in their order, and extend their leases.

    Call it before work with side effects, where time has passed since the claim, or the run may be a re-execution from the
    failure of an earlier one, whose jobs others may have by now. Go on with what it returns: that has the new leases.

    Args:
        queue: the queues of the jobs.
        jobs: as they were claimed, or as an earlier call returned them.
        lease_seconds: how long the leases hold from now; None: the queue's lease, or what is left if that is longer.

    Raises:
        InvalidInput: the queues are something else.
        UnknownQueue: the queue of a job is gone.
    """
    check_queues(queue)
    if lease_seconds is not None and (context := _step_context()) is not None:
        for name in {job.claimed.queue for job in jobs}:
            # An event for each call, where `give_back` would not find the leases without.
            if lease_seconds > queue.settings(name).lease_seconds:
                note_claim(context, name, lease_seconds)
    return extended(queue, jobs, lease_seconds=lease_seconds)


def _step_context() -> dg.OpExecutionContext | None:
    try:
        return dg.OpExecutionContext.get()
    except dg.DagsterInvariantViolationError:
        return None


def claims_of(instance: dg.DagsterInstance, run: dg.DagsterRun) -> dict[str, float]:
    """Read what the ops of a run's graph have claimed: the queues, and the longest lease of each in seconds."""
    claims: dict[str, float] = {}
    for entry in instance.all_logs(run.run_id, of_type=dg.DagsterEventType.ENGINE_EVENT):
        noted = entry.dagster_event.engine_event_data.metadata if entry.dagster_event else {}
        if _QUEUE in noted and _LEASE in noted:
            queue = str(noted[_QUEUE].value)
            claims[queue] = max(claims.get(queue, 0.0), float(str(noted[_LEASE].value)))
    return claims


_GIVES_BACK = """Gives back at once, when a step fails, what its run has claimed and not ended, unless another step of the
run may still run: it may handle some of these jobs. Steps that are mapped over dynamic outputs may, unless what makes the
outputs failed.

For jobs with ops of `build_claim_op` or `claim_jobs`: `@dg.job(hooks={give_back_on_failure})`.
`build_cleanup_sensors` is for what the hook leaves, and for runs that are cancelled or killed: for those Dagster
calls no hook.
"""


def build_give_back_hook(resource_key: str = RESOURCE_KEY) -> dg.HookDefinition:
    """Build `give_back_on_failure` for the resource of another key.

    Args:
        resource_key: of the `SqlQueueResource`.

    Raises:
        InvalidInput: no resource can have the key.
    """
    check_resource_key(resource_key)

    @dg.failure_hook(
        name="give_back_on_failure" if resource_key == RESOURCE_KEY else f"give_back_on_failure_{resource_key}",
        required_resource_keys={resource_key},
    )
    def hook(context: dg.HookContext) -> None:
        run = context.instance.get_run_by_id(context.run_id)
        if run is None or not claims_of(context.instance, run):
            return
        still_open = _open_steps(context.instance, run, context.step_key)
        if still_open:
            named = ", ".join(still_open[:_NAMED]) + (", …" if len(still_open) > _NAMED else "")
            context.log.info(
                "the run keeps the jobs that it has claimed: other steps may still run (%s). What the run holds at its"
                " end is given back by a sensor of build_cleanup_sensors, or when the leases end",
                named,
            )
            return
        for name, jobs in give_back(getattr(context.resources, resource_key).queue, context.instance, run).items():
            context.log.info("%s: %d jobs that the run had claimed were given back", name, jobs)

    # Dagster makes a hook of a function without its docstring.
    hook.__doc__ = _GIVES_BACK
    return hook


give_back_on_failure = build_give_back_hook()
"""The hook of `build_give_back_hook` for the resource `sqlqueue`."""


def give_back(queue: SqlQueue, instance: dg.DagsterInstance, run: dg.DagsterRun) -> dict[str, int]:
    """Give back what the ops of a run's graph have claimed. Returns the number of jobs of each queue."""
    given_back = {}
    for name, seconds in claims_of(instance, run).items():
        # Of a queue that is gone there is nothing to give back.
        with contextlib.suppress(UnknownQueue):
            # `still_held` extends shorter leases to the queue's.
            longest = max(seconds, queue.settings(name).lease_seconds)
            given_back[name] = len(queue.leases.end_leases(name, run_worker(run.run_id), lease_seconds=longest))
    return given_back


_ENDS = {
    dg.DagsterEventType.STEP_SUCCESS,
    dg.DagsterEventType.STEP_FAILURE,
    dg.DagsterEventType.STEP_SKIPPED,
}


def _open_steps(instance: dg.DagsterInstance, run: dg.DagsterRun, failed: str) -> list[str]:
    """Find the steps of a run that may be running or may still start: those without an event of their end that do not need
    a step that failed. A step that is mapped over dynamic outputs has no such event, only its instances have: it counts as
    one that may still start until the run ends, unless it needs a step that failed.

    Args:
        instance: the instance that has the run.
        run: a run with its plan.
        failed: the key of a step that has failed for good; its own event may not be there yet.

    Returns:
        Their keys, sorted.
    """
    if run.execution_plan_snapshot_id is None:
        return ["of an unknown plan"]
    plan = instance.get_execution_plan_snapshot(run.execution_plan_snapshot_id)
    of_all: Mapping[str, Collection[str]] = plan.step_deps
    # Only this run's steps: of others, a re-execution loads the outputs.
    needs = {key: of_all.get(key, ()) for key in plan.step_keys_to_execute}
    begun: set[str] = set()
    ended: set[str] = set()
    lost = {failed}
    for entry in instance.all_logs(run.run_id, of_type={dg.DagsterEventType.STEP_START, *_ENDS}):
        event = entry.dagster_event
        if event is not None and event.step_key is not None:
            (ended if event.event_type in _ENDS else begun).add(event.step_key)
            if event.event_type is dg.DagsterEventType.STEP_FAILURE:
                lost.add(event.step_key)
    while more := {key for key, needed in needs.items() if key not in lost and not lost.isdisjoint(needed)}:
        lost |= more
    over = ended | (lost - begun) | {failed}
    return sorted(key for key in needs if key not in over)
