"""What the schema of a database can do: asked before a statement that needs more than the oldest schema of the window has.

    name = "enqueue_labelled" if has(database, Capability.LABELS) else "enqueue"

A schema never loses a capability. One that was not there is checked again after some seconds: consumers live for weeks,
and the schema is upgraded under them.
"""

import enum
import time
import weakref
from dataclasses import dataclass

from dagster_sqlqueue.db.database import Database
from dagster_sqlqueue.schema import migrations

_POLL_SECONDS = 5.0


class Capability(enum.IntEnum):
    """Something that not every schema of the window can do, by the number of the migration that brings it. One that
    `OLDEST_SCHEMA` has goes, with the statement for older schemas.
    """


@dataclass(slots=True)
class _Seen:
    version: int
    at: float


_seen: "weakref.WeakKeyDictionary[Database, _Seen]" = weakref.WeakKeyDictionary()


def has(database: Database, capability: Capability) -> bool:
    """Whether the schema can do that: by what this process has seen of it, at most five seconds ago where it could not.

    Raises:
        SchemaMissing, SchemaTooOld, SchemaTooNew, DatabaseUnavailable: see the classes.
    """
    seen = _seen.get(database)
    if seen is not None and (seen.version >= capability or time.monotonic() - seen.at < _POLL_SECONDS):
        return seen.version >= capability
    version = migrations.check(database)
    _seen[database] = _Seen(version, time.monotonic())
    return version >= capability
