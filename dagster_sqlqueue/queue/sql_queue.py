"""`SqlQueue`: the queues of one schema, with the verbs of the modules of this package."""

import inspect
from collections.abc import Sequence
from typing import Any, Self

from dagster_sqlqueue.db.database import Database
from dagster_sqlqueue.db.schema_name import Unnamed
from dagster_sqlqueue.db.session_settings import Pooler
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.queue.enqueue import EnqueueVerbs
from dagster_sqlqueue.queue.hooks import EnqueueHooks
from dagster_sqlqueue.queue.job_admin import JobAdminVerbs
from dagster_sqlqueue.queue.lease_verbs import LeaseVerbs
from dagster_sqlqueue.queue.maintenance import Maintained, Maintenance, Trimmed
from dagster_sqlqueue.queue.queue_admin import QueueAdminVerbs
from dagster_sqlqueue.queue.stats import StatsVerbs
from dagster_sqlqueue.schema import migrations, partitions
from dagster_sqlqueue.schema.lock_waits import LockWaits
from dagster_sqlqueue.schema.roles import InstalledRole


class SqlQueue(EnqueueVerbs, LeaseVerbs, StatsVerbs, QueueAdminVerbs, JobAdminVerbs):
    """The queues of one schema.

    Args:
        database: the URL of the database, or a `Database`, which has settings of its own: all that follow but the hooks go
            with a URL.
        schema: where the queue's tables are; not given: the environment variable `SQLQUEUE_SCHEMA`, else `sqlqueue`.
        pool_size: the most connections kept and opened at a time.
        application_name: what `pg_stat_activity` shows.
        connect_timeout: whole seconds to wait for the server, or for a connection of the pool to become free.
        statement_timeout: seconds; None for no limit, whatever is set for the role, unless the URL's `options` set it.
        pooler: what stands between here and the server: `transaction` or `session`; None: as for `Database`.
        hooks: entered and left around enqueues, and publications of `Topics` on these queues; the first is the outermost.

    Attributes:
        database: where the queues are.
        catalog: which queues there are, and the settings of each as this process saw them last.
        leases: everything that is done under a lease, or to get one.

    Raises:
        InvalidInput: the URL or a setting is not usable. Nothing is connected before the first verb.
    """

    def __init__(
        self,
        database: str | Database,
        *,
        schema: str | Unnamed = Unnamed.UNNAMED,
        pool_size: int = 5,
        application_name: str = "dagster-sqlqueue",
        connect_timeout: int = 10,
        statement_timeout: float | None = None,
        pooler: Pooler | str | None = None,
        hooks: Sequence[EnqueueHooks] = (),
    ) -> None:
        settings: dict[str, Any] = {
            "schema": schema,
            "pool_size": pool_size,
            "application_name": application_name,
            "connect_timeout": connect_timeout,
            "statement_timeout": statement_timeout,
            "pooler": pooler,
        }
        if isinstance(database, str):
            database = Database(database, **settings)
        elif not isinstance(database, Database):
            raise InvalidInput(_no_database(database))
        elif given := [name for name, value in settings.items() if value != _usual(name)]:
            raise InvalidInput(
                f"{given[0]} is {settings[given[0]]!r} beside a Database, which has settings of its own; give it to the"
                f" Database(url, {given[0]}=…)"
            )
        super().__init__(database, hooks)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the pool's connections."""
        self.database.close()

    def migrate(self, waits: LockWaits | None = None) -> list[migrations.Migration]:
        """Make the schema or bring it to this library's version; returns the migrations that were applied.

        Args:
            waits: how long locks are waited for; None: three seconds at a time, five minutes in all.

        Raises:
            SchemaBusy: others held locks for too long; the next call goes on from there.
            SchemaTooNew: the schema does not serve this library any more.
        """
        return migrations.migrate(self.database, waits)

    def install_roles(self) -> list[InstalledRole]:
        """Make the schema's roles (producer, consumer, operator, observer) and grant each what it needs; see docs/roles.md.

        Safe to call again. Returns the roles, by name.

        Raises:
            InvalidInput: the schema's name is too long for names of roles, or such a role belongs to another schema.
            AccessRefused: the user may not make roles, or does not own the schema; the message says what to do.
            SchemaMissing, SchemaTooOld, SchemaTooNew: the message names the command that mends it.
        """
        return migrations.install_roles(self.database)

    def maintain(self, *, days_ahead: int = partitions.DAYS_AHEAD) -> Maintained:
        """Make the archive's partitions ahead, move rows that found none, trim by retention, remove what expired, give back
        the jobs of batches that were left behind, heal the keys whose jobs wait for a turn that would not come, move
        jobs to buckets in which they are found.

        Consumers do it by themselves, once an hour; to be called where there are none, or where it is to be done now. One
        process at a time does it over the whole schema; a second one returns at once. Consumers go on meanwhile: nobody
        waits for a lock of this for longer than a fifth of a second at a time.

        Args:
            days_ahead: for how many days after today there are to be partitions, 0 to 366.

        Raises:
            InvalidInput: days_ahead is out of range.
            AccessRefused: the user is neither an operator nor the owner of the schema.
        """
        return Maintenance(self.catalog).maintain(days_ahead=days_ahead)

    def trim(self, queue: str | None = None) -> Trimmed:
        """Remove finished jobs that no retention keeps.

        A job is kept while the UTC day in which it ended is one of the last `retention_days` whole days of its queue:
        for at least that long, and at most a day more. With a retention of 0 everything is kept. A day that nobody
        keeps is dropped as a whole; only where queues differ are rows deleted, 10,000 at a time. Rows of a queue that
        does not exist any more are kept as long as the longest retention that any queue has, other than 0, says.

        The steps that people took with a job go when the job is gone and they are as old themselves: never those of a job
        that is live, or still in the archive.

        Args:
            queue: trim that queue alone; None for all.

        Raises:
            UnknownQueue: there is no such queue.
            AccessRefused: the user is neither an operator nor the owner of the schema.
        """
        return Maintenance(self.catalog).trim(queue)


def check_sql_queue(queue: object) -> None:
    """Raise an error if what was given as the place of the queues is none, such as its URL.

    Raises:
        InvalidInput: the message says what to give.
    """
    if not isinstance(queue, SqlQueue):
        raise InvalidInput(f"the queue is a {type(queue).__name__}; give a SqlQueue, such as SqlQueue(url)")


def _usual(setting: str) -> Any:
    return inspect.signature(SqlQueue).parameters[setting].default


def _no_database(given: object) -> str:
    wanted = "a URL, postgresql://user:password@host:5432/database, or a Database"
    if given is None:
        return f"the database is None: is the environment variable that holds its URL set? Give {wanted}"
    return f"the database is of the type {type(given).__name__}; give {wanted}"
