"""What the tests of metrics share: expositions read by the client's own parser."""

from typing import TypeAlias

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

Samples: TypeAlias = dict[tuple[str, frozenset[tuple[str, str]]], float]


def parsed(text: str) -> Samples:
    """Every sample's value, by its name and labels; none comes twice."""
    found = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    samples = {(sample.name, frozenset(sample.labels.items())): sample.value for sample in found}
    assert len(samples) == len(found)
    return samples


def scraped(registry: CollectorRegistry) -> Samples:
    """What a scrape of the registry would give."""
    return parsed(generate_latest(registry).decode())


def key(name: str, **labels: str) -> tuple[str, frozenset[tuple[str, str]]]:
    """A sample's name and labels."""
    return name, frozenset(labels.items())
