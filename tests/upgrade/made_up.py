"""What the next versions of the library might bring: migrations, and a capability that code can ask for."""

from pathlib import Path

import pytest

from dagster_sqlqueue.schema import migration_files, migrations
from dagster_sqlqueue.schema.capabilities import Capability
from dagster_sqlqueue.schema.migrations import Migration

FOLDER = Path(__file__).parent / "migrations"
REAL = migrations.available()
MADE_UP = migration_files.read(FOLDER)


class MadeUp(Capability):
    """By the number of the migration that brings it."""

    LABELS = 2


def known_to(version: int) -> tuple[Migration, ...]:
    """The migrations that code of that version knows."""
    return tuple(migration for migration in (*REAL, *MADE_UP) if migration.version <= version)


def become(patch: pytest.MonkeyPatch, version: int) -> None:
    """Let this process be code of that version."""
    patch.setattr(migrations, "available", lambda: known_to(version))
