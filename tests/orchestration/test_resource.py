"""The resource: what the UI gets to see of it, and how it opens and closes."""

import socket
from dataclasses import replace

import dagster as dg
import psycopg
import pytest
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster_graphql.schema import create_schema
from pydantic import ValidationError

from dagster_sqlqueue import SqlQueue
from dagster_sqlqueue.errors import DatabaseUnavailable, InvalidInput
from dagster_sqlqueue.orchestration import QueueConsumer, SqlQueueResource
from tests.orchestration.support import WORK, Deployment, code_location
from tests.orchestration.swallowing import Swallowing
from tests.support import Work, rows, until

CODE = """
import dagster as dg
from dagster_sqlqueue.orchestration import SqlQueueResource

@dg.asset
def something(literal: SqlQueueResource, variable: SqlQueueResource): ...

defs = dg.Definitions(
    assets=[something],
    resources={
        "literal": SqlQueueResource(url="postgresql://me:s3cret@example.invalid/db"),
        "variable": SqlQueueResource(url=dg.EnvVar("THE_URL")),
    },
)
"""
QUERY = """
{ repositoriesOrError { ... on RepositoryConnection { nodes { allTopLevelResourceDetails {
    name configuredValues { key value type } configFields { name defaultValueAsJson } } } } } }
"""


