"""The database's password appears nowhere, and no error is a traceback."""

import pytest

from dagster_sqlqueue import SqlQueue
from dagster_sqlqueue.cli.exit_codes import Code
from tests.cli.support import ARGUMENTS, COMMANDS, Cli
from tests.support import rows

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
        (f"postgresql://me:{_SECRET}@127.0.0.1/db?nosuchoption=1", 2),
        (f"postgresql://127.0.0.1:1/db?password={_SECRET}", 3),
    ],
)
def test_no_error_shows_the_password(url: str, code: int) -> None:
    for cli, arguments in ((Cli({"SQLQUEUE_URL": url}), ()), (Cli({}), ("--url", url))):
        assert _SECRET not in cli.refused(code, "stats", *arguments)
        assert _SECRET not in cli.refused(code, "doctor", *arguments)


# One needs no database; the other waits for it, and is tested in a process of its own.
_NOT_REFUSED = {"schema", "metrics"}
_CODES = {"up": Code.INPUT}
"""What refuses any database but its own does not ask whether it is there."""


@pytest.mark.parametrize("host", ["127.0.0.1:1", pytest.param("no-such-host.invalid", marks=pytest.mark.prove)])
def test_no_command_shows_the_password(host: str) -> None:
    cli = Cli({"SQLQUEUE_URL": f"postgresql://me:{_SECRET}@{host}/db"})
    assert set(ARGUMENTS) < set(COMMANDS)
    for command in COMMANDS:
        assert _SECRET not in cli.run(*command.split(), "--help").output
        if command in _NOT_REFUSED:
            continue
        arguments = [*command.split(), *ARGUMENTS.get(command, [])]
        code = _CODES.get(command, Code.DATABASE)
        assert _SECRET not in cli.refused(code, *arguments)
        assert _SECRET not in cli.refused(code, *arguments, "--json")


def test_what_nobody_foresaw_is_one_line_without_the_password(bare: Cli, fresh: SqlQueue) -> None:
    rows(fresh, "ALTER TABLE {s}.queue DROP CONSTRAINT queue_strategy_check")
    rows(fresh, "UPDATE {s}.queue SET strategy = %s", f"postgresql://me:{_SECRET}@127.0.0.1:1/db")
    said = bare.refused(1, "queues")
    assert said.startswith("unexpected ValueError: ")
    assert "SQLQUEUE_TRACEBACK=1 shows where" in said
    assert _SECRET not in said
    assert b"Traceback" in bare.process("queues", SQLQUEUE_TRACEBACK="1").stderr


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
