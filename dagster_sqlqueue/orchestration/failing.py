"""What goes wrong in a run, as its page should say it."""

import contextlib
from collections.abc import Iterator

import dagster as dg

from dagster_sqlqueue.errors import DatabaseUnavailable, QueueError, SparkUnavailable


@contextlib.contextmanager
def told_plainly() -> Iterator[None]:
    """Have the library's errors of the block fail the step with their message, which says what to do, and without the
    frames of the library above it. Only when the database, or Spark, is away may a retry policy try again.
    """
    try:
        yield
    except QueueError as error:
        raise dg.Failure(
            description=str(error),
            metadata={"error": type(error).__name__},
            allow_retries=isinstance(error, DatabaseUnavailable | SparkUnavailable),
        ) from error
