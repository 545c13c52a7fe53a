"""A project of YAML and one handler, through the commands of `dg`."""

import json
import shutil
from pathlib import Path

import pytest
import yaml

from tests.orchestration.dg_project import DgProject, installed
from tests.support.few import few

TYPE = "dagster_sqlqueue.SqlQueueComponent"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path | None:
    return installed(tmp_path_factory.mktemp("installed"))


@pytest.fixture
def project(tmp_path: Path, site: Path | None) -> DgProject:
    return DgProject(tmp_path / "project", site)


@pytest.fixture(scope="module")
def scaffolded(site: Path | None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `dg scaffold` writes."""
    made = DgProject(tmp_path_factory.mktemp("scaffolded") / "project", site)
    code, output = made.dg("scaffold", "defs", TYPE, "reminders")
    assert code == 0, output
    return made.defs / "reminders"


@pytest.fixture
def reminders(project: DgProject, scaffolded: Path) -> DgProject:
    """A project with one scaffolded component."""
    shutil.copytree(scaffolded, project.defs / "reminders")
    return project


@pytest.mark.prove
def test_the_component_is_listed_with_what_it_is(project: DgProject) -> None:
    code, output = project.dg("list", "components", "--package", "dagster_sqlqueue", "--json")
    assert code == 0, output
    (listed,) = json.loads(output)["items"]
    assert listed["key"] == TYPE
    assert listed["summary"].startswith("A SQL job queue: an asset, a job that works it off, and a sensor")


@pytest.mark.prove
def test_what_is_scaffolded_passes_every_check(reminders: DgProject) -> None:
    text = (reminders.defs / "reminders" / "defs.yaml").read_text()
    assert "off until you switch them on, under Automation" in text
    written = yaml.safe_load(text)
    assert written == {
        "type": TYPE,
        "attributes": {"queue": "reminders", "handler": ".handler:handle"},
        "requirements": {"env": ["SQLQUEUE_URL"]},
    }
    assert reminders.dg("check", "yaml", "--validate-requirements") == (
        0,
        "All component YAML validated successfully.\n",
    )
    code, output = reminders.dg("check", "defs")
    assert (code, "All definitions loaded successfully." in output) == (0, True), output
    code, output = reminders.dg("list", "defs", "--json")
    assert code == 0, output
    listed = json.loads(output)
    assert [asset["asset_key"] for asset in listed["assets"]] == ["queues/reminders"]
    checks = {"oldest_ready", "dead_letters", "stale_writes", "stalled_bucket"}
    assert {check["name"] for check in listed["asset_checks"]} == checks
    people = {"reminders_show", "reminders_redrive"}
    assert {job["name"] for job in listed["jobs"]} == {
        "create_reminders",
        "drain_reminders",
        "observe_reminders",
        *people,
    }
    cleanup = {"sqlqueue_reminders_failed_runs", "sqlqueue_reminders_cancelled_runs"}
    assert {sensor["name"] for sensor in listed["sensors"]} == {"reminders_sensor", *cleanup}
    assert [resource["name"] for resource in listed["resources"]] == ["sqlqueue"]
    code, output = reminders.dg("list", "env")
    assert (code, "SQLQUEUE_URL" in output) == (0, True), output


@pytest.mark.prove
def test_other_forms_are_scaffolded(project: DgProject) -> None:
    code, output = project.dg("scaffold", "defs", TYPE, "mail", "--queue", "letters", "--handler", "shop.jobs:send")
    assert code == 0, output
    assert sorted(file.name for file in (project.defs / "mail").iterdir()) == ["defs.yaml"]
    written = yaml.safe_load((project.defs / "mail" / "defs.yaml").read_text())
    assert written["attributes"] == {"queue": "letters", "handler": "shop.jobs:send"}
    shutil.rmtree(project.defs / "mail")
    code, output = project.dg("scaffold", "defs", TYPE, "mail/Due-Letters", "--format", "python")
    assert code == 0, output
    assert "off until you switch them on" in (project.defs / "mail" / "Due-Letters" / "component.py").read_text()
    code, output = project.dg("list", "defs", "--json")
    assert code == 0, output
    assert [asset["asset_key"] for asset in json.loads(output)["assets"]] == ["queues/due_letters"]
    code, output = project.dg("scaffold", "defs", TYPE, "7days")
    assert code != 0
    assert "queue name '7days' is not usable" in output


@pytest.mark.parametrize(
    ("line", "said"),
    few(
        [
            ("  handlr: .handler:handle", ["defs.yaml:5", "attributes.handlr", "'handlr' was unexpected"]),
            ("  max_runs: [4]", ["defs.yaml:5", "attributes.max_runs [4] is not valid"]),
            ("  backoff: {secs: 5}", ["defs.yaml:5", "attributes.backoff"]),
        ],
        0,
    ),
)
def test_a_wrong_key_or_type_is_shown_in_its_line(reminders: DgProject, line: str, said: list[str]) -> None:
    file = reminders.defs / "reminders" / "defs.yaml"
    lines = file.read_text().splitlines()
    assert lines[3:5] == ["  queue: reminders", "  handler: .handler:handle"]
    file.write_text("\n".join([*lines[:4], line, *([] if "handlr" in line else lines[4:5]), *lines[5:]]))
    code, output = reminders.dg("check", "yaml")
    assert code == 1
    for part in said:
        assert part in output


@pytest.mark.prove
def test_a_wrong_value_is_named_when_the_definitions_are_checked(reminders: DgProject) -> None:
    file = reminders.defs / "reminders" / "defs.yaml"
    file.write_text(file.read_text().replace("  handler:", "  buckets: 5000\n  handler:"))
    code, output = reminders.dg("check", "defs")
    assert code == 1
    assert "bucket_count of queue 'reminders' is 5000; it must be 1 to 1024" in output


@pytest.mark.prove
def test_a_variable_that_is_used_and_not_required_is_found(reminders: DgProject) -> None:
    file = reminders.defs / "reminders" / "defs.yaml"
    file.write_text(file.read_text().replace("  handler:", "  schema_name: '{{ env.OUR_SCHEMA }}'\n  handler:"))
    code, output = reminders.dg("check", "yaml", "--validate-requirements")
    assert code == 1
    assert "not specified in the component file: OUR_SCHEMA" in output


@pytest.mark.prove
def test_the_sensors_of_a_scaffolded_queue_begin_on_by_the_line_that_is_commented_out(reminders: DgProject) -> None:
    file = reminders.defs / "reminders" / "defs.yaml"
    file.write_text(file.read_text().replace("  # default_status:", "  default_status:"))
    assert reminders.dg("check", "yaml", "--validate-requirements")[0] == 0
    assert yaml.safe_load(file.read_text())["attributes"]["default_status"] == "RUNNING"
