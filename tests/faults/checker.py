"""Judges a run: from what each process wrote down, and from the tables as they were left.

A history is a list of events, one JSON object a line, written by a process as soon as it knew:

- `enqueued`: `ids` whose commit was acknowledged.
- `claimed`: `jobs`, pairs of id and lease number, as a claim returned them.
- `ended`: `jobs` whose ending was accepted under that lease; `refused`: those that were not.

The audit is written by a trigger inside the database, with the database's clock: a row for each claim, heartbeat, return
and end of a job, with the state and the lease's end before and after. A claim is at the time that it wrote down itself: the
statement that calls a SQL function may have begun long before, and waited for a lock. A trigger sees only what its own
statement may see, so it judges nothing: how many leases lived at one moment, and what began in one interval, is found out
afterwards.
"""

import bisect
import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from dagster_sqlqueue import SqlQueue
from dagster_sqlqueue.model.queue import RateLimit
from tests.gate.plugin import verdict
from tests.support import rows

AUDIT = """
CREATE TABLE {s}.audit (
    place bigint GENERATED ALWAYS AS IDENTITY, job uuid, kind text, lease_no bigint, at timestamptz,
    was_state text, was_until timestamptz, until timestamptz, key text, order_no bigint
);
CREATE FUNCTION {s}.note() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO {s}.audit (job, kind, lease_no, at, was_state, was_until, until, key, order_no)
    VALUES (
        OLD.id,
        CASE
            WHEN TG_OP = 'DELETE' THEN 'end'
            WHEN NEW.state = 'running' AND NEW.started_at IS DISTINCT FROM OLD.started_at THEN 'claim'
            WHEN NEW.state = 'running' THEN 'kept'
            WHEN OLD.state = 'running' THEN 'back'
            ELSE 'moved'
        END,
        CASE WHEN TG_OP = 'DELETE' THEN OLD.lease_no ELSE NEW.lease_no END,
        CASE WHEN TG_OP = 'UPDATE' AND NEW.state = 'running' AND NEW.started_at IS DISTINCT FROM OLD.started_at
            THEN NEW.started_at ELSE statement_timestamp() END,
        OLD.state, LEAST(OLD.available_at, '9000-01-01'),
        CASE WHEN TG_OP = 'UPDATE' THEN LEAST(NEW.available_at, '9000-01-01') END, OLD.ordering_key, OLD.order_no
    );
    RETURN NULL;
END $$;
CREATE TRIGGER note AFTER UPDATE OR DELETE ON {s}.job FOR EACH ROW EXECUTE FUNCTION {s}.note();
"""


@dataclass(frozen=True)
class Audited:
    """One row of the audit: a `claim`, a lease `kept`, a job given `back` or set aside, one `moved` that was in nobody's
    hands, the `end` of one.
    """

    job: str
    kind: str
    lease_no: int
    at: datetime
    was_state: str
    was_until: datetime
    until: datetime | None = None
    key: str | None = None
    order_no: int | None = None


@dataclass(frozen=True)
class Bounds:
    """What a queue promised to keep."""

    max_running: int | None = None
    max_running_per_key: int | None = None
    rate: RateLimit | None = None
    ordered: bool = False


UNBOUNDED = Bounds()


@dataclass(frozen=True)
class Tables:
    """What the database holds after a run; jobs by id as text, with their lease numbers."""

    live: dict[str, int]
    archived: Sequence[tuple[str, int]]
    audit: Sequence[Audited] = field(default=())


def audited(queue: SqlQueue) -> None:
    """Have the database write its audit from now on."""
    rows(queue, AUDIT)


def tables(queue: SqlQueue) -> Tables:
    """Read what a run left."""
    audit = rows(
        queue,
        "SELECT job::text, kind, lease_no, at, was_state, was_until, until, key, order_no FROM {s}.audit ORDER BY place",
    )
    return Tables(
        dict(rows(queue, "SELECT id::text, lease_no FROM {s}.job")),
        rows(queue, "SELECT id::text, lease_no FROM {s}.job_archive"),
        [Audited(*row) for row in audit],
    )


