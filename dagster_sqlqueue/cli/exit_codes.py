"""The exit codes: what they mean, and which error has which."""

import enum

from dagster_sqlqueue.errors import (
    AccessRefused,
    DatabaseUnavailable,
    DecisionRefused,
    EmbeddedServerError,
    GroupClosed,
    InvalidInput,
    SchemaBusy,
    SchemaMissing,
    SchemaTooNew,
    SchemaTooOld,
    TransactionLost,
    WaitTimedOut,
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
    Code.DONE: "done",
    Code.FAILED: "doctor found a failure, or something failed that should not",
    Code.INPUT: "bad input or usage, or a decision that does not fit; nothing was written",
    Code.DATABASE: "the database is not available, or refused",
    Code.SCHEMA: "the schema is missing, too old or too new",
    Code.UNKNOWN: "there is no such queue, job, group, subscription or schedule",
    Code.PARTLY: "done in part (the output says what was left as it is, and why)",
    Code.CUT_OFF: "work stopped before running jobs had ended; they were given back",
    Code.NOT_SUCCEEDED: "the job that was waited for failed or was cancelled",
    Code.TIMED_OUT: "the job that was waited for has not ended in time; it goes on",
    Code.BUSY: "migrate did not get its locks in time; run it again",
    Code.INTERRUPTED: "interrupted, with Ctrl-C",
    Code.CLOSED_PIPE: "the reader of the output closed the pipe",
}

MENDED_BY_HAND = frozenset({Code.INPUT})
"""What `sqlqueue work` ends with when it would do so again, however the database changes: a command line, a setting or a
handler has to be changed, and a service manager does not start it again. All others may do better later: a server comes
back, a grant, a migration or a queue is made, a defect is met once."""

_CODES: list[tuple[type[Exception], Code]] = [
    (InvalidInput, Code.INPUT),
    (DecisionRefused, Code.INPUT),
    (GroupClosed, Code.INPUT),
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
    """Return the exit code of an error that is the library's, or the database's."""
    usual = Code.DATABASE if of_database(error) else Code.FAILED
    return next((code for kind, code in _CODES if isinstance(error, kind)), usual)


def of_database(error: Exception) -> bool:
    """Return whether an error is the driver's, or SQLAlchemy's."""
    import psycopg
    from sqlalchemy.exc import SQLAlchemyError

    return isinstance(error, psycopg.Error | SQLAlchemyError)
