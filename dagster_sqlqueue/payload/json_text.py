"""Read JSON that the database returned, whatever wrote it and whatever is in it, for people and programs. No I/O.

The database takes numbers of more digits than Python reads, and parts in parts more deeply than Python can follow.
"""

import json
import re
from typing import Any

from dagster_sqlqueue.errors import UnreadablePayload

_DEEPEST = 150
"""How many parts inside of each other are followed; every step of the way takes some of Python's stack."""

_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')


def read(text: str) -> Any:
    """What a JSON text says, to be shown: whole numbers of more digits than Python reads as texts; and as one text all of it
    where it is nested too deeply.
    """
    try:
        return strictly(text)
    except UnreadablePayload:
        return text if _too_deep(text) else json.loads(text, parse_int=_number)


def indented(text: str) -> str:
    """JSON text with its parts in lines of their own; as it is where Python cannot read it."""
    try:
        return json.dumps(strictly(text), indent=2, ensure_ascii=False)
    except UnreadablePayload:
        return text


def strictly(text: str) -> Any:
    """What a JSON text says, in full.

    Raises:
        UnreadablePayload: it holds a number of too many digits, or is nested too deeply.
    """
    if _too_deep(text):
        raise UnreadablePayload(f"it is nested more than {_DEEPEST} parts deep")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UnreadablePayload(f"it cannot be read as JSON: {error}") from None


def _too_deep(text: str) -> bool:
    if text.count("[") + text.count("{") <= _DEEPEST:
        return False
    depth = deepest = 0
    for sign in re.findall(r"[\[\]{}]", _STRING.sub("", text)):
        depth += 1 if sign in "[{" else -1
        deepest = max(deepest, depth)
    return deepest > _DEEPEST


def _number(digits: str) -> int | str:
    try:
        return int(digits)
    except ValueError:
        return digits
