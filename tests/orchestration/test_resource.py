"""The resource: what the UI gets to see of it, and how it opens and closes."""

import dagster as dg
import pytest
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._core.workspace.load_target import PythonFileTarget
from dagster_graphql.schema import create_schema

from dagster_sqlqueue import SqlQueue
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.orchestration import SqlQueueResource
from tests.core.support import rows

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


def test_the_url_is_never_shown_by_graphql(
    instance: dg.DagsterInstance, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THE_URL", "postgresql://me:other5ecret@example.invalid/db")
    file = tmp_path_factory.mktemp("code") / "code_location.py"
    file.write_text(CODE)
    target = PythonFileTarget(str(file), attribute=None, working_directory=str(file.parent), location_name="code")
    with WorkspaceProcessContext(instance, target) as context:
        answer = create_schema().execute(QUERY, context_value=context.create_request_context())
    assert not answer.errors
    assert answer.data is not None
    (node,) = answer.data["repositoriesOrError"]["nodes"]
    shown = {
        resource["name"]: {value["key"]: (value["type"], value["value"]) for value in resource["configuredValues"]}
        for resource in node["allTopLevelResourceDetails"]
    }
    assert shown["literal"]["url"] == ("SECRET", "********")
    assert shown["variable"]["url"] == ("ENV_VAR", "THE_URL")
    assert "s3cret" not in str(answer.data)
    assert "other5ecret" not in str(answer.data)


def test_a_run_is_named_in_the_database_and_its_connections_are_closed(
    url: str, schema: str, queue: SqlQueue, instance: dg.DagsterInstance
) -> None:
    names: list[str] = []

    @dg.op
    def look(sqlqueue: SqlQueueResource) -> None:
        sqlqueue.queue.queues()
        query = "SELECT application_name FROM pg_stat_activity WHERE application_name LIKE 'dagster-sqlqueue/%%'"
        names.extend(name for (name,) in rows(queue, query))

    @dg.job(executor_def=dg.in_process_executor)
    def job() -> None:
        look()

    result = job.execute_in_process(
        instance=instance, resources={"sqlqueue": SqlQueueResource(url=url, schema_name=schema)}
    )
    assert f"dagster-sqlqueue/{result.run_id}" in names
    left = "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s"
    assert rows(queue, left, f"dagster-sqlqueue/{result.run_id}") == [(0,)]


def test_outside_of_a_run_the_resource_says_how_to_open_it(url: str) -> None:
    with pytest.raises(InvalidInput, match="is not open"):
        _ = SqlQueueResource(url=url).queue


def test_a_schema_name_that_is_not_usable_is_refused(url: str) -> None:
    with pytest.raises(InvalidInput, match="schema"), SqlQueueResource(url=url, schema_name='x"; DROP').open():
        pass
