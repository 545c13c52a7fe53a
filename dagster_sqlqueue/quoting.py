"""What may be said of a queue's payload: without the values of its sensitive fields. No I/O."""

import json
from typing import Any

import pydantic
from pydantic import BaseModel

from dagster_sqlqueue.sensitive import names_in, scrubbed, values_in
from dagster_sqlqueue.settings import QueueSpec
from dagster_sqlqueue.versions import versions_of


def sensitive_names(spec: QueueSpec[Any]) -> frozenset[str]:
    """The names of the fields of a queue's payloads that are not to be shown."""
    versions = versions_of(spec.payload)
    return names_in(spec.payload) | versions.sensitive if versions else names_in(spec.payload)


def scrub(spec: QueueSpec[Any], text: str, *shown: Any) -> str:
    """A text without the sensitive values of a payload.

    Args:
        spec: the queue.
        text: what is to be shown or stored.
        shown: the payload, as JSON text or as its model.
    """
    names = sensitive_names(spec)
    if not names:
        return text
    values: set[str] = set()
    for payload in shown:
        try:
            value = json.loads(payload) if isinstance(payload, str) else _plain(payload)
        except ValueError:
            continue
        values |= values_in(value, names)
    return scrubbed(text, values)


def _plain(payload: object) -> object:
    """A payload as it would be in JSON, whatever it is."""
    if isinstance(payload, BaseModel):
        return payload.model_dump(by_alias=True, warnings=False)
    return payload


def fields(spec: QueueSpec[Any], error: pydantic.ValidationError, *shown: Any) -> str:
    """What is wrong with a payload, by field.

    Of a sensitive field it is only said that something is: a rule of one's own may quote the value.

    Args:
        spec: the queue.
        error: what is wrong.
        shown: the payload, in each form that a message may quote.
    """
    names = sensitive_names(spec)
    problems = []
    for problem in error.errors(include_input=False, include_url=False, include_context=False):
        place = ".".join(str(part) for part in problem["loc"]) or "the payload"
        hidden = not names.isdisjoint(problem["loc"]) and problem["type"] != "missing"
        problems.append(f"{place}: {'is not usable (sensitive, so not quoted)' if hidden else problem['msg']}")
    told = "; ".join(problems[:5]) + (f"; and {len(problems) - 5} more" if len(problems) > 5 else "")
    return scrub(spec, told, *shown)
