"""The names of spans' attributes: OpenTelemetry's for messaging, and the library's own. No I/O.

Written out, because the package that holds OpenTelemetry's still calls those for messaging unstable.
"""

from typing import TypeAlias

from opentelemetry.util.types import AttributeValue

Attributes: TypeAlias = dict[str, AttributeValue]

MESSAGE_ID = "messaging.message.id"
BATCH_COUNT = "messaging.batch.message_count"
ERROR_TYPE = "error.type"
ENQUEUED = "sqlqueue.enqueued"
ATTEMPT = "sqlqueue.job.attempt"
MAX_ATTEMPTS = "sqlqueue.job.max_attempts"
LEASE_NO = "sqlqueue.job.lease_no"
OUTCOME = "sqlqueue.job.outcome"


def attributes(destination: str, operation: str) -> Attributes:
    """What every span says: the system, the queue or topic, and what is done, `send`, `publish` or `process`."""
    return {
        "messaging.system": "sqlqueue",
        "messaging.destination.name": destination,
        "messaging.operation.name": operation,
        # Publishing is sending, among the kinds that there are.
        "messaging.operation.type": "send" if operation == "publish" else operation,
    }


def class_name(error: BaseException) -> str:
    """An error's class, with its module unless it is a built-in one."""
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
