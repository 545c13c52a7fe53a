"""Payloads whose model changes: the version written into each, and the way from an old one to the new one. No I/O."""

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, TypeAlias, TypeVar

from pydantic import BaseModel, RootModel

from dagster_sqlqueue.errors import InvalidInput, UnknownVersion
from dagster_sqlqueue.model.interrupts import is_interrupt
from dagster_sqlqueue.model.numbers import is_whole

KEY: Final = "$version"
"""The key of a stored payload that holds its version."""

UNVERSIONED: Final = 1
"""The version of a payload without the key: it was written before its queue had versions."""

Upgrade: TypeAlias = Callable[[dict[str, Any]], dict[str, Any]]
"""Makes a payload's JSON object that of the next version; it may change what it is given."""

Model = TypeVar("Model", bound=BaseModel)

_ATTRIBUTE = "__sqlqueue_versions__"


@dataclass(frozen=True, slots=True)
class Versions:
    """The versions of a model: the one that it is now, and the functions that lead to it.

    Attributes:
        current: of the model.
        upgrades: for each version before it that can still be read, the way to the next one.
        sensitive: names of fields of older versions that are not to be shown.
    """

    current: int
    upgrades: Mapping[int, Upgrade]
    sensitive: frozenset[str]

    def upgraded(self, stored: Any, *, without_key: int = UNVERSIONED) -> dict[str, Any]:
        """A payload of the current version, without the key.

        Args:
            stored: the JSON object.
            without_key: the version of one that names none.

        Raises:
            UnknownVersion: it is no object, its version is not known here, or a function failed. The message holds nothing
                of the payload.
        """
        if not isinstance(stored, Mapping):
            raise UnknownVersion("the payload is no JSON object, which a payload with a version is")
        value = dict(stored)
        version = value.pop(KEY, without_key)
        if not is_whole(version, 1, self.current):
            known = f"versions {self._oldest} to {self.current}" if self._oldest < self.current else "version 1"
            if type(version) is int and version > self.current:
                cure = "deploy the newer code, then release the job"
            else:
                cure = f"correct its {KEY!r}"
            raise UnknownVersion(f"the payload has version {version!r:.50}, this process knows {known}; {cure}")
        for step in range(version, self.current):
            upgrade = self.upgrades.get(step)
            if upgrade is None:
                raise UnknownVersion(
                    f"the payload has version {version}, and nothing upgrades version {step} any more; give versioned an"
                    f" upgrade from {step}, then release the job"
                )
            value = _stepped(value, step, upgrade)
        return value

    @property
    def _oldest(self) -> int:
        oldest = self.current
        while oldest - 1 in self.upgrades:
            oldest -= 1
        return oldest


def versioned(
    current: int, upgrades: Mapping[int, Upgrade] | None = None, *, sensitive: Collection[str] = ()
) -> Callable[[type[Model]], type[Model]]:
    """Give a payload model a version.

    Every payload that is enqueued carries it, under the key `$version`. A handler is given the current model: an older
    payload is upgraded, step by step. One of a version that is not known, and one whose upgrade fails, is held with the
    reason, no attempt spent.

    Args:
        current: of the model that is decorated, from 1 on. Payloads from before there were versions have version 1.
        upgrades: from each older version, the function that makes its JSON object that of the next version.
        sensitive: names of fields that older versions had and that are not to be shown; see `Sensitive`.

    Raises:
        InvalidInput: the version is not a whole number of at least 1, an upgrade is from no older one, or there are gaps
            between upgrades; the names are one text, or no texts; the model is no JSON object, or has a field of its own
            that is called `$version`.

    Example:
        ```python
        @versioned(2, {1: lambda old: {"to": old["address"]}})
        class Email(BaseModel):
            to: str
        ```
    """
    if isinstance(sensitive, str) or not all(isinstance(name, str) for name in sensitive):
        raise InvalidInput(f"sensitive is {sensitive!r:.100}; give the names of fields in a list, such as ['pin']")
    steps = dict(upgrades or {})
    if not is_whole(current, 1):
        raise InvalidInput(f"the version is {current!r}; it must be a whole number of at least 1")
    for version, upgrade in steps.items():
        if not is_whole(version, 1, current - 1):
            raise InvalidInput(f"there is an upgrade from {version!r}; it must be from a version of 1 to {current - 1}")
        if not callable(upgrade):
            raise InvalidInput(f"the upgrade from {version} is {upgrade!r:.100}; it must be a function of a dict")
    if steps and (missing := set(range(min(steps), current)) - set(steps)):
        raise InvalidInput(
            f"there is no upgrade from {min(missing)}, and one from {min(steps)}; each leads to the next one"
        )

    def decorate(model: type[Model]) -> type[Model]:
        if not (isinstance(model, type) and issubclass(model, BaseModel)) or issubclass(model, RootModel):
            raise InvalidInput(f"versioned was given {model!r:.100}; it takes a pydantic model that is a JSON object")
        for name, field in model.model_fields.items():
            if KEY in (name, field.alias, field.serialization_alias):
                raise InvalidInput(f"field {name!r} of {model.__name__} is called {KEY!r}, which holds the version")
        setattr(model, _ATTRIBUTE, Versions(current, steps, frozenset(sensitive)))
        versions_of.cache_clear()
        return model

    return decorate


@lru_cache(maxsize=1_000)
def versions_of(model: type[BaseModel]) -> Versions | None:
    """The versions of a model; None when it has none. Those of a class that it is derived from are not its own."""
    found: Versions | None = model.__dict__.get(_ATTRIBUTE)
    return found


def json_schema(model: type[BaseModel]) -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of what may be enqueued, the version among it; sensitive fields are marked
    `x-sensitive`.
    """
    schema = model.model_json_schema(by_alias=True, mode="validation")
    versions = versions_of(model)
    if versions is not None:
        schema["properties"] = {KEY: {"const": versions.current}, **schema.get("properties", {})}
        schema["required"] = [KEY, *schema.get("required", [])]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def _stepped(value: dict[str, Any], step: int, upgrade: Upgrade) -> dict[str, Any]:
    try:
        made = upgrade(value)
        json.dumps(made, allow_nan=False)
    except BaseException as error:
        if is_interrupt(error):
            raise
        raise UnknownVersion(
            f"the upgrade of the payload from version {step} failed with {type(error).__name__}; mend it, then release the"
            " job"
        ) from error
    if not isinstance(made, dict):
        raise UnknownVersion(
            f"the upgrade of the payload from version {step} returned a {type(made).__name__}; it must return a dict"
        )
    return made
