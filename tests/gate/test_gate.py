"""The gate itself: what it says of tests that fail once, fail always, hang, or find a job lost."""

import ast
import itertools
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests import conftest
from tests.gate.patience import PATIENCE
from tests.support import until

PROJECT = Path(__file__).resolve().parents[2]

SETTINGS = "[pytest]\ntimeout_method = thread\naddopts = -p tests.gate.plugin\n"

TESTS = """
from pathlib import Path

from tests.gate.plugin import verdict


def test_passes():
    pass


def test_passes_alone():
    seen = Path("seen")
    before = seen.exists()
    seen.touch()
    assert before, "the first time"


def test_fails_always():
    assert 1 == 2


@verdict
def judge():
    return ["1 job whose enqueue was acknowledged is gone: 4711"]


def test_loses_a_job():
    seen = Path("judged")
    if not seen.exists():
        seen.touch()
        assert judge() == []


def test_plants_a_bug():
    assert judge()
"""

HANGS = """
import threading
from pathlib import Path

import pytest


@pytest.mark.timeout({seconds})
def test_hangs():
    Path("begun").touch()
    threading.Event().wait()


def test_passes():
    pass
"""


KEEPS_A_SERVER = """
import threading
from pathlib import Path

from tests.support import own_server


def test_hangs():
    with own_server() as server:
        Path("server").write_text(str(server.home))
        Path("begun").touch()
        threading.Event().wait()
"""


def begun(directory: Path, text: str, *arguments: str, **environment: str) -> "subprocess.Popen[str]":
    (directory / "pytest.ini").write_text(SETTINGS)
    (directory / "test_planted.py").write_text(text)
    return subprocess.Popen(
        [sys.executable, "-m", "tests.gate", *arguments],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(PROJECT), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def said(process: "subprocess.Popen[str]", code: int = 1) -> str:
    """What a gate has said, when it is over: one that found something, unless another exit code is expected."""
    with process:
        text, _ = process.communicate(timeout=4 * PATIENCE)
        assert process.returncode == code, text
        return text


def gate(directory: Path, text: str, **environment: str) -> str:
    return said(begun(directory, text, **environment))


def test_a_failure_is_tried_once_more_alone_and_a_verdict_is_not(tmp_path: Path) -> None:
    text = gate(tmp_path, TESTS)
    closing = text[text.index("the ten slowest tests") :]
    assert "UNSTEADY: test_planted.py::test_passes_alone failed, and passed alone. Its failure:" in closing
    assert "AssertionError: the first time" in closing
    assert "FAILED: test_planted.py::test_fails_always" in closing
    assert (
        "VERDICT, not tried again: test_planted.py::test_loses_a_job\n  1 job whose enqueue was acknowledged" in closing
    )
    assert "test_plants_a_bug" not in closing[closing.index("UNSTEADY") :]
    assert "1 unsteady, where at most 5 may be" in closing
    assert closing.rstrip().endswith("3 passed, 2 failed, 0 skipped")


def test_a_module_that_cannot_be_imported_is_red_and_one_that_is_skipped_is_counted(tmp_path: Path) -> None:
    (tmp_path / "test_broken.py").write_text("def test_never_found():\n    pass\n\n\nnowhere\n")
    (tmp_path / "test_skipped.py").write_text("import pytest\n\npytest.skip('nothing here', allow_module_level=True)\n")
    text = gate(tmp_path, "def test_passes():\n    pass\n")
    assert "name 'nowhere' is not defined" in text
    closing = text[text.index("the ten slowest tests") :]
    assert "FAILED: test_broken.py" in closing
    assert "skipped, 1 tests: Skipped: nothing here" in closing
    assert closing.rstrip().endswith("1 passed, 1 failed, 1 skipped")


def test_each_process_begins_with_long_tests_whatever_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_XDIST_WORKER_COUNT", "3")
    sizes = {
        "api": 40,
        "browser": 1,
        "cli": 50,
        "demo": 8,
        "faults": 20,
        "plans": 30,
        "queue": 60,
        "spark": 25,
        "worker": 5,
    }
    tests = [
        SimpleNamespace(path=PROJECT / "tests" / folder / "test_it.py", proves=folder == "faults" and number % 2 == 0)
        for folder, size in sizes.items()
        for number in range(size)
    ]
    dealing = conftest.pytest_collection_modifyitems(tests)  # type: ignore[arg-type]
    next(dealing)
    tests[:] = [test for test in tests if not test.proves]
    next(dealing, None)
    # As worksteal gives them out: to each process its share of those that are left.
    first = len(tests) // 3
    second = first + (len(tests) - first) // 2
    assert [tests[at].path.parent.name for at in (0, first, second)] == ["spark", "plans", "demo"]


IN_WHOLE = {"faults", "model", "spark", "browser", "orchestration", "definitions", "demo"}
"""Folders of which `make prove` runs every test. Of the others it runs what is marked."""


@pytest.mark.prove
def test_whatever_sizes_its_numbers_is_proved_with_the_whole_ones() -> None:
    tests = PROJECT / "tests"
    sizing = {
        str(file.relative_to(PROJECT))
        for file in tests.rglob("test_*.py")
        if file.parent.name not in {*IN_WHOLE, "gate"} and re.search(r"\bsized\(", file.read_text())
    }
    collected = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "prove", *sizing],
        cwd=PROJECT,
        env={**os.environ, "SQLQUEUE_TEST_SIZE": "full"},
        stdout=subprocess.PIPE,
        text=True,
        timeout=4 * PATIENCE,
    )
    assert {line.partition("::")[0] for line in collected.stdout.splitlines() if "::" in line} == sizing
    makefile = (PROJECT / "Makefile").read_text()
    assert all(f"tests/{folder}" in makefile or f"prove-{folder}" in makefile for folder in IN_WHOLE)


