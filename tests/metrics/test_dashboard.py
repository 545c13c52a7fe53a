"""The dashboard: every metric and label that it asks for is one that there is."""

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from dagster_sqlqueue import Consumer, NewJob, QueueSpec, SqlQueue
from dagster_sqlqueue.metrics import ConsumerMetrics, QueueCollector
from dagster_sqlqueue.spark import batches
from tests.cli.support import PROJECT
from tests.metrics.support import scraped
from tests.support import Work

DASHBOARD: dict[str, Any] = json.loads((PROJECT / "deploy" / "grafana" / "sqlqueue.json").read_text())
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]
EXPRESSIONS = [target["expr"] for panel in PANELS for target in panel.get("targets", [])]
QUERIES = [variable["definition"] for variable in DASHBOARD["templating"]["list"] if "definition" in variable]
_SELECTOR = re.compile(r"(sqlqueue_\w+)(?:\{([^}]*)\})?")
_MATCHER = re.compile(r'(\w+)(=~|=)"([^"]*)"')


@pytest.fixture
def given(queue: SqlQueue, spec: QueueSpec[Work]) -> dict[str, list[dict[str, str]]]:
    """The labels of every sample, by its name, where there is something to say of each metric."""
    registry = CollectorRegistry()
    registry.register(QueueCollector(queue))
    queue.enqueue_many(spec, [Work(n=n) for n in range(10)])
    Consumer(queue, spec, lambda job: None, hooks=[ConsumerMetrics(registry)]).drain()
    queue.enqueue(spec, NewJob(Work(n=10), run_at=datetime.now(UTC) + timedelta(hours=1)))
    batches.seal(queue, "work", "sizes/2013-01-01", owner="run/7")
    found: dict[str, list[dict[str, str]]] = {}
    for name, labels in scraped(registry):
        found.setdefault(name, []).append(dict(labels))
    return found


def selectors() -> Iterator[tuple[str, list[tuple[str, str, str]]]]:
    for expression in [*EXPRESSIONS, *QUERIES]:
        for name, matchers in _SELECTOR.findall(expression):
            yield name, _MATCHER.findall(matchers)


def test_it_asks_for_metrics_that_there_are(given: dict[str, list[dict[str, str]]]) -> None:
    assert len(EXPRESSIONS) > 20
    for name, matchers in selectors():
        assert name in given, name
        wanted = {label: value for label, how, value in matchers if label != "queue"}
        fitting = [
            labels
            for labels in given[name]
            if all(re.fullmatch(value, labels.get(label, "")) for label, value in wanted.items())
        ]
        assert fitting, (name, matchers)
        assert all("queue" in labels for labels in fitting) or not matchers, (name, matchers)


def test_it_shows_every_metric(given: dict[str, list[dict[str, str]]]) -> None:
    shown = {name for name, _ in selectors()}
    of_histograms = {name for name in given if name.endswith(("_seconds_sum", "_seconds_count", "_created"))}
    assert set(given) - of_histograms == shown


def test_labels_of_groups_and_legends_are_there(given: dict[str, list[dict[str, str]]]) -> None:
    for panel in PANELS:
        for target in panel.get("targets", []):
            names = [name for name, _ in _SELECTOR.findall(target["expr"])]
            labels = {label for name in names for labels in given[name] for label in labels}
            groups = [part.split(", ") for part in re.findall(r"by \(([^)]*)\)", target["expr"])]
            assert {label for group in groups for label in group} <= labels, target["expr"]
            left = set.intersection(*map(set, groups)) - {"le"} if groups else labels
            assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= left, target


def test_panels_have_names_of_their_own_and_do_not_overlap() -> None:
    ids = [panel["id"] for panel in PANELS]
    assert len(set(ids)) == len(ids) > 15
    taken: set[tuple[int, int]] = set()
    for panel in PANELS:
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert at["x"] + at["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells
        assert panel["title"]
        references = [target["refId"] for target in panel.get("targets", [])]
        assert len(set(references)) == len(references)
        if panel["type"] != "row":
            assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
            assert panel["description"]
    assert {variable["name"] for variable in DASHBOARD["templating"]["list"]} == {"datasource", "queue"}
