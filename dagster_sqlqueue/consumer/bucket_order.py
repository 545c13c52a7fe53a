"""The order in which a consumer searches its buckets: in turns, those of its own region first. No I/O.

Each consumer begins somewhere else. Consumers that began at the same bucket would go on from bucket to bucket side by side,
and each claim would pass over the rows that the others have just locked or claimed.
"""

import random
from collections.abc import Sequence

from dagster_sqlqueue.model.queue import QueueSettings

_SHOWN = 10


class BucketOrder:
    """The buckets of one consumer.

    Args:
        buckets: the ones to work off; None for all that the queue has, also while their number changes.
        region: buckets of this region come first.
    """

    def __init__(self, buckets: Sequence[int] | None, region: str | None) -> None:
        self._buckets = buckets
        self._region = region
        self._near: set[int] = set()
        self.order: list[int] = []

    @property
    def buckets(self) -> Sequence[int] | None:
        """The ones to work off; None for all."""
        return self._buckets

    @property
    def divisible(self) -> bool:
        """Whether parts of the order keep it: there is more than one bucket, and none that comes first."""
        return len(self.order) > 1 and not self._near

    def lacking(self, settings: QueueSettings) -> list[str]:
        """What the consumer is to work off and the queue does not have, a line for buckets and one for the region."""
        lines = []
        if absent := sorted({bucket for bucket in self._buckets or () if bucket >= len(settings.regions)}):
            named = ", ".join([*map(str, absent[:_SHOWN]), *(["…"] if len(absent) > _SHOWN else [])])
            lines.append(
                f"queue {settings.name!r} has the buckets 0 to {len(settings.regions) - 1}; nothing can be claimed from"
                f" {named}"
            )
        if self._region is not None and self._region not in settings.regions:
            lines.append(
                f"no bucket of queue {settings.name!r} belongs to region {self._region!r} (there are:"
                f" {', '.join(sorted(set(settings.regions)))}), so none is claimed from first; give it some: sqlqueue region"
                f" {settings.name} {self._region} --buckets 0"
            )
        return lines

    def cover(self, buckets: Sequence[int]) -> None:
        """Work off these from the next `arrange` on."""
        self._buckets = list(buckets)

    def arrange(self, settings: QueueSettings) -> None:
        """Take new settings into account; the turn stays where it is."""
        wanted = range(settings.claim_buckets) if self._buckets is None else self._buckets
        self._near = {number for number, region in enumerate(settings.regions) if region == self._region}
        known = [bucket for bucket in self.order if bucket in wanted]
        new = [bucket for bucket in wanted if bucket not in known]
        if new and not known:
            place = random.randrange(len(new))
            new = [*new[place:], *new[:place]]
        self.order = self._near_first([*known, *new])

    def turn(self, after: int) -> None:
        """Begin behind this bucket next time."""
        place = self.order.index(after) + 1 if after in self.order else 0
        self.order = self._near_first([*self.order[place:], *self.order[:place]])

    def _near_first(self, buckets: list[int]) -> list[int]:
        return sorted(buckets, key=lambda bucket: bucket not in self._near) if self._near else buckets
