"""What the builders of Dagster's definitions are given as consumers: a wrong one is named where the code is loaded."""

from collections.abc import Iterable
from typing import Any

from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.orchestration.drain import DrainJob


def listed(given: Any) -> list[Any]:
    """Return one or several things as a list. A text is one."""
    return list(given) if isinstance(given, Iterable) and not isinstance(given, str) else [given]


def check_consumer(builder: str, given: object, kind: type | tuple[type, ...] = DrainJob) -> None:
    """Raise an error if what was given as a consumer is none, such as its handler or its queue.

    Args:
        builder: the name of the function that it was given to.
        given: what was given.
        kind: what it must be, or one of several.

    Raises:
        InvalidInput: it is none.
    """
    if not isinstance(given, kind):
        raise InvalidInput(
            f"{builder} was given {given!r:.100}, which is no consumer; decorate the handler with queue_consumer, and give"
            " what that makes of it"
        )
