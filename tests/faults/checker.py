"""Judges a run: from what each process wrote down, and from the tables as they were left.

A history is a list of events, one JSON object a line, written by a process as soon as it knew:

- `enqueued`: `ids` whose commit was acknowledged.
- `claimed`: `jobs`, pairs of id and lease number, as a claim returned them.
- `ended`: `jobs` whose ending was accepted under that lease; `refused`: those that were not.

The audit is written by a trigger inside the database, with the database's clock: a row for each claim, heartbeat, return
and end of a job, with the state and the lease's end before and after.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from dagster_sqlqueue import SqlQueue
from tests.core.support import rows

AUDIT = """
CREATE TABLE {s}.audit (
    place bigint GENERATED ALWAYS AS IDENTITY, job uuid, kind text, lease_no bigint, at timestamptz,
    was_state text, was_until timestamptz
);
CREATE FUNCTION {s}.note() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO {s}.audit (job, kind, lease_no, at, was_state, was_until)
    VALUES (
        OLD.id,
        CASE
            WHEN TG_OP = 'DELETE' THEN 'end'
            WHEN NEW.state = 'queued' THEN 'back'
            WHEN NEW.started_at IS DISTINCT FROM OLD.started_at THEN 'claim'
            ELSE 'kept'
        END,
        CASE WHEN TG_OP = 'DELETE' THEN OLD.lease_no ELSE NEW.lease_no END,
        statement_timestamp(), OLD.state, OLD.available_at
    );
    RETURN NULL;
END $$;
CREATE TRIGGER note AFTER UPDATE OR DELETE ON {s}.job FOR EACH ROW EXECUTE FUNCTION {s}.note();
"""


@dataclass(frozen=True)
class Audited:
    """One row of the audit."""

    job: str
    kind: str
    lease_no: int
    at: datetime
    was_state: str
    was_until: datetime


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
    audit = rows(queue, "SELECT job::text, kind, lease_no, at, was_state, was_until FROM {s}.audit ORDER BY place")
    return Tables(
        dict(rows(queue, "SELECT id::text, lease_no FROM {s}.job")),
        rows(queue, "SELECT id::text, lease_no FROM {s}.job_archive"),
        [Audited(*row) for row in audit],
    )


def check(histories: Iterable[Sequence[dict[str, Any]]], left: Tables, *, drained: bool = True) -> list[str]:
    """Everything that a run did wrong, in words; nothing when it kept its promises.

    Args:
        histories: one of each process.
        left: the tables after it.
        drained: whether everything should have been finished.
    """
    events = [event for history in histories for event in history]
    wrong = [*_lost(events, left), *_ended_once(events, left), *_fenced(events, left), *_exclusive(events, left.audit)]
    if drained and left.live:
        wrong.append(f"{len(left.live)} jobs were not finished: {_some(left.live)}")
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
