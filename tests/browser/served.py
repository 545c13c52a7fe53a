"""The demo's deployment as `make ui` serves it, for tests that look at it."""

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import Any

from dagster_sqlqueue import NewJob, SqlQueue
from dagster_sqlqueue.embedded import EmbeddedPostgres
from definitions.deployment import end_group
from definitions.events import events
from definitions.flights import job_id, read_flights
from definitions.reminder_day import put_reminders
from tests.gate.patience import PATIENCE
from tests.support import until
from tests.support.ports import free_port
from tests.support.quick_start import quick_start

PROJECT = Path(__file__).resolve().parents[2]
PASSWORD = "correct-horse-battery"
LOCATIONS = {"events", "reminders", "daily_analytics"}
SERVE = """
import sys
from pathlib import Path
from definitions import deployment, ui
deployment.WORKSPACE = Path(sys.argv[1])
sys.exit(ui.main())
"""
"""`make ui` with the code locations of a file."""
EVENTS_ALONE = f"""
load_from:
  - python_module: {{module_name: definitions.events, location_name: events, working_directory: {PROJECT}}}
"""


@dataclass(frozen=True, slots=True)
class Served:
    """A deployment that a browser can open at `base`."""

    base: str
    home: Path
    queue: SqlQueue
    first: date
    last: date
    locations: set[str]

    @property
    def days(self) -> list[str]:
        """The days of flights, as partitions are called."""
        return [(self.first + timedelta(days=n)).isoformat() for n in range((self.last - self.first).days + 1)]

    def graphql(self, query: str, **variables: Any) -> Any:
        """What the webserver answers."""
        request = urllib.request.Request(
            f"{self.base}/graphql",
            json.dumps({"query": query, "variables": variables}).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return json.load(answer)["data"]

    def runs(self, job: str) -> list[str]:
        """The ids of the job's runs that succeeded, the latest first."""
        query = """query Runs($job: String!) {
          runsOrError(filter: {pipelineName: $job, statuses: [SUCCESS]}) { ... on Runs { results { runId } } } }"""
        return [run["runId"] for run in self.graphql(query, job=job)["runsOrError"]["results"]]

    def checks_of(self, run: str) -> set[str]:
        """The checks that a run executed."""
        query = (
            """query Checks($run: ID!) { runOrError(runId: $run) { ... on Run { assetCheckSelection { name } } } }"""
        )
        return {check["name"] for check in self.graphql(query, run=run)["runOrError"]["assetCheckSelection"]}

    def settled(self, job: str) -> bool:
        """Whether runs of the job succeeded, and none is on its way."""
        query = """query Open($job: String!) {
          runsOrError(filter: {pipelineName: $job, statuses: [QUEUED, NOT_STARTED, STARTING, STARTED]}) {
            ... on Runs { results { runId } } } }"""
        return not self.graphql(query, job=job)["runsOrError"]["results"] and bool(self.runs(job))

    def materialized(self, asset: str) -> set[str]:
        """The partitions of an asset that are materialised."""
        query = """query Partitions($path: [String!]!) { assetOrError(assetKey: {path: $path}) { ... on Asset {
          assetMaterializations { partition } } } }"""
        found = self.graphql(query, path=[asset])["assetOrError"].get("assetMaterializations", [])
        return {event["partition"] for event in found}


@contextmanager
def served(home: Path, first: date, last: date, *, whole: bool) -> Iterator[Served]:
    """`make ui` on a directory of its own, with the days' flights on their queue.

    Args:
        home: the directory.
        first, last: the days.
        whole: all code locations, also with the last day's reminders, and with analytics every minute; otherwise that of
            the events alone.
    """
    port = free_port()
    program = ["-m", "definitions.ui"]
    if not whole:
        workspace = home / "workspace.yaml"
        workspace.write_text(EVENTS_ALONE)
        program = ["-c", SERVE, str(workspace)]
    with EmbeddedPostgres(home / "postgres") as server, (home / "ui.log").open("wb") as log:
        url = server.url.replace("postgres@", f"postgres:{PASSWORD}@")
        assert PASSWORD in url
        process = subprocess.Popen(
            [sys.executable, *program],
            cwd=PROJECT,
            env={
                **{name: value for name, value in os.environ.items() if not name.startswith(("SQLQUEUE_", "DAGSTER_"))},
                "SQLQUEUE_URL": url,
                "SQLQUEUE_HOME": str(home),
                "SQLQUEUE_UI_PORT": str(port),
                "FLIGHTS": f"{first}..{last}",
                **quick_start(),
                **({"SQLQUEUE_FANOUT_CRON": "* * * * *"} if whole else {}),
            },
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            with SqlQueue(server.url) as queue:
                site = Served(f"http://127.0.0.1:{port}", home, queue, first, last, LOCATIONS if whole else {"events"})
                until(lambda: _loaded(site, process), "the UI with its code locations", 2 * PATIENCE)
                flights = (NewJob(flight, id=job_id(flight)) for flight in read_flights(first, last))
                queue.enqueue_many(events, flights)
                if whole:
                    put_reminders(queue, last)
                yield site
        finally:
            end_group(process)


def _loaded(site: Served, process: "subprocess.Popen[bytes]") -> bool:
    assert process.poll() is None, (site.home / "ui.log").read_text(errors="replace")
    query = "{ workspaceOrError { ... on Workspace { locationEntries { name locationOrLoadError { __typename } } } } }"
    try:
        entries = site.graphql(query)["workspaceOrError"]["locationEntries"]
    except OSError:
        return False
    loaded = {e["name"] for e in entries if (e["locationOrLoadError"] or {}).get("__typename") == "RepositoryLocation"}
    return loaded == site.locations