def test_a_test_that_hangs_is_ended_and_says_where(tmp_path: Path) -> None:
    text = gate(tmp_path, HANGS.format(seconds=2))
    assert "threading.Event().wait()" in text
    assert "FAILED: test_planted.py::test_hangs" in text
    assert text.rstrip().endswith("1 passed, 1 failed, 0 skipped")


def check_where(text: str) -> None:
    assert "was in test_planted.py::test_hangs" in text
    assert 'test_planted.py", line 11 in test_hangs' in text, text
    assert "RED" in text


@pytest.mark.prove
def test_a_run_that_is_terminated_twice_says_in_which_test_and_ends_by_itself(tmp_path: Path) -> None:
    process = begun(tmp_path, HANGS.format(seconds=0))
    until((tmp_path / "begun").exists, "the test that hangs")
    process.terminate()
    with process:
        assert process.stdout is not None
        before = itertools.takewhile(lambda line: "ENDED by SIGTERM" not in line, process.stdout)
        assert not any("RED" in line for line in before)
        process.terminate()
        text = process.stdout.read()
    check_where(text)
    assert "Terminated" not in text
    assert text.rstrip().endswith("RED: the run itself ended with -9")
    assert process.returncode == 1


@pytest.mark.prove
def test_a_run_that_is_terminated_leaves_no_server_behind(tmp_path: Path) -> None:
    process = begun(tmp_path, KEEPS_A_SERVER)
    until((tmp_path / "begun").exists, "the test that keeps a server")
    home = Path((tmp_path / "server").read_text())
    server = int((home / "data" / "postmaster.pid").read_text().split()[0])
    process.terminate()
    assert "ENDED by SIGTERM" in said(process)
    until(lambda: not Path(f"/proc/{server}").exists(), "the end of the server")
    assert not home.exists()


@pytest.mark.prove
def test_a_run_that_takes_too_long_is_ended_and_says_in_which_test(tmp_path: Path) -> None:
    text = gate(tmp_path, HANGS.format(seconds=0), SQLQUEUE_TEST_RUN_SECONDS=str(PATIENCE / 2))
    assert f"ENDED after {PATIENCE / 2:.0f} s" in text
    check_where(text)


UNSTEADY = """
from pathlib import Path

import pytest


@pytest.mark.parametrize("number", range({count}))
def test_passes_alone(number):
    seen = Path(f"seen{{number}}")
    before = seen.exists()
    seen.touch()
    assert before, "the first time"
"""


@pytest.mark.parametrize(("count", "code"), [(5, 0), (6, 1)])
def test_more_than_five_unsteady_ones_are_red(tmp_path: Path, count: int, code: int) -> None:
    text = said(begun(tmp_path, UNSTEADY.format(count=count)), code)
    assert text.count("UNSTEADY: test_planted.py::test_passes_alone[") == count
    assert f"{count} unsteady, where at most 5 may be" in text
    assert text.rstrip().endswith(f"{count} passed, 0 failed, 0 skipped")


