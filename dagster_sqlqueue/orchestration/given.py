"""Checks of what the builders of Dagster's definitions are given: what is wrong is named where the code is loaded."""

from collections.abc import Iterable, Mapping
from typing import Any

import dagster as dg

from dagster_sqlqueue.errors import InvalidInput


def listed(given: Any) -> list[Any]:
    """Return one or several things as a list. A text is one."""
    return list(given) if isinstance(given, Iterable) and not isinstance(given, str) else [given]


def check_consumer(builder: str, given: object, kind: type | tuple[type, ...]) -> None:
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


def check_lists(**given: object) -> None:
    """Raise an error if an argument is one thing where several are taken, such as a text, whose letters would be taken.

    Raises:
        InvalidInput: one is; the message has its name.
    """
    for name, value in given.items():
        # Python takes an asset's key for iterable.
        if isinstance(value, str | dg.AssetKey) or not isinstance(value, Iterable):
            raise InvalidInput(f"{name} is {value!r:.100}; give a list")


def check_mappings(**given: object) -> None:
    """Raise an error if an argument is no mapping; None is none given.

    Raises:
        InvalidInput: one is; the message has its name.
    """
    for name, value in given.items():
        if value is not None and not isinstance(value, Mapping):
            raise InvalidInput(f"{name} is {value!r:.100}; give a mapping, or None")


def check_function(name: str, given: object) -> None:
    """Raise an error if an argument that is to be called is no function, such as what it would return.

    Raises:
        InvalidInput: it is none.
    """
    if not callable(given):
        raise InvalidInput(f"{name} is {given!r:.100}; give a function that returns such")
