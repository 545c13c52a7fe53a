"""From a handler to its op, a job around that, and a sensor that starts the job's runs."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypedDict, Unpack, overload

import dagster as dg
from pydantic import BaseModel

from dagster_sqlqueue.consumer.handler import Shape, shape_of
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.model.backoff import BackoffPolicy
from dagster_sqlqueue.model.queue import Payload, PoisonPolicy, QueueSpec, RateLimit, Strategy
from dagster_sqlqueue.orchestration.assets import asset_key_or_usual
from dagster_sqlqueue.orchestration.drain import DrainJob, DrainMode, build_drain_op, mode_of
from dagster_sqlqueue.orchestration.given import check_mappings
from dagster_sqlqueue.orchestration.handlers import shape_of_handler
from dagster_sqlqueue.orchestration.resource import RESOURCE_KEY
from dagster_sqlqueue.orchestration.sensor import build_sqlqueue_sensor
from dagster_sqlqueue.orchestration.sensor_settings import SensorSettings

_SENSOR_OPTIONS = [name for name in inspect.signature(build_sqlqueue_sensor).parameters if name != "consumer"]


class QueueArguments(TypedDict, total=False):
    """The arguments of `QueueSpec` that `queue_consumer` takes beside the queue's name and model."""

    bucket_count: int
    max_attempts: int
    backoff: BackoffPolicy
    strategy: Strategy | str
    ordered: bool
    on_poison: PoisonPolicy | str
    timeout_seconds: float | None
    max_running: int | None
    max_running_per_key: int | None
    rate: RateLimit | None
    retention_days: int


@dataclass(frozen=True)
class QueueConsumer(DrainJob[Payload]):
    """A handler bound to its queue, with its op, job and sensor.

    Attributes:
        handler: the decorated function.
        batch: whether the handler takes all jobs of a claim at once.
        concurrency: how many jobs are handled at a time; None: one after another, or all async ones of a claim.
    """

    handler: Callable[..., Any]
    batch: bool = False
    concurrency: int | None = None
    _sensor_options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    _build: Callable[[Callable[..., Any], dg.AssetKey], "QueueConsumer[Payload]"] | None = field(
        default=None, repr=False
    )

    def __call__(self, *jobs: Any, **given: Any) -> Any:
        """Call the handler itself, as a test would."""
        return self.handler(*jobs, **given)

    @cached_property
    def sensor(self) -> dg.SensorDefinition:
        """The sensor that starts runs of the job, with the mode's defaults. Build others, for a region or for jobs with some
        tags, with `build_sqlqueue_sensor`.
        """
        return self.sensor_with()

    def on_asset(self, key: dg.AssetKey) -> "QueueConsumer[Payload]":
        """Build the same consumer for another asset: its op, job and sensor report there. Use these instead of its own. The
        job keeps the hooks that were given to this one's.
        """
        if key == self.asset_key or self._build is None:
            return self
        made = self._build(self.handler, key)
        return replace(made, job=made.job.with_hooks(set(self.job.hook_defs)))

    def sensor_with(self, **usual: Any) -> dg.SensorDefinition:
        """Build the sensor with these defaults of `build_sqlqueue_sensor`; the consumer's own options take precedence."""
        return build_sqlqueue_sensor(self, **{**usual, **self._sensor_options})


@overload
def queue_consumer(
    spec: QueueSpec[Payload],
    *,
    name: str | None = ...,
    mode: DrainMode | str = ...,
    batch: bool | None = ...,
    transactional: bool = ...,
    concurrency: int | None = ...,
    lease_seconds: float | None = ...,
    job_timeout_seconds: float | None = ...,
    maintain: bool = ...,
    asset_key: dg.AssetKey | None = ...,
    resource_key: str = ...,
    tags: dict[str, str] | None = ...,
    sensor: Mapping[str, Any] | None = ...,
) -> Callable[[Callable[..., Any]], QueueConsumer[Payload]]: ...


