"""The command line, bound to the schema of a test."""

import pytest

from dagster_sqlqueue import QueueSpec, SqlQueue
from tests.cli.support import Cli
from tests.support import Work
from tests.support.cleared import cleared
from tests.support.shared_schema import shared

__all__ = ["shared"]


@pytest.fixture
def queue(shared: SqlQueue, spec: QueueSpec[Work]) -> SqlQueue:
    """With the queue `work`, and nothing in it."""
    return cleared(shared, spec)


@pytest.fixture
def bare(url: str, schema: str, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """In a schema where nothing was made yet."""
    for name in ("SQLQUEUE_URL", "SQLQUEUE_SCHEMA", "SQLQUEUE_HOME"):
        monkeypatch.delenv(name, raising=False)
    return Cli({"SQLQUEUE_URL": url, "SQLQUEUE_SCHEMA": schema})


@pytest.fixture
def cli(bare: Cli, queue: SqlQueue) -> Cli:
    """In the schema of `queue`, with its queue `work`."""
    return Cli({**bare.environment, "SQLQUEUE_SCHEMA": queue.database.schema})
