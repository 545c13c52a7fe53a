"""What the code and the database say of a queue, compared. No I/O."""

from typing import Any

from dagster_sqlqueue.model.backoff import Backoff
from dagster_sqlqueue.model.queue import QueueSettings, QueueSpec

_COMPARED = (
    "bucket_count",
    "lease_seconds",
    "max_attempts",
    "strategy",
    "ordered",
    "on_poison",
    "timeout_seconds",
    "max_running",
    "max_running_per_key",
    "rate",
    "retention_days",
)


def differences(spec: QueueSpec[Any], settings: QueueSettings) -> dict[str, tuple[Any, Any]]:
    """The settings about which they differ, each as the code has it and as the database does. What jobs are enqueued and
    tried by is the database's: a queue is made from the code, and changed by whoever makes it again.
    """
    compared = (*_COMPARED, *(["backoff"] if isinstance(spec.backoff, Backoff) else []))
    pairs = {name: (getattr(spec, name), getattr(settings, name)) for name in compared}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def told_differences(spec: QueueSpec[Any], settings: QueueSettings) -> str:
    """The same for people, with what to do; empty: there are none."""
    found = differences(spec, settings)
    if not found:
        return ""
    named = ", ".join(f"{name} is {there} where the code says {said}" for name, (said, there) in found.items())
    how = f"launch the job create_{spec.name}, or call create_queue"
    if "bucket_count" in found:
        how += f"; buckets: sqlqueue rebucket {spec.name} {spec.bucket_count}"
    return (
        f"{spec.label} has other settings than the code: {named}. The database's hold. To have those of the code: {how}"
    )
