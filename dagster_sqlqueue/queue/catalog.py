"""Read which queues a schema has, and keep the settings of each as this process read them last."""

from collections.abc import Sequence
from typing import Any

from dagster_sqlqueue.db.database import Database
from dagster_sqlqueue.db.executors import Executor
from dagster_sqlqueue.errors import UnknownQueue
from dagster_sqlqueue.model.backoff import Backoff
from dagster_sqlqueue.model.queue import PoisonPolicy, QueueSettings, QueueSpec, RateLimit, Strategy, check_queue_name
from dagster_sqlqueue.payload import redacted_text


class Catalog:
    """The queues of one schema, for whatever works with them by their names.

    Args:
        database: where the queues are.
    """

    def __init__(self, database: Database) -> None:
        self.database = database
        self._seen: dict[str, QueueSettings] = {}

    def queues(self) -> list[QueueSettings]:
        """Every queue of the schema, by name."""
        return [settings_of(row) for row in self.database.run("queues", {"name": None})]

    def settings(self, queue: str, *, executor: Executor | None = None) -> QueueSettings:
        """One queue's settings, as they are now.

        Raises:
            UnknownQueue: there is none of that name.
        """
        self._seen[queue] = self.settings_within(executor or self.database, queue)
        return self._seen[queue]

    def settings_within(self, executor: Executor, queue: str) -> QueueSettings:
        """One queue's settings as a transaction sees them, which may be older ones: they are not remembered.

        Raises:
            UnknownQueue: there is none of that name.
        """
        rows = executor.run("queues", {"name": check_queue_name(queue)})
        if not rows:
            raise self.unknown(queue, executor)
        return settings_of(rows[0])

    def last_seen(self, queue: str) -> QueueSettings:
        """One queue's settings as this process saw them last; read if it never did.

        Raises:
            UnknownQueue: there is none of that name.
        """
        return self._seen.get(queue) or self.settings(queue)

    def check_exists(self, queue: str, executor: Executor | None = None) -> None:
        """Say so if a queue does not exist.

        Raises:
            UnknownQueue: the message names those that do.
        """
        if not (executor or self.database).run("queues", {"name": queue}):
            raise self.unknown(queue, executor or self.database)

    def keep_sensitive_names(self, spec: QueueSpec[Any]) -> None:
        """Have the database know which fields of a queue's payloads are not to be shown, for tools without the model.
        Names are added, never taken away: jobs of an older model may hold them.
        """
        if names := sorted(redacted_text.sensitive_names(spec.payload)):
            self.database.run("sensitive_add", {"queue": spec.name, "names": names})

    def sensitive_names(self, queue: str) -> frozenset[str]:
        """Return the names of the fields of a queue's payloads that are not to be shown, as the database knows them."""
        return frozenset(row[0] for row in self.database.run("sensitive_names", {"queue": check_queue_name(queue)}))

    def unknown(self, queue: str, executor: Executor) -> UnknownQueue:
        """Return the error that says that there is no such queue, and which there are."""
        return self.not_among(queue, executor.run("queues", {"name": None}))

    def not_among(self, queue: str, there: Sequence[Sequence[Any]]) -> UnknownQueue:
        """Return the same where rows are at hand that begin with the names of those that there are."""
        names = ", ".join(row[0] for row in there) or "none"
        return UnknownQueue(
            f"there is no queue {queue!r} in schema {self.database.schema!r} of {self.database.where} (there are: {names})."
            " Make it with create_queue, or with: sqlqueue create"
        )


def settings_of(row: Sequence[Any]) -> QueueSettings:
    """The settings in a row of `queues.sql`."""
    (
        name,
        bucket_count,
        strategy,
        ordered,
        on_poison,
        lease_seconds,
        timeout_seconds,
        max_attempts,
        backoff_seconds,
        backoff_factor,
        backoff_max_seconds,
        backoff_jitter,
        max_running,
        max_running_per_key,
        rate_limit,
        rate_seconds,
        retention_days,
        paused_at,
        paused_until,
        revision,
        claim_buckets,
        regions,
    ) = row
    return QueueSettings(
        name=name,
        bucket_count=bucket_count,
        strategy=Strategy(strategy),
        ordered=ordered,
        on_poison=PoisonPolicy(on_poison),
        lease_seconds=lease_seconds,
        timeout_seconds=timeout_seconds,
        max_attempts=max_attempts,
        backoff=Backoff(backoff_seconds, backoff_factor, backoff_max_seconds, backoff_jitter),
        max_running=max_running,
        max_running_per_key=max_running_per_key,
        rate=None if rate_limit is None else RateLimit(rate_limit, rate_seconds),
        retention_days=retention_days,
        paused_at=paused_at,
        paused_until=paused_until,
        revision=revision,
        claim_buckets=claim_buckets,
        regions=tuple(regions),
    )
