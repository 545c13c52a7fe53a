"""What a handler shows of itself: whether it is awaited, what a call of it takes, and what its annotations name. No I/O."""

import builtins
import collections.abc
import enum
import functools
import inspect
import types
import typing
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from dagster_sqlqueue.model.job import Job


class Taken(enum.Enum):
    """What a parameter takes by its annotation."""

    JOB = enum.auto()
    JOBS = enum.auto()
    """A list of them."""
    UNSAID = enum.auto()
    """Anything, or there is no annotation."""
    OTHER = enum.auto()


def is_async(handler: Any) -> bool:
    """Return whether the handler is a coroutine function."""
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__)


def function_behind(handler: Any) -> Any:
    """Return the function behind a partial, a wrapper or an object with `__call__`."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    handler = inspect.unwrap(handler)
    if inspect.isroutine(handler) or inspect.isclass(handler):
        return handler
    return inspect.unwrap(type(handler).__call__)


def signature_called(handler: Any) -> inspect.Signature | None:
    """Return the parameters that a call of the handler has to fit, whatever a wrapper says of the function in it; None if
    they cannot be known.
    """
    function = handler
    while type(function) in (functools.partial, types.MethodType):
        function = function.func if type(function) is functools.partial else function.__func__
    if type(function) is not types.FunctionType:
        function = type(function).__call__
    # Signatures that are set, and those of proxies, are what their authors say: the call may take something else.
    if (
        type(function) is not types.FunctionType
        or hasattr(function, "__signature__")
        or hasattr(handler, "__signature__")
    ):
        return None
    try:
        return inspect.signature(handler, follow_wrapped=False)
    except (TypeError, ValueError):
        return None


class _Names(dict[str, Any]):
    """The names in annotations; one that cannot be found, such as a class in another function, stands for any type."""

    def __init__(self, known: dict[str, Any]) -> None:
        super().__init__()
        self._known = known

    def __missing__(self, name: str) -> Any:
        return self._known.get(name, vars(builtins).get(name, Any))


def annotations_of(handler: Any) -> dict[str, Any]:
    """Return the annotations of a handler's parameters, by their names; without those that cannot be evaluated."""
    function = function_behind(handler)
    try:
        return typing.get_type_hints(
            function, localns=_Names(getattr(function, "__globals__", {})), include_extras=True
        )
    except Exception:
        # Ignore an annotation that cannot be evaluated; the other annotations decide.
        return {name: one for name, one in getattr(function, "__annotations__", {}).items() if not isinstance(one, str)}


def taken_by(annotation: Any) -> Taken:
    """Return what a parameter of this annotation takes."""
    origin = typing.get_origin(annotation) or annotation
    if origin is typing.Annotated:
        return taken_by(typing.get_args(annotation)[0])
    if origin is Any or isinstance(origin, typing.TypeVar):
        return Taken.UNSAID
    if origin is Job:
        return Taken.JOB
    if inspect.isclass(origin) and issubclass(list, origin) and issubclass(origin, collections.abc.Iterable):
        of = typing.get_args(annotation)
        return Taken.JOBS if not of or taken_by(of[0]) in (Taken.JOB, Taken.UNSAID) else Taken.OTHER
    return Taken.OTHER


def payloads_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the models that an annotation names as payloads, such as that of `list[Job[Model]]`."""
    if typing.get_origin(annotation) is Job:
        yield from (one for one in typing.get_args(annotation) if inspect.isclass(one) and issubclass(one, BaseModel))
    else:
        for part in typing.get_args(annotation):
            yield from payloads_in(part)


def takes_batch(handler: Any) -> bool | None:
    """Return whether the first parameter of a handler takes a list of jobs by its annotation; None if that says nothing of
    jobs.
    """
    try:
        first = next(iter(inspect.signature(handler).parameters), None)
    except (TypeError, ValueError):
        return None
    taken = Taken.UNSAID if first is None else taken_by(annotations_of(handler).get(first, Any))
    return {Taken.JOB: False, Taken.JOBS: True}.get(taken)


def payloads_of(handler: Any) -> Iterator[type[BaseModel]]:
    """Yield the models that the annotations of a handler's parameters name as payloads."""
    for name, annotation in annotations_of(handler).items():
        if name != "return":
            yield from payloads_in(annotation)
