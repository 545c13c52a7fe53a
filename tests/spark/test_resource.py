"""The resource: which session a run gets, how long it has it, and what is wrong with a setting."""

import importlib
import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, get_type_hints

import dagster as dg
import pytest
from pyspark.sql import SparkSession

from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.spark import driver, resource
from dagster_sqlqueue.spark.resource import LONG_RUN, SparkResource, SparkResourceFields
from dagster_sqlqueue.spark.session import SparkSettings, open_spark
from tests.spark.cluster import JVM_PATIENCE, ROOT

given: list[SparkSession] = []


def ours() -> Any:
    """What the resource calls, by its name."""
    return given[0] if given else "no session"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"master": "nonsense"}, "master is 'nonsense', which Spark does not know; write local"),
        (
            {"master": "spork://host:7077"},
            "master is 'spork://host:7077', which Spark does not know; write local[*], spark",
        ),
        ({"master": "http://host:7077"}, "master is 'http://host:7077', which Spark does not know"),
        ({"master": "sc://host:15002/;token=hush"}, "(host:15002): give it as `remote`"),
        ({"master": "sc://host:1/2"}, "give it as `remote`"),
        ({"remote": "spark://host:7077"}, "remote has the scheme 'spark'; write sc://host:15002"),
        ({"remote": "host:15002"}, "remote has no scheme; write sc://host:15002"),
        ({"remote": "sc:///;token=hush"}, "remote for no host is not usable"),
        ({"remote": "sc://host:99999"}, "remote has no usable host and port"),
        ({"remote": "sc://host:nonsense"}, "remote has no usable host and port"),
        ({"remote": "sc://me:hush@host"}, "remote for host is not usable"),
        ({"remote": "sc://host/path"}, "remote for host is not usable"),
        ({"remote": "sc://host/;token"}, "a parameter without a value, 'token'"),
        ({"driver_host": "host:4040"}, "driver_host is 'host:4040'; write a host name or an address, without a port"),
        ({"driver_host": "h", "remote": "sc://h"}, "driver_host is given beside remote"),
        ({"driver_memory": "lots"}, "driver_memory is 'lots'; write a number with a unit"),
        ({"log_level": "loud"}, "log_level is 'loud'; it is one of OFF, "),
        ({"reach_seconds": 0.0}, "reach_seconds is 0.0; it must be more than 0"),
    ],
)
def test_settings_that_are_not_usable(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        SparkSettings(**settings)
    assert said in str(caught.value)
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize(
    "master", ["local", "local[4]", "local[*]", "local[2,4]", "spark://a:1,b:2", "yarn", "k8s://https://h"]
)
def test_masters_of_spark(master: str) -> None:
    assert SparkSettings(master=master).where == master


def test_a_connect_url_is_shown_without_its_parameters() -> None:
    assert SparkSettings(remote="sc://host/;token=hush").where == "sc://host:15002"


def test_a_spark_of_its_own_and_connect_are_not_mixed(session: SparkSession) -> None:
    with pytest.raises(
        InvalidInput, match="has a Spark of its own already, and cannot use Spark Connect at sc://h:15002"
    ):
        open_spark(SparkSettings(remote="sc://h")).__enter__()


@pytest.fixture
def factory(session: SparkSession) -> Iterator[str]:
    given.append(session)
    yield "tests.spark.test_resource:ours"
    given.clear()


def test_a_session_that_a_factory_gives_is_used_and_left_running(session: SparkSession, factory: str) -> None:
    # The test's own module, under the name that the resource imports.
    importlib.import_module("tests.spark.test_resource").given[:] = given
    with SparkResource(session_factory=factory).session("any") as spark:
        assert spark is session
    assert session.range(3).count() == 3


def test_a_factory_that_gives_something_else_is_named() -> None:
    with (
        pytest.raises(InvalidInput, match="'builtins:int' returned a int; it must return a Spark session"),
        SparkResource(session_factory="builtins:int").session("any"),
    ):
        pass
    with (
        pytest.raises(InvalidInput, match="session_factory is given beside master or remote"),
        SparkResource(session_factory="builtins:int", remote="sc://h").session("any"),
    ):
        pass


@dg.op
def counted(spark: SparkResource) -> int:
    with spark.session("the op") as found:
        seen.append(found)
        return found.range(3).count()


@dg.job
def counting() -> None:
    counted()


seen: list[SparkSession] = []


@pytest.mark.parametrize("by_function", [False, True])
def test_a_session_that_is_given_is_used_by_runs_and_left_running(
    session: SparkSession, instance: dg.DagsterInstance, by_function: bool
) -> None:
    asked: list[str] = []

    def mine() -> SparkSession:
        asked.append("for it")
        return session

    given = SparkResource(session=mine if by_function else session)
    for _ in range(2):
        assert counting.execute_in_process(resources={"spark": given}, instance=instance).success
    assert all(found is session for found in seen[-2:])
    assert asked == ["for it"] * 2 * by_function
    assert session.range(4).count() == 4


@pytest.mark.parametrize("by", ["session", "function", "factory"])
def test_a_session_of_connect_that_is_given_is_used(by: str) -> None:
    from pyspark.sql.connect.session import SparkSession as RemoteSession

    remote: Any = object.__new__(RemoteSession)
    held = importlib.import_module("tests.spark.test_resource").given
    held[:] = [remote]
    try:
        made = {
            "session": lambda: SparkResource(session=remote),
            "function": lambda: SparkResource(session=lambda: remote),
            "factory": lambda: SparkResource(session_factory="tests.spark.test_resource:ours"),
        }[by]()
        with made.session("any") as found:
            assert found is remote
    finally:
        held.clear()


def test_type_checkers_know_every_argument() -> None:
    fields = {name: field.annotation for name, field in SparkResource.model_fields.items()}
    assert get_type_hints(SparkResourceFields) == fields


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"mastr": "yarn"}, "SparkResource has no 'mastr'; it takes away_seconds, .* master, .* session, "),
        ({"session": 7}, "session is a int; give a Spark session, or a function"),
        ({"session": int, "remote": "sc://h"}, "session is given beside session_factory, master or remote"),
        ({"session": int, "master": "yarn"}, "session is given beside session_factory, master or remote"),
        ({"session": int, "session_factory": "builtins:int"}, "session is given beside session_factory"),
        ({"session": int}, "session returned a int; it must return a Spark session"),
    ],
)
def test_a_session_that_is_none_is_named(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInput, match=said), SparkResource(**settings).session("any"):
        pass


