"""The parameters of a handler, by name and annotation: jobs, Dagster's context and Dagster's resources."""

import functools
import inspect
import typing
from collections.abc import Callable
from dataclasses import dataclass, replace
from inspect import Parameter
from typing import Any

import dagster as dg

from dagster_sqlqueue.consumer.annotations import (
    Taken,
    annotations_of,
    function_behind,
    is_async,
    payloads_in,
    signature_called,
    taken_by,
)
from dagster_sqlqueue.consumer.handler import check_awaited, check_payloads, failed
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.model.outcome import Outcome, Reject, Retry
from dagster_sqlqueue.model.queue import QueueSpec

_CONTEXT = "context"
_RESOURCES = (dg.ConfigurableResource, dg.ConfigurableIOManagerFactory, dg.ResourceDefinition, dg.PipesClient)
_VARIADIC = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)


@dataclass(frozen=True, slots=True)
class HandlerShape:
    """A handler and the roles of its parameters.

    Attributes:
        handler: the function to call.
        batch: whether it takes the list of all jobs of a claim, instead of one job.
        job: the parameter of the job, or of the list.
        context: the parameter of Dagster's context; None: it takes none.
        resources: the parameters of resources, which are the resources' keys.
        positional: the positional-only parameters, in their order.
        first: whether a call with the job alone, as a positional argument, gives it to its parameter.
    """

    handler: Callable[..., Any]
    batch: bool
    job: str
    context: str | None
    resources: tuple[str, ...]
    positional: tuple[Parameter, ...]
    first: bool

    def bound(self, context: dg.OpExecutionContext) -> Callable[[Any], Any]:
        """Bind context and resources of a run to the handler; the result takes the job or jobs alone. If the handler raises
        `dagster.Failure` or `dagster.RetryRequested`, it returns the outcome that is meant.

        Args:
            context: of the drain op. It needs the resources.
        """
        if self.first and self.context is None and not self.resources:
            return _with_outcomes(self.handler, of=self.handler)
        # The resource itself: `context.resources` holds what some resources make of themselves for older code.
        of_run = context.resources.original_resource_dict
        given = {name: of_run[name] for name in self.resources}
        if self.context is not None:
            given[self.context] = context

        def call(job: Any) -> Any:
            first, named = self._arguments({**given, self.job: job})
            return self.handler(*first, **named)

        return _with_outcomes(call, of=self.handler)

    def _arguments(self, given: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """The positional arguments of a call, and those by name."""
        # One without a value of the run comes before one with, and can be left at its default in no other way.
        return [given.pop(one.name, one.default) for one in self.positional], given

    def check_call(self, named: str) -> None:
        """Raise an error if a call with all that a run gives does not fit the handler.

        Args:
            named: the handler, in the error.

        Raises:
            InvalidInput: it does not: every call would fail.
        """
        signature = signature_called(self.handler)
        if signature is None:
            return
        names = (self.job, *self.resources, *([self.context] if self.context is not None else []))
        first, by_name = self._arguments(dict.fromkeys(names))
        if self.first and len(names) == 1:
            first, by_name = [None], {}
        try:
            signature.bind(*first, **by_name)
        except TypeError as error:
            raise InvalidInput(
                f"{named} is called with {', '.join(names)}, which its wrapper, of {signature!s:.500}, does not take:"
                f" {error}; let the wrapper take *args and **kwargs and pass them on, or leave functools.wraps out"
            ) from None


def _with_outcomes(call: Callable[[Any], Any], *, of: Callable[..., Any]) -> Callable[[Any], Any]:
    """The call of a handler, with outcomes for Dagster's exceptions."""

    @functools.wraps(of)
    def outcome(job: Any) -> Any:
        try:
            return call(job)
        except (dg.Failure, dg.RetryRequested) as error:
            return _outcome_of(error)

    @functools.wraps(of)
    async def outcome_async(job: Any) -> Any:
        try:
            return await call(job)
        except (dg.Failure, dg.RetryRequested) as error:
            return _outcome_of(error)

    return outcome_async if is_async(of) else outcome


def _outcome_of(error: dg.Failure | dg.RetryRequested) -> Outcome:
    if isinstance(error, dg.Failure):
        described = failed(error)
        return described if error.allow_retries else Reject(described.error)
    cause = error.__cause__ or error.__context__
    return Retry(after=error.seconds_to_wait) if cause is None else replace(failed(cause), after=error.seconds_to_wait)


def shape_of_handler(handler: Any, spec: QueueSpec[Any], *, batch: bool | None = None) -> HandlerShape:
    """Find the roles of a handler's parameters.

    One of them takes the job, `Job[Payload]`, or, annotated as a list of them, all jobs of a claim; `context` takes
    Dagster's context; those annotated as Dagster resources take the resources of their names; others keep their defaults.

    Args:
        handler: a function of a job, async or not, or another callable.
        spec: the queue.
        batch: whether it takes a list of jobs; None: by its annotation; without one it takes a job.

    Raises:
        InvalidInput: it takes something else, is a generator, or a plain wrapper around an async function.
    """
    if not callable(handler):
        raise InvalidInput(f"the handler of {spec.label} is {handler!r:.100}; decorate a function of a job")
    named = f"the handler {_name(handler)} of {spec.label}"
    shapes = _shapes(spec)
    function = function_behind(handler)
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidInput(
            f"{named} is a generator, and the consumer would never see its outcome: return one, do not yield. {shapes}"
        )
    check_awaited(spec, handler)
    try:
        parameters = inspect.signature(handler).parameters
    except (TypeError, ValueError):
        raise InvalidInput(f"{named} has no readable signature; wrap it in a function of a job. {shapes}") from None
    annotations = annotations_of(handler)
    jobs: dict[str, Taken] = {}
    context, resources = None, []
    for name, parameter in parameters.items():
        annotation = annotations.get(name, Any)
        if parameter.kind in _VARIADIC:
            continue
        if _is_context(name, annotation):
            if context is not None or not _fits_context(annotation):
                raise InvalidInput(
                    f"{named} takes {_text(parameter)}; a drain run has one context, a dagster.OpExecutionContext. {shapes}"
                )
            context = name
        elif _is_resource(annotation):
            resources.append(name)
        elif (taken := taken_by(annotation)) is not Taken.OTHER:
            if parameter.default is Parameter.empty or taken is not Taken.UNSAID:
                check_payloads(spec, named, payloads_in(annotation))
                jobs[name] = taken
        elif parameter.default is Parameter.empty:
            hint = "; a job's payload is job.payload" if annotation is spec.payload else ""
            raise InvalidInput(f"{named} takes {_text(parameter)}, for which a drain run has no value{hint}. {shapes}")
    if len(jobs) != 1:
        wrapped = any(parameter.kind in _VARIADIC for parameter in parameters.values())
        hint = ": if it is wrapped, let the wrapper use functools.wraps" if wrapped and not jobs else ""
        listed = ", ".join(_text(parameter) for parameter in parameters.values()) or "nothing"
        raise InvalidInput(
            f"{named} takes {listed}, and with that {len(jobs) or 'no'} parameters for jobs instead of one{hint}. {shapes}"
        )
    ((job, taken),) = jobs.items()
    if (batch, taken) in ((True, Taken.JOB), (False, Taken.JOBS)):
        raise InvalidInput(
            f"{named} takes {_text(parameters[job])}, and batch={batch} was given; leave batch out, the annotation decides."
            f" {shapes}"
        )
    fixed = [one for one in parameters.values() if one.kind is Parameter.POSITIONAL_ONLY]
    given = {job, context, *resources}
    while fixed and fixed[-1].name not in given:
        fixed.pop()
    shape = HandlerShape(
        handler=handler,
        batch=bool(batch) or taken is Taken.JOBS,
        job=job,
        context=context,
        resources=tuple(resources),
        positional=tuple(fixed),
        first=job == next(iter(parameters)) and parameters[job].kind is not Parameter.KEYWORD_ONLY,
    )
    shape.check_call(named)
    return shape


def _is_context(name: str, annotation: Any) -> bool:
    return name == _CONTEXT or (inspect.isclass(annotation) and issubclass(annotation, dg.OpExecutionContext))


def _fits_context(annotation: Any) -> bool:
    return annotation is Any or not inspect.isclass(annotation) or issubclass(dg.OpExecutionContext, annotation)


def _is_resource(annotation: Any) -> bool:
    if inspect.isclass(annotation):
        return issubclass(annotation, _RESOURCES)
    return getattr(annotation, "__metadata__", ()) == typing.get_args(dg.ResourceParam)[1:]


def _shapes(spec: QueueSpec[Any]) -> str:
    job = f"Job[{spec.payload.__name__}]"
    return (
        f"A handler is a function, async or not, of one job (job: {job}) or of all jobs of a claim (jobs: list[{job}]);"
        " beside that it may take context: dagster.OpExecutionContext, and Dagster resources by their annotation (mail:"
        " MailResource, or client: dagster.ResourceParam[Client])"
    )


def _text(parameter: Parameter) -> str:
    return str(parameter.replace(default=Parameter.empty))


def _name(handler: Any) -> str:
    name = getattr(handler, "__qualname__", None) or type(handler).__qualname__
    return repr(name.rpartition("<locals>.")[2])
