"""A data directory whose server has stopped, and copies of it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from dagster_sqlqueue.embedded import EmbeddedPostgres, stop_server
from tests.embedded.support import copied


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory whose server has stopped."""
    directory = tmp_path_factory.mktemp("a template, with spaces and 'quotes'") / "postgres"
    with EmbeddedPostgres(directory):
        pass
    return directory


@pytest.fixture(scope="module")
def server(template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedPostgres]:
    with EmbeddedPostgres(copied(template, tmp_path_factory.mktemp("a state, with spaces and 'quotes'"))) as running:
        yield running


@pytest.fixture
def data(template: Path, tmp_path: Path) -> Iterator[Path]:
    directory = copied(template, tmp_path)
    yield directory
    stop_server(directory)