def test_the_url_is_no_part_of_a_run_s_config_and_never_shown_by_graphql(
    persistent: dg.DagsterInstance, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THE_URL", "postgresql://me:other5ecret@example.invalid/db")
    file = tmp_path_factory.mktemp("code") / "code_location.py"
    file.write_text(CODE)
    with WorkspaceProcessContext(persistent, code_location(file)) as context:
        answer = create_schema().execute(QUERY, context_value=context.create_request_context())
    assert not answer.errors
    assert answer.data is not None
    (node,) = answer.data["repositoriesOrError"]["nodes"]
    shown = {
        resource["name"]: {value["key"]: (value["type"], value["value"]) for value in resource["configuredValues"]}
        for resource in node["allTopLevelResourceDetails"]
    }
    assert {name: values.keys() & {"url", "schema_name"} for name, values in shown.items()} == {
        "literal": set(),
        "variable": set(),
    }
    assert "pool_size" in str(answer.data)
    assert "s3cret" not in str(answer.data)
    assert "other5ecret" not in str(answer.data)


@pytest.mark.parametrize("url", ["postgresql://me:s3cret@example.invalid/db", dg.EnvVar("THE_URL")])
def test_the_url_is_in_no_text_of_the_resource(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THE_URL", "postgresql://me:s3cret@example.invalid/db")
    made = SqlQueueResource(url=url, schema_name="theirs")
    for text in (repr(made), str(made), f"{made}", f"{made!r}", repr([made]), repr({"sqlqueue": made})):
        assert "s3cret" not in text
        assert "schema_name='theirs'" in text


@pytest.mark.parametrize(
    "wrong",
    [{"url": ["postgresql://me:s3cret@example.invalid/db"]}, {"url": b"s3cret\xff"}, {"url": "s3cret", "pool_size": 0}],
)
def test_the_url_is_in_no_error_of_the_resource(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError) as refused:
        SqlQueueResource(**wrong)
    assert "s3cret" not in f"{refused.value}{refused.value!r}"


def test_a_run_is_named_in_the_database_and_its_connections_are_closed(
    resource: SqlQueueResource, queue: SqlQueue, instance: dg.DagsterInstance
) -> None:
    names: list[str] = []

    @dg.op
    def read_queues(sqlqueue: SqlQueueResource) -> None:
        sqlqueue.queue.queues()
        query = "SELECT application_name FROM pg_stat_activity WHERE application_name LIKE 'dagster-sqlqueue/%%'"
        names.extend(name for (name,) in rows(queue, query))

    @dg.job(executor_def=dg.in_process_executor)
    def job() -> None:
        read_queues()

    result = job.execute_in_process(instance=instance, resources={"sqlqueue": resource})
    assert f"dagster-sqlqueue/{result.run_id}" in names
    left = "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s"
    until(lambda: rows(queue, left, f"dagster-sqlqueue/{result.run_id}") == [(0,)], "the end of its connections")


def test_a_subclass_is_set_up_and_torn_down_while_the_queues_are_open(url: str, queue: SqlQueue) -> None:
    seen: list[tuple[str, int]] = []

    class Counting(SqlQueueResource):
        def setup_for_execution(self, context: dg.InitResourceContext) -> None:
            seen.append(("before", self.queue.depth("work").live))

        def teardown_after_execution(self, context: dg.InitResourceContext) -> None:
            seen.append(("after", self.queue.depth("work").live))

    @dg.op
    def enqueue(sqlqueue: SqlQueueResource) -> None:
        sqlqueue.queue.enqueue(WORK, Work(n=1))

    @dg.job(executor_def=dg.in_process_executor)
    def job() -> None:
        enqueue()

    assert job.execute_in_process(resources={"sqlqueue": Counting(url=url, schema_name=queue.database.schema)}).success
    assert seen == [("before", 0), ("after", 1)]


def test_outside_of_a_run_the_resource_says_how_to_open_it(url: str) -> None:
    with pytest.raises(InvalidInput, match="is not open"):
        _ = SqlQueueResource(url=url).queue


def test_a_schema_name_that_is_not_usable_is_refused(url: str) -> None:
    with pytest.raises(InvalidInput, match="schema"), SqlQueueResource(url=url, schema_name='x"; DROP').open():
        pass


@pytest.fixture
def pointing() -> dg.JobDefinition:
    """A job that says which database its resource is connected to."""

    @dg.op
    def where(sqlqueue: SqlQueueResource) -> str:
        return str(rows(sqlqueue.queue, "SELECT current_setting('application_name')")[0][0])

    @dg.job(executor_def=dg.in_process_executor)
    def job() -> None:
        where()

    return job


@pytest.mark.parametrize("by_variable", [False, True])
def test_a_launch_cannot_point_the_resource_elsewhere(
    url: str,
    queue: SqlQueue,
    instance: dg.DagsterInstance,
    pointing: dg.JobDefinition,
    monkeypatch: pytest.MonkeyPatch,
    by_variable: bool,
) -> None:
    monkeypatch.setenv("THE_URL", url)
    monkeypatch.setenv("ANOTHER", "postgresql://me:s3cret@elsewhere.invalid/db")
    code = SqlQueueResource(url=dg.EnvVar("THE_URL") if by_variable else url, schema_name=queue.database.schema)

    def launch(**config: object) -> dg.ExecuteInProcessResult:
        run_config = {"resources": {"sqlqueue": {"config": config}}}
        return pointing.execute_in_process(instance=instance, resources={"sqlqueue": code}, run_config=run_config)

    for elsewhere in ({"url": {"env": "ANOTHER"}}, {"url": url}, {"schema_name": "other"}):
        with pytest.raises(dg.DagsterInvalidConfigError, match=f'unexpected config entry "{next(iter(elsewhere))}"'):
            launch(**elsewhere)
    assert launch(pool_size=2).success


def test_a_variable_that_is_not_set_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("THE_URL", raising=False)
    unset = SqlQueueResource(url=dg.EnvVar("THE_URL"))
    with pytest.raises(InvalidInput, match="THE_URL, which is to hold the database's URL, is not set"), unset.open():
        pass


def test_the_numbers_may_be_in_variables_too(
    url: str, queue: SqlQueue, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    @dg.op
    def sizes(sqlqueue: SqlQueueResource) -> list[int]:
        assert sqlqueue.queue.depth("work").live == 0
        return [sqlqueue.pool_size, sqlqueue.connect_timeout_seconds]

    @dg.job(executor_def=dg.in_process_executor)
    def job() -> None:
        sizes()

    named = SqlQueueResource(
        url=url,
        schema_name=queue.database.schema,
        pool_size=dg.EnvVar.int("THE_POOL"),
        connect_timeout_seconds=dg.EnvVar.int("THE_WAIT"),
    )
    monkeypatch.setenv("THE_POOL", "3")
    monkeypatch.setenv("THE_WAIT", "7")
    assert job.execute_in_process(instance=instance, resources={"sqlqueue": named}).output_for_node("sizes") == [3, 7]
    with named.open() as opened:
        assert opened.database.connections.size() == 3
    monkeypatch.setenv("THE_POOL", "0")
    with pytest.raises(dg.DagsterError) as caught:
        job.execute_in_process(instance=instance, resources={"sqlqueue": named})
    assert "greater than or equal to 1" in str(caught.value.__cause__)
    with pytest.raises(InvalidInput, match="pool_size is 0"), named.open():
        pass
    monkeypatch.setenv("THE_POOL", "many")
    with pytest.raises(InvalidInput, match=r"THE_POOL is 'many', .* give a whole number"), named.open():
        pass


def test_a_resource_with_a_variable_is_opened_in_scripts_too(
    url: str, queue: SqlQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THE_URL", url)
    monkeypatch.setenv("THE_SCHEMA", queue.database.schema)
    with SqlQueueResource(url=dg.EnvVar("THE_URL"), schema_name=dg.EnvVar("THE_SCHEMA")).open() as opened:
        assert opened.depth("work").live == 0


def test_a_tick_waits_no_longer_for_a_statement_than_it_was_set_to(
    url: str, queue: SqlQueue, instance: dg.DagsterInstance
) -> None:
    schema = queue.database.schema
    limited = SqlQueueResource(url=url, schema_name=schema, tick_timeout_seconds=2)
    with queue.database.connection() as other, other.transaction():
        other.execute(f"LOCK TABLE {schema}.queue".encode())
        with dg.build_sensor_context(instance=instance, resources={"sqlqueue": limited}) as context:
            opened = context.resources.sqlqueue.queue
            assert rows(opened, "SHOW statement_timeout") == [("2s",)]
            with pytest.raises(psycopg.errors.QueryCanceled, match="statement timeout"):
                opened.queues()


@pytest.mark.parametrize("after", [0, 1, 3])
@pytest.mark.parametrize("pooler", ["", "?pooler=transaction"], ids=["alone", "pooled"])
def test_a_tick_fails_when_the_database_falls_silent(
    deployment: Deployment,
    consumer: QueueConsumer[Work],
    monkeypatch: pytest.MonkeyPatch,
    after: int,
    pooler: str,
) -> None:
    """The connection stays open, and what the tick sends on it is swallowed."""
    monkeypatch.setattr("dagster_sqlqueue.orchestration.resource._SILENCE_SECONDS", 1)
    schema = deployment.queue.database.schema
    with Swallowing(deployment.queue, after) as proxy:
        resource = SqlQueueResource(url=proxy.url + pooler, schema_name=schema, tick_timeout_seconds=2)
        with pytest.raises(DatabaseUnavailable, match="the server has not answered for 3 s"):
            replace(deployment, resource=resource).tick(consumer.sensor)


def test_a_tick_waits_no_longer_for_a_connection_than_three_seconds(instance: dg.DagsterInstance) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        # An hour is longer than any test may take.
        away = SqlQueueResource(url=f"postgresql://me@127.0.0.1:{port}/none", connect_timeout_seconds=3_600)
        with dg.build_sensor_context(instance=instance, resources={"sqlqueue": away}) as context:
            opened = context.resources.sqlqueue.queue
            with pytest.raises(DatabaseUnavailable, match="connection timeout expired"):
                opened.queues()


def test_the_connections_of_a_tick_are_closed_at_its_end(
    resource: SqlQueueResource, queue: SqlQueue, instance: dg.DagsterInstance
) -> None:
    @dg.sensor(job_name="none")
    def tick(context: dg.SensorEvaluationContext, sqlqueue: SqlQueueResource) -> dg.SkipReason:
        query = "SELECT pg_backend_pid(), current_setting('application_name')"
        return dg.SkipReason(" ".join(map(str, rows(sqlqueue.queue, query)[0])))

    with dg.build_sensor_context(instance=instance, resources={"sqlqueue": resource}) as context:
        said = tick(context)
    assert isinstance(said, dg.SkipReason)
    pid, name = str(said.skip_message).split()
    assert name == "dagster-sqlqueue/tick"
    left = "SELECT count(*) FROM pg_stat_activity WHERE pid = %s AND application_name = %s"
    until(lambda: rows(queue, left, int(pid), name) == [(0,)], "the end of its connection")
