"""The exit codes: what each means, and which errors end with it."""

import enum

from dagster_sqlqueue.errors import (
    AccessRefused,
    DatabaseUnavailable,
    DecisionRefused,
    EmbeddedServerError,
    GroupClosed,
    InvalidInput,
    QueueInUse,
    SchemaBusy,
    SchemaMissing,
    SchemaTooNew,
    SchemaTooOld,
    TransactionLost,
    WaitTimedOut,
    WrongHandler,
)


class Code(enum.IntEnum):
    """The exit codes of the commands."""

    DONE = 0
    FAILED = 1
    INPUT = 2
    DATABASE = 3
    SCHEMA = 4
    UNKNOWN = 5
    PARTLY = 6
    CUT_OFF = 7
    NOT_SUCCEEDED = 8
    TIMED_OUT = 9
    BUSY = 10
    INTERRUPTED = 130
    CLOSED_PIPE = 141


MEANINGS = {
    Code.DONE: "done, also if up, work, metrics or schedule run was stopped by SIGTERM",
    Code.FAILED: "doctor found a failure, functions found SQL functions that are missing or of an older package, or an"
    " unexpected error occurred",
    Code.INPUT: "bad input or usage, or a decision that the state of the job, group or queue does not allow; no job was"
    " changed",
    Code.DATABASE: "the database is not available or refused the statement, or the embedded server did not start or was"
    " stopped",
    Code.SCHEMA: "the schema is missing, too old or too new",
    Code.UNKNOWN: "there is no such queue, job, group, subscription, schedule or batch",
    Code.PARTLY: "partly done, or would be with --dry-run (the output says what was left, and why)",
    Code.CUT_OFF: "work stopped before running jobs had ended; they are due again, at once or when their leases expire",
    Code.NOT_SUCCEEDED: "the job that was waited for failed or was cancelled",
    Code.TIMED_OUT: "the job that was waited for did not end in time; it is still on the queue",
    Code.BUSY: "migrate, or up, did not get its locks in time; repeat it",
    Code.INTERRUPTED: "interrupted with Ctrl-C, except for work, which ends with 0 or 7",
    Code.CLOSED_PIPE: "the reader of the output closed the pipe",
}

MENDED_BY_HAND = frozenset({Code.INPUT})
"""The exit codes of `sqlqueue work` that no change of the database can fix: the command line, a setting or a handler has to
be changed, so a service manager does not restart it. After any other code a later start may succeed: the server is available
again, a privilege was granted, a migration was applied, a queue was created, or the error does not recur."""

_CODES: list[tuple[type[Exception], Code]] = [
    (InvalidInput, Code.INPUT),
    (WrongHandler, Code.INPUT),
    (DecisionRefused, Code.INPUT),
    (GroupClosed, Code.INPUT),
    (QueueInUse, Code.INPUT),
    (DatabaseUnavailable, Code.DATABASE),
    (AccessRefused, Code.DATABASE),
    (TransactionLost, Code.DATABASE),
    (EmbeddedServerError, Code.DATABASE),
    (SchemaMissing, Code.SCHEMA),
    (SchemaTooOld, Code.SCHEMA),
    (SchemaTooNew, Code.SCHEMA),
    (SchemaBusy, Code.BUSY),
    (WaitTimedOut, Code.TIMED_OUT),
    (LookupError, Code.UNKNOWN),
]


def code_of(error: Exception) -> Code:
    """Return the exit code of an error of the library or of the database."""
    usual = Code.DATABASE if of_database(error) else Code.FAILED
    return next((code for kind, code in _CODES if isinstance(error, kind)), usual)


def of_database(error: Exception) -> bool:
    """Return whether an error comes from the driver or from SQLAlchemy."""
    import psycopg
    from sqlalchemy.exc import SQLAlchemyError

    return isinstance(error, psycopg.Error | SQLAlchemyError)
