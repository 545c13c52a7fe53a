"""What the README says, run."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from dagster_sqlqueue import SqlQueue
from tests.orchestration.support import done_by

PROJECT = Path(__file__).resolve().parents[2]


def quoted() -> str:
    """The README's first queue."""
    (found,) = re.findall(r"```python\n(import dagster.*?)```", (PROJECT / "README.md").read_text(), re.DOTALL)
    return str(found)


def test_the_readme_quotes_the_example() -> None:
    example = (PROJECT / "docs" / "first_queue.py").read_text()
    body = example.split('"""', 2)[2].split("if __name__")[0]
    squeeze = re.compile(r"\s*\n\s*")
    assert squeeze.sub("\n", quoted()).strip() == squeeze.sub("\n", body).strip()


def test_the_first_queue_works(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = {**os.environ, "SQLQUEUE_URL": url}
    example = PROJECT / "docs" / "first_queue.py"
    done = subprocess.run([sys.executable, example], env=environment, capture_output=True, text=True, check=True)
    assert len(done.stdout.strip()) == 36
    names: dict[str, object] = {"__name__": "first_queue"}
    exec(compile(example.read_text(), example, "exec"), names)
    defs = names["defs"]
    assert isinstance(defs, dg.Definitions)
    monkeypatch.setenv("SQLQUEUE_URL", url)
    with dg.instance_for_test() as instance:
        result = defs.resolve_job_def("drain_emails").execute_in_process(
            instance=instance, run_config={"ops": {"work_off_emails": {"config": {"linger_seconds": 0}}}}
        )
    assert done_by(result, "work_off_emails")["succeeded"] == 1
    with SqlQueue(url) as queue:
        assert queue.depth("emails").live == 0


def test_the_first_queue_is_a_whole_page_of_the_ui(url: str, schema: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its definitions, with nothing beside them: the asset is in the lineage, and its sensor makes the queue as they say."""
    monkeypatch.setenv("SQLQUEUE_URL", url)
    monkeypatch.setenv("SQLQUEUE_SCHEMA", schema)
    names: dict[str, Any] = {"__name__": "first_queue"}
    exec(compile(quoted(), "README.md", "exec"), names)
    defs: dg.Definitions = names["defs"]
    graph = defs.resolve_asset_graph()
    (asset,) = defs.resolve_all_asset_specs()
    assert asset.key == dg.AssetKey(["queues", "emails"])
    assert "dagster/column_schema" in asset.metadata
    assert {key.name for key in graph.asset_check_keys} == {
        *("dead_letters", "oldest_ready", "stale_writes", "stalled_bucket")
    }
    assert "drain_emails" in {job.name for job in defs.jobs or ()}
    sensor = defs.resolve_sensor_def("emails_sensor")
    assert sensor.default_status is dg.DefaultSensorStatus.RUNNING
    with SqlQueue(url, schema=schema) as queue, dg.DagsterInstance.ephemeral() as instance:
        queue.migrate()
        with dg.build_sensor_context(instance=instance, resources=dict(defs.resources or {})) as context:
            sensor(context)
        assert queue.settings("emails").max_attempts == 3


def test_make_help_names_every_target_of_the_readme() -> None:
    listed = subprocess.run(["make", "help"], cwd=PROJECT, capture_output=True, text=True, check=True).stdout
    for target in set(re.findall(r"make (\w+)", (PROJECT / "README.md").read_text())) - {"are"}:
        assert re.search(rf"^{target} ", listed, re.MULTILINE), target


def test_every_proof_that_the_readme_names_exists() -> None:
    named = set(re.findall(r"`((?:tests/|test_)[\w/.]*)`", (PROJECT / "README.md").read_text()))
    assert "tests/faults" in named
    assert [name for name in sorted(named) if not (PROJECT / name).exists()] == []
