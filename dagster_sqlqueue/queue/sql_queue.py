"""The queues of one schema: the verbs that people call, gathered from their rooms."""

from typing import Any, Self

from dagster_sqlqueue.db.database import Database
from dagster_sqlqueue.queue.enqueue import EnqueueingVerbs
from dagster_sqlqueue.queue.job_admin import DecidingVerbs
from dagster_sqlqueue.queue.lease_verbs import LeasingVerbs
from dagster_sqlqueue.queue.maintenance import HistoryVerbs
from dagster_sqlqueue.queue.queue_admin import OperatingVerbs
from dagster_sqlqueue.queue.stats import LookingVerbs
from dagster_sqlqueue.schema import migrations
from dagster_sqlqueue.schema.roles import InstalledRole


class SqlQueue(EnqueueingVerbs, LeasingVerbs, LookingVerbs, OperatingVerbs, DecidingVerbs, HistoryVerbs):
    """The queues of one schema.

    Args:
        database: the URL of the database, or a `Database` for more settings.
        settings: keyword arguments of `Database` when a URL is given.

    Raises:
        InvalidInput: the URL or a setting is not usable. Nothing is connected before the first verb.
    """

    def __init__(self, database: str | Database, **settings: Any) -> None:
        super().__init__(Database(database, **settings) if isinstance(database, str) else database)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the pool's connections."""
        self.database.close()

    def init(self) -> list[migrations.Migration]:
        """Make the schema or bring it to this library's version; gives the migrations that were applied."""
        return migrations.migrate(self.database)

    def install_roles(self) -> list[InstalledRole]:
        """Make the schema's roles (producer, consumer, operator, observer) and grant each what it needs; see docs/roles.md.

        Safe to call again. Gives the roles, by name.

        Raises:
            InvalidInput: the schema's name is too long for names of roles, or a role of such a name is somebody else's.
            AccessRefused: the user may not make roles, or does not own the schema; the message says what to do.
            SchemaMissing, SchemaTooOld, SchemaTooNew: the message names the command that mends it.
        """
        return migrations.install_roles(self.database)

    def check_schema(self) -> int:
        """The schema's version, when it is the one of this library.

        Raises:
            SchemaMissing, SchemaTooOld, SchemaTooNew: the message names the command that mends it.
        """
        return migrations.check(self.database)
