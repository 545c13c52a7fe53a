"""`dg dev` as a person starts it: webserver, daemon and code server, asked by GraphQL."""

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tests.gate.patience import PATIENCE
from tests.support import until
from tests.support.ports import free_port

WARNINGS = ("SupersessionWarning", "BetaWarning", "PreviewWarning", "DeprecationWarning")
_LOCATIONS = """{ workspaceOrError { ... on Workspace { locationEntries { loadStatus locationOrLoadError {
    ... on PythonError { message }
    ... on RepositoryLocation {
        dagsterLibraryVersions { name version }
        repositories {
            sensors { name sensorState { status } } jobs { name }
            allTopLevelResourceDetails { name configuredValues { key value type } }
        } } } } } } }"""


@dataclass(frozen=True)
class Dev:
    """A deployment that runs.

    Attributes:
        process: `dg dev`.
        port: of the webserver.
        log: what all of its processes say.
    """

    process: "subprocess.Popen[bytes]"
    port: int
    log: Path

    def asked(self, query: str) -> Any:
        """The data of a GraphQL query; None while nobody answers."""
        assert self.process.poll() is None, self.log.read_text()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/graphql",
            data=json.dumps({"query": query}).encode(),
            headers={"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as response:
                return json.load(response)["data"]
        except OSError:
            return None

    def loaded(self) -> Any:
        """The code location, once it is loaded."""

        def found() -> Any:
            entries = ((self.asked(_LOCATIONS) or {}).get("workspaceOrError") or {}).get("locationEntries")
            return entries if entries and entries[0]["loadStatus"] == "LOADED" else None

        (entry,) = until(found, "the code location", 2 * PATIENCE)
        assert "repositories" in entry["locationOrLoadError"], entry
        return entry["locationOrLoadError"]

    def warnings(self) -> list[str]:
        """What any of the processes warned of that Dagster would have otherwise."""
        return [line for line in self.log.read_text().splitlines() if any(kind in line for kind in WARNINGS)]


@contextmanager
def dg_dev(directory: Path, environment: Mapping[str, str], *arguments: str) -> Iterator[Dev]:
    """`dg dev` in a directory, on a port of its own, ended as by Ctrl-C with all of its processes.

    Args:
        directory: where a person would start it.
        environment: with a DAGSTER_HOME that nobody else has.
        arguments: further ones.
    """
    port, log = free_port(), directory / "dev.log"
    home = environment["DAGSTER_HOME"]
    with log.open("wb") as said:
        process = subprocess.Popen(
            [str(Path(sys.executable).with_name("dg")), "dev", "--host", "127.0.0.1", "--port", str(port), *arguments],
            cwd=directory,
            env=environment,
            stdout=said,
            stderr=subprocess.STDOUT,
        )
    try:
        yield Dev(process, port, log)
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(PATIENCE)
            until(lambda: not _left_over(home), "the end of every process")
        finally:
            for left in _left_over(home):
                left.kill()


def _left_over(home: str) -> list[psutil.Process]:
    """The processes that still work with this DAGSTER_HOME."""
    return [
        process
        for process in psutil.process_iter(["pid", "environ"])
        if (process.info["environ"] or {}).get("DAGSTER_HOME") == home and process.info["pid"] != os.getpid()
    ]
