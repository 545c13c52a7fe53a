"""What the UI says of the library's resources, jobs, ops, sensors, schedules and configurations, asked of GraphQL."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.orchestration.graphql_support import asking
from tests.orchestration.support import NewInstance

# Dagster's own, of every schedule that it loads.
pytestmark = pytest.mark.filterwarnings("ignore:Property `ScheduleDefinition.environment_vars`:DeprecationWarning")

CODE = '''
import functools
from datetime import time

import dagster as dg
from pydantic import BaseModel

from dagster_sqlqueue import Job, QueueSpec
from dagster_sqlqueue.orchestration import *
from dagster_sqlqueue.orchestration import DailyAccount
from dagster_sqlqueue.spark import ArchiveRead, SparkResource, sqlqueue_archive_asset, sqlqueue_batch_asset


class Mail(BaseModel):
    to: str


def send(job: Job[Mail], gateway: str) -> None:
    """Send a mail.

    One that bounces is sent again.
    """


mails = QueueSpec("mails", Mail)
consumer = queue_consumer(queue="mails", payload=Mail)(functools.partial(send, gateway="smtp"))
replies = QueueSpec("replies", Mail)
daily = QueueSpec("daily", DailyAccount)
days = dg.DailyPartitionsDefinition(start_date="2026-01-01")


@sqlqueue_archive_asset(
    ArchiveRead("mails", columns={"day": {"path": "payload.day", "type": "date"}}), partitions_def=days, table="t"
)
def table(jobs):
    """Count mails.

    Of those that bounced, the first.
    """


@sqlqueue_batch_asset(replies)
def batch(jobs):
    """Count replies.

    By their senders.
    """


@dg.job
def answering():
    """Answer mails."""
    claimed = build_claim_op(replies)()
    complete_jobs(claimed)
    fail_jobs.alias("fail_all")(claim_jobs())
    enqueue_jobs(build_wait_op()())
    build_complete_op(replies)(claimed)
    build_fail_op(replies)(claimed)
    build_enqueue_op(replies)(claimed)


fan_out = build_fanout_asset(daily, lambda: [], days)
defs = dg.Definitions.merge(
    build_sqlqueue_definitions(consumer, resource=SqlQueueResource(url=dg.EnvVar("SQLQUEUE_URL"))),
    dg.Definitions(
        assets=[table, batch, fan_out, build_sqlqueue_asset_spec(replies)],
        asset_checks=[build_deadline_check(daily, lambda: [], deadline=time(8, 0), days=2)],
        jobs=[answering, *build_sqlqueue_launchpad_jobs()],
        schedules=[build_fanout_schedule(fan_out), build_maintenance_schedule()],
        sensors=[build_sqlqueue_schedules_sensor()],
        resources={"spark": SparkResource()},
    ),
)
'''
DESCRIBED = """
{ repositoriesOrError { ... on RepositoryConnection { nodes {
  jobs { name description
    modes { resources { name description configField { description configType { key } } } }
    solids { definition { ... on SolidDefinition {
      name description configField { description configType { key } } } } } }
  sensors { name description } schedules { name description }
  allTopLevelResourceDetails { name description }
  assetNodes { assetKey { path } description assetChecksOrError { ... on AssetChecks { checks { name description } } } }
} } } }
"""
DEFAULT = """
query ($job: String!) { runConfigSchemaOrError(selector: {
  repositoryLocationName: "code", repositoryName: "__repository__", pipelineName: $job
}) { ... on RunConfigSchema { rootDefaultYaml } } }
"""
WITHOUT = (
    "__ASSET_JOB",
    "io_manager/configField",
    "queues__daily_done_by_0800",
    "observe_mails_op",
    "observe_mails_op/configField",
    "mails_health/configField",
)

"""What Dagster makes of an asset or a check, and gives no description."""
FOR_CODE = re.compile(r"^\s*(Args|Attributes|Example|Examples|Raises|Returns|Yields):", re.MULTILINE)


@pytest.fixture(scope="module")
def ask(tmp_path_factory: pytest.TempPathFactory, new_instance: NewInstance) -> Iterator[Any]:
    with asking(tmp_path_factory.mktemp("code"), CODE, new_instance) as execute:
        yield execute


def described(found: Any, under: str = "") -> Iterator[tuple[str, str | None]]:
    """Everything that may have a description, and what it is."""
    if isinstance(found, list):
        for one in found:
            yield from described(one, under)
    elif isinstance(found, dict):
        name = found.get("name") or "/".join(found.get("assetKey", {}).get("path", []))
        here = f"{under} {name}".strip()
        if "description" in found and found.get("configType", {}).get("key") != "Any":
            yield here, found["description"]
        for key, one in found.items():
            yield from described(one, f"{here}/{key}")


def test_descriptions_are_for_readers_of_the_page(ask: Any) -> None:
    shown = dict(described(ask(DESCRIBED)["nodes"]))
    assert len(shown) > 100
    assert [where for where, said in shown.items() if not said and where.split()[-1] not in WITHOUT] == []
    texts = {where: said for where, said in shown.items() if said}
    assert {where: said for where, said in texts.items() if FOR_CODE.search(said)} == {}
    # Markdown shows indented lines as code.
    assert {where: said for where, said in texts.items() if re.search(r"^[ \t]", said, re.MULTILINE)} == {}


def test_a_resource_says_what_it_is_in_a_sentence(ask: Any) -> None:
    (node,) = ask(DESCRIBED)["nodes"]
    said = {one["name"]: one["description"] for one in node["allTopLevelResourceDetails"]}
    assert said == {
        "sqlqueue": "The queues of one schema of one database, opened and closed for each run and each sensor tick.",
        "spark": "A Spark session, opened when first asked for in a run, used by all of the run, and stopped at its end.",
    }
    in_launchpads = {
        one["configField"]["description"]
        for job in node["jobs"]
        for mode in job["modes"]
        for one in mode["resources"]
        if one["name"] in said
    }
    assert in_launchpads == set(said.values())


def test_a_handler_is_described_by_its_own_docstring(ask: Any) -> None:
    (node,) = ask(DESCRIBED)["nodes"]
    (job,) = (job for job in node["jobs"] if job["name"] == "drain_mails")
    (op,) = (solid["definition"] for solid in job["solids"])
    assert op["description"] == "Send a mail.\n\nOne that bounces is sent again."


def test_the_launchpad_of_a_drain_job_fills_in_nothing_that_is_the_sensors(ask: Any) -> None:
    config = yaml.safe_load(ask(DEFAULT, job="drain_mails")["rootDefaultYaml"])
    assert config["ops"]["work_off_mails"]["config"] == {"buckets": [], "tags": []}
