"""A schema whose tables a test may break."""

import pytest

from dagster_sqlqueue import SqlQueue


@pytest.fixture
def queue(fresh: SqlQueue) -> SqlQueue:
    """Whose tables a test may break."""
    return fresh
