"""Fixtures of several modules."""

from collections.abc import Iterator

import pytest

from dagster_sqlqueue import SqlQueue


@pytest.fixture(scope="module")
def shared(url: str, request: pytest.FixtureRequest) -> Iterator[SqlQueue]:
    """The queues of a schema that the tests of one module share."""
    with SqlQueue(url, schema=request.path.stem.removeprefix("test_")) as queue:
        queue.init()
        yield queue
