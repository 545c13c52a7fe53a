"""Errors of a run, as its page shows them."""

import contextlib
from collections.abc import Iterator

import dagster as dg

from dagster_sqlqueue.errors import DatabaseUnavailable, QueueError, SparkUnavailable


@contextlib.contextmanager
def library_errors_as_failures() -> Iterator[None]:
    """Fail the step on the library's errors in the block, with their message, which says what to do, and without the frames
    of the library above it. A retry policy may retry only if the database, or Spark, is unavailable.
    """
    try:
        yield
    except QueueError as error:
        raise dg.Failure(
            description=str(error),
            metadata={"error": type(error).__name__},
            allow_retries=isinstance(error, DatabaseUnavailable | SparkUnavailable),
        ) from error
