"""A Spark session, with the Java found, the workers on this Python, and nothing listening beyond loopback."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors.exceptions.captured import CapturedException
from pyspark.sql import SparkSession

from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.spark import class_cache
from dagster_sqlqueue.spark.connect import remote_session, running_remote
from dagster_sqlqueue.spark.driver import own_driver
from dagster_sqlqueue.spark.java import find_java
from dagster_sqlqueue.spark.master_check import check_configured, check_reachable
from dagster_sqlqueue.spark.settings import SparkSettings as SparkSettings

_lock = threading.Lock()
_users = 0
_opened = ExitStack()


@contextmanager
def open_spark(settings: SparkSettings | None = None) -> Iterator[SparkSession]:
    """Yield a session for the block, stopped when the last block that uses it ends; one that was started elsewhere is
    used and left running.

    Raises:
        JavaNotFound: no Java that Spark can use.
        InvalidInput: Spark does not start with these settings, its master or Connect server cannot be reached, or the
            process has a session of the other kind already.
    """
    global _users
    chosen = settings or SparkSettings()
    with _lock:
        running = _usable(chosen)
        session = running or _opened.enter_context(_session(chosen))
        ours = running is None or _users > 0
        _users += ours
    try:
        with interrupts_stay():
            yield session
    except BaseException as error:
        if ours:
            _keep_words(error)
        raise
    finally:
        with _lock:
            _users -= ours
            if ours and not _users:
                _opened.close()


def _keep_words(error: BaseException) -> None:
    """Errors of Spark's ask its JVM for their words whenever they are shown: mostly when that has ended with the block."""
    here: BaseException | None = error
    while here is not None:
        kind = type(here)
        if isinstance(here, CapturedException):
            with suppress(AssertionError, Py4JError, OSError):
                words = str(here)
                own = {"__str__": lambda _, words=words: words, "__module__": kind.__module__}
                here.__class__ = type(kind.__name__, (kind,), own)
        here = here.__cause__ or here.__context__


@contextmanager
def interrupts_stay() -> Iterator[None]:
    """Interrupted in the middle of a call, Py4J tidies up over the connection that the interrupt broke, and raises that:
    out of the block comes the interrupt.
    """
    try:
        yield
    except Py4JError as error:
        if interrupt := _interrupt_behind(error):
            raise interrupt from error
        raise


def _interrupt_behind(error: BaseException) -> BaseException | None:
    """Return the KeyboardInterrupt or SystemExit, Dagster's included, during whose handling the error arose."""
    behind = error.__context__
    while behind is not None and isinstance(behind, Exception):
        behind = behind.__context__
    return behind


@contextmanager
def _session(chosen: SparkSettings) -> Iterator[SparkSession]:
    if chosen.remote is not None:
        with remote_session(chosen) as session:
            yield session
        return
    check_configured(chosen.master)
    check_reachable(chosen.master, chosen.reach_seconds, chosen.conf)
    java = find_java()
    with own_driver(chosen, java, class_cache.options(java)) as session:
        yield session


def _usable(chosen: SparkSettings) -> SparkSession | None:
    """Return the session that is open in this process, if there is one: a process has sessions of one kind only."""
    here, remote = _running(), running_remote()
    if here is not None and chosen.remote is not None:
        raise InvalidInput(
            f"this process has a Spark of its own already, and cannot use Spark Connect at {chosen.where} beside it: stop"
            " that session first, or leave `remote` out"
        )
    return here or remote


def _running() -> SparkSession | None:
    context = SparkContext._active_spark_context
    if context is None or context._jsc is None:
        return None
    # The active session is a matter of the thread, and the context one of the process.
    return SparkSession.getActiveSession() or SparkSession(context)
