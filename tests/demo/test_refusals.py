"""What cannot be used is said in one line: by a call in this process, in `make prove` by a process of its own as well."""

import socket
from pathlib import Path

import pytest

from tests.demo.running import Refusal, finished, start


def said_by_a_process(home: Path, module: str = "definitions.demo", **more: str) -> str:
    process = start(home, module, **more)
    output = finished(process)
    assert process.returncode == 1, output
    return output


@pytest.fixture(params=["call", pytest.param("process", marks=pytest.mark.prove)])
def refusal(request: pytest.FixtureRequest) -> Refusal:
    """Starts the demo or the UI, which has to refuse, and returns what it says."""
    if request.param == "process":
        return said_by_a_process
    called: Refusal = request.getfixturevalue("said_by_a_call")
    return called


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"FLIGHTS": "2014-01"}, "2014-01"),
        ({"FLIGHTS": "soon"}, "soon"),
        ({"SQLQUEUE_URL": "postgresql://me:s3cret@127.0.0.1:1/nowhere"}, "cannot use the database 127.0.0.1:1/nowhere"),
        ({"SQLQUEUE_URL": "mysql://me:s3cret@127.0.0.1/db"}, "this release works with PostgreSQL"),
        ({"SQLQUEUE_SCHEMA": "drop table"}, "'drop table' is not usable"),
    ],
)
def test_bad_settings_get_one_clear_line(
    tmp_path: Path, refusal: Refusal, settings: dict[str, str], expected: str
) -> None:
    output = refusal(tmp_path, **settings)
    assert "error:" in output
    assert expected in output
    assert "Traceback" not in output
    assert "s3cret" not in output


def test_a_state_directory_that_cannot_be_one(tmp_path: Path, refusal: Refusal) -> None:
    file = tmp_path / "file"
    file.write_text("not a directory")
    output = refusal(file)
    assert f"{file} cannot be written to" in output
    assert "SQLQUEUE_HOME" in output


def test_the_ui_says_when_its_port_is_taken(tmp_path: Path, refusal: Refusal) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        output = refusal(tmp_path, "definitions.ui", SQLQUEUE_UI_PORT=str(port))
    assert f"port {port} cannot be used for the UI" in output
