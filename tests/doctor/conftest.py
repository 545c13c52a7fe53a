"""A schema whose tables a test may break, and the command line in it."""

import pytest

from dagster_sqlqueue import SqlQueue
from tests.cli.support import bare, cli

__all__ = ["bare", "cli"]


@pytest.fixture
def queue(fresh: SqlQueue) -> SqlQueue:
    """Whose tables a test may break."""
    return fresh