@overload
def queue_consumer(
    *,
    queue: str,
    payload: type[Payload],
    name: str | None = ...,
    mode: DrainMode | str = ...,
    batch: bool | None = ...,
    transactional: bool = ...,
    concurrency: int | None = ...,
    lease_seconds: float | None = ...,
    job_timeout_seconds: float | None = ...,
    maintain: bool = ...,
    asset_key: dg.AssetKey | None = ...,
    resource_key: str = ...,
    tags: dict[str, str] | None = ...,
    sensor: Mapping[str, Any] | None = ...,
    **settings: Unpack[QueueArguments],
) -> Callable[[Callable[..., Any]], QueueConsumer[Payload]]: ...


def queue_consumer(
    spec: QueueSpec[Any] | None = None,
    *,
    queue: str | None = None,
    payload: type[BaseModel] | None = None,
    name: str | None = None,
    mode: DrainMode | str = DrainMode.LINGER,
    batch: bool | None = None,
    transactional: bool = False,
    concurrency: int | None = None,
    lease_seconds: float | None = None,
    job_timeout_seconds: float | None = None,
    maintain: bool = True,
    asset_key: dg.AssetKey | None = None,
    resource_key: str = RESOURCE_KEY,
    tags: dict[str, str] | None = None,
    sensor: Mapping[str, Any] | None = None,
    **settings: Unpack[QueueArguments],
) -> Callable[[Callable[..., Any]], QueueConsumer[Any]]:
    """Turn a function into an op, a job and a sensor that work a queue off.

    The function takes one job, `Job[Payload]`; if it is `async`, it handles all jobs of a claim side by side on one event
    loop; annotated as `list[Job[Payload]]` it takes all jobs of a claim at once. Beside them it may take `context`, the
    run's op context, for `context.log`; and resources by their annotation, as ops do. The job runs in the in-process
    executor: a run is capacity for many jobs, and a process for each step would double its cost.

    Args:
        spec: the queue. Or, instead of it:
        queue: its name, and
        payload: its model.
        name: the Dagster job's; None: `drain_<queue>`.
        mode: when a run ends: `linger`, `batch` or `standing`, see `DrainMode`.
        batch: whether the function takes all jobs of a claim at once, and returns an outcome for each, or one for all.
            None: by its annotation; without one it takes one job.
        transactional: claim, handle and complete each batch in one transaction, see `Mode`.
        concurrency: how many jobs a run handles at a time: a plain function in as many threads, an async one on its event
            loop. A run claims a job when it can begin at once. Not for batches, nor with `transactional`.
        lease_seconds: of this consumer's claims, instead of the queue's.
        job_timeout_seconds: see `Consumer`.
        maintain: whether its runs maintain the schema, beside their work, when that is due.
        asset_key: of the queue's asset; None: `queues/<name>`.
        resource_key: of the queue's `SqlQueueResource`; a location with two databases has two of them.
        tags: for each run.
        sensor: options of `build_sqlqueue_sensor`, for `.sensor`.
        **settings: other arguments of `QueueSpec`, such as `max_attempts`, where the queue is given by its name.

    Raises:
        InvalidInput: the queue is given twice or not at all, the mode or an option of the sensor is unknown, or the handler
            takes something else or does not fit the other arguments; the message names its parameter.

    Example:
        ```python
        @queue_consumer(queue="reminders", payload=Reminder, max_attempts=3, mode="linger")
        def remind(job: Job[Reminder]) -> Done: ...

        defs = dg.Definitions(jobs=[remind.job], sensors=[remind.sensor], resources={"sqlqueue": ...})
        ```
    """
    chosen = _spec(spec, queue, payload, settings)
    ends = mode_of(mode)
    _check_sensor(chosen, sensor or {})
    check_mappings(tags=tags)
    job_name = name or f"drain_{chosen.name}"

    def decorate(handler: Callable[..., Any]) -> QueueConsumer[Any]:
        return build(handler, asset_key_or_usual(chosen, asset_key))

    def build(handler: Callable[..., Any], key: dg.AssetKey) -> QueueConsumer[Any]:
        takes = shape_of_handler(handler, chosen, batch=batch)
        if transactional and (shape := shape_of(handler, batch=takes.batch)) is not Shape.JOB:
            raise InvalidInput(
                f"the handler of {chosen.label} is of shape {str(shape)!r}, and transactional mode handles one job after"
                " another on one connection; decorate a plain function of one job, or leave `transactional` out"
            )
        if concurrency is not None and (transactional or takes.batch):
            raise InvalidInput(
                f"{chosen.label} was given concurrency={concurrency} with"
                f" {'transactional mode, which has one connection for all' if transactional else 'a handler of a batch'};"
                " leave one of them out"
            )
        drain = build_drain_op(
            chosen,
            handler,
            name=f"{job_name}_op" if name else f"work_off_{chosen.name}",
            mode=ends,
            batch=takes.batch,
            transactional=transactional,
            concurrency=concurrency,
            lease_seconds=lease_seconds,
            job_timeout_seconds=job_timeout_seconds,
            maintain=maintain,
            asset_key=key,
            resource_key=resource_key,
        )

        @dg.job(
            name=job_name,
            executor_def=dg.in_process_executor,
            description=f"Claims, handles and completes jobs of the queue {chosen.name!r} until its buckets are empty.",
            tags={"sqlqueue/queue": chosen.name, **(tags or {})},
        )
        def drain_job() -> None:
            drain()

        return QueueConsumer(
            spec=chosen,
            op=drain,
            job=drain_job,
            mode=ends,
            asset_key=key,
            lease_seconds=lease_seconds,
            job_timeout_seconds=job_timeout_seconds,
            resource_key=resource_key,
            maintain=maintain,
            transactional=transactional,
            handler=handler,
            batch=takes.batch,
            concurrency=concurrency,
            _sensor_options=dict(sensor or {}),
            _build=build,
        )

    return decorate


