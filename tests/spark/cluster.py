"""A standalone Spark cluster on loopback, of the installed PySpark: a master and workers, which all can be killed.

Each worker has an address of its own: Spark never runs the speculative copy of a task on the host of the first.
"""

import contextlib
import os
import re
import signal
import subprocess
from pathlib import Path

import psutil
import pyspark

from dagster_sqlqueue.spark import class_cache
from dagster_sqlqueue.spark.java import find_java
from tests.gate.patience import PATIENCE
from tests.support import until

ROOT = Path(__file__).parents[2]
SPARK_HOME = Path(pyspark.__file__).parent
EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
_MASTER = re.compile(r"Starting Spark master at (spark://127\.0\.0\.1:\d+)")
_WORKER = re.compile(r"Registering worker (127\.0\.0\.\d+:\d+)")
"""A worker that waits long for the answer registers once more."""
JVM_PATIENCE = 3 * PATIENCE
"""For what takes JVMs that are started one after another, and each its Python workers."""


def driver_conf() -> dict[str, str]:
    """What the drivers on a cluster are configured with."""
    options = ["-XX:TieredStopAtLevel=1", *class_cache.options(find_java())]
    return {
        "spark.driver.host": "127.0.0.1",
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": " ".join(options),
    }


class Cluster:
    """A master and workers of one core each.

    Args:
        home: a directory for logs and the workers' files.
        workers: how many.
    """

    def __init__(self, home: Path, workers: int = 2) -> None:
        self._home = home
        self._workers = 0
        self._processes: list[subprocess.Popen[bytes]] = []
        try:
            log = self._start("master", "127.0.0.1", "org.apache.spark.deploy.master.Master")
            self.url = until(lambda: _MASTER.search(log.read_text()), "Spark's master", JVM_PATIENCE)[1]
            self.grow(workers)
        except BaseException:
            self.end()
            raise

    def grow(self, workers: int) -> None:
        """Have at least so many workers."""
        for n in range(self._workers, workers):
            size = ("--cores", "1", "--memory", "1g", "--work-dir", str(self._home / f"worker-{n}"))
            host = f"127.0.0.{n + 2}"
            self._start(f"worker-{n}", host, "org.apache.spark.deploy.worker.Worker", *size, self.url)
            self._workers += 1
        until(lambda: len(set(_WORKER.findall(self.log("master")))) >= workers, "Spark's workers", JVM_PATIENCE)

    def executors(self) -> list[psutil.Process]:
        """The executors' processes."""
        found = []
        for worker in self._processes[1:]:
            for child in psutil.Process(worker.pid).children():
                with contextlib.suppress(psutil.Error):
                    found += [child] if EXECUTOR in child.cmdline() else []
        return found

    def kill_executor_of(self, pid: int) -> None:
        """Kill the executor to which a Python worker belongs, as the kernel would for want of memory."""
        above = psutil.Process(pid).parents()
        found = [parent for parent in above if EXECUTOR in parent.cmdline()]
        assert len(found) == 1, [parent.cmdline() for parent in above]
        found[0].kill()

    def end(self) -> None:
        """Leave no process behind."""
        for process in reversed(self._processes):
            below = []
            with contextlib.suppress(psutil.Error):
                below = psutil.Process(process.pid).children(recursive=True)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(PATIENCE)
            for child in below:
                with contextlib.suppress(psutil.Error):
                    child.kill()
            psutil.wait_procs(below, PATIENCE)

    def log(self, name: str) -> str:
        """What a process printed: `master`, `worker-0`, …"""
        return (self._home / f"{name}.log").read_text()

    def _start(self, name: str, host: str, main: str, *arguments: str) -> Path:
        path = self._home / f"{name}.log"
        java = find_java()
        environment = {
            **os.environ,
            "JAVA_HOME": str(java.path),
            "PYTHONPATH": str(ROOT),
            "SPARK_HOME": str(SPARK_HOME),
            "SPARK_LOCAL_IP": host,
            "SPARK_LOCAL_DIRS": str(self._home),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": " ".join(["-XX:TieredStopAtLevel=1", *class_cache.options(java)]),
        }
        with path.open("wb") as log:
            process = subprocess.Popen(
                [
                    SPARK_HOME / "bin" / "spark-class",
                    main,
                    "--host",
                    host,
                    "--port",
                    "0",
                    "--webui-port",
                    "0",
                    *arguments,
                ],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._processes.append(process)
        return path
