"""What a run of a graph has claimed and not ended: noted on the run, and given back when a step of it fails.

Nothing depends on it: leases end by themselves. The jobs are claimed one by one then, or one that breaks the graph would do
so with all others for ever.
"""

import json

import dagster as dg

from dagster_sqlqueue.queue import SqlQueue

CLAIMS_TAG = "sqlqueue/claims"
"""On a run that has claimed jobs: the queues, and for how many seconds at most."""


def run_worker(run_id: str) -> str:
    """Who holds the jobs that a run has claimed, as the database shows it."""
    return f"run/{run_id}"


def note_claim(context: dg.OpExecutionContext, queue: str, lease_seconds: float) -> None:
    """Have the run say what it claims, for whoever gives it back. A run that is none, as in a unit test, says nothing."""
    run = context.instance.get_run_by_id(context.run_id)
    if run is None:
        return
    claims = _claims(run)
    if claims.get(queue, 0.0) < lease_seconds:
        context.instance.add_run_tags(run.run_id, {CLAIMS_TAG: json.dumps({**claims, queue: lease_seconds})})


@dg.failure_hook(required_resource_keys={"sqlqueue"})
def give_back_on_failure(context: dg.HookContext) -> None:
    """When a step fails, gives back at once what its run has claimed and not ended.

    For jobs with ops of `build_claim_op` or `claim_jobs`: `@dg.job(hooks={give_back_on_failure})`. A run that is cancelled
    or killed calls no hook: for those there is `build_cleanup_sensors`.
    """
    run = context.instance.get_run_by_id(context.run_id)
    if run is not None:
        for name, jobs in give_back(context.resources.sqlqueue.queue, run).items():
            context.log.info("%s: %d jobs that the run had claimed were given back", name, jobs)


def give_back(queue: SqlQueue, run: dg.DagsterRun) -> dict[str, int]:
    """Give back what the ops of a run's graph have claimed: how many jobs of each queue there were."""
    claims = _claims(run).items()
    return {
        name: len(queue.leases.end_leases(name, run_worker(run.run_id), lease_seconds=seconds))
        for name, seconds in claims
    }


def _claims(run: dg.DagsterRun) -> dict[str, float]:
    claims: dict[str, float] = json.loads(run.tags.get(CLAIMS_TAG, "{}"))
    return claims
