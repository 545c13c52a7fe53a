"""When a consumer may take its next batch while the one in hand is worked on."""

import logging
import math
import time
from typing import Any

from dagster_sqlqueue.consumer.batch_size import MOST_MEASURED
from dagster_sqlqueue.consumer.claimer import Claimer
from dagster_sqlqueue.consumer.leased import Work
from dagster_sqlqueue.queue.endings import Endings

logger = logging.getLogger("dagster_sqlqueue")

QUICK_SECONDS = 0.25
"""A batch that takes longer gains little from a next one that is there at once, and other consumers could have that."""
_SECOND_SECONDS = 0.05
"""The same for a second batch taken ahead."""
_SECOND_JOBS = MOST_MEASURED
"""Of larger batches an answer fills the network's buffers, and its transaction stays open until the consumer is at it."""
_AGAIN_SECONDS = 5.0


class AheadPolicy:
    """Decides for one consumer whether another batch is taken ahead.

    Args:
        work: what is worked off.
        claimer: how the consumer takes jobs.
    """

    def __init__(self, work: Work[Any], claimer: Claimer) -> None:
        self._work = work
        self._claimer = claimer
        self._not_before = 0.0
        self._second_not_before = 0.0

    def allows(self, endings: Endings | None = None, *, at_most: float = math.inf) -> bool:
        """Return whether it is worth it to take another batch now.

        Args:
            endings: what would be sent with it; None: nothing.
            at_most: bound in seconds on the time of a batch, if less than `QUICK_SECONDS`: short leases set one.
        """
        # An answer that was not taken keeps a session of a pooler, which others wait for, this consumer among them.
        if self._work.leases.database.shared:
            return False
        if self._work.size.seconds > min(QUICK_SECONDS, at_most) or time.monotonic() < self._not_before:
            return False
        return self._claimer.may_send_ahead(endings)

    def allows_second(self) -> bool:
        """Return whether there may be a second batch that is taken ahead beside the first: batches are quick and small."""
        if time.monotonic() < self._second_not_before:
            return False
        return self._work.size.seconds <= _SECOND_SECONDS and self._claimer.wanted <= _SECOND_JOBS

    def poor_second(self) -> None:
        """Note that one of two claims took fewer jobs than it was to; for the next seconds there is no second batch.

        There may be jobs in few buckets only, which then had better be one claim's.
        """
        self._second_not_before = time.monotonic() + _AGAIN_SECONDS

    def lost(self, what: str, error: Exception, *, second: bool = False) -> None:
        """Note an error; for the next seconds nothing is taken ahead, or no second batch.

        There may be no connection to be had, and each attempt at one waits for it.

        Args:
            what: what got lost, for the log.
            error: why.
            second: whether it was the sending of a second batch's claim: the first has a connection.
        """
        until = time.monotonic() + _AGAIN_SECONDS
        if second:
            self._second_not_before = until
        else:
            self._not_before = until
        logger.info("%s: %s: %s", self._work.spec.name, what, error)
