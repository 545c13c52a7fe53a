"""Options of builders that no run or tick could have: they are refused where the code is loaded, by name and value."""

import inspect
import math
from collections.abc import Callable
from typing import Any

import dagster as dg
import pytest

from dagster_sqlqueue import QueueSpec
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.orchestration import (
    CheckThresholds,
    DailyAccount,
    SensorSettings,
    SqlQueueTranslator,
    build_claim_op,
    build_cleanup_sensors,
    build_deadline_check,
    build_drain_op,
    build_fanout_asset,
    build_fanout_schedule,
    build_group_sensor,
    build_maintenance_schedule,
    build_sqlqueue_asset_spec,
    build_sqlqueue_checks,
    build_sqlqueue_definitions,
    build_sqlqueue_launchpad_jobs,
    build_sqlqueue_schedules_sensor,
    build_sqlqueue_sensor,
    queue_consumer,
    shared_resource,
)
from tests.orchestration.builders import CONSUMER, ENDED, call, parameters_of
from tests.orchestration.support import WORK


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


@pytest.mark.parametrize(("public", "parameter"), parameters_of("^resource_key: .*'str'"))
def test_a_key_that_no_resource_can_have_is_refused(public: Any, parameter: inspect.Parameter) -> None:
    for key in ("", "my queues", "class", 5, None):
        with pytest.raises(InvalidInput, match=f"resource_key is {key!r}; give letters, digits and underscores"):
            call(public, parameter, key)


@pytest.mark.parametrize(("public", "parameter"), parameters_of("^resource: "))
def test_what_is_no_resource_is_refused_and_not_shown(public: Any, parameter: inspect.Parameter) -> None:
    with pytest.raises(InvalidInput, match="resource is a str; give a SqlQueueResource") as refused:
        call(public, parameter, "postgresql://user:hunter2@host/database")
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(("public", "parameter"), parameters_of("^translator: "))
def test_what_is_no_translator_is_refused(public: Any, parameter: inspect.Parameter) -> None:
    for given in (SqlQueueTranslator, "queues"):
        with pytest.raises(InvalidInput, match=r"translator is .*; give an instance of SqlQueueTranslator") as refused:
            call(public, parameter, given)
        assert repr(given) in str(refused.value)


@pytest.mark.parametrize(("public", "parameter"), parameters_of("^asset_key: "))
def test_what_is_no_asset_key_is_refused(public: Any, parameter: inspect.Parameter) -> None:
    for given in ("emails", ["ours", "emails"]):
        with pytest.raises(InvalidInput, match=r"asset_key is .*; give a dagster\.AssetKey") as refused:
            call(public, parameter, given)
        assert repr(given) in str(refused.value)


DAILY = QueueSpec("daily", DailyAccount)
FAN_OUT = build_fanout_asset(DAILY, list, dg.DailyPartitionsDefinition("2024-01-01"))


@pytest.mark.parametrize(
    ("build", "name", "wrong", "cure"),
    [
        (
            lambda **given: build_sqlqueue_asset_spec(WORK, **given),
            "deps",
            ["orders", WORK, dg.AssetKey("orders")],
            "a list",
        ),
        (lambda **given: build_sqlqueue_asset_spec(WORK, **given), "kinds", ["postgres"], "a list"),
        (lambda **given: build_sqlqueue_asset_spec(WORK, **given), "tags", [["urgent"], "urgent"], "a mapping"),
        (lambda **given: build_sqlqueue_asset_spec(WORK, **given), "metadata", [["urgent"]], "a mapping"),
        (
            lambda **given: build_fanout_asset(DAILY, list, dg.DailyPartitionsDefinition("2024-01-01"), **given),
            "deps",
            ["orders"],
            "a list",
        ),
        (group_sensor, "ops", ["join", None], "a list"),
        (group_sensor, "request", [{"tags": {}}], "a function"),
        (lambda **given: build_sqlqueue_definitions(CONSUMER, **given), "fan_outs", [FAN_OUT], "a list"),
        (lambda **given: build_sqlqueue_definitions(CONSUMER, **given), "launchpad", ["show", None], "a list"),
        (build_sqlqueue_launchpad_jobs, "verbs", ["show", None], "a list"),
        (build_sqlqueue_launchpad_jobs, "asset_keys", [["emails"]], "a mapping"),
        (build_maintenance_schedule, "asset_keys", ["emails"], "a mapping"),
        (build_sqlqueue_schedules_sensor, "asset_keys", [["emails"]], "a mapping"),
        (lambda **given: build_deadline_check(DAILY, list, **given), "expected", [True], "a function"),
        (lambda **given: build_deadline_check(DAILY, list, **given), "severity", ["WARN"], "AssetCheckSeverity"),
        (
            lambda **given: build_sqlqueue_checks(WORK, **given),
            "thresholds",
            [{"dead_letters": 2}],
            "a CheckThresholds",
        ),
        (lambda **given: queue_consumer(WORK, **given), "tags", [["urgent"]], "a mapping"),
        (lambda **given: queue_consumer(WORK, **given), "sensor", [SensorSettings(max_runs=2)], "{'settings': "),
    ],
)
def test_what_is_given_in_another_form_is_refused(
    build: Callable[..., Any], name: str, wrong: list[Any], cure: str
) -> None:
    for value in wrong:
        with pytest.raises(InvalidInput) as refused:
            build(**{name: value})
        said = str(refused.value)
        assert f"{name} " in said
        assert f"{value!r:.100}" in said
        assert f"; give {cure}" in said


def test_days_to_check_are_days() -> None:
    with pytest.raises(InvalidInput, match=r"partitions_def is a WeeklyPartitionsDefinition, .* is a day"):
        build_deadline_check(DAILY, list, partitions_def=dg.WeeklyPartitionsDefinition("2024-01-01"))  # type: ignore[arg-type]


def test_the_schedule_of_a_fan_out_takes_its_asset() -> None:
    wrong: Any = DAILY
    with pytest.raises(InvalidInput, match=r"was given QueueSpec\(.*; give what build_fanout_asset returns"):
        build_fanout_schedule(wrong)
    with pytest.raises(InvalidInput, match=r"fan_outs holds QueueSpec\(.*; give what build_fanout_asset returns"):
        build_sqlqueue_definitions(CONSUMER, fan_outs=[wrong])


@pytest.mark.parametrize("given", ["postgresql://user:hunter2@host/database", "", None])
def test_a_url_in_place_of_its_variable_is_refused_and_not_shown(given: Any) -> None:
    with pytest.raises(InvalidInput, match="url_env is no name of an environment variable") as refused:
        shared_resource(given)
    assert "hunter2" not in str(refused.value)
