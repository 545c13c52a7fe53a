"""A Spark Connect server on loopback, of the installed PySpark."""

import contextlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil

from dagster_sqlqueue.spark import class_cache
from dagster_sqlqueue.spark.java import find_java
from tests.gate.patience import PATIENCE
from tests.spark.cluster import JVM_PATIENCE, ROOT, SPARK_HOME
from tests.support import until

_STARTED = re.compile(r"Spark Connect server started at: (127\.0\.0\.1:\d+)")


class ConnectServer:
    """A server, which writes an event log.

    Args:
        home: a directory for logs.
        port: to listen on; 0: one that is free.
    """

    def __init__(self, home: Path, port: int = 0) -> None:
        self.log = home / "connect.log"
        self.events = home / "events"
        self.events.mkdir()
        java = find_java()
        options = ["-XX:TieredStopAtLevel=1", *class_cache.options(java)]
        conf = {
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": str(port),
            "spark.driver.extraJavaOptions": " ".join(options),
            "spark.eventLog.enabled": "true",
            "spark.eventLog.dir": self.events.as_uri(),
            "spark.ui.enabled": "false",
        }
        environment = {
            **os.environ,
            "JAVA_HOME": str(java.path),
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": str(ROOT),
            "SPARK_HOME": str(SPARK_HOME),
            "SPARK_LOCAL_DIRS": str(home),
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        command = [SPARK_HOME / "bin" / "spark-submit", "--master", "local[2]", "--driver-memory", "1g"]
        command += [part for name, value in conf.items() for part in ("--conf", f"{name}={value}")]
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [*command, "--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"],
                env=environment,
                cwd=home,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            self.url = "sc://" + until(lambda: _STARTED.search(self.log.read_text()), "Spark Connect", JVM_PATIENCE)[1]
        except BaseException:
            self.end()
            raise
        self.port = int(self.url.rpartition(":")[2])

    def end(self) -> None:
        """Leave no process behind."""
        below = []
        with contextlib.suppress(psutil.Error):
            below = psutil.Process(self._process.pid).children(recursive=True)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(PATIENCE)
        for child in below:
            with contextlib.suppress(psutil.Error):
                child.kill()
        psutil.wait_procs(below, PATIENCE)
