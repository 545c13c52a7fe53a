"""A job queue inside the SQL database a team already has, worked off by Dagster, analysed by Spark."""

from dagster_sqlqueue.__about__ import __version__ as __version__
from dagster_sqlqueue.consumer import Consumer as Consumer
from dagster_sqlqueue.consumer import Mode as Mode
from dagster_sqlqueue.database import Database as Database
from dagster_sqlqueue.errors import QueueError as QueueError
from dagster_sqlqueue.filters import ClaimFilter as ClaimFilter
from dagster_sqlqueue.model import Job as Job
from dagster_sqlqueue.model import NewJob as NewJob
from dagster_sqlqueue.outcomes import Cancel as Cancel
from dagster_sqlqueue.outcomes import Done as Done
from dagster_sqlqueue.outcomes import Hold as Hold
from dagster_sqlqueue.outcomes import Reject as Reject
from dagster_sqlqueue.outcomes import Retry as Retry
from dagster_sqlqueue.outcomes import Snooze as Snooze
from dagster_sqlqueue.queue import SqlQueue as SqlQueue
from dagster_sqlqueue.sensitive import Sensitive as Sensitive
from dagster_sqlqueue.settings import Backoff as Backoff
from dagster_sqlqueue.settings import PoisonPolicy as PoisonPolicy
from dagster_sqlqueue.settings import QueueSpec as QueueSpec
from dagster_sqlqueue.settings import RateLimit as RateLimit
from dagster_sqlqueue.settings import Strategy as Strategy
from dagster_sqlqueue.settling import DrainSummary as DrainSummary
from dagster_sqlqueue.versions import versioned as versioned
from dagster_sqlqueue.worker.declaring import handles as handles
