"""What the verbs of a `SqlQueue` share: the parts of which it is made."""

from collections.abc import Sequence

from dagster_sqlqueue.db.database import Database
from dagster_sqlqueue.db.executors import Executor
from dagster_sqlqueue.model.queue import QueueSettings
from dagster_sqlqueue.queue.catalog import Catalog
from dagster_sqlqueue.queue.decision import Decisions
from dagster_sqlqueue.queue.hooks import EnqueueHooks
from dagster_sqlqueue.queue.leases import Leases
from dagster_sqlqueue.queue.search import Search


class Verbs:
    """The base of the classes of verbs, which are siblings: none of them knows another one.

    Args:
        database: where the queues are.
        hooks: entered and left around enqueues and publications.

    Attributes:
        database: where the queues are.
        catalog: which queues there are, and the settings of each as this process saw them last.
        leases: everything that is done under a lease, or to get one.
    """

    def __init__(self, database: Database, hooks: Sequence[EnqueueHooks] = ()) -> None:
        self.database = database
        self._hooks = tuple(hooks)
        self.catalog = Catalog(database)
        self.leases = Leases(self.catalog)
        self._search = Search(self.catalog)
        self._decisions = Decisions(self.catalog, self._search)

    def queues(self) -> list[QueueSettings]:
        """Every queue of the schema, by name."""
        return self.catalog.queues()

    def settings(self, queue: str, *, executor: Executor | None = None) -> QueueSettings:
        """One queue's settings, as they are now.

        Raises:
            UnknownQueue: there is none of that name.
        """
        return self.catalog.settings(queue, executor=executor)
