"""What an enqueue whose jobs are followed says to the database, and what it makes of the answers. No I/O of its own."""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias
from uuid import UUID

from dagster_sqlqueue.db.steps import Statement, Steps
from dagster_sqlqueue.errors import GroupClosed, InvalidInput, UnknownGroup
from dagster_sqlqueue.followers.follow import follow
from dagster_sqlqueue.followers.model import Callback, FollowerRow, called_back, member
from dagster_sqlqueue.queue.intake import NewRow, Rejected
from dagster_sqlqueue.queue.validation import as_columns

OnConflict: TypeAlias = Literal["ignore", "merge"]

_ANEW = 20
"""So often several jobs begin anew together, before they come again one by one and take the risk of a deadlock."""


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


@dataclass(frozen=True, slots=True)
class SubmittedMany:
    """What became of many jobs that were sent. The numbers add up to the jobs that were given.

    Attributes:
        inserted: enqueued.
        merged: another job, which has their unique key, does their work.
        duplicates: left out, because they were there already.
        rejected: left out, because they are not usable; only with `on_bad_row="skip"`.
    """

    inserted: int
    merged: int
    duplicates: int
    rejected: list[Rejected] = field(default_factory=list)


class Wishes(NamedTuple):
    """The callbacks and the group of the jobs of one call."""

    callbacks: Sequence[Callback] = ()
    group: UUID | None = None

    def of(self, job_id: UUID, submission: UUID) -> list[FollowerRow]:
        """The followers of one job."""
        found = [called_back(callback, job_id, submission) for callback in self.callbacks]
        return found if self.group is None else [*found, member(self.group, job_id)]


def wishes_of(callbacks: Iterable[Callback] | Callback, group: object) -> Wishes:
    """What a caller wishes, checked.

    Raises:
        InvalidInput: there is something else among the callbacks, or the group is no id.
    """
    if not isinstance(callbacks, Callback | Iterable):
        raise InvalidInput(f"callbacks is {callbacks!r:.100}; give a Callback(queue, …), several of them, or ()")
    given = (callbacks,) if isinstance(callbacks, Callback) else tuple(callbacks)
    for callback in given:
        if not isinstance(callback, Callback):
            raise InvalidInput(f"callbacks holds a {type(callback).__name__}; give a Callback(queue, …)")
    if group is not None and not isinstance(group, UUID):
        raise InvalidInput(f"group is {group!r}; give the id of one that is open, a uuid.UUID")
    return Wishes(given, group)


def queues_of(wishes: Wishes) -> list[str]:
    """The queues to which the callbacks will be enqueued."""
    return [str(callback.queue) for callback in wishes.callbacks]


def submit(queue: str, rows: Sequence[NewRow], on_conflict: OnConflict, wishes: Wishes) -> Steps[list[Submitted]]:
    """Enqueue jobs and follow them, in one transaction; returns what became of each, in their order.

    Args:
        queue: its name.
        rows: the jobs, checked.
        on_conflict: what becomes of a job whose unique key a live job has.
        wishes: their callbacks and group.

    Raises:
        InvalidInput, GroupClosed, UnknownGroup: nothing of the transaction may stay.
    """
    closed = False
    if wishes.group is not None:
        closed = yield from joining(wishes.group)
    done = yield from _placed(queue, rows, on_conflict)
    followers = {
        follower.id: follower for one in done if one.job_id is not None for follower in wishes.of(one.job_id, one.id)
    }
    if closed:
        yield from all_known(wishes.group, [row for row in followers.values() if row.group_id])
    if followers:
        yield from follow(list(followers.values()))
    return done


def joining(group: UUID) -> Steps[bool]:
    """Keep a group from being closed meanwhile; returns whether it is closed already.

    Raises:
        UnknownGroup: there is none.
    """
    rows = yield Statement("group_join", {"id": group})
    if not rows:
        raise UnknownGroup(f"there is no group {group}; open one, or correct the id")
    return bool(rows[0][0])


def all_known(group: UUID | None, members: Sequence[FollowerRow]) -> Steps[None]:
    """Say so if a closed group lacks a member: what is sent again lands once, what is new comes too late.

    Raises:
        GroupClosed: it does.
    """
    ids = {row.id for row in members}
    known = {row[0] for row in (yield Statement("group_known", {"ids": list(ids)}))}
    if late := ids - known:
        raise GroupClosed(f"group {group} is closed, and {len(late):,} of the jobs are none of it; open another group")


