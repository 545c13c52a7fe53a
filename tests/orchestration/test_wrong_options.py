"""Options of builders that no run or tick could have: they are refused where the code is loaded, by name and value."""

import math
from collections.abc import Callable
from typing import Any

import pytest

from dagster_sqlqueue import QueueSpec
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.followers import GroupEnded
from dagster_sqlqueue.orchestration import (
    CheckThresholds,
    build_claim_op,
    build_cleanup_sensors,
    build_drain_op,
    build_group_sensor,
    build_sqlqueue_schedules_sensor,
    build_sqlqueue_sensor,
    queue_consumer,
)
from tests.orchestration.support import WORK

ENDED = QueueSpec("ended", GroupEnded)
CONSUMER = queue_consumer(WORK)(lambda job: None)


def group_sensor(**given: Any) -> Any:
    return build_group_sensor(ENDED, CONSUMER.job, **given)


@pytest.mark.parametrize(
    ("build", "name", "wrong", "allowed"),
    [
        (lambda **given: build_claim_op(WORK, **given), "limit", [0, 10_001, True, "100", None], "1 to 10,000"),
        (lambda **given: build_claim_op(WORK, **given), "lease_seconds", [0, -1, "60", math.nan], "positive"),
        (
            lambda **given: build_drain_op(WORK, lambda job: None, name="drain", **given),
            "mode",
            ["never", None],
            "'linger'",
        ),
        (lambda **given: queue_consumer(WORK, **given), "mode", ["never", None, ["batch"]], "'linger'"),
        (group_sensor, "max_groups", [0, 1_001, 1.5, "10", None], "1 to 1,000"),
        (group_sensor, "poll_seconds", [0, -1, "15", math.nan, None], "above 0"),
        (build_sqlqueue_schedules_sensor, "budget_seconds", [0, -1, "20", math.nan, None], "above 0"),
        (CheckThresholds, "oldest_ready_seconds", [-1, "300", math.nan, None], "0 or more"),
        (CheckThresholds, "dead_letters", [-1, "5", None], "0 or more"),
        (group_sensor, "minimum_interval_seconds", [-1], "0 or more"),
        (build_sqlqueue_schedules_sensor, "minimum_interval_seconds", [-1], "0 or more"),
        (lambda **given: build_sqlqueue_sensor(CONSUMER, **given), "minimum_interval_seconds", [-1], "0 or more"),
        (lambda **given: build_cleanup_sensors(CONSUMER, **given), "minimum_interval_seconds", [-1], "0 or more"),
    ],
)
def test_what_no_run_could_have_is_refused(
    build: Callable[..., Any], name: str, wrong: list[Any], allowed: str
) -> None:
    for value in wrong:
        with pytest.raises(InvalidInput) as refused:
            build(**{name: value})
        said = str(refused.value)
        assert f"{name} " in said
        assert repr(value) in said
        assert allowed in said
