"""The component: what is made of its attributes, and what it says of attributes that do not fit."""

import textwrap
from datetime import timedelta
from typing import Any

import dagster as dg
import pytest
from dagster.components.component_scaffolding import scaffold_object

from dagster_sqlqueue import Done, Job, QueueSpec, handles
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.orchestration import QueueAssetData, SqlQueueComponent, queue_asset_key, shared_resource
from tests.orchestration.component_support import WARNINGS, Loader, Reminder, sensor_of

pytestmark = WARNINGS


def test_everything_of_a_queue_is_made_without_a_database(project: Loader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SQLQUEUE_URL", raising=False)
    project.write(minimum_interval_seconds=30, default_status="RUNNING", buckets=8)
    with project.loaded() as defs:
        dg.Definitions.validate_loadable(defs)
        repository = defs.get_repository_def()
        assert {"create_reminders", "drain_reminders", "observe_reminders"} <= set(repository.job_names)
        assert defs.resolve_all_asset_keys() == [queue_asset_key("reminders")]
        sensor = sensor_of(defs)
        assert (sensor.name, sensor.minimum_interval_seconds) == ("reminders_sensor", 30)
        assert sensor.default_status is dg.DefaultSensorStatus.RUNNING
        assert [target.job_name for target in sensor.targets] == ["drain_reminders", "observe_reminders"]
        (spec,) = defs.resolve_all_asset_specs()
        assert spec.metadata["sqlqueue/buckets"] == 8
        assert [column.name for column in spec.metadata["dagster/column_schema"].columns] == ["text"]
        resource = (defs.resources or {})["sqlqueue"]
        assert resource.url.env_var_name == "SQLQUEUE_URL"


def test_several_components_share_the_resource(project: Loader) -> None:
    for name in ("reminders", "orders", "payments/invoices"):
        project.write(name)
    with project.loaded() as defs:
        dg.Definitions.validate_loadable(defs)
        assert set(defs.resolve_all_asset_keys()) == {queue_asset_key(q) for q in ("reminders", "orders", "invoices")}
        assert set(defs.resources or {}) == {"sqlqueue"}
    assert shared_resource("SQLQUEUE_URL") is shared_resource("SQLQUEUE_URL", "sqlqueue")


def test_the_schema_is_the_one_of_the_environment_unless_it_is_given(
    project: Loader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SQLQUEUE_SCHEMA", "of_the_environment")
    project.write()
    project.write("orders", schema_name="given", resource_key="other")
    with project.loaded() as defs:
        dg.Definitions.validate_loadable(defs)
        assert {key: one.schema_name for key, one in (defs.resources or {}).items()} == {
            "sqlqueue": "of_the_environment",
            "other": "given",
        }
        assert {spec.metadata["dagster/table_name"] for spec in defs.resolve_all_asset_specs()} == {
            "of_the_environment.job",
            "given.job",
        }
    assert shared_resource() is shared_resource("SQLQUEUE_URL", "of_the_environment")


def test_a_project_may_bring_the_asset_of_a_queue(project: Loader) -> None:
    project.write("daily", add_asset=False)
    (project.defs / "fan_out.py").write_text(
        textwrap.dedent("""
        import dagster as dg
        from dagster_sqlqueue import QueueSpec
        from dagster_sqlqueue.orchestration import DailyAccount, build_fanout_asset



        @dg.definitions
        def fan_out():
            days = dg.DailyPartitionsDefinition(start_date="2026-01-01")
            return dg.Definitions(assets=[build_fanout_asset(QueueSpec("daily", DailyAccount), list, days)])
        """)
    )
    with project.loaded() as defs:
        dg.Definitions.validate_loadable(defs)
        graph = defs.resolve_asset_graph()
        assert graph.materializable_asset_keys == graph.get_all_asset_keys() == {queue_asset_key("daily")}


def test_a_project_may_bring_its_own_resource(project: Loader) -> None:
    project.write(resource=False)
    (project.defs / "resources.py").write_text(
        textwrap.dedent("""
        import dagster as dg
        from dagster_sqlqueue.orchestration import SqlQueueResource


        @dg.definitions
        def resources():
            resource = SqlQueueResource(url=dg.EnvVar("OURS"), statement_timeout_seconds=5)
            return dg.Definitions(resources={"sqlqueue": resource})
        """)
    )
    with project.loaded() as defs:
        dg.Definitions.validate_loadable(defs)
        assert (defs.resources or {})["sqlqueue"].url.env_var_name == "OURS"


def test_two_databases_under_one_resource_key_are_refused(project: Loader) -> None:
    project.write()
    project.write("orders", url_env="OTHER_URL")
    assert "different resources with same key 'sqlqueue'" in project.failure()


def test_queues_of_two_databases_have_two_resources(project: Loader) -> None:
    """Also queues of one name: jobs and sensors of the second are named by its resource, its asset by the user."""
    project.write()
    project.write(
        "more/reminders",
        url_env="OTHER_URL",
        resource_key="other",
        asset={"key_prefix": "other"},
    )
    with project.loaded() as defs:
        dg.Definitions.validate_loadable(defs)
        assert {key: one.url.env_var_name for key, one in (defs.resources or {}).items()} == {
            "sqlqueue": "SQLQUEUE_URL",
            "other": "OTHER_URL",
        }
        repository = defs.get_repository_def()
        for name in ("create_reminders", "drain_reminders", "observe_reminders", "reminders_redrive"):
            for job, own, foreign in ((name, "sqlqueue", "other"), (f"other_{name}", "other", "sqlqueue")):
                keys = repository.get_job(job).required_resource_keys
                assert own in keys
                assert foreign not in keys
        assert {sensor.name for sensor in repository.sensor_defs} == {
            "reminders_sensor",
            "other_reminders_sensor",
            *(
                f"{key}_reminders_{ended}"
                for key in ("sqlqueue", "other")
                for ended in ("failed_runs", "cancelled_runs")
            ),
        }


def test_the_asset_is_changed_from_yaml(project: Loader) -> None:
    project.write(
        asset={
            "key_prefix": "shop",
            "group_name": "mail",
            "owners": ["team:mail"],
            "tags": {"tier": 1},
            "description": "Reminders of {{ queue }}, before: {{ spec.key.to_user_string() }}",
        },
        freshness={"fail_seconds": 7200, "warn_seconds": 3600},
    )
    with project.loaded() as defs:
        (spec,) = defs.resolve_all_asset_specs()
        assert spec.key == dg.AssetKey(["shop", "queues", "reminders"])
        assert (spec.group_name, spec.owners) == ("mail", ["team:mail"])
        assert spec.tags.items() >= {("tier", "1"), ("sqlqueue/queue", "reminders")}
        assert spec.description == "Reminders of reminders, before: queues/reminders"
        assert spec.metadata["sqlqueue/buckets"] == 16
        assert spec.freshness_policy == dg.FreshnessPolicy.time_window(timedelta(hours=2), timedelta(hours=1))


def test_freshness_by_cron_and_what_is_neither(project: Loader) -> None:
    project.write(freshness={"deadline_cron": "0 8 * * *", "lower_bound_seconds": 3600, "timezone": "Pacific/Auckland"})
    with project.loaded() as defs:
        (spec,) = defs.resolve_all_asset_specs()
        assert spec.freshness_policy == dg.FreshnessPolicy.cron(
            "0 8 * * *", timedelta(hours=1), timezone="Pacific/Auckland"
        )
    project.write("orders", freshness={"warn_seconds": 60})
    assert "give fail_seconds, and warn_seconds if you like; or deadline_cron" in project.failure()


@pytest.mark.parametrize(
    ("handler", "payload", "model"),
    [
        (".handler:remind", None, "Reminder"),
        (".handler.remind", None, "Reminder"),
        ("{module}.handler:remind", None, "Reminder"),
        ("{module}.handler.remind", None, "Reminder"),
        (".handler:with_context", None, "Reminder"),
        (".handler:anything", None, "AnyObject"),
        (".handler:anything", ".handler:Reminder", "Reminder"),
    ],
)
def test_handlers_and_payloads_are_named_in_these_ways(
    project: Loader, handler: str, payload: str | None, model: str
) -> None:
    named = handler.format(module=f"{project.defs.parent.name}.defs.reminders")
    project.write("reminders", named, **({} if payload is None else {"payload": payload}))
    with project.loaded() as defs:
        (spec,) = defs.resolve_all_asset_specs()
        assert spec.metadata["sqlqueue/payload"].rpartition(".")[2] == model


def test_a_bound_handler_brings_its_queue_and_yaml_changes_it(project: Loader) -> None:
    project.write("bound", ".handler:bound", max_attempts=6)
    with project.loaded() as defs:
        (spec,) = defs.resolve_all_asset_specs()
        assert (spec.metadata["sqlqueue/buckets"], spec.metadata["sqlqueue/max_attempts"]) == (3, 6)


def test_what_queue_consumer_made_is_taken_as_it_is(project: Loader) -> None:
    project.write("made", ".handler:made", mode="linger", max_attempts=2)
    with project.loaded() as defs:
        dg.Definitions.validate_loadable(defs)
        assert defs.resolve_job_def("drain_made").tags["team"] == "mail"


def test_a_component_is_added_to_a_file_that_has_one(project: Loader) -> None:
    project.write()
    file = project.defs / "reminders" / "defs.yaml"
    before = (project.defs / "reminders" / "handler.py").read_text()
    asked = '{"queue": "letters"}'
    scaffold_object(file, "dagster_sqlqueue.SqlQueueComponent", asked, "yaml", project.defs.parents[2], append=True)
    assert (project.defs / "reminders" / "handler.py").read_text() == before
    assert "off until you switch them on, under Automation" in file.read_text()
    with project.loaded() as defs:
        dg.Definitions.validate_loadable(defs)
        keys = {spec.key: spec.metadata["sqlqueue/payload"] for spec in defs.resolve_all_asset_specs()}
        assert {key: payload.rpartition(".")[2] for key, payload in keys.items()} == {
            queue_asset_key("reminders"): "Reminder",
            queue_asset_key("letters"): "Letters",
        }


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"handler": "no_such_package.jobs:remind"}, "there is no module 'no_such_package' here"),
        ({"handler": ".handler:remnd"}, "has no 'remnd'"),
        ({"handler": "remind"}, "write it as package.module:name, or as .module:name"),
        ({"handler": ".handler:Reminder.text.x-y"}, "write it as package.module:name"),
        ({"handler": ".broken:remind"}, "failed with ZeroDivisionError"),
        ({"payload": ".handler:remind"}, "name a pydantic model"),
        ({"handler": ".handler:bound"}, "the handler is bound to queue 'bound'"),
        (
            {"queue": "made", "handler": ".handler:made", "buckets": 3},
            "the component has other settings of queue or job",
        ),
        ({"queue": "made", "handler": ".handler:made", "mode": "standing"}, "the component has other settings of"),
        ({"queue": "made", "handler": ".handler:made", "maintain": False}, "the component has other settings of"),
        ({"queue": "made", "handler": ".handler:made", "concurrency": 4}, "the component has other settings of"),
        ({"handler": ".handler:all_at_once", "concurrency": 4}, "concurrency=4 with a handler of a batch"),
        ({"transactional": True, "concurrency": 4}, "concurrency=4 with transactional mode"),
        ({"queue": "made", "handler": ".handler:made", "asset": {"key": "a/b"}}, "where the component's is 'a/b'"),
        ({"buckets": 5000}, "bucket_count of queue 'reminders' is 5000; it must be 1 to 1024"),
        ({"queue": "My Queue"}, "queue name 'My Queue' is not usable"),
        ({"max_runs": "four"}, "max_runs\n  Input should be a valid integer"),
        ({"strategy": "fastest"}, "strategy\n  Input should be 'fanout', 'fifo'"),
        ({"max_runs": 0}, "max_runs of SensorSettings is 0; it must be a whole number from 1"),
        ({"budget_seconds": 0}, "budget_seconds of SensorSettings is 0.0; it must be a number of seconds above 0"),
        ({"linger_seconds": -1}, "linger_seconds of SensorSettings is -1.0; it must be a number of seconds, 0 or more"),
        ({"batch_size": 20_000}, "batch_size of SensorSettings is 20000; it must be a whole number from 1 to 10,000"),
        ({"job_tags": "urgent"}, "job_tags\n  Input should be a valid"),
        ({"run_tags": ["urgent"]}, "attributes.run_tags."),
        ({"queue": "made", "handler": ".handler:made", "run_tags": {"a": "b"}}, "the component has other settings of"),
        ({"buckts": 4}, "buckts"),
        ({"mode": "forever"}, "mode\n  Input should be 'batch', 'linger' or 'standing'"),
        ({"checks": {"dead_letters": -1}}, "dead_letters of CheckThresholds"),
    ],
)
def test_what_does_not_fit_is_named(project: Loader, attributes: dict[str, Any], message: str) -> None:
    project.write("reminders", attributes.pop("handler", ".handler:remind"), **attributes)
    (project.defs / "reminders" / "broken.py").write_text("1 / 0\n")
    assert message in project.failure()