@verdict
def asleep(queue: SqlQueue) -> list[str]:
    """The keys whose jobs wait for a turn that nobody will ever give them: at no moment may there be one.

    In an ordered queue the first of a key waits and none of the key runs; with a limit a key, all of them wait.
    """
    return [
        key
        for (key,) in rows(
            queue,
            """
            SELECT j.ordering_key
            FROM {s}.job AS j
            JOIN {s}.queue AS q ON q.name = j.queue AND q.keyed
            WHERE j.order_no IS NOT NULL
            GROUP BY j.queue, j.ordering_key, q.ordered
            HAVING CASE
                WHEN q.ordered THEN bool_and(j.state <> 'running') AND (array_agg(
                    j.state = 'queued' AND j.available_at = 'infinity' ORDER BY j.order_no))[1]
                ELSE bool_or(j.state = 'queued' AND j.available_at = 'infinity')
                    AND NOT bool_or(j.state = 'running' OR j.state = 'queued' AND j.available_at < 'infinity')
            END
            """,
        )
    ]


@verdict
def check(
    histories: Iterable[Sequence[dict[str, Any]]],
    left: Tables,
    *,
    drained: bool = True,
    bounds: Bounds = UNBOUNDED,
) -> list[str]:
    """Everything that a run did wrong, in words; nothing when it kept its promises.

    Args:
        histories: one of each process.
        left: the tables after it.
        drained: whether everything should have been finished.
        bounds: limits and order that the queue had all the time.
    """
    events = [event for history in histories for event in history]
    wrong = [*_lost(events, left), *_ended_once(events, left), *_fenced(events, left), *_exclusive(events, left.audit)]
    if drained and left.live:
        wrong.append(f"{len(left.live)} jobs were not finished: {_some(left.live)}")
    return wrong + broken(left.audit, bounds)


@dataclass(frozen=True)
class Lease:
    """A time in which a job was in somebody's hands: from its grant to the end of it, or to where it ran out."""

    key: str | None
    began: datetime
    ended: datetime


def leases(audit: Sequence[Audited]) -> list[Lease]:
    """Every lease of a run. One that was extended after it had run out counts as two, with the gap between them."""
    found: list[Lease] = []
    open_leases: dict[str, Lease] = {}
    for row in audit:
        held = open_leases.pop(row.job, None)
        if row.kind == "kept" and held and row.until and row.at < held.ended:
            open_leases[row.job] = Lease(row.key, held.began, row.until)
            continue
        if held:
            found.append(Lease(held.key, held.began, min(held.ended, max(row.at, held.began))))
        if row.kind in ("claim", "kept") and row.until:
            open_leases[row.job] = Lease(row.key, row.at, row.until)
    return [*found, *open_leases.values()]


def most_at_once(lived: Sequence[Lease]) -> int:
    """How many of them lived at one moment, at most."""
    changes = [(lease.began, 1) for lease in lived if lease.began < lease.ended]
    changes += [(lease.ended, -1) for lease in lived if lease.began < lease.ended]
    return max(itertools.accumulate(change for _, change in sorted(changes)), default=0)


@verdict
def broken(audit: Sequence[Audited], bounds: Bounds) -> list[str]:
    """Limits and order that were not kept."""
    wrong = []
    lived = leases(audit)
    if bounds.max_running is not None and (most := most_at_once(lived)) > bounds.max_running:
        wrong.append(f"{most} leases lived at one moment, and the queue allows {bounds.max_running}")
    per_key = 1 if bounds.ordered else bounds.max_running_per_key
    if per_key is not None:
        by_key: defaultdict[str, list[Lease]] = defaultdict(list)
        for lease in lived:
            if lease.key is not None:
                by_key[lease.key].append(lease)
        wrong += [
            f"{most} leases of key {key} lived at one moment, and the queue allows {per_key}"
            for key, shared in by_key.items()
            if (most := most_at_once(shared)) > per_key
        ]
    if bounds.rate:
        starts = sorted(row.at for row in audit if row.kind == "claim")
        window = timedelta(seconds=bounds.rate.seconds)
        for first, began in enumerate(starts):
            if (count := bisect.bisect_left(starts, began + window) - first) > bounds.rate.starts:
                wrong.append(
                    f"{count} jobs began within {window} of {began}, and the queue allows {bounds.rate.starts}"
                )
                break
    if bounds.ordered:
        wrong += _overtaken(audit)
    return wrong


