"""A Spark session, with the Java found, the workers on this Python, and nothing listening beyond loopback."""

import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.spark.java import find_java

logger = logging.getLogger("dagster_sqlqueue")

# The gateway's own level is what Spark takes for a Python session's, and announces where the root's differs.
_LOGGING = """
rootLogger.level = error
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{yy/MM/dd HH:mm:ss} %p %c{1}: %m%n%ex
"""


@dataclass(frozen=True, slots=True)
class SparkSettings:
    """How to open a session.

    Args:
        app_name: what Spark's UI and logs call it.
        master: `local[*]`, or a cluster's URL.
        driver_memory: the heap of the driver's JVM.
        shuffle_partitions: partitions of a shuffle.
        fast_start: compile with the first JIT tier only: a third less start-up, slower after minutes.
        conf: further settings; they win.
    """

    app_name: str = "dagster-sqlqueue"
    master: str = "local[*]"
    driver_memory: str = "2g"
    shuffle_partitions: int = 4
    fast_start: bool = True
    conf: Mapping[str, str] = field(default_factory=dict)


_lock = threading.Lock()
_users = 0
_opened = ExitStack()


@contextmanager
def open_spark(settings: SparkSettings | None = None) -> Iterator[SparkSession]:
    """A session for the block, stopped when the last block that uses it ends; one that was started elsewhere is used and
    left running.

    Raises:
        JavaNotFound: no Java that Spark can use.
        InvalidInput: Spark does not start with these settings, or its master cannot be reached.
    """
    global _users
    with _lock:
        running = _running()
        session = running or _opened.enter_context(_session(settings or SparkSettings()))
        ours = running is None or _users > 0
        _users += ours
    try:
        yield session
    except Py4JError as error:
        # Interrupted in the middle of a call, Py4J tidies up over the connection that the interrupt broke, and raises that.
        if interrupt := _interrupt_behind(error):
            raise interrupt from error
        raise
    finally:
        with _lock:
            _users -= ours
            if ours and not _users:
                _opened.close()


def _interrupt_behind(error: BaseException) -> BaseException | None:
    """The KeyboardInterrupt or SystemExit, Dagster's included, while whose handling the error arose."""
    behind = error.__context__
    while behind is not None and isinstance(behind, Exception):
        behind = behind.__context__
    return behind


@contextmanager
def _session(chosen: SparkSettings) -> Iterator[SparkSession]:
    _check_reachable(chosen.master)
    local = chosen.master.startswith("local")
    with tempfile.TemporaryDirectory(prefix="sqlqueue-spark-", ignore_cleanup_errors=True) as scratch:
        conf = {**_conf(chosen, Path(scratch), local), **chosen.conf}
        environment = {
            "JAVA_HOME": str(find_java().path),
            "SPARK_LOCAL_DIRS": scratch,
            "PYSPARK_PYTHON": conf["spark.pyspark.python"],
            **({"SPARK_LOCAL_IP": "127.0.0.1"} if local else {}),
        }
        try:
            with _environment(environment):
                yield _start(chosen, conf)
        finally:
            _stop()


def _start(settings: SparkSettings, conf: Mapping[str, str]) -> SparkSession:
    builder = SparkSession.builder.appName(settings.app_name).master(settings.master)
    for key, value in conf.items():
        builder = builder.config(key, value)
    try:
        with _interrupts():
            return builder.getOrCreate()
    except (PySparkException, Py4JError) as error:
        java = getattr(error, "java_exception", None)
        reason = str(error) if java is None else str(java.getMessage())
        raise InvalidInput(
            f"Spark does not start with master {settings.master!r} and driver memory {settings.driver_memory!r}:"
            f" {reason.strip()} What Java wrote on standard error says more"
        ) from error


def _stop() -> None:
    """Stop session and JVM, whatever state they are in; an error in the block is not to be hidden by one of these."""
    context = SparkContext._active_spark_context
    try:
        if context is not None:
            (SparkSession.getActiveSession() or SparkSession(context)).stop()
    except Exception as error:
        logger.warning("Spark was not there any more to be stopped: %s", error)
        SparkContext._active_spark_context = None
        SparkSession._instantiatedSession = None
    finally:
        _end_gateway()


def _running() -> SparkSession | None:
    context = SparkContext._active_spark_context
    if context is None or context._jsc is None:
        return None
    # The active session is a matter of the thread, and the context one of the process.
    return SparkSession.getActiveSession() or SparkSession(context)


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
    """Spark takes Ctrl-C from whoever had it, Dagster say, and keeps it even when stopped. The end of the block
    stops the jobs as well.
    """
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, before)


def _conf(settings: SparkSettings, scratch: Path, local: bool) -> dict[str, str]:
    logging_conf = scratch / "log4j2.properties"
    logging_conf.write_text(_LOGGING)
    options = f'-Djava.net.preferIPv4Stack=true "-Dlog4j2.configurationFile={logging_conf.as_uri()}"'
    conf = {
        "spark.driver.memory": settings.driver_memory,
        "spark.driver.extraJavaOptions": options + (" -XX:TieredStopAtLevel=1" if settings.fast_start else ""),
        "spark.pyspark.python": sys.executable,
        "spark.pyspark.driver.python": sys.executable,
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(settings.shuffle_partitions),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    if local:  # a cluster's executors call the driver, and do not see its directories
        conf |= {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        }
    return conf


def _check_reachable(master: str) -> None:
    """Spark itself tries for a minute, and then says nothing of the address."""
    if not master.startswith("spark://"):
        return
    reasons = []
    for address in master.removeprefix("spark://").split(","):
        host, _, port = address.rpartition(":")
        try:
            with socket.create_connection((host.strip("[]"), int(port)), timeout=5):
                return
        except (OSError, ValueError) as error:
            reasons.append(f"{address}: {getattr(error, 'strerror', None) or error}")
    raise InvalidInput(
        f"Spark's master {master!r} cannot be reached ({'; '.join(reasons)}). Start it, correct the address, or use local[*]"
    )


def _end_gateway() -> None:
    """Stopping a session leaves its JVM to the end of this process; a long-lived one would gather them."""
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
        process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
