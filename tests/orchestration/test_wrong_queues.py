"""Builders that are given something else in place of a queue's declaration, or of its consumer."""

import inspect
import re
from typing import Any

import dagster as dg
import pytest

from dagster_sqlqueue import orchestration
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.orchestration import queue_asset_key
from tests.orchestration.support import WORK
from tests.support import Work

OTHERS: dict[str, Any] = {
    "accounts": list,
    "context": None,
    "handler": lambda job: None,
    "jobs": [],
    "name": "some_name",
    "partitions_def": dg.DailyPartitionsDefinition("2024-01-01"),
    "queue": None,
    "spec": WORK,
    "target": dg.AssetSelection.all(),
}
"""Values for what the builders need beside a queue."""


def parameters_of(kind: str) -> list[Any]:
    """The public functions that take such an argument, each with the parameter."""
    return [
        pytest.param(public, parameter, id=f"{name}-{parameter.name}")
        for name in orchestration.__all__
        if inspect.isfunction(public := getattr(orchestration, name))
        for parameter in inspect.signature(public).parameters.values()
        if re.search(kind, str(parameter.annotation))
    ]


def call(public: Any, parameter: inspect.Parameter, given: Any) -> Any:
    """Call it with this argument, and usable ones for all others that it needs."""
    needed = {
        one.name: OTHERS[one.name]
        for one in inspect.signature(public).parameters.values()
        if one.default is one.empty
        and one.name != parameter.name
        and one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)
    }
    if parameter.kind is parameter.VAR_POSITIONAL:
        return public(given, **needed)
    return public(**needed, **{parameter.name: given})


@pytest.mark.parametrize(("public", "parameter"), parameters_of(r"QueueSpec\["))
def test_what_is_no_queue_is_refused_by_its_value(public: Any, parameter: inspect.Parameter) -> None:
    declared = "str" not in str(parameter.annotation)
    wrong = [Work, 42, ["emails"], *(["emails"] if declared else [])]
    if parameter.default is parameter.empty:
        wrong.append(None)
    for given in wrong:
        with pytest.raises(InvalidInput) as refused:
            call(public, parameter, given)
        assert repr(given) in str(refused.value)
        assert "QueueSpec" in str(refused.value) or not declared


@pytest.mark.parametrize(("public", "parameter"), parameters_of(r"(DrainJob|QueueConsumer)\["))
def test_what_is_no_consumer_is_refused_by_its_value(public: Any, parameter: inspect.Parameter) -> None:
    for given in ("emails", None, 42, WORK, OTHERS["handler"]):
        with pytest.raises(InvalidInput, match=r"no consumer.*; decorate the handler with queue_consumer") as refused:
            call(public, parameter, given)
        assert f"{given!r:.100}" in str(refused.value)


def test_a_declaration_in_place_of_the_name_is_refused() -> None:
    with pytest.raises(InvalidInput, match="given as its declaration; give its name, 'work'"):
        queue_asset_key(WORK)  # type: ignore[arg-type]
