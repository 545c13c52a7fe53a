"""Tables in a terminal of 80 columns: ids and numbers are whole, and what does not fit is below, named."""

import contextlib
import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from uuid import UUID

import pytest
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from dagster_sqlqueue import NewJob, QueueSpec, SqlQueue
from dagster_sqlqueue.cli.output import render
from dagster_sqlqueue.model.job import ArchiveState
from dagster_sqlqueue.queue import Ending
from tests.cli.support import PROJECT, Cli
from tests.gate.patience import PATIENCE
from tests.support import Work, rows
from tests.support.cleared import cleared

WIDTH = 80
MANY = 10_001
QUEUE = "shipments_eu_west"
LONG = "no address of the customer was found in the directory of the branch office"

IDS = {
    name: str(UUID(int=0x0199A1B2C3D47E5F8A6B7C8D9E0F0000 + number))
    for number, name in enumerate(("live", "dead", "task", "member", "group"), 1)
}

_ALL_IN_ONE = """
import shlex
import sys

from dagster_sqlqueue.cli import app

for line in sys.argv[1:]:
    print("$", line, flush=True)
    try:
        app(shlex.split(line), prog_name="sqlqueue")
    except SystemExit as end:
        print("exit", end.code, flush=True)
"""

TABLES = {
    "stats": [QUEUE, "10,000+", "scheduled", "wait p95", "run p95", "dead"],
    f"stats {QUEUE}": ["10,000+", "dead letters"],
    f"queues {QUEUE}": ["1,000 running, 1,000 starts per 1 min"],
    "queues": [QUEUE, "round_robin", "30 days", "limits 1,000 running, 1,000 starts per 1 min"],
    f"list {QUEUE} --tag rare": [IDS["live"], "due 2037-01-31 08:00:00Z", "unique order-1", '{"n":'],
    f"list {QUEUE} --archived": [IDS["dead"], "failed", "1/3", "no address of the customer"],
    f"dead {QUEUE}": [IDS["dead"], "1/3", "no address of the customer"],
    f"peek {QUEUE} --limit 3": ["queued", "0/3"],
    f"show {IDS['live']}": ["order-1"],
    f"show {IDS['dead']}": ["no address of the customer"],
    f"retry {IDS['dead']} {IDS['dead']} --dry-run": [IDS["dead"]],
    f"cancel {QUEUE} {IDS['dead']} --dry-run": [IDS["dead"], "because"],
    f"delete {QUEUE} {IDS['dead']} {IDS['live']} --dry-run": [IDS["dead"], IDS["live"]],
    f"purge {QUEUE} --dry-run": ["at least 5,000 jobs would be deleted", "(the first 20 of at least 5,000)"],
    "schedule list": ["0 3 * * * in Europe/Berlin", "a-name-of-a-schedule", "next"],
    f"schedule next {QUEUE} a-name-of-a-schedule": ["Europe/Berlin", "03:00:00 +0"],
    "subscriptions": ["topic-of-many-words", "name-of-a-subscription", QUEUE, '{"country": "NZ"}', "delay 5 min"],
    "group list": [IDS["group"], "is open", "pending", f"callback {QUEUE}"],
    f"group show {IDS['group']}": [IDS["group"], IDS["member"], "has not ended"],
    f"people tasks {QUEUE} --stage assigned": [IDS["task"], "assigned", "anna", "rev", "four eyes"],
    "people my-jobs anna": [IDS["task"]],
    f"people history {IDS['task']}": ["hand over", "anna", "take"],
    "batch list": ["daily_sizes_by_account/2037-01-31", "sealed", "run/0199a1b2", "not moved", "no address of the customer"],
    "batch show daily_sizes_by_account/2037-01-31": ["run/0199a1b2"],
    "doctor": ["isolation"],
}  # fmt: skip
"""What must be in a line of each, unbroken."""


@pytest.fixture(scope="module")
def lines(shared: SqlQueue, url: str) -> dict[str, list[str]]:
    """What each command shows in the terminal, line by line; all of them in one process, which takes a while to start."""
    cli = Cli({"SQLQUEUE_URL": url, "SQLQUEUE_SCHEMA": shared.database.schema})
    spec = QueueSpec(QUEUE, Work, bucket_count=4, max_attempts=3)
    cleared(shared, spec)
    cli.run("create", QUEUE, "--max-running", "1000", "--rate", "1000/60s", "--retention-days", "30")
    _fill(shared, spec, cli)
    shared.enqueue_many(spec, (NewJob(Work(n=n)) for n in range(MANY)))
    said = _in_a_terminal([*TABLES, *(f"{command} --json" for command in TABLES)], cli.environment)
    return {part.split("\n", 1)[0]: part.split("\n")[1:] for part in said.split("$ ")[1:]}


