"""Where this directory is on PYTHONPATH, Dagster's code servers fork their runs from a process that has imported Dagster:
by themselves they start a Python for each run.
"""

import multiprocessing
import sys
from multiprocessing.context import BaseContext
from multiprocessing.forkserver import ensure_running
from typing import Any

PRELOADED = ["dagster", "dagster._grpc.impl", "dagster_sqlqueue.orchestration"]
"""Nothing of a code location: a run loads that itself."""

if sys.orig_argv[1:5] == ["-m", "dagster", "api", "grpc"]:
    context = multiprocessing.get_context
    forks: Any = context("forkserver")
    forks.set_forkserver_preload(PRELOADED)
    # Now, and not when the first run is launched: the launch would wait for the imports, and has a minute.
    ensure_running()

    def forking(method: str | None = None) -> BaseContext:
        """Return the context of a start method, of `forkserver` for `spawn`."""
        found: BaseContext = forks if method == "spawn" else context(method)
        return found

    multiprocessing.get_context = forking  # type: ignore[assignment]
