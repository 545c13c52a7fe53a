"""How the text of options is read."""

import inspect
import re
from collections.abc import Iterator
from typing import get_args

import pytest
from typer.models import OptionInfo

from dagster_sqlqueue.cli.input import options
from dagster_sqlqueue.errors import InvalidInput
from tests.cli.support import ARGUMENTS, CALLBACKS, Cli


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("90s", 90),
        ("500ms", 0.5),
        ("10m", 600),
        ("10min", 600),
        ("1.5 m", 90),
        ("2h", 7_200),
        ("7d", 604_800),
    ],
)
def test_a_length_of_time(text: str, seconds: float) -> None:
    assert options.seconds("--for", text) == seconds


@pytest.mark.parametrize("text", ["", "m", "-5m", "5 minutes", "5mins", "1h30m", "5M"])
def test_what_is_no_length_of_time(text: str) -> None:
    with pytest.raises(InvalidInput, match="write a number of seconds, or one with a unit: 90, 500ms, 5m, 2h, 7d"):
        options.seconds("--for", text)


@pytest.mark.parametrize("text", ["36601d", "9" * 400])
@pytest.mark.parametrize(
    "words",
    [
        ["reschedule", "work", "--all", "--for"],
        ["pause", "work", "--for"],
        ["create", "other", "--lease"],
        ["enqueue", "work", "{}", "--in"],
        ["people", "reschedule", "0199a1b2-c3d4-7e5f-8a6b-7c8d9e0f1a2b", "--by", "boss", "--for"],
        ["work", "tests.worker.jobs:handle", "--drain-timeout"],
    ],
    ids=lambda words: words[0],
)
def test_a_length_of_time_of_more_than_a_hundred_years(cli: Cli, words: list[str], text: str) -> None:
    said = cli.refused(2, *words, text)
    assert said == f"{words[-1]} is too long: {text!r:.100}; it must be at most a hundred years"


def test_a_rate_by_the_minute() -> None:
    assert options.rate("--rate", "100/m") == options.rate("--rate", "100/min") == options.rate("--rate", "100/60s")


_NUMBERS = {"N", "0..9", "0..100"}
"""Beside which names of values the options take numbers."""


def _numeric() -> Iterator[tuple[str, str]]:
    for command, function in CALLBACKS.items():
        for name, parameter in inspect.signature(function).parameters.items():
            for option in get_args(parameter.annotation)[1:]:
                if isinstance(option, OptionInfo) and option.metavar in _NUMBERS:
                    yield command, f"--{name.replace('_', '-')}"


@pytest.mark.parametrize(("command", "option"), list(_numeric()))
def test_what_is_no_number_is_named_with_its_option(cli: Cli, command: str, option: str) -> None:
    words = [*command.split(), *ARGUMENTS.get(command, [])]
    if command == "stats":
        words.append("--watch")
    said = cli.refused(2, *words, option, "x")
    assert re.fullmatch(rf"{option} is 'x'; it must be a (whole )?number.*", said)


@pytest.mark.parametrize(
    ("command", "most"),
    [
        ("peek", 10_000),
        ("dead", 10_000),
        ("group list", 10_000),
        ("batch list", 10_000),
        ("people tasks", 10_000),
        ("people take", 1_000),
        ("people route", 1_000_000),
        ("people adopt", 1_000_000),
    ],
)
def test_a_limit_outside_of_its_range(cli: Cli, command: str, most: int) -> None:
    words = [*command.split(), *ARGUMENTS.get(command, [])]
    for limit in (-1, 0, most + 1):
        assert cli.refused(2, *words, "--limit", str(limit)) == f"--limit is {limit}; it must be 1 to {most:,}"


@pytest.mark.parametrize("share", ["-1", "100.1", "nan", "half"])
def test_what_is_no_percentage(cli: Cli, share: str) -> None:
    said = cli.refused(2, "people", "rule", "work", "--automatic", share)
    assert said == f"--automatic is {share!r}; it must be a number from 0 to 100"
