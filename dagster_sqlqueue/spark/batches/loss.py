"""The error for a process that has lost its batch."""

from dagster_sqlqueue.errors import BatchLost


def lost(key: str, reason: str | None = None) -> BatchLost:
    """Return the error for a process that has lost its batch.

    Args:
        key: of the batch.
        reason: what is known of why.
    """
    why = f" ({reason})" if reason else ""
    return BatchLost(
        f"batch {key!r}, or some of its jobs, passed to another owner{why}; nothing was published. Run it again: it finds"
        " the present state"
    )
