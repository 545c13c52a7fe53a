"""`schedule put`, `list`, `next`, `pause`, `resume`, `remove`, `run`."""

import json
import os
import signal
import subprocess
import sys
from datetime import datetime

import pytest

from dagster_sqlqueue import SqlQueue
from dagster_sqlqueue.schedules import Schedules
from tests.cli.support import PROJECT, Cli
from tests.gate.patience import PATIENCE
from tests.schedules.support import overdue_by, ticks_of
from tests.support import rows, until, value

NIGHTLY = ["schedule", "put", "work", "nightly", '{"n": 1}', "--cron", "30 2 * * *", "--time-zone", "Europe/Berlin"]


def test_put_says_when_it_ticks_and_list_shows_it(cli: Cli, queue: SqlQueue) -> None:
    said = cli.run(*NIGHTLY)
    assert said.stdout.startswith("schedule nightly of queue work ticks next at 20")
    assert said.stdout.endswith(": 30 2 * * * in Europe/Berlin\n")
    made = cli.json(*NIGHTLY)
    assert (made["revision"], made["catch_up"], made["payload"]) == (1, "one", {"n": 1})
    assert cli.json("schedule", "list") == cli.json("schedule", "list", "work") == [made]
    assert cli.json("schedule", "put", "work", "nightly", '{"n": 2}', "--every", "15min")["revision"] == 2
    listed = cli.run("schedule", "list").stdout
    assert "every 15 min" in listed
    assert "because" not in listed


def test_the_last_ticks_of_the_calendar_are_listed(cli: Cli, queue: SqlQueue) -> None:
    start = ("--starting", "9999-12-31T13:30:00Z", "--time-zone", "Asia/Tokyo")
    cli.json("schedule", "put", "work", "s", "{}", "--every", "1h", *start)
    assert cli.json("schedule", "next", "work", "s")["ticks"] == [
        "9999-12-31T13:30:00+00:00",
        "9999-12-31T14:30:00+00:00",
    ]
    listed = cli.run("schedule", "next", "work", "s")
    assert (listed.exit_code, "Fri 9999-12-31 23:30:00 +0900" in listed.stdout) == (0, True)


def test_every_option_of_put_reaches_the_job(cli: Cli, queue: SqlQueue) -> None:
    made = cli.json(
        *("schedule", "put", "work", "s", '{"n": 1}', "--every", "1h", "--starting", "2020-01-01T00:10:00Z"),
        *("--catch-up", "skip", "--grace", "5min", "--tick-field", "at", "--priority", "3", "--unique-key", "u"),
        *("--unique-until", "claim"),
        *("--ordering-key", "o", "--tag", "x", "--tag", "y", "--region", "local", "--timeout", "2min"),
        *("--max-attempts", "7", "--time-zone", "Asia/Kolkata"),
    )
    expected = {
        "every_seconds": 3_600,
        "starting": "2020-01-01T00:10:00+00:00",
        "catch_up": "skip",
        "grace_seconds": 300,
        "tick_field": "at",
        "priority": 3,
        "unique_key": "u",
        "unique_until_claim": True,
        "ordering_key": "o",
        "tags": ["x", "y", "schedule:s"],
        "region": "local",
        "timeout_seconds": 120,
        "max_attempts": 7,
        "time_zone": "Asia/Kolkata",
        "cron": None,
    }
    assert {name: made[name] for name in expected} == expected
    assert made["next_tick"][13:] == ":10:00+00:00"
    rows(queue, "UPDATE {s}.schedule SET next_tick = next_tick - interval '1 hour', grace_seconds = 3600")
    assert cli.json("schedule", "run", "--once")["enqueued"] == [{"queue": "work", "name": "s", "ticks": 1}]
    payload = value(queue, "SELECT payload FROM {s}.job")
    assert payload["at"].endswith("+05:30")
    assert datetime.fromisoformat(payload["at"]) == value(queue, "SELECT run_at FROM {s}.job")


def test_next_shows_both_clocks(cli: Cli) -> None:
    cli.run("schedule", "put", "work", "s", "{}", "--cron", "30 2 29 3 *", "--time-zone", "Europe/Berlin")
    shown = cli.run("schedule", "next", "work", "s", "--count", "12").stdout
    assert "Europe/Berlin" in shown
    # The clocks are moved on 29 March in 2026 and in 2037.
    assert "2037-03-29 01:00:00Z" in shown
    assert "Sun 2037-03-29 03:00:00 +0200" in shown
    ticks = cli.json("schedule", "next", "work", "s", "--count", "12")["ticks"]
    assert len(ticks) == 12
    assert "2037-03-29T01:00:00+00:00" in ticks