def _fill(queue: SqlQueue, spec: QueueSpec[Work], cli: Cli) -> None:
    cli.run("enqueue", QUEUE, '{"n": 2}', "--id", IDS["dead"], "--priority", "9")
    (job,) = queue.claim(QUEUE, buckets=range(4), limit=1, lease_seconds=300, worker="w")
    queue.finish([Ending(job, ArchiveState.FAILED, error=LONG)])
    later = ("--run-at", "2037-01-31T08:00:00Z", "--unique-key", "order-1", "--tag", "rare")
    cli.run(
        "enqueue", QUEUE, '{"n": 1, "note": "of many words, which are not all to be seen"}', "--id", IDS["live"], *later
    )
    cli.run("enqueue", QUEUE, '{"n": 3}', "--id", IDS["task"])
    cli.run("people", "hand-over", QUEUE, IDS["task"], "--by", "boss", "--reason", LONG, "--four-eyes")
    cli.run("people", "take", QUEUE, "--operator", "anna")
    cli.run("group", "open", "--id", IDS["group"], "--callback", QUEUE)
    cli.run("enqueue", QUEUE, '{"n": 4}', "--id", IDS["member"], "--group", IDS["group"])
    cli.run(
        "schedule", "put", QUEUE, "a-name-of-a-schedule", "{}", "--cron", "0 3 * * *", "--time-zone", "Europe/Berlin"
    )
    key = "daily_sizes_by_account/2037-01-31"
    rows(
        queue,
        "INSERT INTO {s}.batch (id, key, queue, state, lease_until, owner, error, job_count, unmoved)"
        " VALUES (gen_random_uuid(), %s, %s, 'sealed', now() + interval '1 hour', %s, %s, 1234567, true)",
        *(key, QUEUE, "run/0199a1b2-c3d4-7e5f-8a6b-7c8d9e0f1a2b", LONG),
    )
    words = ("--payload", '{"country": "NZ"}', "--tag", "eu", "--priority", "5", "--delay", "5m")
    cli.run("subscribe", "topic-of-many-words", "name-of-a-subscription", QUEUE, *words)


def _in_a_terminal(commands: list[str], environment: dict[str, str]) -> str:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, WIDTH, 0, 0))
    kept = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "TERMINAL_WIDTH")}
    process = subprocess.Popen(
        [sys.executable, "-c", _ALL_IN_ONE, *commands],
        env={**kept, **environment, "TERM": "xterm", "NO_COLOR": "1"},
        cwd=PROJECT,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    said = b""
    try:
        with contextlib.suppress(OSError):  # the terminal is gone once the program has ended
            while more := os.read(ours, 65_536):
                said += more
        assert process.wait(PATIENCE) == 0
    finally:
        process.kill()
        process.wait(PATIENCE)
        os.close(ours)
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", said.decode()).replace("\r\n", "\n")


@pytest.mark.parametrize("command", TABLES)
def test_nothing_is_cut_and_no_line_is_too_long(lines: dict[str, list[str]], command: str) -> None:
    shown = lines[command]
    table = shown[next((at for at, line in enumerate(shown) if not line.strip()), 0) :]  # sentences may be longer
    assert [line for line in table if cell_len(line) > WIDTH] == []
    for fragment in TABLES[command]:
        assert any(fragment in line for line in shown), (fragment, "\n".join(shown))


@pytest.mark.parametrize(
    "command", [command for command in TABLES if command.startswith(("list", "dead", "peek", "group"))]
)
def test_every_id_of_the_answer_is_whole(lines: dict[str, list[str]], command: str) -> None:
    ids = set(re.findall(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", "\n".join(lines[f"{command} --json"])))
    assert ids
    for id_ in ids:
        assert any(id_ in line for line in lines[command]), id_


def _drawn(width: int, *columns: str, rows: list[list[str | Text]]) -> list[str]:
    console = Console(width=width, color_system=None)
    with console.capture() as captured:
        console.print(render.grid(columns, rows, right=["jobs"]))
    return [line.rstrip() for line in captured.get().splitlines()]


def test_what_has_no_room_is_named_below() -> None:
    row: list[str | Text] = ["orders", "10,000+", "12 min", "ValueError: no such address"]
    assert _drawn(60, "queue", "jobs", "oldest", "error", rows=[row]) == [
        "",
        " queue      jobs  oldest  error",
        " " + 52 * "─",
        " orders  10,000+  12 min  ValueError: no such address",
        "",
    ]
    assert _drawn(24, "queue", "jobs", "oldest", "error", rows=[row]) == [
        "",
        "queue     jobs oldest",
        "─────────────────────",
        "orders 10,000+ 12 min",
        "  error ValueError: no",
        "  such address",
        "",
    ]
    assert _drawn(16, "queue", "jobs", "oldest", "error", rows=[["orders", "10,000+", "12 min", ""]]) == [
        "",
        "queue     jobs",
        "──────────────",
        "orders 10,000+",
        "  oldest 12 min",
        "",
    ]


@pytest.mark.parametrize("width", [7, 20, 39, 40, 60, 79, 200])
def test_no_character_is_lost_at_any_width(width: int) -> None:
    cells: list[str | Text] = ["0199a1b2-c3d4-7e5f-8a6b-7c8d9e0f1a2b", "12,345", "日本語の行列", "no address"]
    drawn = _drawn(width, "id", "jobs", "tag", "because", rows=[cells])
    assert all(cell_len(line) <= width for line in drawn)
    letters = "".join("".join(drawn).split())
    assert all("".join(str(cell).split()) in letters for cell in cells)
