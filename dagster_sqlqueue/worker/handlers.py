"""A handler bound to its queue outside of Dagster, and how it is found by name. No I/O but importing."""

import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, Protocol

from dagster_sqlqueue.consumer.annotations import takes_batch
from dagster_sqlqueue.consumer.handler import (
    AsyncHandler,
    Handler,
    check_awaited,
    check_batch,
    check_called_with_one,
    check_concurrency,
    check_model,
    check_times,
)
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.model.queue import Payload, QueueSpec
from dagster_sqlqueue.worker.references import is_path, look_up

_FORM = "write it as package.module:handler"


class Declared(Protocol):
    """What `sqlqueue work` takes by name: an object with a queue and a handler, such as what `handles` makes, or the
    `queue_consumer` of the Dagster integration. `lease_seconds`, `job_timeout_seconds` and `concurrency` are used if it has
    them.
    """

    @property
    def spec(self) -> QueueSpec[Any]:
        """The queue."""
        ...

    @property
    def handler(self) -> Handler[Any] | AsyncHandler[Any]:
        """Called, or awaited, for one job."""
        ...


@dataclass(frozen=True, slots=True)
class QueueHandler(Generic[Payload]):
    """A handler bound to its queue; calling it calls the handler, as a test would."""

    spec: QueueSpec[Payload]
    handler: Handler[Payload] | AsyncHandler[Payload]
    lease_seconds: float | None = None
    job_timeout_seconds: float | None = None
    concurrency: int | None = None

    def __call__(self, job: Any) -> Any:
        """Call the handler itself."""
        return self.handler(job)


def handles(
    spec: QueueSpec[Payload],
    *,
    lease_seconds: float | None = None,
    job_timeout_seconds: float | None = None,
    concurrency: int | None = None,
) -> Callable[[Handler[Payload] | AsyncHandler[Payload]], QueueHandler[Payload]]:
    """Bind a function of one job to the queue whose jobs it handles, so that `sqlqueue work module:function` finds both.

    Args:
        spec: the queue.
        lease_seconds: instead of the queue's.
        job_timeout_seconds: see `Consumer`.
        concurrency: how many jobs each process of `sqlqueue work` handles at a time, unless its `--concurrency` says
            otherwise: a plain function in as many threads, an async one on its event loop. None: one; of an async function
            a hundred.

    Raises:
        InvalidInput: the concurrency or a time is out of range, or what is decorated cannot be called with a job, is a plain
            wrapper around an async function, or says by its annotation that it takes the payloads of another model.

    Example:
        ```python
        @handles(emails)
        def send(job: Job[Email]) -> Done: ...
        ```
    """
    if not isinstance(spec, QueueSpec):
        raise InvalidInput(f"handles was given {spec!r:.100}; give it the queue: @handles(QueueSpec(…))")
    if concurrency is not None:
        check_concurrency(concurrency)
    check_times(lease_seconds, job_timeout_seconds)

    def decorate(handler: Handler[Payload] | AsyncHandler[Payload]) -> QueueHandler[Payload]:
        check_handler(spec, handler)
        check_batch(spec, handler, batch=False)
        return QueueHandler(spec, handler, lease_seconds, job_timeout_seconds, concurrency)

    return decorate


def check_handler(spec: QueueSpec[Any], handler: Any) -> None:
    """Raise an error if something cannot handle the jobs of a queue.

    Raises:
        InvalidInput: as for `handles`.
    """
    check_called_with_one(spec, handler)
    check_awaited(spec, handler)
    check_model(spec, handler)


def load(reference: str) -> QueueHandler[Any]:
    """Return the handler of that name, with its queue.

    Args:
        reference: `package.module:name`, the module as Python imports it.

    Raises:
        InvalidInput: there is no such module or name, importing it fails, or what it names is no handler with a queue.
    """
    found = _found(reference)
    spec, handler = getattr(found, "spec", None), getattr(found, "handler", None)
    if not isinstance(spec, QueueSpec) or handler is None:
        kind = "a function" if inspect.isroutine(found) else f"a {type(found).__name__}"
        raise InvalidInput(
            f"handler {reference!r} is {kind} without a queue; decorate the function with @handles(spec) from"
            " dagster_sqlqueue, where spec is its QueueSpec"
        )
    check_handler(spec, handler)
    if getattr(found, "batch", False) or takes_batch(handler):
        raise InvalidInput(
            f"handler {reference!r} takes all jobs of a claim at once, and this worker calls handlers for one job each;"
            " work it off by Consumer(…, batch=True) or in Dagster"
        )
    settings = ("lease_seconds", "job_timeout_seconds", "concurrency")
    return QueueHandler(spec, handler, *(getattr(found, name, None) for name in settings))


def load_spec(reference: str) -> QueueSpec[Any]:
    """Return the queue of that name: a `QueueSpec`, or what has one, such as a handler.

    Raises:
        InvalidInput: as for `load`.
    """
    found = _found(reference)
    spec = found if isinstance(found, QueueSpec) else getattr(found, "spec", None)
    if not isinstance(spec, QueueSpec):
        raise InvalidInput(f"{reference!r} is a {type(found).__name__}; name a QueueSpec, or a handler bound to one")
    return spec


def import_from_working_directory() -> None:
    """Make imports search the current directory first, as `python -m` does."""
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))


def _found(reference: str) -> Any:
    module_name, colon, name = reference.partition(":")
    if not colon or not is_path(module_name, name):
        raise InvalidInput(f"handler {reference!r} names no function; {_FORM}")
    advice = f"{_FORM}, and run the command in the directory that holds the package, or install the package"
    return look_up(f"handler {reference!r}", module_name, name, advice=advice, others=_others)


def _others(module: ModuleType) -> str:
    """Return the handlers of a module, to choose from."""
    names = [name for name, value in vars(module).items() if isinstance(getattr(value, "spec", None), QueueSpec)]
    return f"; its handlers are: {', '.join(names)}" if names else "; it has no handler"
