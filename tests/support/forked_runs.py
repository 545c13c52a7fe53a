"""`dagster` with a code server that forks its runs where Dagster was imported already: its own starts a Python for each.

Usage: python -m tests.support.forked_runs [dagster's arguments]
"""

import multiprocessing
import sys
from typing import Any

from dagster._cli import main
from dagster._grpc import server

PRELOADED = ["dagster", "dagster._grpc.impl", "dagster_sqlqueue.orchestration"]
"""Nothing of a code location: a run loads that itself."""

if __name__ == "__main__":
    forks = multiprocessing.get_context("forkserver")
    forks.set_forkserver_preload(PRELOADED)

    class Forking:
        """Dagster's server asks this for the way in which it starts processes."""

        def __getattr__(self, name: str) -> Any:
            return getattr(multiprocessing, name)

        def get_context(self, method: str) -> Any:
            return forks if method == "spawn" else multiprocessing.get_context(method)

    server.multiprocessing = Forking()  # type: ignore[assignment]
    sys.argv[0] = "dagster"
    main()
