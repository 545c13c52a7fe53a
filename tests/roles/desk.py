"""What attempts of somebody with one role are made of: a queue of their own, and the table of who may."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Annotated, Any, TypeAlias
from uuid import UUID, uuid4

from dagster_sqlqueue import Backoff, NewJob, QueueSpec, Sensitive, SqlQueue
from dagster_sqlqueue.db.permissions import Role
from dagster_sqlqueue.model.job import ArchiveState, ClaimedJob
from dagster_sqlqueue.people import HumanWork
from dagster_sqlqueue.queue.endings import Ending
from dagster_sqlqueue.queue.selection import Selection
from dagster_sqlqueue.schedules import Schedules
from dagster_sqlqueue.topics import Topics
from tests.support import Work, rows


class Secret(Work):
    """A payload with something to hide."""

    token: Annotated[str, Sensitive()] = ""


@dataclass
class Desk:
    """A queue of one attempt's own, and what its owner lays on it.

    Attributes:
        owner: who may everything.
        url: as whom the attempt is made.
        spec: the attempt's queue.
    """

    owner: SqlQueue
    url: str
    spec: QueueSpec[Work] = field(default_factory=lambda: QueueSpec(f"q_{uuid4().hex[:12]}", Work, bucket_count=2))

    def __post_init__(self) -> None:
        self.owner.create_queue(self.spec)

    @property
    def name(self) -> str:
        """The queue's name."""
        return self.spec.name

    @property
    def all(self) -> Selection:
        """Every job of the queue."""
        return Selection(all=True)

    def change(self, **settings: Any) -> None:
        """Have the queue work in another way."""
        self.spec = QueueSpec(self.name, Work, bucket_count=2, backoff=Backoff(0, jitter=0), **settings)
        self.owner.create_queue(self.spec)

    def filled(self, count: int = 3, **more: Any) -> list[UUID]:
        """Jobs that wait."""
        made = [self.owner.enqueue(self.spec, NewJob(Work(n=n), **more)) for n in range(count)]
        return [id for id in made if id is not None]

    def claimed(self, count: int = 3) -> list[ClaimedJob]:
        """Jobs under a lease of `w`."""
        self.filled(count)
        return self.owner.claim(self.name, limit=count, worker="w", lease_seconds=600)

    def held(self) -> UUID:
        """A job that was set aside."""
        (id,) = self.filled(1)
        self.owner.hold_queued(self.name, self.all, "wait")
        return id

    def dead(self) -> UUID:
        """A job that failed for good."""
        (job,) = self.claimed(1)
        self.owner.finish([Ending(job, ArchiveState.FAILED, error="no")])
        return job.id

    def task(self, *, taken: bool = False, done: bool = False) -> UUID:
        """A job for people; four eyes."""
        (id,) = self.filled(1)
        people = HumanWork(self.owner)
        people.hand_over(self.name, Selection(ids=[id]), by="boss", reason="look", review=True)
        if taken or done:
            people.assign(id, "ann", by="boss")
        if done:
            people.submit(id, "ann", {"fine": True})
        return id

    def topic(self) -> str:
        """A topic whose messages become jobs of the queue."""
        name = f"t.{self.name}"
        Topics(self.owner).subscribe(name, "all", self.name)
        return name

    def schedule(self, *, due: bool = False) -> str:
        """A schedule of the queue."""
        Schedules(self.owner).put(self.spec, "often", Work(n=0), every=timedelta(hours=1))
        if due:
            rows(
                self.owner,
                "UPDATE {s}.schedule SET anchor = anchor - interval '3 hours', next_tick = next_tick - interval '3 hours'"
                " WHERE queue = %s",
                self.name,
            )
        return "often"


Attempt: TypeAlias = Callable[[SqlQueue, Desk], Any]

P, C, O, B = Role.PRODUCER, Role.CONSUMER, Role.OPERATOR, Role.OBSERVER  # noqa: E741
EVERYBODY = frozenset(Role)
TABLE: dict[str, tuple[frozenset[Role], Attempt]] = {}
"""By the attempt's name: who may, and the attempt."""


def verb(*may: Role) -> Callable[[Attempt], Attempt]:
    """Note who may do what follows."""

    def note(attempt: Attempt) -> Attempt:
        TABLE[attempt.__name__] = (frozenset(may), attempt)
        return attempt

    return note
