"""Meaning of the driver's errors: which are retried, which mean that the database cannot be used, and their messages."""

import re
import shlex
from typing import Final

import psycopg

from dagster_sqlqueue.errors import DatabaseUnavailable, SchemaMissing

_SERIALIZATION: Final = {"40001", "40P01"}
TIMED_OUT: Final = (psycopg.errors.LockNotAvailable, psycopg.errors.QueryCanceled)
"""Errors of a statement that a timeout, or an administrator, has ended: it changed nothing, and may succeed later."""

_MISSING: Final = (
    psycopg.errors.UndefinedTable,
    psycopg.errors.UndefinedFunction,
    psycopg.errors.InvalidSchemaName,
)
_GONE: Final = {"25P03", "57P01", "57P02", "57P03", "08000", "08003", "08006", "08001", "08004"}
_REFUSED: Final = {"28P01", "28000"}
_NO_DATABASE: Final = "3D000"


def lost_a_race(error: BaseException) -> bool:
    """Return whether an error is a serialization failure or a deadlock: a retry of the transaction may succeed."""
    return getattr(error, "sqlstate", None) in _SERIALIZATION


def missing(error: object, schema: str, where: str) -> SchemaMissing | None:
    """Return an error that names the command that creates the tables; None if `error` is not about missing tables.

    Args:
        error: error of the driver.
        schema: schema in which the tables are expected.
        where: description of the database.
    """
    text = str(error)
    if not isinstance(error, _MISSING) or not (f"{schema}." in text or f'"{schema}"' in text):
        return None
    first = text.strip().splitlines()[0].rstrip(".")
    return SchemaMissing(
        f"schema {schema!r} of {where} does not hold the queue's tables: {first}. Make them with: sqlqueue migrate"
        f" --schema {shlex.quote(schema)}"
    )


def is_unavailable(error: object) -> bool:
    """Return whether an error means that there is no connection, or that it was lost, and not that a statement failed."""
    # A foreign table whose server is away fails a statement by the same codes, and the connection stays.
    if isinstance(error, psycopg.Error) and error.diag.severity_nonlocalized == "ERROR":
        return False
    state: str | None = getattr(error, "sqlstate", None)
    return state is None or state in _GONE or state.startswith("28") or state == _NO_DATABASE


def unavailable(where: str, reason: str, state: str | None = None) -> DatabaseUnavailable:
    """Return an error that says why a database cannot be used, and what to do.

    Args:
        where: description of the database.
        reason: message of the driver's error.
        state: its SQLSTATE, if there is one.
    """
    reason = " ".join(line.strip() for line in reason.splitlines() if line.strip())
    reason = re.sub(r"^connection failed: |Multiple connection attempts failed\. All failures were: ", "", reason)
    if "password authentication failed" in reason or "no password supplied" in reason or state in _REFUSED:
        cure = "check user and password in SQLQUEUE_URL"
    elif "does not exist" in reason:
        cure = "check the database and user in SQLQUEUE_URL"
    else:
        cure = "check that the server runs and that SQLQUEUE_URL names its host and port"
    return DatabaseUnavailable(f"cannot use the database {where}: {reason}; {cure}")
