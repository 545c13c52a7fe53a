"""List batches for operators, give up those that are left open, and forget those that are over."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from dagster_sqlqueue.db.database import Database
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.payload.storable import storable_text
from dagster_sqlqueue.queue.stuck_keys import heal_keys

if TYPE_CHECKING:
    from dagster_sqlqueue.queue import SqlQueue

OPEN_STATES: Final = ("sealing", "sealed")
OVER_STATES: Final = ("published", "abandoned")
STATES: Final = (*OPEN_STATES, *OVER_STATES)


@dataclass(frozen=True, slots=True)
class BatchRow:
    """A batch.

    Attributes:
        id: of the batch; jobs that it ended have it in the archive.
        key: what it is for: asset and partition, as a rule.
        queue: whose jobs it holds.
        mode: `leased` or `transactional`.
        state: one of `STATES`.
        token: its fence: raised whenever it is taken over.
        token_seconds: for how long the token has been that of its owner.
        lease_seconds: for how long its lease holds yet; negative: since when it is over.
        owner: the name of the program that has it, or had it last.
        attempt: how often its key was sealed since it was published last.
        error: why it was given up, or the attempt before it.
        job_count: how many jobs it holds, or held; None: it is being sealed.
        unmoved: whether files of it are not known to be in their place.
        output: what was said about its results; None: it is not published.
        created_at: when it was opened.
        sealed_at: when its jobs were due.
        published_at: when it was published.
    """

    id: UUID
    key: str
    queue: str
    mode: str
    state: str
    token: int
    token_seconds: float
    lease_seconds: float
    owner: str
    attempt: int
    error: str | None
    job_count: int | None
    unmoved: bool
    output: Mapping[str, Any] | None
    created_at: datetime
    sealed_at: datetime
    published_at: datetime | None

    @property
    def open(self) -> bool:
        """Whether it may still be published."""
        return self.state in OPEN_STATES

    @property
    def held(self) -> bool:
        """Whether its lease holds. The lease of a transactional one is its transaction, which the row does not show."""
        return self.open and self.lease_seconds > 0


_OUTPUT: Final = [one.name for one in fields(BatchRow)].index("output")


@dataclass(frozen=True, slots=True)
class Decided:
    """What became of some batches.

    Attributes:
        changed: what was given up or forgotten, or would be.
        skipped: why others were left, by their ids.
        returned: how many jobs are due again.
        ended: how many jobs ended, as was reported of them.
    """

    changed: list[UUID] = field(default_factory=list)
    skipped: dict[UUID, str] = field(default_factory=dict)
    returned: int = 0
    ended: int = 0


def batches(
    database: Database,
    queue: str | None = None,
    *,
    key: str | None = None,
    ids: Sequence[UUID] | None = None,
    states: Sequence[str] = STATES,
    limit: int = 20,
) -> list[BatchRow]:
    """Batches, the latest first.

    Args:
        database: where they are.
        queue: whose; None: of all.
        key: under which; None: any.
        ids: these alone; None: any.
        states: in these states.
        limit: so many at most.

    Raises:
        InvalidInput: a state is none.
    """
    if unknown := [state for state in states if state not in STATES]:
        raise InvalidInput(f"{unknown[0]!r} is no state of a batch; it is one of {', '.join(STATES)}")
    asked = {
        "queue": queue,
        "key": key,
        "ids": None if ids is None else list(ids),
        "states": list(states),
        "limit": limit,
    }
    found = []
    for row in database.run("batch_list", asked):
        columns = list(row)
        columns[_OUTPUT] = columns[_OUTPUT] and json.loads(columns[_OUTPUT])
        found.append(BatchRow(*columns))
    return found


def abandon(
    queue: "SqlQueue", ids: Sequence[UUID], *, reason: str, held: bool = False, dry_run: bool = False
) -> Decided:
    """Give up open batches: their jobs are due again, without an attempt spent, and its owner cannot publish it any more.

    Args:
        queue: where they are.
        ids: which.
        reason: why; kept with the batch, and with its jobs.
        held: also those whose lease holds: their drivers are at work, and find out at their next heartbeat.
        dry_run: change nothing.

    Returns:
        What was done. A transaction that seals or publishes a batch at that moment keeps it.
    """
    decided = Decided()
    returned = ended = 0
    for one in _known(queue.database, ids, decided):
        if not one.open:
            decided.skipped[one.id] = f"it is {one.state}"
        else:
            asked = {"batch_id": one.id, "error": storable_text(reason), "held": held, "dry_run": dry_run}
            ((done, its, back),) = queue.database.run("batch_give_up", asked)
            if done is None:
                decided.skipped[one.id] = f"it is held by {one.owner!r}"
                continue
            decided.changed.append(one.id)
            returned += (one.job_count or 0) if dry_run else back
            ended += its or 0
    if decided.changed and not dry_run:
        # Of queues that were given turns since they were sealed; maintenance does it as well.
        heal_keys(queue.database)
    return Decided(decided.changed, decided.skipped, returned, ended)


def forget(queue: "SqlQueue", ids: Sequence[UUID], *, unmoved: bool = False, dry_run: bool = False) -> Decided:
    """Remove batches that are over: how often their keys failed is forgotten with them, and where their results are.

    Args:
        queue: where they are.
        ids: which.
        unmoved: also those with files that are not known to be in their place; they will not be moved any more.
        dry_run: change nothing.
    """
    decided = Decided()
    for one in _known(queue.database, ids, decided):
        if one.open:
            decided.skipped[one.id] = f"it is {one.state}: abandon it first"
        elif one.unmoved and not unmoved:
            decided.skipped[one.id] = "its files are not known to be in their place"
        elif dry_run or queue.database.run("batch_remove", {"batch_id": one.id, "unmoved": unmoved})[0][0]:
            decided.changed.append(one.id)
        else:
            decided.skipped[one.id] = "it was changed meanwhile"
    return decided


def _known(database: Database, ids: Sequence[UUID], decided: Decided) -> list[BatchRow]:
    """The batches in the order asked for; those that are not there are noted as left."""
    wanted = list(dict.fromkeys(ids))
    found = {one.id: one for one in batches(database, ids=wanted, limit=len(wanted))}
    decided.skipped.update({id: "there is no such batch" for id in wanted if id not in found})
    return [found[id] for id in wanted if id in found]
