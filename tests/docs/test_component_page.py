"""docs/component.md: the project that it describes, built and checked by `dg`."""

import json
import re
from pathlib import Path

import pytest
import yaml

from dagster_sqlqueue import SqlQueueComponent
from tests.orchestration.dg_project import DEFINITIONS, PYPROJECT, DgProject, installed

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "component.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"```(?:yaml|python)\n# (src/\S+)\n(.*?)```", PAGE, re.DOTALL))


@pytest.fixture
def project(tmp_path: Path) -> DgProject:
    return DgProject(tmp_path / "project", installed(tmp_path))


@pytest.mark.prove
def test_the_project_of_the_page_is_built_as_it_says(project: DgProject) -> None:
    (command,) = re.findall(r"```sh\ndg (.*)\n```", PAGE)
    assert project.dg(*command.split())[0] == 0
    written = {f"src/shop/defs/reminders/{name}": name for name in ("defs.yaml", "handler.py")}
    assert {name: (project.root / name).read_text() for name in written} == {name: FILES[name] for name in written}
    assert set(FILES) - set(written) == {"src/shop/defs/payments/defs.yaml", "src/shop/payments.py"}
    for name, text in FILES.items():
        file = project.root / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    assert project.dg("check", "yaml", "--validate-requirements")[0] == 0
    code, output = project.dg("list", "defs", "--json")
    assert code == 0, output
    listed = json.loads(output)
    queues = {asset["asset_key"] for asset in listed["assets"] if "sqlqueue" in asset["kinds"]}
    assert queues == {"queues/reminders", "shop/queues/payments"}
    jobs = {f"{what}_{queue}" for what in ("create", "drain", "observe") for queue in ("payments", "reminders")}
    jobs |= {f"reminders_{verb}" for verb in ("show", "redrive")}
    jobs |= {f"payments_{verb}" for verb in ("show", "redrive", "pause", "resume")}
    assert {job["name"] for job in listed["jobs"]} == jobs
    assert {sensor["name"] for sensor in listed["sensors"]} == {
        "payments_sensor",
        "reminders_sensor",
        "sqlqueue_payments_cancelled_runs",
        "sqlqueue_payments_failed_runs",
        "sqlqueue_reminders_cancelled_runs",
        "sqlqueue_reminders_failed_runs",
    }
    assert [resource["name"] for resource in listed["resources"]] == ["sqlqueue"]
    (asset,) = (asset for asset in listed["assets"] if asset["asset_key"] == "shop/queues/payments")
    assert (asset["group_name"], asset["dependency_keys"]) == ("money", ["orders"])
    assert "| buckets | 8 |" in asset["description"]
    assert asset["description"].endswith("Ask the team before you redrive payments.")


def test_the_page_says_how_a_package_becomes_the_project_that_is_built() -> None:
    (settings,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    (loading,) = re.findall(r"```py\n(.*?)```", PAGE, re.DOTALL)
    assert PYPROJECT.endswith(settings)
    assert loading.strip() == DEFINITIONS.strip()


def test_every_attribute_has_a_description_and_is_on_the_page() -> None:
    schema = SqlQueueComponent.model().model_json_schema()
    properties = schema["properties"]
    ours = {name: part for name, part in schema["$defs"].items() if name.endswith("AttributesModel")}
    assert len(ours) >= 3
    for part in (schema, *ours.values()):
        assert [name for name, said in part["properties"].items() if not said.get("description")] == []
    (said,) = (
        yaml.safe_load(text)["attributes"] for name, text in FILES.items() if name.endswith("payments/defs.yaml")
    )
    assert set(properties) - set(said) == {"resource", "add_asset", "max_running_per_key"}
    assert "`resource: false`" in PAGE
    assert "`add_asset: false`" in PAGE
