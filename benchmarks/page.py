"""The page `docs/benchmarks.md` with its plots, and the tables of figures on other pages, made of what was recorded:
`python -m benchmarks.page`.
"""

from collections.abc import Sequence
from pathlib import Path

from benchmarks import marked, readme_table, spark_tables
from benchmarks.harness import Figure
from benchmarks.record import Group, recorded
from benchmarks.rivals.contenders import CONTENDERS
from benchmarks.showing import measured, number, table

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGE = DOCS / "benchmarks.md"
_RIVALS, _PROFILE = "rivals", "profile"

_HEAD = """# Benchmarks

Made by `make bench ARGS=--record`, which measures every figure, keeps it in `benchmarks/measured.json` and writes this
page; `python -m benchmarks --record NAME` measures one group anew. What each group does is in
[benchmarks/](../benchmarks/README.md). Only figures of one group can be compared: they are of one run on one server, in
turns. The median of the rounds counts.

A *floor* is what no figure may be worse than: one that is fails `make bench`, as a regression. How far it is from what was
measured is [chosen](../benchmarks/README.md). An *aim* is what the library is to reach; where it does not, the page says so.
"""

_BESIDE = """
## Beside other queues

Each queue works through its own consumer: payloads of about 150 bytes are parsed, and a handler is called that does
nothing. Each has a database of its own on the same server, with tables that were never analysed.

- *drain*: jobs a second, with one process and with four;
- *bulk*, *one by one*: enqueues by each queue's own verb, payloads validated where it is Python's;
- *pinned*: the rate of a drain while an old snapshot keeps the dead rows, in percent of the rate without;
- *pick-up*: from the return of the commit to the handler's first line, of single jobs for an idle consumer;
- *WAL*: what a drain writes to the log, in bytes a job.

"""

_COLUMNS = {
    "drain, 1": "drain, 1 process",
    "drain, 4": "drain, 4 processes",
    "bulk": "bulk",
    "one by one": "one by one",
    "pinned": "pinned, %",
    "pick-up p50": "pick-up p50, ms",
    "pick-up p99": "p99, ms",
    "WAL": "WAL",
}

_PLOTS = {
    "drain": (("drain, 1", "drain, 4"), "jobs a second, drained"),
    "bulk": (("bulk",), "jobs a second, enqueued in bulk"),
    "pinned": (("pinned",), "rate under an old snapshot, % of the rate without"),
    "pick-up": (("pick-up p50", "pick-up p99"), "milliseconds from commit to handler"),
}


def text_of(groups: Sequence[Group]) -> str:
    """The page."""
    by_name = {group.name: group for group in groups}
    parts = [_HEAD]
    if rivals := by_name.get(_RIVALS):
        parts += [_BESIDE + "\n".join(_beside(rivals))]
    if profile := by_name.get(_PROFILE):
        parts += [_profile(profile)]
    parts.append("\n## All figures\n")
    parts += [_group(group) for group in groups]
    return "\n".join(part.rstrip("\n") for part in parts) + "\n"


def write() -> None:
    """Write the page and its plots.

    Raises:
        SystemExit: nothing was recorded.
    """
    groups = recorded()
    if not groups:
        raise SystemExit("nothing was measured yet: python -m benchmarks --record")
    for group in groups:
        if group.name == _RIVALS:
            _plot(group)
    PAGE.write_text(text_of(groups), encoding="utf-8")
    for page, text in tables(groups).items():
        marked.replace(page, text)


def tables(groups: Sequence[Group]) -> dict[Path, str]:
    """What other pages have between their marks."""
    return {readme_table.README: readme_table.text_of(groups), **spark_tables.tables(groups)}


def _beside(group: Group) -> list[str]:
    figures = _by_contender(group)
    lines = [
        measured(group),
        "",
        "| queue | " + " | ".join(_COLUMNS.values()) + " |",
        "| --- |" + " ---: |" * len(_COLUMNS),
    ]
    for name, values in figures.items():
        cells = [number(values[what].median) if what in values else "" for what in _COLUMNS]
        lines.append(f"| {'**' + name + '**' if name.startswith('ours') else name} | " + " | ".join(cells) + " |")
    lines += ["", *(f"![{title}](benchmarks-{name}.svg)" for name, (_, title) in _PLOTS.items()), ""]
    lines += ["What each does for a job:", "", "| queue | duty |", "| --- | --- |"]
    lines += [f"| {contender.name} | {contender.duty} |" for contender in CONTENDERS]
    shares = [figure for figure in group.figures if figure.floor is not None or figure.aim is not None]
    return [*lines, "", "What the library is held to, share by share of each round:", "", *table(shares)]


def _profile(group: Group) -> str:
    lines = ["\n## Where the CPU goes\n", measured(group), ""]
    lines += [
        "Of a drain by one process in batches of 100, and of a bulk enqueue; the five functions of Python that run longest",
        "by themselves, in percent of the time in which the interpreter runs.",
        "",
        *table(group.figures),
    ]
    return "\n".join(lines)


def _group(group: Group) -> str:
    return "\n".join([f"\n### {group.name}\n", measured(group), "", *table(group.figures)])


def _by_contender(group: Group) -> dict[str, dict[str, Figure]]:
    """Each contender's figures by what was measured, in the order of the table."""
    found: dict[str, dict[str, Figure]] = {}
    for figure in group.figures:
        what, colon, name = figure.name.partition(": ")
        if colon and what in _COLUMNS and figure.floor is None:
            found.setdefault(name, {})[what] = figure
    return found


def _plot(group: Group) -> None:
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    # The same figures make the same file.
    matplotlib.rcParams["svg.hashsalt"] = "benchmarks"
    figures = _by_contender(group)
    for file, (whats, title) in _PLOTS.items():
        names = [name for name, values in figures.items() if whats[0] in values]
        picture, axes = pyplot.subplots(figsize=(8, 0.32 * len(names) * len(whats) + 1))
        height = 0.8 / len(whats)
        for index, what in enumerate(whats):
            medians = [figures[name][what].median for name in names]
            at = [row + (index - (len(whats) - 1) / 2) * height for row in range(len(names))]
            shades = ["#1f77b4" if name.startswith("ours") else "#9aa5b1" for name in names]
            bars = axes.barh(
                at, medians, height * 0.9, color=shades, alpha=1 if index == 0 else 0.6, label=_COLUMNS[what]
            )
            axes.bar_label(bars, [number(value) for value in medians], padding=3, fontsize=8)
        axes.set_yticks(range(len(names)), names)
        axes.invert_yaxis()
        axes.margins(x=0.12)
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_title(title + (f" ({', then '.join(_COLUMNS[what] for what in whats)})" if len(whats) > 1 else ""))
        picture.savefig(DOCS / f"benchmarks-{file}.svg", bbox_inches="tight", metadata={"Date": None})
        pyplot.close(picture)


if __name__ == "__main__":
    write()
