"""Builders of Spark's assets that are given something else in place of a queue's declaration."""

import inspect
from typing import Any

import pytest

from dagster_sqlqueue import spark
from dagster_sqlqueue.errors import InvalidInput

BUILDERS = [
    public
    for name in spark.__all__
    if inspect.isfunction(public := getattr(spark, name))
    and (found := inspect.signature(public).parameters.get("spec")) is not None
    and found.default is found.empty
]


@pytest.mark.parametrize("builder", BUILDERS, ids=lambda builder: builder.__name__)
def test_what_is_no_queue_is_refused_by_its_value(builder: Any) -> None:
    parameters = inspect.signature(builder).parameters.values()
    others = dict.fromkeys([one.name for one in parameters if one.default is one.empty and one.name != "spec"])
    for given in ("daily", 42, None):
        with pytest.raises(InvalidInput, match=f"the queue was given as {given!r}; give its declaration, QueueSpec"):
            builder(**others, spec=given)