@pytest.mark.parametrize("master", ["spark://a:1", "yarn", "local[2]"])
def test_executors_get_the_host_of_the_driver(master: str, tmp_path: Path) -> None:
    conf = driver.conf_of(SparkSettings(master=master, driver_host="dagster.internal"), tmp_path, [])
    assert conf["spark.driver.host"] == ("127.0.0.1" if master == "local[2]" else "dagster.internal")


RUN = """
import dagster as dg
from pyspark.sql import SparkSession
from dagster_sqlqueue.spark.resource import LONG_RUN, SparkResource
seen = []
@dg.op
def first(spark: SparkResource) -> int:
    with spark.session("the first") as session:
        seen.append(session)
        return session.range(5).count()
@dg.op
def second(spark: SparkResource, number: int) -> None:
    with spark.session("the second") as session:
        print("same", session is seen[0], session.sparkContext.appName, session.range(number).count())
        print("conf", session.conf.get("spark.sql.shuffle.partitions"), session.conf.get("spark.ui.enabled"))
@dg.job
def both():
    second(first())
spark = SparkResource(master="local[1]", driver_memory="512m", conf={"spark.sql.shuffle.partitions": "3"})
with dg.DagsterInstance.ephemeral() as instance:
    done = both.execute_in_process(resources={"spark": spark}, instance=instance)
print("done", done.success, "stopped", SparkSession.getActiveSession() is None)
"""


@pytest.mark.prove
def test_a_run_has_one_session_which_is_stopped_at_its_end() -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", RUN], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=JVM_PATIENCE
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["same True the first 5", "conf 3 false", "done True stopped True"]


def test_the_ui_takes_the_connect_url_for_a_secret() -> None:
    assert SparkResource.model_fields["remote"].json_schema_extra == {"dagster__is_secret": True}


@pytest.mark.parametrize(
    ("set", "jobs", "quick"),
    [
        (None, None, False),
        (None, 0, True),
        (None, LONG_RUN - 1, True),
        (None, LONG_RUN, False),
        (True, LONG_RUN, True),
        (False, 1, False),
    ],
)
def test_a_run_of_many_jobs_is_compiled_for_its_length(
    monkeypatch: pytest.MonkeyPatch, set: bool | None, jobs: int | None, quick: bool
) -> None:
    opened: list[SparkSettings] = []

    def open_nothing(settings: SparkSettings) -> AbstractContextManager[None]:
        opened.append(settings)
        return nullcontext()

    monkeypatch.setattr(resource, "open_spark", open_nothing)
    monkeypatch.setattr(resource, "losses_named", lambda session, where: nullcontext())
    with SparkResource(fast_start=set).session("any", jobs):
        assert [settings.fast_start for settings in opened] == [quick]


def test_a_subclass_is_set_up_and_torn_down_around_the_run() -> None:
    seen: list[str] = []

    class Telling(SparkResource):
        def setup_for_execution(self, context: dg.InitResourceContext) -> None:
            seen.append("before")

        def teardown_after_execution(self, context: dg.InitResourceContext) -> None:
            seen.append("after")

    @dg.op
    def work(spark: SparkResource) -> None:
        seen.append("during")

    @dg.job(executor_def=dg.in_process_executor)
    def job() -> None:
        work()

    assert job.execute_in_process(resources={"spark": Telling()}).success
    assert seen == ["before", "during", "after"]
