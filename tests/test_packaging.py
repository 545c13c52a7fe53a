import itertools
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email import message_from_string
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

PROJECT = Path(__file__).resolve().parent.parent
LOCKS = ["demo.txt", "dev.txt", "prove.txt"]


def test_what_is_built_is_whole_and_works(tmp_path: Path) -> None:
    directory = tmp_path / "dist"
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-d", str(directory)], cwd=PROJECT, check=True, capture_output=True
    )
    (wheel,) = directory.glob("*.whl")
    (source,) = directory.glob("*.tar.gz")
    the_wheel_carries_the_statements_and_the_types(wheel)
    an_installed_wheel_finds_its_statements(wheel, tmp_path / "installed")
    the_source_distribution_can_build_the_wheel(source)


def pins(lock: str) -> dict[str, Requirement]:
    text = (PROJECT / "requirements" / lock).read_text().replace("\\\n", " ")
    found = [Requirement(line.partition("--hash")[0].strip()) for line in text.splitlines() if line.strip()]
    return {canonicalize_name(pin.name): pin for pin in found}


def declared(*extras: str) -> list[Requirement]:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    found = [*project["dependencies"], *(line for extra in extras for line in project["optional-dependencies"][extra])]
    wanted = [Requirement(line) for line in found]
    own = [requirement for requirement in wanted if requirement.name == project["name"]]
    return [requirement for requirement in wanted if requirement not in own] + [
        inner for requirement in own for inner in declared(*requirement.extras)
    ]


def the_wheel_carries_the_statements_and_the_types(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        metadata = message_from_string(archive.read(next(n for n in names if n.endswith("METADATA"))).decode())
        scripts = archive.read(next(n for n in names if n.endswith("entry_points.txt"))).decode()
    statements = {f"dagster_sqlqueue/{path.relative_to(PROJECT)}" for path in PROJECT.glob("sql/**/*.sql")}
    assert len(statements) > 10
    assert statements <= names
    modules = {str(path.relative_to(PROJECT)) for path in PROJECT.glob("dagster_sqlqueue/**/*.py")}
    assert modules <= names
    assert "dagster_sqlqueue/py.typed" in names
    assert {name.partition("/")[0] for name in names} == {
        "dagster_sqlqueue",
        wheel.name.partition("-py3")[0] + ".dist-info",
    }
    assert metadata["Name"] == "dagster-sqlqueue"
    assert metadata["License-Expression"] == "Apache-2.0"
    assert "sqlqueue = dagster_sqlqueue.cli:main" in scripts
    assert "[dagster_dg_cli.registry_modules]\ndagster_sqlqueue = dagster_sqlqueue" in scripts


def an_installed_wheel_finds_its_statements(wheel: Path, site: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    code = (
        "import dagster_sqlqueue; from dagster_sqlqueue.db import statements;"
        " print(dagster_sqlqueue.__file__, 'UPDATE' in statements.load('claim_round_robin'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=site, capture_output=True, text=True, env={"PYTHONPATH": str(site)}
    )
    assert done.stdout.split() == [str(site / "dagster_sqlqueue" / "__init__.py"), "True"], done.stderr


def the_source_distribution_can_build_the_wheel(source: Path) -> None:
    with tarfile.open(source) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "sql/postgresql/enqueue/enqueue.sql"} <= names
    assert not [name for name in names if name.startswith(("tests/", ".venv", ".sqlqueue"))]


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_holds_names_versions_and_hashes_and_no_address(lock: str) -> None:
    lines = (PROJECT / "requirements" / lock).read_text().splitlines()
    assert lines
    pin = re.compile(r"[a-z0-9._-]+(\[[a-z0-9,._-]+\])?==[^ /@]+( ; [^/@]+)? \\")
    a_hash = re.compile(r"    --hash=sha256:[0-9a-f]{64}( \\)?")
    assert [line for line in lines if not pin.fullmatch(line) and not a_hash.fullmatch(line)] == []
    assert not [line for line, after in itertools.pairwise(lines) if pin.fullmatch(line) and pin.fullmatch(after)]


@pytest.mark.parametrize(("lock", "extra"), [("demo.txt", "demo"), ("dev.txt", "dev"), ("prove.txt", "prove")])
def test_a_lock_fits_what_the_project_asks_for(lock: str, extra: str) -> None:
    pinned = pins(lock)
    for wanted in declared(extra):
        pin = pinned[canonicalize_name(wanted.name)]
        (version,) = [Version(specifier.version) for specifier in pin.specifier]
        assert version in wanted.specifier, f"{pin} against {wanted}"
        assert wanted.extras <= pin.extras, f"{pin} against {wanted}"
    assert {"hatchling", "editables"} <= set(pinned)


def test_both_locks_agree() -> None:
    demo, dev = pins("demo.txt"), pins("dev.txt")
    assert {name: str(pin) for name, pin in demo.items()} == {name: str(dev[name]) for name in demo if name in dev}


def test_the_core_needs_neither_dagster_nor_spark() -> None:
    contracts = tomllib.loads((PROJECT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    core = next(contract["source_modules"] for contract in contracts if "Dagster nor Spark" in contract["name"])
    code = (
        "import importlib, sys\n"
        f"for name in ['dagster_sqlqueue', *{core}]:\n"
        "    importlib.import_module(name)\n"
        "print(sorted({'dagster', 'pyspark', 'py4j', 'pandas', 'pyarrow', 'typer', 'rich'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


def test_the_component_is_found_where_dagster_looks_and_imported_when_it_does() -> None:
    code = (
        "import sys, dagster_sqlqueue as package\n"
        "assert 'SqlQueueComponent' in dir(package) and 'dagster' not in sys.modules\n"
        "found = package.SqlQueueComponent\n"
        "assert 'dagster' in sys.modules and getattr(found, '__dg_package_entry__')\n"
        "print(found.__module__, getattr(package, 'Nothing', 'nothing else'))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True)
    assert done.stdout.strip() == "dagster_sqlqueue.orchestration.component nothing else", done.stderr