LOOKS_AROUND = """
import os


def test_does_not_know_the_database():
    assert not {"SQLQUEUE_URL", "SQLQUEUE_SCHEMA", "SQLQUEUE_HOME"} & os.environ.keys()
"""


def test_no_test_finds_the_database_of_whoever_runs_it(tmp_path: Path) -> None:
    url = "postgresql://me@127.0.0.1:1/mine"
    said(begun(tmp_path, LOOKS_AROUND, SQLQUEUE_URL=url, SQLQUEUE_SCHEMA="mine", SQLQUEUE_HOME="/nowhere"), 0)


IN_TURN = """
import pytest


@pytest.mark.parametrize("number", range(30))
def test_notes_its_turn(number):
    with open("turns", "a") as turns:
        turns.write(f"{number} ")
"""


def test_the_order_is_random_and_that_of_the_seed_which_is_printed(tmp_path: Path) -> None:
    def turns(*arguments: str) -> list[str]:
        (tmp_path / "turns").unlink(missing_ok=True)
        text = said(begun(tmp_path, IN_TURN, *arguments), 0)
        assert "scheduling tests via WorkStealingScheduling" in text
        seeds.append(text.rpartition("\nseed ")[2].partition(";")[0])
        return (tmp_path / "turns").read_text().split()

    seeds: list[str] = []
    found = turns("-v", "-n", "1")
    assert sorted(found, key=int) == [str(number) for number in range(30)] != found
    assert turns("-v", "-n", "1", f"--randomly-seed={seeds[0]}") == found
    assert sorted(turns("-v"), key=int) == sorted(found, key=int)
    assert len(set(seeds)) == 3


CLOCKS = {"monotonic", "perf_counter", "time", "now"}
WAITS = {"wait", "result", "join", "communicate", "poll"}
"""Methods whose first argument is how long they wait, in seconds."""


def _is_elapsed(node: ast.AST, elapsed: set[str]) -> bool:
    """Whether an expression is how long something took: a clock's time less an earlier one, or a name for such."""
    match node:
        case ast.Name(id=name):
            return name in elapsed
        case ast.BinOp(op=ast.Sub(), left=ast.Call(func=ast.Attribute(attr=clock)), right=ast.Name()):
            return clock in CLOCKS
    return False


def hurried(text: str) -> list[int]:
    """The lines of a test that hold how long something took to a most, or that give a wait a number of its own."""
    tree = ast.parse(text)
    elapsed = {
        target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and _is_elapsed(node.value, set())
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    found = []
    for node in ast.walk(tree):
        match node:
            case ast.Assert(test=ast.Compare(left=first, ops=operators, comparators=others)):
                for left, operator, right in zip([first, *others], operators, others, strict=False):
                    most = left if isinstance(operator, ast.Lt | ast.LtE) else right
                    if isinstance(operator, ast.Lt | ast.LtE | ast.Gt | ast.GtE) and _is_elapsed(most, elapsed):
                        found.append(node.lineno)
            case ast.keyword(arg="timeout", value=ast.Constant(value=float() | int())):
                found.append(node.value.lineno)
            case ast.Call(func=ast.Attribute(attr=wait), args=[ast.Constant(value=float() | int() as seconds), *_]):
                # Shorter ones are pauses: nothing is expected within them.
                if wait in WAITS and seconds > 1:
                    found.append(node.lineno)
    return found


HURRIED = """
began = time.monotonic()
assert time.monotonic() - began < 5
took = time.perf_counter() - began
assert 0 < took <= PATIENCE
assert 5 > took
process.wait(timeout=20)
future.result(30)
"""

PATIENT = """
assert 0 < stats.oldest_seconds <= time.monotonic() - began
assert took >= 0.3
process.wait(timeout=PATIENCE)
future.result(PATIENCE)
pause.wait(0.1)
"""


def test_no_test_hurries_and_all_have_one_patience() -> None:
    assert sorted(hurried(HURRIED)) == [3, 5, 6, 7, 8]
    assert hurried("took = time.time() - began" + PATIENT) == []
    files = sorted((PROJECT / "tests").rglob("*.py"))
    assert len(files) > 300
    found = {str(file.relative_to(PROJECT)): lines for file in files if (lines := hurried(file.read_text()))}
    (helper,) = found.pop("tests/support/__init__.py")
    assert "waited < seconds" in (PROJECT / "tests/support/__init__.py").read_text().splitlines()[helper - 1]
    assert found == {}
