"""The code locations load, each by itself and all as one, without a database and without a warning of Dagster's."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import dagster as dg
import pytest
import yaml
from dagster._core.run_coordinator import QueuedRunCoordinator

from tests.gate.patience import PATIENCE

PROJECT = Path(__file__).resolve().parents[2]
DG = str(Path(sys.executable).with_name("dg"))
LOCATIONS = {
    "events": {"queues/events"},
    "reminders": {"queues/reminders"},
    "daily_analytics": {"queues/daily_analytics", "airport_daily", "event_daily", "reminder_daily"},
}
WARNINGS = ("SupersessionWarning", "BetaWarning", "PreviewWarning", "DeprecationWarning: `")
PROGRAM = """
import importlib, json, os, sys, traceback
import dagster as dg
import dagster_sqlqueue.orchestration

# What all have in common is loaded once, and each of them in a process that knows none of the others.
for location in sys.argv[1:]:
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            defs = importlib.import_module(f"definitions.{location}").defs
            dg.Definitions.validate_loadable(defs)
            keys = [key.to_user_string() for key in defs.resolve_asset_graph().get_all_asset_keys()]
            print(json.dumps([location, keys]), flush=True)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    if os.waitpid(child, 0)[1]:
        sys.exit(f"{location} does not load")
"""


@pytest.fixture
def dagster_home(tmp_path: Path) -> Path:
    shutil.copyfile(PROJECT / "definitions" / "dagster.yaml", tmp_path / "dagster.yaml")
    return tmp_path


def run(home: Path, *command: str) -> str:
    """What a command of this environment prints; it knows no database, and says every warning."""
    known = {name: value for name, value in os.environ.items() if not name.startswith(("SQLQUEUE_", "DAGSTER_"))}
    done = subprocess.run(
        command,
        cwd=PROJECT,
        env={**known, "DAGSTER_HOME": str(home), "HOME": str(home), "PYTHONWARNINGS": "always", "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    warned = [line for line in done.stderr.splitlines() if any(kind in line for kind in WARNINGS)]
    assert warned == []
    return done.stdout


def test_the_workspace_names_the_workloads() -> None:
    entries = [
        entry["python_module"] for entry in yaml.safe_load((PROJECT / "workspace.yaml").read_text())["load_from"]
    ]
    assert {entry["location_name"]: entry["module_name"] for entry in entries} == {
        name: f"definitions.{name}" for name in LOCATIONS
    }


def test_each_location_loads_by_itself(dagster_home: Path) -> None:
    found = run(dagster_home, sys.executable, "-c", PROGRAM, *LOCATIONS)
    loaded = {location: set(keys) for location, keys in map(json.loads, found.splitlines())}
    assert list(loaded) == list(LOCATIONS)
    for location, keys in LOCATIONS.items():
        assert loaded[location] >= keys


STRICT = """
import warnings

# Before anything of Dagster's is imported, which warns at decoration.
warnings.simplefilter("error")
for module in ("google", "pkg_resources", "sqlalchemy", "pandas", "pyarrow", "pyspark"):
    warnings.filterwarnings("default", module=module)
import dagster as dg

for kind in (dg.BetaWarning, dg.PreviewWarning, dg.SupersessionWarning, DeprecationWarning):
    warnings.simplefilter("error", kind)
from definitions import daily_analytics, events, reminders

defs = dg.Definitions.merge(events.defs, reminders.defs, daily_analytics.defs)
dg.Definitions.validate_loadable(defs)
print(len(list(defs.get_repository_def().sensor_defs)))
"""


@pytest.mark.prove
def test_they_load_with_every_warning_an_error(dagster_home: Path) -> None:
    assert int(run(dagster_home, sys.executable, "-c", STRICT)) >= 6


@pytest.mark.prove
def test_dg_finds_nothing_wrong_with_them(dagster_home: Path) -> None:
    assert "All definitions loaded successfully" in run(dagster_home, DG, "check", "defs")


@pytest.mark.prove
def test_dg_loads_all_of_them_as_one(dagster_home: Path) -> None:
    listed = json.loads(run(dagster_home, DG, "list", "defs", "--json"))
    assert {asset["asset_key"] for asset in listed["assets"]} == set().union(*LOCATIONS.values())
    assert {"events_sensor", "reminders_sensor", "daily_analytics_sensor"} <= {s["name"] for s in listed["sensors"]}
    undescribed = [asset["asset_key"] for asset in listed["assets"] if not asset["description"]]
    assert not undescribed


def test_the_instance_is_what_its_file_says(dagster_home: Path) -> None:
    with dg.DagsterInstance.from_config(str(dagster_home)) as instance:
        coordinator = instance.run_coordinator
        assert isinstance(coordinator, QueuedRunCoordinator)
        assert coordinator.dequeue_interval_seconds == 1
        assert coordinator.dequeue_use_threads
        assert instance.run_monitoring_enabled
        assert instance.get_settings("sensors")["use_threads"]
        assert not instance.telemetry_enabled
        assert not instance.nux_enabled
