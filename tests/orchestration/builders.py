"""The public builders of Dagster's definitions, found by the parameters that they take."""

import inspect
import re
from typing import Any
from uuid import UUID

import dagster as dg
import pytest

from dagster_sqlqueue import Job, QueueSpec, orchestration
from dagster_sqlqueue.followers import GroupEnded
from dagster_sqlqueue.orchestration import queue_consumer
from tests.orchestration.support import WORK
from tests.support import Work

ENDED = QueueSpec("ended", GroupEnded)


def handle(job: Job[Work]) -> None:
    """Handle a job."""


CONSUMER = queue_consumer(WORK)(handle)

OTHERS: dict[str, Any] = {
    "accounts": list,
    "consumer": CONSUMER,
    "consumers": CONSUMER,
    "context": None,
    "group": UUID(int=0),
    "handler": handle,
    "id": UUID(int=0),
    "jobs": [CONSUMER],
    "name": "some_name",
    "partitions_def": dg.DailyPartitionsDefinition("2024-01-01"),
    "queue": None,
    "spec": WORK,
    "target": CONSUMER.job,
    "timeout_seconds": 1.0,
}
"""Values for what the builders need beside the argument in question."""


def parameters_of(kind: str) -> list[Any]:
    """The public functions with such a parameter, each with that parameter.

    Args:
        kind: a pattern of its name and annotation, as in `name: annotation`.
    """
    return [
        pytest.param(public, parameter, id=f"{name}-{parameter.name}")
        for name in orchestration.__all__
        if inspect.isfunction(public := getattr(orchestration, name))
        for parameter in inspect.signature(public).parameters.values()
        if re.search(kind, f"{parameter.name}: {parameter.annotation}")
    ]


def call(public: Any, parameter: inspect.Parameter, given: Any) -> Any:
    """Call it with this argument, and with usable ones for all others that it needs; decorate a handler with a decorator."""
    needed = {
        one.name: ENDED if "GroupEnded]" in str(one.annotation) else OTHERS[one.name]
        for one in inspect.signature(public).parameters.values()
        if one.default is one.empty
        and one.name != parameter.name
        and one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)
    }
    if parameter.kind is parameter.VAR_POSITIONAL:
        return public(given, **needed)
    if public is queue_consumer:
        return queue_consumer(**{"spec": WORK, parameter.name: given})(handle)
    return public(**needed, **{parameter.name: given})
