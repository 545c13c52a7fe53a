"""A Dagster deployment of a test's own: a database server, a code server, daemons and runs, all of which can be killed."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import dagster as dg
from dagster._core.errors import DagsterUserCodeUnreachableError
from dagster._grpc.client import DagsterGrpcClient
from uuid_utils.compat import uuid7

from dagster_sqlqueue import NewJob, QueueSpec, SqlQueue
from dagster_sqlqueue.errors import DatabaseUnavailable
from dagster_sqlqueue.orchestration import slots
from tests.faults.checker import audited
from tests.faults.gates import Caught, Gates
from tests.faults.location import BOOKED, LEASED, LETHAL
from tests.faults.task import History
from tests.gate.patience import PATIENCE
from tests.support import OwnServer, Work, rows, until, value
from tests.support.quick_start import quick_start

ROOT = Path(__file__).parents[2]
NAMES = ("leased", "booked")
INSTANCE = """
run_coordinator:
  module: tests.faults.daemonic
  class: GatedCoordinator
  config: {{dequeue_interval_seconds: 1, dequeue_use_threads: true, dequeue_num_workers: 4}}
run_launcher:
  module: tests.faults.daemonic
  class: GatedLauncher
concurrency:
  runs: {{max_concurrent_runs: {runs}}}
run_monitoring: {{enabled: true, start_timeout_seconds: {timeout}, poll_interval_seconds: 2}}
compute_logs:
  module: dagster._core.storage.noop_compute_log_manager
  class: NoOpComputeLogManager
telemetry: {{enabled: false}}
nux: {{enabled: false}}
"""

SLOTS = """
CREATE TABLE {s}.slot_audit (
    place bigint GENERATED ALWAYS AS IDENTITY, at timestamptz, deed text, queue text, slot smallint, token uuid,
    buckets smallint[], expires_at timestamptz
);
CREATE FUNCTION {s}.note_slot() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO {s}.slot_audit (at, deed, queue, slot, token, buckets, expires_at)
    SELECT clock_timestamp(), lower(TG_OP), s.queue, s.slot, s.token, s.buckets, s.expires_at
    FROM (SELECT (CASE WHEN TG_OP = 'DELETE' THEN OLD ELSE NEW END).*) AS s;
    RETURN NULL;
END $$;
CREATE TRIGGER note_slot AFTER INSERT OR UPDATE OR DELETE ON {s}.consumer_slot
    FOR EACH ROW EXECUTE FUNCTION {s}.note_slot();
