"""The directory for temporary files of a driver. The next driver removes those that killed ones left."""

import contextlib
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

with contextlib.suppress(ImportError):  # Windows: what is left there stays
    import fcntl

logger = logging.getLogger("dagster_sqlqueue")

_PREFIX = "sqlqueue-spark-"
_LOCK = ".driver"


@contextlib.contextmanager
def scratch_directory() -> Iterator[str]:
    """Yield a directory for the block. Those of drivers that have ended are removed first.

    A driver holds a lock on a file in its directory, which ends with its process however that ends.
    """
    _remove_left()
    with tempfile.TemporaryDirectory(prefix=_PREFIX, ignore_cleanup_errors=True) as scratch:
        # The lock is there before the name by which others find it.
        mark = Path(scratch) / f"{_LOCK}-{os.getpid()}"
        with mark.open("w") as held:
            with contextlib.suppress(OSError, NameError):
                fcntl.flock(held, fcntl.LOCK_EX)
                mark.rename(Path(scratch) / _LOCK)
            yield scratch


def _remove_left() -> None:
    for lock in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*/{_LOCK}"):
        with contextlib.suppress(OSError, NameError), lock.open("r+") as held:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(lock.parent, ignore_errors=True)
            logger.info("%s is removed, which a killed driver left", lock.parent)
