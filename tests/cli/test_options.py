"""How the text of options is read."""

import pytest

from dagster_sqlqueue.cli.input import options
from dagster_sqlqueue.errors import InvalidInput


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


def test_a_rate_by_the_minute() -> None:
    assert options.rate("--rate", "100/m") == options.rate("--rate", "100/min") == options.rate("--rate", "100/60s")
