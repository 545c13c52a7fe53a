"""A run of the daily asset: consumes the jobs of the days that changed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import SparkSession

from dagster_sqlqueue.model.backoff import Backoff
from dagster_sqlqueue.queue import SqlQueue
from dagster_sqlqueue.spark import contents, sinks
from dagster_sqlqueue.spark.closed_days import check_begun
from dagster_sqlqueue.spark.consume_verbs import finish_earlier
from dagster_sqlqueue.spark.contents import Accounts, Days, Held, Upstream
from dagster_sqlqueue.spark.daily import consume_days
from dagster_sqlqueue.spark.day_work import DayWork, Found, Made, together


@dataclass(frozen=True, slots=True, kw_only=True)
class Daily(DayWork):
    """What a daily asset does.

    Attributes:
        daily_queue: of the daily jobs.
        backoff: of the batches.
        lease_seconds: of the batches.
    """

    daily_queue: str
    backoff: Backoff
    lease_seconds: float

    @property
    def consumes(self) -> bool:
        """It does."""
        return True

    @property
    def upstream(self) -> Upstream | None:
        """The queue of the events."""
        return contents.upstream_of(self.reads.queue, self.reads.columns)

    def check(self, queue: SqlQueue, about: Days, days: Sequence[str]) -> None:
        """Check that there are daily jobs, and that no day lies in the future, and move the files that a killed run
        left.
        """
        queue.catalog.check_exists(self.daily_queue)
        check_begun(days, queue.database.run("clock", {})[0][0])
        if self.output is not None:
            finish_earlier(queue, *(f"{self.name}/{day}" for day in days))

    def check_changed(self, queue: SqlQueue, found: Found, days: Sequence[str]) -> None:
        """Nothing: a day may always be consumed again."""

    def accounts(self, queue: SqlQueue, held: Mapping[str, Held]) -> Mapping[str, Accounts]:
        """As their jobs stand."""
        return contents.accounts(queue, self.daily_queue, list(held), self.upstream)

    def watermark(self, held: Held, accounts: Accounts) -> str:
        """What the accounts that are done with the day have archived, and how many they are."""
        return f"{held.watermark(accounts.done)}/{len(accounts.done)}"

    def make(self, queue: SqlQueue, session: SparkSession, found: Found, days: Sequence[str], run_id: str) -> Made:
        """Consume the days: some at a time, where all have more accounts than one transaction should publish rows."""
        return together(
            [self._consumed(queue, session, found, part, run_id) for part in self._parts(queue, found, days)]
        )

    def _parts(self, queue: SqlQueue, found: Found, days: Sequence[str]) -> list[list[str]]:
        """Days that are published together. Each account has a row at most."""
        if self.table is None:
            return [list(days)]
        stand = self.accounts(queue, found.held)
        parts: list[list[str]] = [[]]
        remaining = sinks.MAX_ROWS
        for day in days:
            rows = len(stand[day].done | stand[day].left.keys())
            if rows > remaining and parts[-1]:
                parts.append([])
                remaining = sinks.MAX_ROWS
            parts[-1].append(day)
            remaining -= rows
        return parts

    def _consumed(self, queue: SqlQueue, session: SparkSession, found: Found, days: Sequence[str], run_id: str) -> Made:
        done, rows = consume_days(
            queue,
            session,
            self.compute,
            name=self.name,
            daily_queue=self.daily_queue,
            read=self.reads,
            days=days,
            owner=f"run/{run_id}",
            table=self.table,
            output=found.directory,
            backoff=self.backoff,
            lease_seconds=self.lease_seconds,
        )
        shown = {one.day: {"jobs_consumed": one.jobs} for one in done}
        return Made(rows, {one.day: one.rows for one in done}, shown)