def test_a_url_in_place_of_a_variable_is_refused_and_not_shown(
    project: Loader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SQLQUEUE_URL", "postgresql://ada:geheim@db.example/app")
    project.write(url_env="{{ env.SQLQUEUE_URL }}")
    failure = project.failure()
    assert "url_env of queue 'reminders' is no name of an environment variable" in failure
    assert "geheim" not in failure


def test_a_subclass_changes_the_asset_and_python_needs_no_yaml() -> None:
    class Ours(SqlQueueComponent):
        def get_asset_spec(self, data: QueueAssetData) -> dg.AssetSpec:
            return super().get_asset_spec(data).replace_attributes(key=["ours", data.spec.name])

    @handles(QueueSpec("orders", Reminder))
    def handle(job: Job[Reminder]) -> Done:
        return Done()

    component = Ours(queue="orders", handler=handle, buckets=4)
    defs = component.build_defs(dg.ComponentTree.for_test().load_context)
    (spec,) = defs.resolve_all_asset_specs()
    assert spec.key == dg.AssetKey(["ours", "orders"])
    assert spec.metadata["sqlqueue/buckets"] == 4
    maintaining = [component, Ours(queue="orders", handler=handle, maintain=False)]
    context = dg.ComponentTree.for_test().load_context
    assert [one.get_consumer(context).maintain for one in maintaining] == [True, False]
    with pytest.raises(InvalidInput, match=r"the handler is bound to queue 'orders' .* says queue 'other'"):
        Ours(queue="other", handler=handle).build_defs(dg.ComponentTree.for_test().load_context)
