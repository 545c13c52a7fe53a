"""What can go wrong, as one tree.

| error | cause | cure |
| --- | --- | --- |
| `QueueError` | the root: catch it to catch everything below | |
| `InvalidInput` | an argument, a setting or a payload is not usable | the message names the value and the rule |
| `InvalidPayload` | a payload does not fit its queue's model | the message names the row and the field |
| `UnreadablePayload` | a stored payload cannot be read, or its model breaks over it | replace it, or mend the model |
| `UnknownVersion` | a payload's version is not known, or its upgrade failed | deploy the newer code, or mend the upgrade |
| `WrongHandler` | a handler returned what nothing runs, as a coroutine or generator | let it return an outcome |
| `UnknownQueue` | no queue of that name in this schema | `create_queue`, or correct the name |
| `UnknownJob` | no job of that id, live or ended, in this schema | correct the id; ended jobs are trimmed in time |
| `UnknownSubscription` | a topic has no subscription of that name | `subscribe`, or correct the name |
| `UnknownSchedule` | the queue has no schedule of that name | correct the name, or put the schedule |
| `UnknownBatch` | no batch of that id or key in this schema | correct it; batches are forgotten with their queue's jobs |
| `UnknownGroup` | no group of jobs of that id in this schema | correct the id; groups are removed 30 days after their end |
| `GroupClosed` | a job was to be added to a group that is closed | open another group |
| `DecisionRefused` | it does not fit what has become of a task, or who did the work | read the task again |
| `QueueInUse` | a queue to be deleted has jobs, or something refers to it | the message names each, and its remedy |
| `QueuePaused` | what was asked for needs a queue that is not paused | `resume` |
| `WaitTimedOut` | a job that was waited for did not end in time | wait again; `.outcomes` says where it is |
| `LeaseLost` | a write came after the lease had passed on | stop working on the job; another consumer has it |
| `TransactionLost` | other transactions were in the way of one that enqueues | call again: nothing was enqueued |
| `DatabaseUnavailable` | no connection, or the server refused it | the message says what was tried, never the password |
| `AccessRefused` | the user may not do that in the schema | the message names the role to be granted |
| `SchemaMissing` | the schema's tables are not there | `sqlqueue migrate` |
| `SchemaTooOld` | the tables are older than this library works on | `sqlqueue migrate` |
| `SchemaTooNew` | the tables are newer, and do not serve this library any more | upgrade the package |
| `SchemaBusy` | others held locks that a migration needs | end what the message names, and `sqlqueue migrate` again |
| `BatchLost` | a batch was taken over, or its jobs were | run the consumption again: it finds the new state |
| `EmbeddedServerError` | the embedded PostgreSQL does not start | the message quotes its log |
| `JavaNotFound` | no Java that Spark can use | the message names the three ways to provide one |
| `SparkUnavailable` | a Spark Connect server went away in the middle | start it, and run again |
| `OutputNotWritable` | results cannot be written to a directory | choose another, or mend its permissions |
"""

from collections.abc import Mapping
from typing import Any
from uuid import UUID


class QueueError(Exception):
    """The root of every error raised by this package."""


class InvalidInput(QueueError, ValueError):
    """An argument, a setting or a payload is not usable; nothing was written."""


class InvalidPayload(InvalidInput):
    """A payload does not fit its queue's model; nothing of the call was enqueued."""


class UnreadablePayload(InvalidPayload):
    """A stored payload cannot be read: a number is too long, it is nested too deeply, or its model breaks over it."""


class UnknownVersion(InvalidPayload):
    """A payload has a version that this process does not know, or could not upgrade."""


class WrongHandler(QueueError):
    """A handler returned a coroutine or a generator, which nothing awaits or iterates: its jobs were given back, and no
    attempt was spent.
    """


class UnknownQueue(QueueError, LookupError):
    """No queue of that name exists in the schema."""


class UnknownJob(QueueError, LookupError):
    """No job of that id is live, and none is in the archive any more."""


class UnknownSubscription(QueueError, LookupError):
    """The topic has no subscription of that name."""


class UnknownSchedule(QueueError, LookupError):
    """The queue has no schedule of that name."""


class UnknownBatch(QueueError, LookupError):
    """No batch of that id or key exists in the schema."""


class UnknownGroup(QueueError, LookupError):
    """No group of jobs of that id exists in the schema."""


class GroupClosed(QueueError):
    """The group of jobs is closed, and nothing is added to it any more; nothing was enqueued."""


class DecisionRefused(QueueError):
    """A decision about a job that people do does not fit its stage, its revision or its people; nothing was changed."""


class QueueInUse(QueueError):
    """A queue cannot be deleted: it has jobs, something refers to it, or consumers work on it; nothing was changed."""


class QueuePaused(QueueError):
    """The queue is paused, and what was asked for cannot be done before it is resumed."""


class WaitTimedOut(QueueError, TimeoutError):
    """Not every job that was waited for ended in time.

    Attributes:
        outcomes: by id, each job's `JobOutcome` as it was at the last check, also of those that have ended.
    """

    def __init__(self, message: str, outcomes: Mapping[UUID, Any]) -> None:
        super().__init__(message)
        self.outcomes = dict(outcomes)


class LeaseLost(QueueError):
    """The lease of at least one job was no longer current; the database refused the write for it."""


class TransactionLost(QueueError):
    """Other transactions were in the way of one of ours, again and again or when it could not begin again; nothing was
    enqueued.
    """


class DatabaseUnavailable(QueueError):
    """The database cannot be reached or refused the connection."""


class AccessRefused(QueueError, PermissionError):
    """The user may not do that in the schema; nothing was changed."""


class SchemaMissing(QueueError):
    """The schema, or its tables, do not exist."""


class SchemaTooOld(QueueError):
    """The schema lacks migrations that this library needs."""


class SchemaTooNew(QueueError):
    """The schema is newer, and does not serve this library any more."""


class SchemaBusy(QueueError):
    """Others held locks for too long. A migration's step was undone, and the next `migrate` goes on from there."""


class BatchLost(LeaseLost):
    """A sealed batch was taken over by somebody else, or some of its jobs were."""


class EmbeddedServerError(QueueError):
    """The embedded PostgreSQL server could not be started."""


class JavaNotFound(QueueError):
    """No Java that Spark can use was found."""


class SparkUnavailable(QueueError):
    """A Spark Connect server went away while it was used; what was not published is done by the next run."""


class OutputNotWritable(QueueError):
    """A directory for results does not exist and cannot be made, or cannot be written to."""
