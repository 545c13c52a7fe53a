"""What a test gives as a handler."""

from typing import Any

from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.model.queue import QueueSpec

_SETTINGS = ("batch", "lease_seconds", "job_timeout_seconds", "concurrency")


def bare(spec: QueueSpec[Any], handler: Any) -> Any:
    """Return the function of a handler that was bound to its queue, by `handles` say; any other one as it is.

    Raises:
        InvalidInput: it was bound to another queue.
    """
    bound = _spec_of(handler)
    if bound is None:
        return handler
    if (bound.name, bound.payload) != (spec.name, spec.payload):
        raise InvalidInput(
            f"the handler is of {bound.label} with payloads of {bound.payload.__name__}, and {spec.label} has"
            f" {spec.payload.__name__}; give the spec of the handler"
        )
    return handler.handler


def settings_of(handler: Any) -> dict[str, Any]:
    """Return the arguments of a `Consumer` that a handler was bound with."""
    if _spec_of(handler) is None:
        return {}
    found = {name: getattr(handler, name, None) for name in _SETTINGS}
    return {name: value for name, value in found.items() if value is not None}


def _spec_of(handler: Any) -> "QueueSpec[Any] | None":
    """Return the queue that a handler was bound to."""
    spec = getattr(handler, "spec", None)
    return spec if isinstance(spec, QueueSpec) else None
