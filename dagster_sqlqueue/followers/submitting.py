"""What an enqueue whose jobs are followed says to the database, and what it makes of the answers. No I/O of its own."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias
from uuid import UUID

from dagster_sqlqueue import payloads
from dagster_sqlqueue.errors import GroupClosed, InvalidInput, UnknownGroup
from dagster_sqlqueue.followers.following import follow
from dagster_sqlqueue.followers.model import Callback, Following, called_back, member
from dagster_sqlqueue.intake import NewRow
from dagster_sqlqueue.putting import Statement, Steps

OnConflict: TypeAlias = Literal["ignore", "merge"]


@dataclass(frozen=True, slots=True)
class Submitted:
    """What became of a job that was sent.

    Attributes:
        id: as it was sent.
        job_id: the job that does its work: itself, or the one that it was merged into. None: it was left out, because a
            live job has its unique key.
        inserted: whether it is new on its queue.
    """

    id: UUID
    job_id: UUID | None
    inserted: bool

    @property
    def merged(self) -> bool:
        """Whether another job does its work."""
        return self.job_id not in (None, self.id)


class Wishes(NamedTuple):
    """What is to be done about the ends of the jobs of one call."""

    callbacks: Sequence[Callback] = ()
    group: UUID | None = None

    def of(self, job_id: UUID, submission: UUID) -> list[Following]:
        """The followers of one job."""
        found = [called_back(callback, job_id, submission) for callback in self.callbacks]
        return found if self.group is None else [*found, member(self.group, job_id)]


def submit(queue: str, rows: Sequence[NewRow], on_conflict: OnConflict, wishes: Wishes) -> Steps[list[Submitted]]:
    """Put jobs on a queue and follow them, in one transaction; gives what became of each, in their order.

    Args:
        queue: its name.
        rows: the jobs, checked.
        on_conflict: what becomes of a job whose unique key a live job has.
        wishes: who is to be told.

    Raises:
        InvalidInput, GroupClosed, UnknownGroup: nothing of the transaction may stay.
    """
    closed = False
    if wishes.group is not None:
        closed = yield from joining(wishes.group)
    if on_conflict == "merge" and not any(row.columns["ordering_key"] for row in rows):
        # Two that send the same keys meet in the same order; where keys take turns, theirs comes first.
        order = sorted(range(len(rows)), key=lambda place: rows[place].unique_key or "")
    else:
        order = list(range(len(rows)))
    done: list[Submitted | None] = [None] * len(rows)
    rest = order
    # Whoever is not inserted meets a live job, or one that ends meanwhile: then the key is free, and it goes on.
    while rest:
        found = yield from _put(queue, [rows[place] for place in rest], on_conflict)
        for place, one in zip(rest, found, strict=True):
            done[place] = one
        rest = [place for place in rest if done[place] is None]
    submitted = [one for one in done if one is not None]
    followers = {
        follower.id: follower
        for one in submitted
        if one.job_id is not None
        for follower in wishes.of(one.job_id, one.id)
    }
    if closed:
        yield from all_known(wishes.group, [row for row in followers.values() if row.group_id])
    if followers:
        yield from follow(list(followers.values()))
    return submitted


def joining(group: UUID) -> Steps[bool]:
    """Keep a group from being closed meanwhile; gives whether it is closed already.

    Raises:
        UnknownGroup: there is none.
    """
    rows = yield Statement("group_join", {"id": group})
    if not rows:
        raise UnknownGroup(f"there is no group {group}; open one, or correct the id")
    return bool(rows[0][0])


def all_known(group: UUID | None, members: Sequence[Following]) -> Steps[None]:
    """Say so if a closed group lacks a member: what is sent again lands once, what is new comes too late.

    Raises:
        GroupClosed: it does.
    """
    ids = {row.id for row in members}
    known = {row[0] for row in (yield Statement("group_known", {"ids": list(ids)}))}
    if late := ids - known:
        raise GroupClosed(f"group {group} is closed, and {len(late):,} of the jobs are none of it; open another group")


def _put(queue: str, rows: Sequence[NewRow], on_conflict: OnConflict) -> Steps[list[Submitted | None]]:
    """Put jobs on a queue, once; None for one to be sent again."""
    columns = payloads.as_columns([row.columns for row in rows])
    inserted = {row[0] for row in (yield Statement("enqueue_many", {"queue": queue, **columns}))}
    if again := [row.id for row in rows if row.named and row.id in inserted]:
        inserted -= {row[0] for row in (yield Statement("forget_finished", {"ids": again}))}
    left = [row for row in rows if row.id not in inserted]
    holders: dict[str, UUID] = {}
    if on_conflict == "merge" and (keys := sorted({row.unique_key for row in left if row.unique_key is not None})):
        holders = dict((yield Statement("merge_into", {"queue": queue, "unique_keys": keys})))
    # After the look at the keys: what sent it first has committed by the time its job has ended and made room.
    known: dict[UUID, UUID | None] = {}
    if named := [row.id for row in left if row.named]:
        for job_id, their_queue, now in (yield Statement("submitted", {"ids": named})):
            if their_queue not in (None, queue):
                raise InvalidInput(
                    f"id {job_id} belongs to a job of queue {their_queue!r}; leave the id out, or send the job under its own"
                )
            # It can have been merged into another job and, sent without its key later, be one itself.
            known[job_id] = now if known.get(job_id) is None else known[job_id]
    done: list[Submitted | None] = []
    merged: dict[UUID, UUID] = {}
    open_ids = set(inserted)
    for row in rows:
        if row.id in open_ids:
            open_ids.remove(row.id)
            done.append(Submitted(row.id, row.id, True))
        elif row.id in known:
            done.append(Submitted(row.id, known[row.id], False))
        elif row.id in inserted:
            done.append(Submitted(row.id, row.id, False))
        elif row.unique_key in holders:
            done.append(Submitted(row.id, holders[row.unique_key], False))
            if row.named:
                merged[row.id] = holders[row.unique_key]
        elif on_conflict == "merge":
            done.append(None)
        else:
            done.append(Submitted(row.id, None, False))
    if merged:
        yield Statement("merge_note", {"ids": list(merged), "job_ids": list(merged.values())})
    return done
