"""What became of a deployment: what went wrong with its jobs, effects, runs and slots, and how long its buckets waited."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

from tests.faults.checker import check, tables
from tests.faults.deployment import Deployment
from tests.faults.location import BATCH
from tests.gate.plugin import verdict
from tests.support import rows, value

TICK_SECONDS = 5.0
"""How often Dagster's daemon evaluates a sensor."""


@dataclass(frozen=True)
class Wait:
    """How long a bucket with due jobs waited for the next of its jobs to be taken."""

    seconds: float
    queue: str
    bucket: int
    orphan: bool
    after: str


@verdict
def wrong(deployment: Deployment) -> list[str]:
    """Everything that went wrong with jobs and effects, in words."""
    histories = deployment.histories()
    handled = [event for history in histories for event in history if event["event"] == "handled"]
    leased = Counter((event["id"], event["lease_no"]) for event in handled if event["queue"] == "leased")
    ended = value(deployment.queue, "SELECT count(*) FROM {s}.job_archive WHERE queue = 'leased'")
    hit = [one for one in deployment.disturbances if one.kill and one.point.startswith(("leased", "database"))]
    found = check(histories, tables(deployment.queue))
    if again := [key for key, times in leased.items() if times > 1]:
        found.append(f"{len(again)} jobs were handed to a handler twice under one lease: {again[:3]}")
    # A run holds the batch at hand, and the one that it took while it ended that.
    if leased.total() > ended + 2 * BATCH * len(hit):
        found.append(f"{leased.total()} handlers began for {ended} jobs, with {len(hit)} kills")
    missing = (
        "SELECT count(*) FROM {s}.job_archive AS a WHERE queue = 'booked' AND state = 'succeeded'"
        " AND NOT EXISTS (SELECT FROM {s}.effect WHERE job = a.id)"
    )
    surplus = (
        "SELECT (SELECT count(*) FROM {s}.effect) - count(*) FROM {s}.job_archive"
        " WHERE queue = 'booked' AND state = 'succeeded'"
    )
    if count := value(deployment.queue, missing):
        found.append(f"{count} jobs ended without their effect")
    if count := value(deployment.queue, surplus):
        found.append(f"{count} effects are there beyond the one of each job")
    if value(deployment.queue, "SELECT count(*) FROM {s}.job_archive WHERE state = 'succeeded'") != deployment.enqueued:
        found.append(f"not all of {deployment.enqueued} jobs succeeded")
    return found


@verdict
def never_made(deployment: Deployment) -> list[str]:
    """Runs that a tick had promised and that are not there."""
    promised = [
        run_id
        for state in deployment.instance.all_instigator_state()
        for tick in deployment.instance.get_ticks(state.instigator_origin_id, state.selector_id)
        for run_id in tick.tick_data.reserved_run_ids or []
    ]
    assert promised
    return [run_id for run_id in promised if deployment.instance.get_run_by_id(run_id) is None]


@verdict
def shared(deployment: Deployment) -> list[str]:
    """Buckets that two live slots of one queue covered at the same moment, in words."""
    found = []
    live: dict[tuple[str, int], tuple[Any, list[int], Any]] = {}
    log = "SELECT at, deed, queue, slot, token, buckets, expires_at FROM {s}.slot_audit ORDER BY place"
    for at, deed, queue, slot, token, buckets, expires_at in rows(deployment.queue, log):
        if deed == "delete":
            live.pop((queue, slot), None)
            continue
        for (other_queue, other), (_, others, until_) in live.items():
            both = set(others) & set(buckets)
            if other_queue == queue and other != slot and until_ > at and both:
                found.append(f"slots {other} and {slot} of {queue} covered {sorted(both)} at {at} ({deed})")
        live[queue, slot] = (token, buckets, expires_at)
    return found


def waits(deployment: Deployment) -> list[Wait]:
    """How long buckets with due jobs, and jobs whose lease had run out, waited without a disturbance."""
    moves = """
        SELECT r.queue, r.bucket, a.at, a.was_until, a.was_state
        FROM {s}.audit AS a
        JOIN {s}.job_archive AS r ON r.id = a.job
        WHERE a.kind = CASE r.queue WHEN 'leased' THEN 'claim' ELSE 'end' END
        ORDER BY a.at
    """
    found = []
    last: dict[tuple[str, int], float] = {}
    for queue, bucket, at_, due_, state in rows(deployment.queue, moves):
        at, due = at_.timestamp(), due_.timestamp()
        hits = [one for one in deployment.disturbances if one.hits(queue, bucket) and one.began < at]
        since = max([due, *(min(one.ended, at) for one in hits)])
        orphan = queue == "leased" and state == "running"
        if not orphan:
            since = max(since, last.get((queue, bucket), 0.0))
        last[queue, bucket] = at
        found.append(Wait(at - since, queue, bucket, orphan, hits[-1].point if hits else ""))
    return found


def bound(deployment: Deployment) -> float:
    """How long a bucket with due jobs may wait: a lease, or as long for a run that never starts; two ticks; and a start."""
    return deployment.lease_seconds + 2 * TICK_SECONDS + slowest_start(deployment)


def slowest_start(deployment: Deployment) -> float:
    """How long a run took from its request to its start, at most, in seconds."""
    return max(
        record.start_time - record.create_timestamp.timestamp()
        for record in deployment.instance.get_run_records()
        if record.start_time is not None
    )
