"""Where the library and the model must agree: what a claim hands out, its limits, the tables and the promises."""

from datetime import datetime
from typing import Any

from dagster_sqlqueue.model.job import ClaimedJob
from dagster_sqlqueue.model.lifecycle import LiveState
from tests.gate.plugin import verdict
from tests.statemachine.jobs import NEVER, Divergence, ModelJob, Moment, order
from tests.statemachine.model import Model
from tests.statemachine.server import ARCHIVED, LIVE, STALE, Server


@verdict
def differences(library: object, model: object) -> list[str]:
    """What both say, where it is not the same."""
    return [] if library == model else [f"the library: {library}", f"the model:   {model}"]


def same(library: object, model: object) -> None:
    """Demand that both say the same.

    Raises:
        Divergence: they do not.
    """
    if found := differences(library, model):
        raise Divergence("\n".join(found))


def as_claimed(job: ClaimedJob | ModelJob) -> tuple[Any, ...]:
    """What both know of a job that was claimed, to be compared and sorted."""
    return (
        job.id, job.bucket, job.priority, job.lease_no, job.attempt, job.max_attempts, job.order_no is not None,
        job.limited, job.unique_key or "", job.ordering_key or "",
    )  # fmt: skip


def limits_hold(model: Model, granted: list[ModelJob]) -> None:
    """The limits hold for what a claim grants; leases from before a limit was set may go beyond it."""
    spec, leased = model.spec, [job for job in model.live.values() if job.leased]
    assert not granted or spec.max_running is None or len(leased) <= spec.max_running
    assert not granted or spec.rate is None or model.starts <= spec.rate.starts
    for job in granted:
        line = [other for other in model.live.values() if other.order_no and other.ordering_key == job.ordering_key]
        running = [other for other in line if other.leased]
        if job.order_no and spec.ordered:
            assert running == [job]
            assert job is min(line, key=order)
        elif job.order_no:
            assert len(running) <= (spec.max_running_per_key or 0)


def tables_agree(server: Server, model: Model, began: datetime) -> None:
    """Every job, live or archived, is in the tables as the model has it; moments count from where the run `began`."""
    rows = server.execute(LIVE, began)
    live = sorted(model.live.values(), key=lambda job: (job.bucket, job.place))
    same(
        [row[:7] + row[9:] for row in rows],
        [
            (
                job.id, job.bucket, job.priority, job.state, job.lease_no, job.attempt, job.max_attempts,
                job.cancel_requested, job.unique_key, job.unique_until_claim, job.ordering_key, _hours(job.at),
                job.content,
            )
            for job in live
        ],
    )  # fmt: skip
    same([row[8] for row in rows if row[3] == "running"], [job.limited for job in live if job.state == "running"])
    numbered = sorted((row[7], row[0]) for row in rows if row[7] is not None)
    same([job for _, job in numbered], [job.id for job in sorted(live, key=order) if job.order_no])
    archived = sorted(server.execute(ARCHIVED))
    same(
        archived,
        [
            (
                job.id, job.state, job.lease_no, job.attempt, job.bucket, job.priority, job.unique_key,
                job.unique_until_claim, job.ordering_key, job.content,
            )
            for job in sorted(model.archive.values(), key=lambda job: job.id)
        ],
    )  # fmt: skip
    same(int(server.execute(STALE)[0][0]), model.stale)


def promises_hold(model: Model) -> None:
    """No two jobs hold the same unique key, and no job of a key is parked without one that it waits for."""
    jobs = list(model.live.values())
    unique = [job.held_key for job in jobs if job.held_key]
    assert len(unique) == len(set(unique))
    for key in {job.ordering_key for job in jobs if job.order_no}:
        line = sorted((job for job in jobs if job.order_no and job.ordering_key == key), key=order)
        parked = [job for job in line if job.parked]
        if model.spec.ordered:
            runs = any(job.state is LiveState.RUNNING for job in line)
            assert not line[0].parked or runs, "the first of a key waits for nobody"
        else:
            others = [job for job in line if not job.parked and job.state is not LiveState.HELD]
            assert others or not parked, "jobs of a key wait for nobody"


def _hours(moment: Moment) -> int | None:
    return None if moment == NEVER else int(min(max(moment[0], -999), 999))
