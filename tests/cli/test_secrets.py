"""The database's password appears nowhere, and no error is a traceback."""

import pytest

from dagster_sqlqueue import SqlQueue
from dagster_sqlqueue.cli.exit_codes import Code
from tests.cli.support import COMMANDS, Cli
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
        (f"postgresql://me:{_SECRET}@127.0.0.1/db?nosuchoption=1", 3),
        (f"postgresql://127.0.0.1:1/db?password={_SECRET}", 3),
    ],
)
def test_no_error_shows_the_password(url: str, code: int) -> None:
    for cli, arguments in ((Cli({"SQLQUEUE_URL": url}), ()), (Cli({}), ("--url", url))):
        assert _SECRET not in cli.refused(code, "stats", *arguments)
        assert _SECRET not in cli.refused(code, "doctor", *arguments)


_JOB = "0199a1b2-c3d4-7e5f-8a6b-7c8d9e0f1a2b"
_ARGUMENTS = {
    "batch show": ["sizes/2013-07-04"],
    "batch abandon": ["sizes/2013-07-04"],
    "batch forget": ["sizes/2013-07-04"],
    "create": ["orders"],
    "enqueue": ["orders", "{}"],
    "publish": ["orders", "{}"],
    "subscribe": ["orders", "billing", "invoices"],
    "unsubscribe": ["orders", "billing"],
    "work": ["deploy.handlers:send_email"],
    "peek": ["orders"],
    "list": ["orders"],
    "show": [_JOB],
    "explain": [_JOB],
    "wait": [_JOB],
    "follow": [_JOB, "--callback", "invoices"],
    "group add": [_JOB, _JOB],
    "group close": [_JOB],
    "group show": [_JOB],
    "dead": ["orders"],
    "retry": ["orders", "--all"],
    "cancel": ["orders", "--all"],
    "hold": ["orders", "--all"],
    "release": ["orders", "--all"],
    "reschedule": ["orders", "--all", "--for", "5"],
    "reprioritise": ["orders", "--all", "--priority", "5"],
    "delete": ["orders", "--all"],
    "purge": ["orders"],
    "pause": ["orders"],
    "resume": ["orders"],
    "rebucket": ["orders", "8"],
    "region": ["orders"],
    "schedule put": ["orders", "nightly", "{}", "--every", "5"],
    "schedule next": ["orders", "nightly"],
    "schedule pause": ["orders", "nightly"],
    "schedule resume": ["orders", "nightly"],
    "schedule remove": ["orders", "nightly"],
    "people rule": ["orders"],
    "people hand-over": ["orders", "--all", "--by", "boss", "--reason", "hard"],
    "people route": ["orders", "--by", "boss"],
    "people adopt": ["orders", "--by", "boss"],
    "people tasks": ["orders"],
    "people take": ["orders", "--operator", "anna"],
    "people my-jobs": ["anna"],
    "people assign": [_JOB, "--to", "anna", "--by", "boss"],
    "people unassign": [_JOB, "--by", "boss"],
    "people hold": [_JOB, "--by", "boss"],
    "people resume": [_JOB, "--by", "boss"],
    "people reschedule": [_JOB, "--for", "5", "--by", "boss"],
    "people submit": [_JOB, "--operator", "anna"],
    "people approve": [_JOB, "--by", "boss"],
    "people reject": [_JOB, "--by", "boss", "--reason", "no"],
    "people give-back": [_JOB, "--by", "boss"],
    "people history": [_JOB],
}


# One needs no database; the other waits for it, and is tested in a process of its own.
_NOT_REFUSED = {"schema", "metrics"}
_CODES = {"up": Code.INPUT}
"""What refuses any database but its own does not ask whether it is there."""


@pytest.mark.parametrize("host", ["127.0.0.1:1", pytest.param("no-such-host.invalid", marks=pytest.mark.prove)])
def test_no_command_shows_the_password(host: str) -> None:
    cli = Cli({"SQLQUEUE_URL": f"postgresql://me:{_SECRET}@{host}/db"})
    assert set(_ARGUMENTS) < set(COMMANDS)
    for command in COMMANDS:
        assert _SECRET not in cli.run(*command.split(), "--help").output
        if command in _NOT_REFUSED:
            continue
        arguments = [*command.split(), *_ARGUMENTS.get(command, [])]
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
