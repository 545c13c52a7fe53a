"""Choose how many jobs a consumer claims at a time."""

import math

from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.model.numbers import is_whole
from dagster_sqlqueue.queue.claim_request import MAX_BATCH

MOST_MEASURED = 500
"""The largest batch that goes by the handler's time: of two that are claimed side by side, the answers fit the network's
buffers where payloads are of some hundred bytes."""

BEHIND_SECONDS = 5.0
"""So long jobs of a batch that goes by the handler's time wait for one of them: it was the time of quick ones."""

_USUAL = 100
_BATCH_SECONDS = 0.1
"""What a batch is to take: so long that the round trip for the next one is little beside it, and so short that neither an
end nor another consumer that has nothing to do waits for it."""
_STEP = 4
"""A single batch says no more than this: one job of it may have waited for something."""


class BatchSize:
    """The size of the next batch.

    Args:
        given: by the user; None: 100, or by the time that the handler takes.
        measured: whether it goes by the handler's time where nothing was given: a batch is to take a tenth of a second, and
            has 1 to 500 jobs. The first one has 1, and each at most four times as many as the one before: a consumer
            claims no job that it cannot begin, unless it knows the handler to be quick.

    Attributes:
        now: the size.
        seconds: how long the handler was at the last batch; infinity before the first one.

    Raises:
        InvalidInput: what was given is out of range.
    """

    __slots__ = ("_measured", "now", "seconds")

    def __init__(self, given: int | None, *, measured: bool = False) -> None:
        if given is not None and not is_whole(given, 1, MAX_BATCH):
            raise InvalidInput(f"batch_size is {given!r}; it must be 1 to {MAX_BATCH:,}")
        self._measured = measured and given is None
        self.now = given or (1 if measured else _USUAL)
        self.seconds = math.inf

    def shared(self) -> int:
        """Return the size for a queue whose consumers share a limit, or the turns of keys: one that goes by the time of its
        handler leaves others as much of it as before.
        """
        return min(self.now, _USUAL) if self._measured else self.now

    def took(self, jobs: int, seconds: float) -> None:
        """Note how long the handler was at so many jobs."""
        if jobs:
            self.seconds = seconds
        if self._measured and jobs:
            fitting = MOST_MEASURED if seconds <= 0 else round(_BATCH_SECONDS * jobs / seconds)
            self.now = min(max(fitting, self.now // _STEP, 1), self.now * _STEP, MOST_MEASURED)
