"""The password is nowhere that Spark shows or writes: plans, settings, errors, the event log and the scratch files."""

import os
import subprocess
import sys
from pathlib import Path

from sqlalchemy.engine import make_url

from dagster_sqlqueue import SqlQueue
from tests.spark.support import Done, archive

PROJECT = Path(__file__).resolve().parents[2]


def test_no_plan_no_event_log_and_no_error_holds_the_password(queue: SqlQueue, url: str, tmp_path: Path) -> None:
    archive(queue, [Done({"n": 1}), Done({"n": "many"})])
    secret = make_url(url).set(password="hunter2").render_as_string(hide_password=False)
    driver = Path(__file__).with_name("event_log_driver.py")
    environment = {**os.environ, "PYTHONPATH": str(PROJECT)}
    command = [sys.executable, driver, queue.database.schema, tmp_path.as_uri()]
    done = subprocess.run(command, env=environment, input=secret, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "sqlqueue" in done.stdout
    assert "Row(count(1)=2)" in done.stdout
    assert "the field 'payload.n' is 'many'" in done.stdout
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    log = "".join(path.read_text(errors="replace") for path in written)
    assert "SparkListenerSQLExecutionStart" in log
    for text in (done.stdout, done.stderr, log):
        assert "hunter2" not in text
