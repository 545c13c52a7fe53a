"""A Spark driver in a JVM of this process's own: how it is configured, started and ended."""

import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.spark.java import JavaHome
from dagster_sqlqueue.spark.python import worker_python
from dagster_sqlqueue.spark.scratch import scratch_directory
from dagster_sqlqueue.spark.settings import SparkSettings

logger = logging.getLogger("dagster_sqlqueue")

_MOST_CAUSES = 20

# The gateway's own level is what Spark takes for a Python session's, and announces where the root's differs.
_LOGGING = """
rootLogger.level = {level}
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{{yy/MM/dd HH:mm:ss}} %p %c{{1}}: %m%n%ex
"""


@contextmanager
def own_driver(
    settings: SparkSettings, java: JavaHome, java_options: Sequence[str] = (), end_seconds: float = 30
) -> Iterator[SparkSession]:
    """Yield a session for the block, whose JVM ends with it.

    Args:
        settings: of the session.
        java: that the driver's JVM runs on.
        java_options: of the JVM, beside those that every one has.
        end_seconds: how long the JVM may take to end before it is killed.

    Raises:
        InvalidInput: Spark does not start with these settings.
    """
    with scratch_directory() as scratch:
        conf = {**conf_of(settings, Path(scratch), java_options), **settings.conf}
        environment = {
            "JAVA_HOME": str(java.path),
            "SPARK_LOCAL_DIRS": scratch,
            "PYSPARK_PYTHON": conf["spark.pyspark.python"],
            **({"SPARK_LOCAL_IP": "127.0.0.1"} if settings.local else {}),
        }
        try:
            with _environment(environment):
                yield _start(settings, conf)
        finally:
            _stop(end_seconds)


def _start(settings: SparkSettings, conf: Mapping[str, str]) -> SparkSession:
    builder = SparkSession.builder.appName(settings.app_name).master(settings.master)
    for key, value in conf.items():
        builder = builder.config(key, value)
    try:
        with _interrupts():
            return builder.getOrCreate()
    except (PySparkException, Py4JError) as error:
        java = getattr(error, "java_exception", None)
        reason = str(error) if java is None else causes(java)
        raise InvalidInput(
            f"Spark does not start with master {settings.master!r} and driver memory {settings.driver_memory!r}:"
            f" {reason.strip()} What Java wrote on standard error says more"
        ) from error


def causes(java: Any) -> str:
    """Return the messages of a Java exception and of what caused it, without repetitions: often only a cause names the
    address, or the permission.
    """
    said: list[str] = []
    here, seen = java, 0
    while here is not None and seen < _MOST_CAUSES:
        message = str(here.getMessage() or here.toString()).strip()
        if not any(message in earlier for earlier in said):
            said.append(message)
        here, seen = here.getCause(), seen + 1
    return "; caused by: ".join(said)


def _stop(seconds: float) -> None:
    """Stop session and JVM, whatever state they are in; their errors do not hide one of the block."""
    context = SparkContext._active_spark_context
    try:
        if context is not None:
            (SparkSession.getActiveSession() or SparkSession(context)).stop()
    except Exception as error:
        logger.warning("Spark was not there any more to be stopped: %s", error)
        SparkContext._active_spark_context = None
        SparkSession._instantiatedSession = None
    finally:
        _end_gateway(seconds)


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def _interrupts() -> Iterator[None]:
    """Spark replaces the handler of Ctrl-C, such as Dagster's, and keeps its own even when stopped. The end of the
    block stops the jobs as well.
    """
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, before)


def conf_of(settings: SparkSettings, scratch: Path, java_options: Sequence[str]) -> dict[str, str]:
    """Return Spark's settings, beside the user's.

    Args:
        settings: of the session.
        scratch: a directory of the session's own.
        java_options: of the driver's JVM, beside those that every driver has.
    """
    logging_conf = scratch / "log4j2.properties"
    logging_conf.write_text(_LOGGING.format(level=settings.log_level.lower()))
    options = [
        "-Djava.net.preferIPv4Stack=true",
        f'"-Dlog4j2.configurationFile={logging_conf.as_uri()}"',
        *java_options,
    ]
    if settings.fast_start:
        options.append("-XX:TieredStopAtLevel=1")
    conf = {
        "spark.driver.memory": settings.driver_memory,
        "spark.driver.extraJavaOptions": " ".join(options),
        "spark.pyspark.python": sys.executable,
        "spark.pyspark.driver.python": sys.executable,
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(settings.shuffle_partitions),
        "spark.ui.enabled": str(settings.ui).lower(),
        "spark.ui.showConsoleProgress": "false",
        # Batches of rows come from Python workers through it; Spark's 64 KiB takes them in many pieces.
        "spark.buffer.size": str(2**20),
    }
    if settings.local:  # a cluster's executors call the driver, and have no access to its directories
        conf |= {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.sql.warehouse.dir": str(scratch / "warehouse"),
            "spark.pyspark.python": worker_python(scratch),
        }
    elif settings.driver_host is not None:
        conf["spark.driver.host"] = settings.driver_host
    return conf


def _end_gateway(seconds: float) -> None:
    """Stopping a session leaves its JVM to the end of this process; a long-lived one would accumulate them."""
    gateway = SparkContext._gateway
    SparkContext._gateway = SparkContext._jvm = None
    if gateway is None:
        return
    process = getattr(gateway, "proc", None)
    gateway.shutdown()
    if process is None:
        return
    process.stdin.close()
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
