"""The command line, bound to the schema of a test."""

from pathlib import Path

import pytest

from dagster_sqlqueue import QueueSpec, SqlQueue
from dagster_sqlqueue.embedded import EmbeddedPostgres
from tests.cli.support import bare, cli
from tests.support import Work
from tests.support.cleared import cleared
from tests.support.shared_schema import shared

__all__ = ["bare", "cli", "shared"]


@pytest.fixture
def queue(shared: SqlQueue, spec: QueueSpec[Work]) -> SqlQueue:
    """With the queue `work`, and nothing in it."""
    return cleared(shared, spec)


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The state directory of an embedded server that has stopped."""
    directory = tmp_path_factory.mktemp("state")
    with EmbeddedPostgres(directory / "postgres"):
        pass
    return directory
