"""The password is nowhere that Spark shows or writes: plans, settings, errors, the event log and the scratch files."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from sqlalchemy.engine import make_url

from dagster_sqlqueue import SqlQueue
from tests.spark import event_log_driver
from tests.spark.support import Done, archive

PROJECT = Path(__file__).resolve().parents[2]


@contextmanager
def event_log(session: SparkSession, directory: Path) -> Iterator[None]:
    """Have a session that is open already write what one of its own would from its first event on."""
    jvm, context = session.sparkContext._jvm, session.sparkContext._jsc.sc()
    assert jvm is not None
    conf = context.getConf().set("spark.eventLog.compress", "false")
    place = jvm.java.net.URI(directory.as_uri())
    listener = jvm.org.apache.spark.scheduler.EventLoggingListener("tests", jvm.scala.Option.empty(), place, conf)
    listener.start()
    context.addSparkListener(listener)
    try:
        context.postEnvironmentUpdate()
        yield
        context.listenerBus().waitUntilEmpty()
    finally:
        context.removeSparkListener(listener)
        listener.stop()


def by_the_session(
    session: SparkSession, secret: str, schema: str, log: Path, capfd: pytest.CaptureFixture[str]
) -> str:
    capfd.readouterr()
    with event_log(session, log):
        event_log_driver.read(session, secret, schema)
    said = capfd.readouterr()
    return said.out + said.err


def by_a_driver_of_its_own(secret: str, schema: str, log: Path) -> str:
    command = [sys.executable, event_log_driver.__file__, schema, log.as_uri()]
    environment = {**os.environ, "PYTHONPATH": str(PROJECT)}
    done = subprocess.run(command, env=environment, input=secret, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize("driver", ["the session's", pytest.param("its own", marks=pytest.mark.prove)])
def test_no_plan_no_event_log_and_no_error_holds_the_password(
    queue: SqlQueue, session: SparkSession, url: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], driver: str
) -> None:
    archive(queue, [Done({"n": 1}), Done({"n": "many"})])
    secret = make_url(url).set(password="hunter2").render_as_string(hide_password=False)
    where = (secret, queue.database.schema, tmp_path)
    said = by_the_session(session, *where, capfd) if driver == "the session's" else by_a_driver_of_its_own(*where)
    assert "sqlqueue" in said
    assert "Row(count(1)=2)" in said
    assert "the field 'payload.n' is 'many'" in said
    log = "".join(path.read_text(errors="replace") for path in tmp_path.rglob("*") if path.is_file())
    for event in ("SparkListenerSQLExecutionStart", "SparkListenerEnvironmentUpdate", "SparkListenerTaskEnd"):
        assert event in log
    for text in (said, log):
        assert "hunter2" not in text
