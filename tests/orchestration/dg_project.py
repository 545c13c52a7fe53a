"""A `dg` project in a directory of its own, with the package as it is installed, and the commands that people run in it."""

import multiprocessing
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

from tests.gate.patience import FULL

PROJECT = Path(__file__).resolve().parents[2]

PYPROJECT = """
[project]
name = "shop"
version = "0.1.0"

[tool.dg]
directory_type = "project"

[tool.dg.project]
root_module = "shop"
"""

DEFINITIONS = """
from pathlib import Path

import dagster as dg


@dg.definitions
def defs() -> dg.Definitions:
    return dg.load_from_defs_folder(path_within_project=Path(__file__).parent)
"""


def installed(directory: Path) -> Path | None:
    """In `make prove` a directory with the built package and its entry points, for PYTHONPATH; else it is used as it is
    installed for development.
    """
    if not FULL:
        return None
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(directory / "dist")]
    subprocess.run(build, cwd=PROJECT, check=True, capture_output=True)
    (wheel,) = (directory / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(directory / "site")
    return directory / "site"


class DgProject:
    """An empty project `shop`.

    Args:
        root: an empty directory.
        site: where the package is installed; None: where these tests have it from.
    """

    def __init__(self, root: Path, site: Path | None) -> None:
        self.root = root
        self.defs = root / "src" / "shop" / "defs"
        self.home = root / "home"
        self.defs.mkdir(parents=True)
        (self.home / ".config").mkdir(parents=True)
        (self.home / ".config" / "dg.toml").write_text("[cli.telemetry]\nenabled = false\n")
        (self.home / "dagster.yaml").write_text("telemetry:\n  enabled: false\n")
        (root / "pyproject.toml").write_text(PYPROJECT)
        for package in (self.defs.parent, self.defs):
            (package / "__init__.py").touch()
        (self.defs.parent / "definitions.py").write_text(DEFINITIONS)
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("DAGSTER_", "SQLQUEUE_", "XDG_"))
        }
        self.environment = {
            **kept,
            "HOME": str(self.home),
            "DAGSTER_HOME": str(self.home),
            "PYTHONPATH": os.pathsep.join([*([str(site)] if site else []), str(root / "src")]),
            "COLUMNS": "160",
        }
        self.program = str(Path(sys.executable).with_name("dg"))

    def dg(self, *arguments: str) -> tuple[int, str]:
        """The exit code of a `dg` command, and what it says, without colours: in `make prove` of the program, else of a
        process that is forked where Dagster was imported already, for that takes longer than any command.
        """
        log = self.home / "said"
        if FULL:
            with log.open("w") as said:
                command = [self.program, *arguments]
                done = subprocess.run(command, cwd=self.root, env=self.environment, stdout=said, stderr=said)
            code = done.returncode
        else:
            process = _forks.Process(target=_command, args=(arguments, self.root, self.environment, log))
            process.start()
            process.join()
            code = process.exitcode or 0
        return code, re.sub(r"\x1b\[[0-9;]*m", "", log.read_text())


_forks = multiprocessing.get_context("forkserver")
_forks.set_forkserver_preload(
    [
        "dagster.components",
        "dagster_sqlqueue.orchestration",
        *(
            f"dagster_dg_cli.cli.{name}"
            for name in ("api", "check", "labs", "launch", "list", "plus", "scaffold", "utils")
        ),
    ]
)


def _command(arguments: tuple[str, ...], directory: Path, environment: dict[str, str], log: Path) -> None:
    with log.open("w") as said:
        for stream in (1, 2):
            os.dup2(said.fileno(), stream)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(directory)
    # As where a program is started: its own directory first, which Dagster leaves out when it loads a project.
    sys.path[:0] = [str(Path(sys.executable).parent), *environment["PYTHONPATH"].split(os.pathsep)]
    sys.argv = ["dg", *arguments]
    from dagster_dg_cli.cli import main

    sys.exit(main())