def _placed(queue: str, rows: Sequence[NewRow], on_conflict: OnConflict) -> Steps[list[Submitted]]:
    """Find each job its place: on the queue, or in the job that has its key, which then does not end meanwhile.

    A job that is neither inserted nor merged met one that has freed its key since, by its end or its claim: it is sent
    again. Of several jobs all are then sent anew and their locks released: so the call waits for other transactions only
    with the keys before, in their order, and for jobs that end only while it keeps none from ending. No deadlock can arise.
    """
    merging = on_conflict == "merge" and any(row.unique_key is not None for row in rows)
    order = list(range(len(rows)))
    begun = merging and len(rows) > 1
    if begun:
        yield Statement("merge_begin", {})
    done: dict[int, Submitted] = {}
    merged: dict[int, UUID] = {}
    rest = order
    for tries in itertools.count(1):
        placed = yield from _put(queue, [rows[place] for place in rest], on_conflict)
        for place, (one, met) in zip(rest, placed, strict=True):
            if one is not None:
                done[place] = one
            if met is not None:
                merged[place] = met
        rest = [place for place in rest if place not in done]
        if merged and not rest:
            live = {row[0] for row in (yield Statement("merge_lock", {"ids": list(set(merged.values()))}))}
            rest = [place for place, job_id in merged.items() if job_id not in live]
        if not rest:
            break
        if begun and tries <= _ANEW:
            yield Statement("merge_again", {})
            rest = order
        for place in rest:
            done.pop(place, None)
            merged.pop(place, None)
    if begun:
        yield Statement("merge_end", {})
    if named := {rows[place].id: job_id for place, job_id in merged.items() if rows[place].named}:
        yield Statement("merge_note", {"ids": list(named), "job_ids": list(named.values())})
    return [done[place] for place in range(len(rows))]


def _put(
    queue: str, rows: Sequence[NewRow], on_conflict: OnConflict
) -> Steps[list[tuple[Submitted | None, UUID | None]]]:
    """Enqueue jobs, once. Returns what became of each, None for one to be sent again; and the live job that it has met
    and is merged into.
    """
    columns = as_columns([row.columns for row in rows])
    inserted = {row[0] for row in (yield Statement("enqueue_many", {"queue": queue, "kept": False, **columns}))}
    if again := [row.id for row in rows if row.named and row.id in inserted]:
        inserted -= {row[0] for row in (yield Statement("drop_already_finished", {"ids": again}))}
    left = [row for row in rows if row.id not in inserted]
    live: dict[str, UUID] = {}
    if on_conflict == "merge" and (keys := sorted({row.unique_key for row in left if row.unique_key is not None})):
        found = yield Statement("taken_unique_keys", {"queue": queue, "unique_keys": keys})
        live = {key: job_id for key, job_id, _ in found}
    # After the keys were read: what sent it first has committed by the time its job has ended and freed the key.
    known: dict[UUID, UUID | None] = {}
    if named := [row.id for row in left if row.named]:
        for job_id, their_queue, now in (yield Statement("submitted", {"ids": named})):
            if their_queue not in (None, queue):
                raise InvalidInput(
                    f"id {job_id} belongs to a job of queue {their_queue!r}; leave the id out, or send the job under its own"
                )
            # It can have been merged into another job and, sent without its key later, be one itself.
            known[job_id] = now if known.get(job_id) is None else known[job_id]
    done: list[tuple[Submitted | None, UUID | None]] = []
    open_ids = set(inserted)
    for row in rows:
        live_id = live.get(row.unique_key or "")
        if row.id in open_ids:
            open_ids.remove(row.id)
            done.append((Submitted(row.id, row.id, True), None))
        elif row.id in known:
            done.append((Submitted(row.id, known[row.id], False), None))
        elif row.id in inserted:
            done.append((Submitted(row.id, row.id, False), None))
        elif live_id is not None:
            done.append((Submitted(row.id, live_id, False), live_id))
        else:
            done.append((None if on_conflict == "merge" else Submitted(row.id, None, False), None))
    return done
