"""The library beside other queues in PostgreSQL, each through its own consumer, in one run on one server."""

from benchmarks.rivals import backlog
from benchmarks.rivals.measures import measure

__all__ = ["backlog", "measure"]
