"""Which versions of the code and of the schema work together.

Both are counted in migrations: a schema's version is the newest one that was applied to it, a code's the newest one that it
knows. Each says how far back it works with the other, so that either may be upgraded first:

- the schema says in each row of `schema_version` which is the oldest code that it still serves; a migration that breaks
  older code raises that floor;
- the code says in `OLDEST_SCHEMA` which is the oldest schema that it works on. What it can do on a newer one only, it asks
  for: see `capabilities`.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from dagster_sqlqueue.__about__ import __version__
from dagster_sqlqueue.db.database import Database
from dagster_sqlqueue.errors import SchemaTooNew, SchemaTooOld
from dagster_sqlqueue.schema.migration_files import Migration

logger = logging.getLogger("dagster_sqlqueue")

OLDEST_SCHEMA = 1
"""The oldest schema that this code works on. It is one behind the newest migration at the least, so that consumers can be
upgraded before the schema is."""

_said: set[tuple[str, str, int, int]] = set()


@dataclass(frozen=True, slots=True)
class Standing:
    """A schema's version beside the code's, when they work together.

    Attributes:
        schema: the newest migration that was applied.
        code: the newest migration that this code knows.
    """

    schema: int
    code: int

    @property
    def note(self) -> str:
        """What an operator is to know of it; empty when they are the same."""
        if self.schema > self.code:
            return (
                f"the schema is at version {self.schema}, newer than this package ({__version__}), which knows versions"
                f" up to {self.code} and works on it"
            )
        if self.schema < self.code:
            return (
                f"the schema is at version {self.schema}, older than this package ({__version__}), which knows version"
                f" {self.code} and works on it"
            )
        return ""

    @property
    def cure(self) -> str:
        """What brings both to the same version; empty when they are."""
        if self.schema > self.code:
            return "upgrade the package when it suits: pip install --upgrade dagster-sqlqueue"
        return "upgrade the schema when it suits: sqlqueue migrate" if self.schema < self.code else ""


def compare(
    applied: Sequence[tuple[int, int]], known: Sequence[Migration], database: Database, *, migrating: bool = False
) -> Standing:
    """The standing of a schema and this code.

    Args:
        applied: the rows of `versions.sql`: each migration that was applied, and the oldest code that it serves.
        known: the migrations of this code.
        database: named in errors.
        migrating: whether the schema is about to be upgraded, so that none is too old.

    Raises:
        SchemaTooOld: the schema has to be upgraded first.
        SchemaTooNew: this package has to be upgraded first.
    """
    newest = known[-1].version
    schema = max((version for version, _ in applied), default=0)
    floor = max((serves_from for _, serves_from in applied), default=0)
    where = f"schema {database.schema!r} of {database.where} is at version {schema}"
    if newest < floor:
        raise SchemaTooNew(
            f"{where}, which serves code that knows version {floor} or a newer one; this package ({__version__}) knows"
            f" versions up to {newest}. The package is to be upgraded: pip install --upgrade dagster-sqlqueue"
        )
    done = {version for version, _ in applied}
    lacking = [migration for migration in known if migration.version not in done]
    # One that lies below the newest that was applied was skipped by somebody: that is no older schema, but a broken one.
    if lacking and not migrating and (schema < OLDEST_SCHEMA or lacking[0].version < schema):
        names = ", ".join(migration.label for migration in lacking)
        raise SchemaTooOld(
            f"{where} and lacks {names}; this package ({__version__}) works on versions from {OLDEST_SCHEMA} on. The schema"
            " is to be upgraded: sqlqueue migrate"
        )
    return Standing(schema, newest)


def note_once(standing: Standing, database: Database) -> None:
    """Log that the versions differ, once in a process for each schema and each of its versions."""
    key = (database.where, database.schema, standing.schema, standing.code)
    if standing.note and key not in _said:
        _said.add(key)
        logger.warning("schema %r of %s: %s; %s", database.schema, database.where, standing.note, standing.cure)