def test_pause_resume_remove(cli: Cli, queue: SqlQueue) -> None:
    cli.run(*NIGHTLY)
    assert "nightly of queue work is paused since 20" in cli.run("schedule", "pause", "work", "nightly").stdout
    assert "sqlqueue schedule resume work nightly" in cli.run("schedule", "next", "work", "nightly").stdout
    assert "continues from its tick at 20" in cli.run("schedule", "resume", "work", "nightly").stdout
    assert cli.json("schedule", "pause", "work", "nightly")["paused_at"] is not None
    assert cli.json("schedule", "resume", "work", "nightly")["paused_at"] is None
    assert cli.run("schedule", "remove", "work", "nightly").stdout == "schedule nightly of queue work was deleted\n"
    assert cli.run("schedule", "list").stdout.startswith("there is no schedule; create one with: ")
    cli.run(*NIGHTLY)
    assert cli.json("schedule", "remove", "work", "nightly") == {"queue": "work", "name": "nightly", "removed": True}


def test_run_once_enqueues_what_is_due_and_says_what_it_paused(cli: Cli, queue: SqlQueue) -> None:
    assert cli.run("schedule", "run", "--once").stdout == "nothing is due\n"
    for name in ("a", "b"):
        cli.run("schedule", "put", "work", name, '{"n": 1}', "--every", "1h", "--catch-up", "all")
    overdue_by(queue, "a", ticks=1_200, every=3_600)
    overdue_by(queue, "b", ticks=1, every=3_600)
    rows(queue, "UPDATE {s}.schedule SET time_zone = 'Mars/Olympus' WHERE name = 'b'")
    done = cli.run("schedule", "run", "--once")
    assert done.exit_code == 6
    assert "enqueued 1,200 jobs of schedule a on work\n" in done.stdout
    assert "paused schedule b of queue work: there is no time zone 'Mars/Olympus'" in done.stdout
    assert "there is no time zone" in cli.run("schedule", "list").stdout
    assert cli.json("schedule", "run", "--once") == {"enqueued": [], "duplicates": 0, "paused": []}


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 0), pytest.param(signal.SIGINT, 130, marks=pytest.mark.prove)]
)
def test_run_goes_on_until_it_is_stopped(cli: Cli, queue: SqlQueue, number: int, code: int) -> None:
    cli.run("schedule", "put", "work", "s", '{"n": 1}', "--every", "200ms", "--catch-up", "all")
    environment = {**os.environ, **cli.environment, "PYTHONPATH": str(PROJECT)}
    command = [sys.executable, "-m", "dagster_sqlqueue.cli", "schedule", "run", "--json", "--poll", "3600"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            until(lambda: len(ticks_of(queue, "s")) >= 3)
            process.send_signal(number)
            out, err = process.communicate(timeout=PATIENCE)
        finally:
            process.kill()
    assert (process.returncode, err) == (code, b"")
    lines = [json.loads(line) for line in out.splitlines()]
    assert sum(line["enqueued"][0]["ticks"] for line in lines) == len(ticks_of(queue, "s"))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--cron", "99 * * * *"], "the cron expression '99 * * * *' does not parse"),
        (["--cron", "* * * * *", "--every", "5"], "both were given"),
        ([], "neither was given"),
        (["--every", "soon"], "--every is 'soon'"),
        (["--every", "10ms"], "at least 0.1"),
        (["--cron", "* * * * *", "--time-zone", "Europe/Berln"], "did you mean Europe/Berlin"),
        (["--cron", "* * * * *", "--catch-up", "some"], "catch_up is 'some'"),
        (["--cron", "* * * * *", "--starting", "2026-01-01"], "has no time zone"),
        (["--cron", "* * * * *", "--priority", "11"], "priority is 11"),
        (["--cron", "* * * * *", "--region", "mars"], "region is 'mars', which has no bucket"),
    ],
)
def test_bad_input_changes_nothing(cli: Cli, queue: SqlQueue, arguments: list[str], said: str) -> None:
    assert said in cli.refused(2, "schedule", "put", "work", "s", "{}", *arguments)
    assert Schedules(queue).schedules() == []


def test_what_is_refused(cli: Cli) -> None:
    for payload in ("[1]", "{", "{} {}", '{"n": NaN}'):
        assert "nothing was changed" in cli.refused(2, "schedule", "put", "work", "s", payload, "--every", "5")
    assert "there is no queue 'nosuch'" in cli.refused(5, "schedule", "put", "nosuch", "s", "{}", "--every", "5")
    assert "there is no queue 'nosuch'" in cli.refused(5, "schedule", "list", "nosuch")
    for command in ("next", "pause", "resume", "remove"):
        assert "queue 'work' has no schedule 'nosuch'" in cli.refused(5, "schedule", command, "work", "nosuch")
    assert "--once was given" in cli.refused(2, "schedule", "run", "--once", "--poll", "5")
    assert "poll_seconds is 0" in cli.refused(2, "schedule", "run", "--poll", "0")
    assert "see: sqlqueue schedule --help" in cli.refused(2, "schedule", "nosuch")


def test_the_group_alone_shows_its_commands(cli: Cli) -> None:
    shown = cli.run("schedule")
    assert shown.exit_code == 0
    for command in ("put", "list", "next", "pause", "resume", "remove", "run"):
        assert f" {command} " in shown.stdout
