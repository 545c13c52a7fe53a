"""What a run leaves behind for `python -m tests.gate`: each test's outcome and seconds, and where each process is.

In every process of a run, the name of the test in hand stands in a file, and SIGUSR1 prints the stacks of all threads: so a
run that has to be ended says where it was. In the process that collects the reports, they are written down at the end.
"""

import faulthandler
import functools
import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ParamSpec

import pytest

from tests.gate.servers import DIRECTORY

P = ParamSpec("P")

_VERDICT = "verdict"
_FIGURES = "figures"
_properties: list[tuple[str, Any]] = []
_NEW: dict[str, Any] = {"outcome": "passed", "seconds": 0.0, "failure": "", "verdict": [], "figures": {}}


def verdict(judge: Callable[P, list[str]]) -> Callable[P, list[str]]:
    """Note what a judge of histories finds: a test that fails after such findings is not tried again."""

    @functools.wraps(judge)
    def noting(*arguments: P.args, **settings: P.kwargs) -> list[str]:
        found = judge(*arguments, **settings)
        if found:
            _properties.append((_VERDICT, found[:20]))
        return found

    return noting


def note_figures(**figures: object) -> None:
    """Note figures of the test in hand, for the table at the end of `make prove`."""
    _properties.append((_FIGURES, {name: str(value) for name, value in figures.items()}))


def _place(config: pytest.Config) -> Path | None:
    directory = os.environ.get(DIRECTORY)
    return Path(directory) / str(getattr(config, "workerinput", {}).get("workerid", "main")) if directory else None


class _Reports:
    """The outcome and the seconds of each test, by its id; written down when the session ends."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._tests: dict[str, dict[str, Any]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        test = self._tests.setdefault(report.nodeid, {**_NEW, "figures": {}})
        if report.when == "setup":
            # A test that is tried again by its own mark begins anew.
            test.update(_NEW, seconds=test["seconds"], figures={})
        test["seconds"] += report.duration
        if report.outcome == "failed":
            test.update(outcome="failed", failure=test["failure"] or report.longreprtext)
        elif report.outcome == "skipped" and test["outcome"] == "passed":
            test.update(outcome="skipped", failure=_reason(report))
        for name, value in report.user_properties:
            if name == _VERDICT:
                test["verdict"] = value
            elif name == _FIGURES:
                test["figures"] |= value

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        # Of a module that cannot be imported no test is known, and its name stands for all that it has.
        if report.outcome != "passed":
            failure = report.longreprtext if report.outcome == "failed" else _reason(report)
            self._tests[report.nodeid] = {**_NEW, "outcome": report.outcome, "failure": failure}

    def pytest_sessionfinish(self) -> None:
        self._file.write_text(json.dumps(self._tests))


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    longrepr = report.longrepr
    return str(longrepr[2]) if isinstance(longrepr, tuple) else str(longrepr)


@pytest.hookimpl
def pytest_configure(config: pytest.Config) -> None:
    place = _place(config)
    if place is None:
        return
    # A copy of the real standard error, which is in place while pytest is configured, and not while a test runs.
    faulthandler.register(signal.SIGUSR1, file=os.dup(2), all_threads=True)
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Reports(place.with_name("reports.json")))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    place = _place(item.config)
    if place:
        place.with_suffix(".test").write_text(f"{os.getpid()} {item.nodeid}")
    try:
        return (yield)
    finally:
        if place:
            place.with_suffix(".test").unlink(missing_ok=True)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: "pytest.CallInfo[None]") -> Iterator[None]:
    if call.when == "setup":
        item.user_properties.clear()
    elif call.when == "call":
        item.user_properties.extend(_properties)
    _properties.clear()
    return (yield)