def _overtaken(audit: Sequence[Audited]) -> list[str]:
    reached: defaultdict[str | None, int] = defaultdict(int)
    wrong = []
    for row in audit:
        if row.kind != "claim" or row.order_no is None:
            continue
        if row.order_no < reached[row.key]:
            wrong.append(f"job {row.job} of key {row.key} was overtaken by one that was enqueued after it")
        reached[row.key] = max(reached[row.key], row.order_no)
    return wrong


def _lost(events: Sequence[dict[str, Any]], left: Tables) -> list[str]:
    there = left.live.keys() | {job for job, _ in left.archived}
    sent = {job for event in events if event["event"] == "enqueued" for job in event["ids"]}
    ended = {job for job, _ in _pairs(events, "ended")}
    wrong = []
    if lost := sent - there:
        wrong.append(f"{len(lost)} jobs whose enqueue was acknowledged are gone: {_some(lost)}")
    if vanished := ended - {job for job, _ in left.archived}:
        wrong.append(f"{len(vanished)} jobs whose end was accepted are not in the archive: {_some(vanished)}")
    if unended := {row.job for row in left.audit if row.kind == "end"} - {job for job, _ in left.archived}:
        wrong.append(f"{len(unended)} jobs were deleted without an archive row: {_some(unended)}")
    return wrong


def _ended_once(events: Sequence[dict[str, Any]], left: Tables) -> list[str]:
    wrong = []
    if twice := _repeated(job for job, _ in left.archived):
        wrong.append(f"{len(twice)} jobs ended more than once: {_some(twice)}")
    if both := left.live.keys() & {job for job, _ in left.archived}:
        wrong.append(f"{len(both)} jobs are finished and live at the same time: {_some(both)}")
    if accepted := _repeated(job for job, _ in _pairs(events, "ended")):
        wrong.append(f"{len(accepted)} jobs had more than one ending accepted: {_some(accepted)}")
    return wrong


def _fenced(events: Sequence[dict[str, Any]], left: Tables) -> list[str]:
    archived = dict(left.archived)
    last: dict[str, int] = {}
    for row in left.audit:
        if row.kind == "claim":
            last[row.job] = max(row.lease_no, last.get(row.job, 0))
    wrong = [
        f"job {job} ended under lease {lease_no}, but lease {archived[job]} was the current one"
        for job, lease_no in _pairs(events, "ended")
        if archived.get(job, lease_no) != lease_no
    ]
    wrong += [
        f"job {job} is archived under lease {lease_no}, but lease {last[job]} was granted after it"
        for job, lease_no in left.archived
        if last.get(job, lease_no) > lease_no
    ]
    return wrong


def _exclusive(events: Sequence[dict[str, Any]], audit: Sequence[Audited]) -> list[str]:
    wrong = []
    if shared := _repeated(_pairs(events, "claimed")):
        wrong.append(f"{len(shared)} leases were given to two claims: {_some(shared)}")
    leases: dict[str, int] = defaultdict(int)
    for row in audit:
        if row.kind != "claim":
            continue
        if row.was_state == "running" and row.was_until > row.at:
            wrong.append(f"job {row.job} was claimed {row.was_until - row.at} before the end of another lease")
        if row.lease_no != leases[row.job] + 1:
            wrong.append(f"job {row.job} got lease {row.lease_no} after lease {leases[row.job]}")
        leases[row.job] = row.lease_no
    return wrong


def _pairs(events: Sequence[dict[str, Any]], kind: str) -> list[tuple[str, int]]:
    return [(job, lease_no) for event in events if event["event"] == kind for job, lease_no in event["jobs"]]


def _repeated(items: Iterable[Any]) -> set[Any]:
    return {item for item, count in Counter(items).items() if count > 1}


def _some(items: Iterable[Any]) -> str:
    return ", ".join(str(item) for item in sorted(items)[:3])
