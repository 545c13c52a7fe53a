"""Results: what became of a job, how far it is, waiting for its end, and queues for the answers."""

from typing import TYPE_CHECKING

from dagster_sqlqueue._faces import lazy

if TYPE_CHECKING:
    from dagster_sqlqueue.results.model import JobOutcome as JobOutcome
    from dagster_sqlqueue.results.model import Progress as Progress
    from dagster_sqlqueue.results.reply_queue import ReplyQueue as ReplyQueue
    from dagster_sqlqueue.results.results import Results as Results
else:
    # The help of the command line needs the models alone, and no driver.
    __getattr__, __dir__ = lazy(
        __name__,
        {
            "model": ["JobOutcome", "Progress"],
            "reply_queue": ["ReplyQueue"],
            "results": ["Results"],
        },
    )

__all__ = [
    "JobOutcome",
    "Progress",
    "ReplyQueue",
    "Results",
]
