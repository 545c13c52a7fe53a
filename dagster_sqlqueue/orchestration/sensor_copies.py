"""Sensors of several jobs, which Dagster copies."""

import warnings
from typing import Any

import dagster as dg


def copied_quietly(sensor: dg.SensorDefinition) -> dg.SensorDefinition:
    """Let Dagster copy a sensor of several jobs without a `BetaWarning` in each process that loads the code. It copies such
    a sensor when it binds the resources of its jobs, and warns of an argument that it passes itself.
    """
    sensor.__class__ = _CopiedQuietly
    return sensor


class _CopiedQuietly(dg.SensorDefinition):
    def with_attributes(self, **given: Any) -> dg.SensorDefinition:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", dg.BetaWarning)
            return copied_quietly(super().with_attributes(**given))
