"""The buckets that the config of a run names."""

from collections.abc import Sequence

from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.model.queue import QueueSettings


def check_chosen(settings: QueueSettings, buckets: Sequence[int]) -> None:
    """Raise an error if a queue has not all of these buckets: the run would find nothing there, and succeed.

    Args:
        settings: the queue's.
        buckets: as chosen; none stand for all.

    Raises:
        InvalidInput: there is no such bucket.
    """
    missing = [bucket for bucket in buckets if not 0 <= bucket < settings.claim_buckets]
    if missing:
        raise InvalidInput(
            f"the config's buckets name {', '.join(map(str, missing[:10]))}, and queue {settings.name!r} has the buckets"
            f" 0 to {settings.claim_buckets - 1}; name these, or leave buckets out for all of them"
        )