def _check_sensor(spec: QueueSpec[Any], options: Mapping[str, Any]) -> None:
    if not isinstance(options, Mapping):
        raise InvalidInput(
            f"sensor of {spec.label} is {options!r:.100}; give {{'settings': SensorSettings(…)}} or the like"
        )
    unknown = next((name for name in options if name not in _SENSOR_OPTIONS), None)
    if unknown is None:
        return
    cure = f"it takes {', '.join(_SENSOR_OPTIONS)}"
    if unknown in SensorSettings.__dataclass_fields__:
        cure = f"give it as sensor={{'settings': SensorSettings({unknown}=…)}}"
    raise InvalidInput(f"sensor of {spec.label} has the option {unknown!r}, which it does not take; {cure}")


def _spec(
    spec: QueueSpec[Any] | None, queue: str | None, payload: type[BaseModel] | None, settings: QueueArguments
) -> QueueSpec[Any]:
    if spec is not None and not isinstance(spec, QueueSpec):
        raise InvalidInput(f"queue_consumer was given {spec!r:.100}; give it a QueueSpec, or queue=… and payload=…")
    if spec is not None:
        if said := [
            name for name, given in {"queue": queue, "payload": payload, **settings}.items() if given is not None
        ]:
            raise InvalidInput(
                f"{spec.label} is given as a QueueSpec, and {', '.join(said)} beside it; set it in the spec"
            )
        return spec
    if queue is None or payload is None:
        raise InvalidInput("queue_consumer needs the queue: a QueueSpec, or queue=… and payload=…")
    try:
        return QueueSpec(queue, payload, **settings)
    except TypeError as error:
        known = ", ".join(sorted(QueueSpec.__dataclass_fields__))
        raise InvalidInput(
            f"queue {queue!r}: {str(error).removeprefix('QueueSpec.__init__() ')}; it takes {known}"
        ) from None
