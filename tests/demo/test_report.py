"""What the demo prints at its end."""

import io
import re
from datetime import date

import pytest
from rich.cells import cell_len
from rich.console import Console

from definitions import main_job
from definitions.expected import expected_numbers

DAY = date(2013, 1, 1)


@pytest.mark.parametrize("width", [80, 160])
def test_the_busiest_airports_have_a_line_each(width: int) -> None:
    rows = expected_numbers(DAY, DAY)
    console = Console(file=io.StringIO(), width=width)
    console.print(main_job._busiest(rows, DAY, width))
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert max(map(cell_len, lines)) <= width
    found = [
        re.fullmatch(r" *([A-Z]{3}) (.+?) +(\d+) +(\d+) +-?\d+\.\d +-?\d+ +\d+:00 +(\S+) *", line) for line in lines
    ]
    shown = {one[1]: (int(one[3]), int(one[4]), one[5]) for one in found if one}
    ten = rows.sort_values(["flights", "account"], ascending=[False, True]).head(10).to_dict("records")
    assert list(shown.items()) == [
        (row["account"], (row["flights"], row["cancelled"], row["top_carrier"])) for row in ten
    ]
    names = {one[1]: one[2] for one in found if one}
    assert names["ORD"] == "Chicago Ohare Intl"
    longest = "General Edward Lawrence Logan Intl"
    assert names["BOS"] == longest if width > 80 else longest.startswith(names["BOS"].removesuffix("…"))
