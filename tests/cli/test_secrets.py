"""The database's password appears nowhere, and no error is a traceback."""

import pytest

from tests.cli.support import Cli

_SECRET = "s3cr3t-hunter2"


@pytest.mark.parametrize(
    ("url", "code"),
    [
        (f"postgresql://me:{_SECRET}@127.0.0.1:1/db", 3),
        (f"postgresql://me:{_SECRET}@no-such-host.invalid/db", 3),
        (f"postgresql://me:{_SECRET}@127.0.0.1:99999/db", 3),
        (f"mysql://me:{_SECRET}@127.0.0.1/db", 2),
        (f"postgresql://me:{_SECRET}@127.0.0.1:port/db", 2),
        (f"postgresql://me:12/{_SECRET}@127.0.0.1:1/db", 3),
        (f"postgresql://me/{_SECRET}@127.0.0.1/db", 2),
        (f"{_SECRET}", 2),
        (f"postgresql://me:{_SECRET}@127.0.0.1/db?nosuchoption=1", 3),
        (f"postgresql://127.0.0.1:1/db?password={_SECRET}", 3),
    ],
)
def test_no_error_shows_the_password(url: str, code: int) -> None:
    for cli, arguments in ((Cli({"SQLQUEUE_URL": url}), ()), (Cli({}), ("--url", url))):
        assert _SECRET not in cli.refused(code, "stats", *arguments)
        assert _SECRET not in cli.refused(code, "doctor", *arguments)


def test_a_url_in_the_wrong_place_is_not_repeated(cli: Cli) -> None:
    assert _SECRET not in cli.refused(2, f"postgresql://me:{_SECRET}@host/db")
    assert _SECRET not in cli.refused(2, "peek", "work", f"postgresql://me:{_SECRET}@host/db")
    assert "requires an argument" in cli.refused(2, "stats", "--url")


def test_a_wrong_password_of_a_real_process(url: str) -> None:
    done = Cli({"SQLQUEUE_URL": f"postgresql://me:{_SECRET}@127.0.0.1:1/db"}).process("stats")
    assert done.returncode == 3
    assert done.stdout == b""
    assert done.stderr.startswith(b"error: cannot use the database 127.0.0.1:1/db: ")
    assert _SECRET.encode() not in done.stderr
    assert done.stderr.count(b"\n") == 1
