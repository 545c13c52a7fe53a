"""What may be said of a queue's payload: without the values of its sensitive fields. No I/O."""

from typing import Any

import pydantic
from pydantic import BaseModel

from dagster_sqlqueue.payload import json_text
from dagster_sqlqueue.payload.redaction import names_in, scrubbed, values_in
from dagster_sqlqueue.payload.versions import versions_of

_LONGEST = 300
"""Of a name or a message: names in a payload are its producer's, and of any length."""


def sensitive_names(model: type[BaseModel]) -> frozenset[str]:
    """The names of a payload model's fields that are not to be shown, those of older versions among them."""
    versions = versions_of(model)
    return names_in(model) | versions.sensitive if versions else names_in(model)


def scrub(model: type[BaseModel], text: str, *shown: Any) -> str:
    """A text without the sensitive values of a payload.

    Args:
        model: of the queue's payloads.
        text: what will be shown or stored.
        shown: the payload, as JSON text or as its model.
    """
    names = sensitive_names(model)
    if not names:
        return text
    values: set[str] = set()
    for payload in shown:
        try:
            value = json_text.read(payload) if isinstance(payload, str) else _plain(payload)
        except ValueError:
            continue
        values |= values_in(value, names)
    return scrubbed(text, values)


def _plain(payload: object) -> object:
    """A payload as it would be in JSON, whatever it is."""
    if isinstance(payload, BaseModel):
        return payload.model_dump(by_alias=True, warnings=False)
    return payload


def fields(model: type[BaseModel], error: pydantic.ValidationError, *shown: Any) -> str:
    """What is wrong with a payload, by field.

    Of a sensitive field it is only said that something is: a rule of one's own may quote the value.

    Args:
        model: of the queue's payloads.
        error: what is wrong.
        shown: the payload, in each form that a message may quote.
    """
    names = sensitive_names(model)
    problems = []
    for problem in error.errors(include_input=False, include_url=False, include_context=False):
        place = _cut(".".join(str(part) for part in problem["loc"])) or "the payload"
        hidden = not names.isdisjoint(problem["loc"]) and problem["type"] != "missing"
        problems.append(f"{place}: {'is not usable (sensitive, so not quoted)' if hidden else _cut(problem['msg'])}")
    shown_problems = "; ".join(problems[:5]) + (f"; and {len(problems) - 5} more" if len(problems) > 5 else "")
    return scrub(model, shown_problems, *shown)


def _cut(words: str) -> str:
    return words if len(words) <= _LONGEST else f"{words[:_LONGEST]} …"
