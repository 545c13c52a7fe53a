"""The figures that were measured last, in `benchmarks/measured.json`, a group each with its date and machine."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.harness import Figure

PATH = Path(__file__).resolve().parent / "measured.json"


@dataclass(frozen=True)
class Group:
    """One group's figures.

    Attributes:
        name: of the group.
        date: when it was measured.
        machine: what it was measured on.
        figures: its figures.
    """

    name: str
    date: str
    machine: str
    figures: Sequence[Figure]


def recorded() -> list[Group]:
    """All groups, in the order in which they were first measured; none where nothing was recorded."""
    if not PATH.exists():
        return []
    held: dict[str, Any] = json.loads(PATH.read_text(encoding="utf-8"))
    return [
        Group(name, group["date"], group["machine"], [Figure(**figure) for figure in group["figures"]])
        for name, group in held.items()
    ]


def record(name: str, machine: str, figures: Sequence[Figure]) -> None:
    """Replace the figures of a group."""
    held = json.loads(PATH.read_text(encoding="utf-8")) if PATH.exists() else {}
    held[name] = {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": machine,
        # Four digits are more than any figure repeats.
        "figures": [
            {**asdict(figure), "rounds": [float(f"{value:.4g}") for value in figure.rounds]} for figure in figures
        ],
    }
    PATH.write_text(_text(held), encoding="utf-8")


def _text(held: dict[str, Any]) -> str:
    """The groups as JSON, a figure a line: so that a change shows which figures it is of."""
    groups = []
    for name, group in held.items():
        figures = ",\n".join(f"   {json.dumps(figure, ensure_ascii=False)}" for figure in group["figures"])
        head = "".join(
            f"  {json.dumps(key)}: {json.dumps(group[key], ensure_ascii=False)},\n" for key in ("date", "machine")
        )
        groups.append(f' {json.dumps(name)}: {{\n{head}  "figures": [\n{figures}\n  ]\n }}')
    return "{\n" + ",\n".join(groups) + "\n}\n"
