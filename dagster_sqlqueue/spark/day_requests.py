"""The days that a sensor requests next: those that can be computed, and not yet those whose runs fail."""

from collections.abc import Sequence
from dataclasses import dataclass

from dagster_sqlqueue.model.backoff import Backoff


@dataclass(frozen=True, slots=True)
class DueDay:
    """The work of a day, and the state of its last batch.

    Args:
        day: an ISO date.
        jobs: so many are due, and events of theirs are not open.
        waiting: so many are due, and events of theirs are.
        unmoved: whether files of it have to be moved into place.
        state: of its last batch; None: it has none.
        attempt: of that batch.
        backoff: of that batch: seconds, factor, most seconds.
        ago: how many seconds ago its lease ended; negative: it has not.
        error: why it was abandoned.
        owner: the name of the program that has it, or had it last.
        seen: how many events were read.
        late: whether events of it ended after it was computed.
    """

    day: str
    jobs: int
    waiting: int
    unmoved: bool
    state: str | None
    attempt: int | None
    backoff: Sequence[float] | None
    ago: float | None
    error: str | None
    owner: str | None
    seen: int
    late: bool

    @property
    def open(self) -> bool:
        """Whether its last batch has not ended."""
        return self.state in ("sealing", "sealed")

    @property
    def held(self) -> bool:
        """Whether its batch has a live lease."""
        return self.open and (self.ago or 0) < 0

    @property
    def failures(self) -> int:
        """How many runs in a row have failed or died."""
        return (self.attempt or 0) if self.open or self.state == "abandoned" else 0

    @property
    def wanted(self) -> bool:
        """Whether a run would do something."""
        return self.jobs > 0 or self.unmoved or self.open or self.late

    @property
    def rest_seconds(self) -> float:
        """For how long not to request it because runs failed."""
        if not self.failures or not self.backoff:
            return 0.0
        first, factor, most = self.backoff
        return Backoff(first, factor=factor, max_seconds=most, jitter=0.0)(self.failures) - (self.ago or 0)


def next_range(days: Sequence[DueDay], most: int) -> list[DueDay]:
    """Return the days to request next, as one range: those that have failed least, from the earliest on.

    A range ends before a day that waits for its backoff, that has a live lease, or that has failed more often, so that
    one day whose runs fail does not fail the others. Days that failed are requested in ranges of half as many after
    each failure: a range that was too much for one run succeeds, and a day that fails by itself ends up alone.

    Args:
        days: in their order.
        most: how many days one run has at most.
    """
    ready = [day for day in days if day.wanted and not day.held and day.rest_seconds <= 0]
    if not ready:
        return []
    failures = min(day.failures for day in ready)
    limit = max(1, most >> min(failures, 30))
    chosen: list[DueDay] = []
    for day in days:
        fits = day in ready and day.failures == failures
        if chosen and (len(chosen) == limit or (day.wanted and not fits)):
            break
        if fits:
            chosen.append(day)
    return chosen
