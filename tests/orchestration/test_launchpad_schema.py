"""What the launchpad shows of its jobs before they are started, asked of GraphQL as the UI does."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from dagster_sqlqueue.orchestration.launchpad import VERBS
from tests.orchestration.graphql_support import asking
from tests.orchestration.support import NewInstance

CODE = """
import dagster as dg
from dagster_sqlqueue.orchestration import SqlQueueResource, build_sqlqueue_launchpad_jobs

defs = dg.Definitions(
    jobs=[
        *build_sqlqueue_launchpad_jobs(),
        *build_sqlqueue_launchpad_jobs("emails", name_prefix="emails"),
        *build_sqlqueue_launchpad_jobs("emails", "orders", name_prefix="both"),
    ],
    resources={"sqlqueue": SqlQueueResource(url=dg.EnvVar("SQLQUEUE_URL"))},
)
"""
SCHEMA = """
query ($job: String!) {
  runConfigSchemaOrError(selector: {
    repositoryLocationName: "code", repositoryName: "__repository__", pipelineName: $job
  }) {
    ... on RunConfigSchema {
      rootDefaultYaml
      allConfigTypes {
        key
        ... on EnumConfigType { values { value } }
        ... on CompositeConfigType { fields { name description isRequired defaultValueAsJson configTypeKey } }
      }
    }
  }
}
"""
VALID = """
query ($job: String!, $config: RunConfigData!) {
  isPipelineConfigValid(mode: "default", runConfigData: $config, pipeline: {
    repositoryLocationName: "code", repositoryName: "__repository__", pipelineName: $job
  }) { __typename ... on RunConfigValidationInvalid { errors { message } } }
}
"""


@pytest.fixture(scope="module")
def ask(tmp_path_factory: pytest.TempPathFactory, new_instance: NewInstance) -> Iterator[Any]:
    with asking(tmp_path_factory.mktemp("code"), CODE, new_instance) as execute:
        yield execute


def fields(ask: Any, job: str) -> dict[str, dict[str, Any]]:
    """The fields of the op's config, by name; of a closed choice with its values."""
    types = {found["key"]: found for found in ask(SCHEMA, job=job)["allConfigTypes"]}
    (config,) = [
        found["fields"]
        for found in types.values()
        if {field["name"] for field in found.get("fields", [])} & {"queue", "id"}
    ]
    return {
        field["name"]: {
            **field,
            "values": [value["value"] for value in types[field["configTypeKey"]].get("values", [])],
        }
        for field in config
    }


@pytest.mark.parametrize("verb", VERBS)
def test_every_field_is_described(ask: Any, verb: str) -> None:
    found = fields(ask, f"sqlqueue_{verb}")
    assert all(len(field["description"]) > 10 for field in found.values())
    for name, field in found.items():
        assert not field["isRequired"], name
        assert field["defaultValueAsJson"] is not None, name
    assert (found.get("dry_run", {}).get("defaultValueAsJson") == "true") is (verb != "show")
    if "show_payloads" in found:
        assert found["show_payloads"]["defaultValueAsJson"] == "false"


def test_defaults_and_closed_choices(ask: Any) -> None:
    found = fields(ask, "sqlqueue_redrive")
    assert {name: json.loads(field["defaultValueAsJson"]) for name, field in found.items() if name != "queue"} == {
        "dry_run": True,
        "ids": [],
        "tags": [],
        "payload": {},
        "ordering_key": None,
        "error_contains": None,
        "since": None,
        "before": None,
        "all": False,
        "limit": 1_000,
        "show_payloads": False,
        "state": "failed",
    }
    assert found["state"]["values"] == ["failed", "cancelled"]
    assert found["dry_run"]["description"].startswith("Change nothing; count the jobs that the run would change")
    assert fields(ask, "sqlqueue_cancel")["state"]["values"] == ["any", "queued", "running", "held"]


def test_queues_are_a_closed_choice_where_they_are_named(ask: Any) -> None:
    assert fields(ask, "sqlqueue_pause")["queue"]["values"] == []
    one = fields(ask, "emails_pause")["queue"]
    assert (one["values"], one["isRequired"], one["defaultValueAsJson"]) == (["emails"], False, '"emails"')
    both = fields(ask, "both_pause")["queue"]
    assert (both["values"], both["isRequired"]) == (["", "emails", "orders"], False)


@pytest.mark.parametrize("verb", VERBS)
def test_each_job_can_be_launched_as_the_launchpad_opens(ask: Any, verb: str) -> None:
    for prefix in ("sqlqueue", "emails", "both"):
        job = f"{prefix}_{verb}"
        filled_in = yaml.safe_load(ask(SCHEMA, job=job)["rootDefaultYaml"])
        found = ask(VALID, job=job, config=json.dumps(filled_in))
        assert found["__typename"] == "PipelineConfigValidationValid", (job, found)


def test_the_launchpad_opens_with_a_dry_run_filled_in(ask: Any) -> None:
    filled_in = yaml.safe_load(ask(SCHEMA, job="emails_redrive")["rootDefaultYaml"])
    config = filled_in["ops"]["emails_redrive_op"]["config"]
    assert (config["queue"], config["dry_run"], config["state"]) == ("emails", True, "failed")


def test_a_wrong_config_is_reported_before_the_run(ask: Any) -> None:
    def problems(job: str, **config: Any) -> list[str]:
        found = ask(VALID, job=job, config=json.dumps({"ops": {f"{job}_op": {"config": config}}}))
        return [error["message"] for error in found.get("errors", [])]

    assert problems("emails_redrive", all=True) == []
    (wrong,) = problems("emails_redrive", all=True, state="lost")
    assert "lost" in wrong
    (unknown,) = problems("emails_redrive", everything=True)
    assert "everything" in unknown
    (other,) = problems("both_redrive", all=True, queue="letters")
    assert "letters" in other
