"""Restore this library's errors of Spark's tasks and of planning from Spark's errors."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.errors import PySparkException

from dagster_sqlqueue import errors

_OURS = re.compile(r"^\s*dagster_sqlqueue(?:\.\w+)*\.(\w+): (.+)$", re.MULTILINE)


@contextmanager
def task_errors_restored() -> Iterator[None]:
    """Turn an error of this library that Spark returns inside the traceback of a worker into that error again.

    Raises:
        QueueError: what was raised there: `InvalidInput` where a payload does not fit its columns, `DatabaseUnavailable`
            if the database was lost, and so on.
    """
    try:
        yield
    except PySparkException as error:
        if not (found := _OURS.findall(str(error))):
            raise
        # The last one of a chain is what came of the others.
        name, message = found[-1]
        kind = getattr(errors, name, None)
        raise (kind if isinstance(kind, type) else errors.QueueError)(message) from error
