"""Builders that are given something else in place of a queue's declaration, or of its consumer."""

import inspect
from typing import Any

import pytest

from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.orchestration import SqlQueueResource, queue_asset_key
from tests.orchestration.builders import call, handle, parameters_of
from tests.orchestration.support import WORK
from tests.support import Work


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
    for given in ("emails", None, 42, WORK, handle):
        with pytest.raises(InvalidInput, match=r"no consumer.*; decorate the handler with queue_consumer") as refused:
            call(public, parameter, given)
        assert f"{given!r:.100}" in str(refused.value)


def test_a_declaration_in_place_of_the_name_is_refused() -> None:
    with pytest.raises(InvalidInput, match="given as its declaration; give its name, 'work'"):
        queue_asset_key(WORK)  # type: ignore[arg-type]


@pytest.mark.parametrize(("public", "parameter"), parameters_of(r"^queue: .*\.SqlQueue'>"))
def test_the_resource_or_a_url_in_place_of_the_queues_is_refused(public: Any, parameter: inspect.Parameter) -> None:
    resource = SqlQueueResource(url="postgresql://user:hunter2@host/database")
    for given, said in (
        (resource, "the queue is a SqlQueueResource; give what its attribute queue is"),
        (resource.url, "the queue is a str; give a SqlQueue"),
    ):
        with pytest.raises(InvalidInput, match=said):
            # What reads in pages begins with the first of them.
            list(call(public, parameter, given) or ())
