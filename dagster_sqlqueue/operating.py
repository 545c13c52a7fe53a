"""Running a queue: make it, change its settings, pause it, and decide about single jobs."""

from typing import Any

from dagster_sqlqueue.database import Executor
from dagster_sqlqueue.settings import Backoff, QueueSettings, QueueSpec
from dagster_sqlqueue.verbs import Verbs, settings_of


class OperatingVerbs(Verbs):
    """What the owner and the operators of a queue do."""

    def create_queue(self, spec: QueueSpec[Any]) -> QueueSettings:
        """Make the queue, or bring the settings of an existing one up to date; its bucket count stays as it is.

        A change holds from the next claim on, also for consumers that run. A limit holds once the leases that were
        granted without it have ended.
        """
        backoff = spec.backoff if isinstance(spec.backoff, Backoff) else Backoff()
        parameters = {
            "name": spec.name,
            "bucket_count": spec.bucket_count,
            "strategy": str(spec.strategy),
            "ordered": spec.ordered,
            "on_poison": str(spec.on_poison),
            "lease_seconds": spec.lease_seconds,
            "timeout_seconds": spec.timeout_seconds,
            "max_attempts": spec.max_attempts,
            "backoff_seconds": backoff.seconds,
            "backoff_factor": backoff.factor,
            "backoff_max_seconds": backoff.max_seconds,
            "backoff_jitter": backoff.jitter,
            "max_running": spec.max_running,
            "max_running_per_key": spec.max_running_per_key,
            "rate_limit": spec.rate and spec.rate.starts,
            "rate_seconds": spec.rate and spec.rate.seconds,
            "retention_days": spec.retention_days,
        }
        return self.database.transact(lambda executor: self._create(executor, parameters))

    def _create(self, executor: Executor, parameters: dict[str, Any]) -> QueueSettings:
        name = parameters["name"]
        before = [settings_of(row) for row in executor.run("queues", {"name": name})]
        executor.run("create_queue", parameters)
        after = self.settings(name, executor=executor)
        if before and _turns(before[0]) != _turns(after):
            executor.run("settle_turns", {"queue": name})
        return after


def _turns(settings: QueueSettings) -> tuple[object, ...]:
    return settings.ordered, settings.max_running_per_key, settings.limited
