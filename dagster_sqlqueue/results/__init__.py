"""Results: what became of a job, how far it is, waiting for its end, and queues for the answers."""

from dagster_sqlqueue.results.model import JobOutcome as JobOutcome
from dagster_sqlqueue.results.model import Progress as Progress
from dagster_sqlqueue.results.reply_queue import ReplyQueue as ReplyQueue
from dagster_sqlqueue.results.results import Results as Results
