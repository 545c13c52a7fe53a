"""The class of the library's sensors: how Dagster evaluates a tick of them, and copies them."""

import threading
import warnings
from typing import Any

import dagster as dg
from dagster._core.instance.ref import InstanceRef

from dagster_sqlqueue.errors import InvalidInput


def queue_sensor(sensor: dg.SensorDefinition) -> dg.SensorDefinition:
    """Make a sensor one of the library's.

    - Its ticks use one open Dagster instance for the process. Dagster opens one, with its storages, for each tick of a
      sensor with resources: a quarter to a third of what a tick of a queue's sensor took in a daemon.
    - If it has several jobs, Dagster copies it when it binds the resources of its jobs, and warns of an argument that it
      passes itself. There is no such `BetaWarning` for it in each process that loads the code.

    Raises:
        InvalidInput: the interval between its ticks is negative.
    """
    check_interval(sensor.minimum_interval_seconds)
    sensor.__class__ = _QueueSensor
    return sensor


def check_interval(seconds: int | None) -> None:
    """Raise an error if ticks cannot be so far apart: Dagster takes a negative interval for none at all.

    Raises:
        InvalidInput: the interval is negative. None stands for Dagster's own.
    """
    if seconds is not None and seconds < 0:
        raise InvalidInput(f"minimum_interval_seconds is {seconds!r}; it must be a whole number of seconds, 0 or more")


class _QueueSensor(dg.SensorDefinition):
    def evaluate_tick(self, context: dg.SensorEvaluationContext) -> Any:
        ref = context.instance_ref
        # A test's context has an instance, and no reference to one. Dagster offers no way to give a context its instance
        # but a context that is made with it.
        if ref is None:
            return super().evaluate_tick(context)
        with dg.SensorEvaluationContext(
            ref,
            instance=_OPEN.instance(ref),
            last_tick_completion_time=context.last_tick_completion_time,
            last_run_key=context.last_run_key,
            cursor=context.cursor,
            log_key=context.log_key,
            repository_name=context.repository_name,
            repository_def=context.repository_def,
            sensor_name=self.name,
            resources=context.resource_defs,
            last_sensor_start_time=context.last_sensor_start_time,
            code_location_origin=context.code_location_origin,
        ) as its:
            return super().evaluate_tick(its)

    def with_attributes(self, **given: Any) -> dg.SensorDefinition:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", dg.BetaWarning)
            return queue_sensor(super().with_attributes(**given))


class _OpenInstance:
    """Dagster's instance of this process, which its code server is told with each tick. Thread-safe, as the instance is.

    It holds no connection: Dagster's storages open one for each of their statements.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ref: InstanceRef | None = None
        self._instance: dg.DagsterInstance | None = None

    def instance(self, ref: InstanceRef) -> dg.DagsterInstance:
        """Return the instance that this refers to; it is opened if the last call was for another one."""
        with self._lock:
            if self._instance is None or self._ref != ref:
                self._instance, self._ref = dg.DagsterInstance.from_ref(ref), ref
            return self._instance


_OPEN = _OpenInstance()
