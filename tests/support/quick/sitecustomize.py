"""Where this directory is on PYTHONPATH, Dagster's code servers fork their runs from a process that has imported Dagster:
by themselves they start a Python for each run.
"""

import multiprocessing
import sys
from multiprocessing.context import BaseContext
from typing import Any

PRELOADED = ["dagster", "dagster._grpc.impl", "dagster_sqlqueue.orchestration"]
"""Nothing of a code location: a run loads that itself."""

if sys.orig_argv[1:5] == ["-m", "dagster", "api", "grpc"]:
    context = multiprocessing.get_context

    def forking(method: str | None = None) -> BaseContext:
        """Return the context of a start method, of `forkserver` for `spawn`."""
        if method != "spawn":
            return context(method)
        forks: Any = context("forkserver")
        forks.set_forkserver_preload(PRELOADED)
        found: BaseContext = forks
        return found

    multiprocessing.get_context = forking  # type: ignore[assignment]