CREATE TABLE {s}.effect (job uuid);
"""


@dataclass(frozen=True)
class Disturbance:
    """A time in which some buckets could not be worked off, because of the test.

    Attributes:
        point: where it hit.
        began, ended: as `time.time` has them.
        queue: whose; None: of every queue.
        buckets: which; None: all of them.
        kill: whether something was killed or crashed.
    """

    point: str
    began: float
    ended: float
    queue: str | None = None
    buckets: Sequence[int] | None = None
    kill: bool = True

    def hits(self, queue: str, bucket: int) -> bool:
        return self.queue in (None, queue) and (self.buckets is None or bucket in self.buckets)


class Deployment:
    """One deployment; everything in it can be killed by its own process id.

    Args:
        home: a directory for it.
        server: the database server.
        gives_up: whether a slot whose run does not start runs out soon, as this machine goes, and a lease with it.
        environment: beside the usual one, for all of its processes.
    """

    def __init__(self, home: Path, server: OwnServer, *, gives_up: bool = False, **environment: str) -> None:
        self._home = home
        self._socket = home / "code.sock"
        self.start_seconds = max(30.0, 12 * _pace()) if gives_up else 600.0
        patience = "SQLQUEUE_FAULTS_LEASE" if gives_up else "SQLQUEUE_FAULTS_START"
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("DAGSTER_", "SQLQUEUE_"))},
            "PYTHONPATH": os.pathsep.join(
                [str(ROOT), quick_start().get("PYTHONPATH", os.environ.get("PYTHONPATH", ""))]
            ),
            "DAGSTER_HOME": str(home / "dagster"),
            "SQLQUEUE_URL": server.url,
            "SQLQUEUE_FAULTS": str(home),
            patience: str(self.start_seconds),
            **environment,
        }
        self._groups: list[subprocess.Popen[bytes]] = []
        self._logs: dict[int, Path] = {}
        self._mine = History(home / "history-mine.jsonl")
        self.server = server
        self.gates = Gates(home / "gates")
        (home / "gates").mkdir()
        self.disturbances: list[Disturbance] = []
        self.enqueued = 0
        (home / "dagster").mkdir()
        self.configure()
        (home / "workspace.yaml").write_text(
            f"load_from:\n  - grpc_server: {{socket: {self._socket}, location_name: faults}}\n"
        )
        self.instance = dg.DagsterInstance.from_config(str(home / "dagster"))
        self.queue = SqlQueue(server.url)
        self.queue.migrate()
        # The leases are those of the queue's row: what the code of its processes says is a declaration.
        self.lease_seconds = float(self._environment.get("SQLQUEUE_FAULTS_LEASE", LEASED.lease_seconds))
        for spec in (LEASED, BOOKED):
            self.queue.create_queue(replace(spec, lease_seconds=self.lease_seconds))
        audited(self.queue)
        rows(self.queue, SLOTS)

    def configure(self, *, runs: int = 10) -> None:
        """Write the configuration that the next daemon reads: how many runs may be at work at a time; 0: all wait."""
        (self._home / "dagster" / "dagster.yaml").write_text(
            INSTANCE.format(runs=runs, timeout=round(3 * self.start_seconds))
        )

    def start_code_server(self) -> "subprocess.Popen[bytes]":
        """Start the code server, and wait until it serves."""
        self._socket.unlink(missing_ok=True)
        where = ["--socket", str(self._socket), "--location-name", "faults"]
        self.code = self._start("code", "-m", "dagster", "api", "grpc", "-m", "tests.faults.location", *where)
        client = DagsterGrpcClient(socket=str(self._socket))

        def serves() -> bool:
            with contextlib.suppress(DagsterUserCodeUnreachableError):
                return self._socket.exists() and bool(client.ping("there"))
            return False

        until(serves, "the code server", 2 * PATIENCE)
        return self.code

    def start_daemon(self) -> "subprocess.Popen[bytes]":
        """Start a daemon, and wait until its sensors tick."""
        self.daemon = self._start("daemon", "-m", "dagster._daemon", "run", "-w", str(self._home / "workspace.yaml"))
        daemon = self.daemon
        until(lambda: self.ticks(daemon), "the first tick", 2 * PATIENCE)
        return self.daemon

    def start_run(self, queue: str) -> "subprocess.Popen[bytes]":
        """Start a process that drains a queue by itself, without daemon and code server."""
        return self._start("run", "-c", f"from tests.faults.location import drain; drain({queue!r})")

    def kill_run(self, point: str) -> str | None:
        """Kill the run's process that comes to a gate. Gives the run's id, if the process has said it."""
        caught = self.gates.wait(point)
        os.kill(caught.pid, signal.SIGKILL)
        self._disturbed(point, caught.at, caught)
        self.gates.open(point)
        return caught.facts.get("run")

    def cancel_run(self, point: str) -> dg.DagsterRunStatus:
        """Cancel the run that comes to a gate, as the UI does. Gives what became of it."""
        caught = self.gates.wait(point)
        run_id = caught.facts["run"]
        assert self.instance.run_launcher.terminate(run_id)

        def ended() -> dg.DagsterRun | None:
            run = self.instance.get_run_by_id(run_id)
            return run if run and run.is_finished else None

        run: dg.DagsterRun = until(ended, f"the end of run {run_id}", 2 * PATIENCE)
        self._disturbed(point, caught.at, caught)
        return run.status

    def let_go(self, point: str) -> None:
        """Let the process go on that waits at a gate."""
        caught = self.gates.wait(point)
        self._disturbed(point, caught.at, caught, kill=False)
        self.gates.open(point)

    @contextlib.contextmanager
    def daemon_killed(self, point: str) -> Iterator[None]:
        """Kill the daemon, at a gate or anywhere, do what the block does, and start another one."""
        began = self._end(self.daemon, point)
        yield
        self.start_daemon()
        self._disturbed(point, began)

    @contextlib.contextmanager
    def code_server_killed(self, point: str) -> Iterator[None]:
        """Kill the code server, at a gate or anywhere, do what the block does, and start another one. The runs live on."""
        began = self._end(self.code, point)
        yield
        self.start_code_server()
        self._disturbed(point, began)

    def crash_database(self, point: str) -> None:
        """Have the database server end as if its machine had, and start it again."""
        began = time.time()
        self.server.stop("immediate")
        self.server.start()
        # What is enqueued next is not to meet a connection of before.
        self.queue.database.close()
        self._disturbed(point, began)

    def drained(self) -> None:
        """Wait until every job is finished, and no run covers a bucket any more."""
        # Leases of runs that were killed run out, some of them one after another.
        until(lambda: self._quiet(), "the end of the last job", 3 * PATIENCE + 3 * self.lease_seconds)

    def _quiet(self) -> bool:
        with contextlib.suppress(DatabaseUnavailable):
            return self.live() == 0 and not any(
                slots.taken(self.queue, name, sensor=f"{name}_sensor") for name in NAMES
            )
        return False

    def _disturbed(self, point: str, began: float, caught: Caught | None = None, kill: bool = True) -> None:
        facts = caught.facts if caught else {}
        self.disturbances.append(Disturbance(point, began, time.time(), facts.get("queue"), facts.get("buckets"), kill))

    def _end(self, process: "subprocess.Popen[bytes]", point: str) -> float:
        """Kill a process. Gives since when nothing went on because of that, or of the gate before."""
        caught = self.gates.caught(point)
        began = caught.at if caught else time.time()
        os.kill(process.pid, signal.SIGKILL)
        assert process.wait(PATIENCE) == -signal.SIGKILL
        self.gates.open(point)
        return began

    def enqueue(self, spec: QueueSpec[Any], count: int, *, lethal: int = -1, **more: Any) -> None:
        """Put jobs on a queue, and note them as acknowledged. The one at the place `lethal` kills what begins it."""
        notes = [LETHAL if n == lethal else "" for n in range(count)]
        jobs = [NewJob(Work(n=self.enqueued + n, note=note), id=uuid7(), **more) for n, note in enumerate(notes)]
        self.queue.enqueue_many(spec, jobs)
        self._mine.note("enqueued", ids=[str(job.id) for job in jobs])
        self.enqueued += count

    def histories(self) -> list[list[dict[str, Any]]]:
        """What every process has written down; a line that a kill cut off is left out."""
        found = []
        for path in self._home.glob("history-*.jsonl"):
            text = path.read_text()
            found.append([json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()])
        return found

    def live(self) -> int:
        """Jobs that are not finished."""
        return int(value(self.queue, "SELECT count(*) FROM {s}.job"))

    def end(self) -> None:
        """Leave no process behind."""
        for process in self._groups:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(PATIENCE)
        self.queue.close()
        self.instance.dispose()

    def log(self, name: str) -> str:
        """What the processes of a kind have printed."""
        return "".join(path.read_text() for path in sorted(self._home.glob(f"{name}-*.log")))

    def ticks(self, daemon: "subprocess.Popen[bytes]") -> int:
        """How many ticks of a sensor a daemon has evaluated."""
        return self._log(daemon).read_text().count("Checking for new runs for sensor")

    def _log(self, process: "subprocess.Popen[bytes]") -> Path:
        return self._logs[process.pid]

    def _start(self, name: str, *arguments: str) -> "subprocess.Popen[bytes]":
        path = self._home / f"{name}-{len(self._groups):02}.log"
        with path.open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, *arguments],
                env=self._environment,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._groups.append(process)
        self._logs[process.pid] = path
        return process


def _pace() -> float:
    """How long it takes to start a process that knows Dagster, in seconds: less than two on a machine that has time."""
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", "import dagster"], cwd=ROOT, check=True)
    return time.monotonic() - began
