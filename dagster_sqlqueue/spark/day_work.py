"""A run of an asset of days: which of them changed, compute those, show and check all of them."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import time
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
from pyspark.sql import SparkSession

from dagster_sqlqueue.orchestration.resource import SqlQueueResource
from dagster_sqlqueue.queue import SqlQueue
from dagster_sqlqueue.schema import migrations
from dagster_sqlqueue.spark import (
    contents,
    day_checks,
    day_metadata,
    finish_window,
    local_days,
    published,
    remote,
    result_columns,
)
from dagster_sqlqueue.spark.closed_days import begins, ends
from dagster_sqlqueue.spark.contents import Accounts, Days, Held, Upstream
from dagster_sqlqueue.spark.daily import ArchiveRead
from dagster_sqlqueue.spark.day_checks import DayOut
from dagster_sqlqueue.spark.day_results import Compute
from dagster_sqlqueue.spark.published import Published
from dagster_sqlqueue.spark.resource import SparkResource
from dagster_sqlqueue.spark.source import register_source

There = Mapping[str, Mapping[str, Published | None]]


@dataclass(frozen=True, slots=True)
class Found:
    """What a run found before it read anything.

    Attributes:
        about: which jobs belong to which day.
        days: of the run, as ISO dates.
        directory: of the Parquet files, or its URL; None: there are none.
        held: what the archive held of each day.
        last: the last time that each day was materialised.
    """

    about: Days
    days: Sequence[str]
    directory: Path | str | None
    held: Mapping[str, Held]
    last: Mapping[str, dg.AssetMaterialization | None]


@dataclass(frozen=True, slots=True)
class Made:
    """What a run has computed and published.

    Attributes:
        rows: the results; without a row where they are too many for the driver.
        counts: how many rows each day has.
        shown: metadata of each day beside those that all assets of days have.
    """

    rows: pa.Table
    counts: Mapping[str, int]
    shown: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def together(parts: Sequence[Made]) -> Made:
    """What was published in several transactions."""
    shown: dict[str, Mapping[str, Any]] = {}
    counts: dict[str, int] = {}
    for part in parts:
        counts |= part.counts
        shown |= part.shown
    return Made(pa.concat_tables([part.rows for part in parts]), counts, shown)


@dataclass(frozen=True, slots=True, kw_only=True)
class DayWork(ABC):
    """What an asset of days does: see the arguments of `sqlqueue_daily_asset` and `sqlqueue_archive_asset`.

    Attributes:
        asset_key: of the asset.
        zone: of the partitions.
        key: the columns that identify a row of the results, `day` first.
    """

    asset_key: dg.AssetKey
    compute: Compute
    reads: ArchiveRead
    zone: str
    key: tuple[str, ...] = ("day", "account")
    table: str | None
    output: Callable[[], Path | str] | None
    statistics: day_metadata.StatisticsOf | None
    counted: str | None
    deadline: time | None = None
    columns: Mapping[str, str] | None
    code_version: str | None

    @property
    def name(self) -> str:
        """The asset's."""
        return self.asset_key.path[-1]

    @property
    def by_account(self) -> bool:
        """Whether the days have accounts."""
        return "account" in self.key and "account" in self.reads.columns

    @property
    def kinds(self) -> set[str]:
        """Those of the asset."""
        of_outputs = {published.TABLE: "postgres", published.FILES: "parquet"}
        return {"spark", *(of_outputs[name] for name in published.outputs(self.table, self.output))}

    def check_specs(self) -> list[dg.AssetCheckSpec]:
        """Return the checks that a run makes."""
        return day_checks.specs(
            self.asset_key,
            published.outputs(self.table, self.output),
            counted=self.counted,
            accounts=self.by_account,
            consumes=self.consumes,
            deadline=self.deadline,
            events=None if self.upstream is None else self.upstream.queue,
        )

    @property
    def metadata(self) -> dict[str, Any]:
        """Those of the asset: its table, and, for the sensor too, which events its days are made of."""
        made: dict[str, Any] = {"dagster/table_name": self.table} if self.table is not None else {}
        if self.consumes:
            columns = {name: dict(column) for name, column in self.reads.columns.items()}
            reads = {"queue": self.reads.queue, "states": list(self.reads.states), "columns": columns}
            made[contents.READS] = dg.MetadataValue.json(reads)
        return made

    @property
    def consumes(self) -> bool:
        """Whether there is a job for each account and day, which a run consumes."""
        return False

    @property
    def upstream(self) -> Upstream | None:
        """The queue whose live jobs keep an account's day open; None: there is none."""
        return None

    @abstractmethod
    def check(self, queue: SqlQueue, about: Days, days: Sequence[str]) -> None:
        """Check that the days can be materialised, before anything is read."""

    @abstractmethod
    def check_changed(self, queue: SqlQueue, found: Found, days: Sequence[str]) -> None:
        """Check that days that changed may be replaced. Not called by a run that computes them in any case."""

    @abstractmethod
    def accounts(self, queue: SqlQueue, held: Mapping[str, Held]) -> Mapping[str, Accounts]:
        """Return the state of the accounts of each day."""

    @abstractmethod
    def watermark(self, held: Held, accounts: Accounts) -> str:
        """What a day is made of: something else whenever it has to be computed again."""

    @abstractmethod
    def make(self, queue: SqlQueue, session: SparkSession, found: Found, days: Sequence[str], run_id: str) -> Made:
        """Compute these of the run's days, and publish them."""

    def run(
        self, context: dg.AssetExecutionContext, sqlqueue: SqlQueueResource, spark: SparkResource, *, recompute: bool
    ) -> dg.MaterializeResult[Any]:
        """Materialise the partitions of a run."""
        queue, days = sqlqueue.queue, list(context.partition_keys)
        found = self._find(queue, days, context.instance)
        accounts = self.accounts(queue, found.held)
        there = self._there(queue, found)
        changed = [
            day
            for day in days
            if recompute
            or accounts[day].takeable
            or any(output[day] is None for output in there.values())
            or day_metadata.made_of(found.last[day]) != self._version(found, accounts, day)
        ]
        shown = {
            day: day_metadata.unchanged(one)
            for day, one in found.last.items()
            if one is not None and day not in changed
        }
        # As text: a number of the run would plot as one of the day.
        result: dict[str, Any] = {"days_computed": f"{len(changed)} of {len(days)}"}
        if found.directory is not None:
            result["parquet"] = dg.MetadataValue.path(str(found.directory))
        if changed:
            context.log.info("%s: %d of %d days changed", self.name, len(changed), len(days))
            if not recompute:
                self.check_changed(queue, found, changed)
            jobs = sum(found.held[day].total() for day in changed)
            with spark.session(self.name, jobs) as session:
                register_source(session, sqlqueue.url, sqlqueue.schema_name)
                made = self.make(queue, session, found, changed, context.run.run_id)
            context.log.info("%s: %d rows of %d days", self.name, sum(made.counts.values()), len(changed))
            accounts = self.accounts(queue, found.held)
            there = self._there(queue, found)
            shown |= self._shown(queue, found, accounts, changed, made)
            result |= day_metadata.columns(made.rows.schema, self.columns)
        else:
            context.log.info("%s: nothing changed in %d days, and no Spark was started", self.name, len(days))
        for day in days:
            # With those of the run, which Dagster would show before those of the day.
            context.add_asset_metadata({**shown[day], **result}, partition_key=day)
        return dg.MaterializeResult(
            # A result has one for all its days.
            data_version=dg.DataVersion(day_metadata.contents(shown[days[0]])) if len(days) == 1 else None,
            check_results=self._checks(queue, found, accounts, there, shown),
        )

    def versioned(self, context: dg.AssetExecutionContext) -> Iterator[dg.AssetMaterialization]:
        """Yield the days of a run once more, each with its own data version: those that have another one.

        Dagster gives all days of a run the data version of its result, which it has stored before this is called.
        """
        for day in context.partition_keys:
            last = day_metadata.last_materialization(context.instance, self.asset_key, day)
            if last is not None and (event := day_metadata.versioned(last)) is not None:
                yield event

    def _find(self, queue: SqlQueue, days: Sequence[str], instance: dg.DagsterInstance) -> Found:
        directory = None if self.output is None else remote.writable(self.output())
        migrations.check(queue.database)
        queue.catalog.check_exists(self.reads.queue)
        if self.table is not None:
            result_columns.check_days(queue, self.table, self.key, [] if self.counted is None else [self.counted])
        about = self._about(days)
        self.check(queue, about, days)
        # Read before the events are: a job that is archived from now on makes the day one that changed.
        held = contents.held(queue, about, days)
        last = {day: day_metadata.last_materialization(instance, self.asset_key, day) for day in days}
        return Found(about, days, directory, held, last)

    def _about(self, days: Sequence[str]) -> Days:
        places = {name: self.reads.columns[name]["path"] for name in ("day", "account") if name in self.reads.columns}
        within = self.reads.finished_within
        window = None if within is None else finish_window.window(days, within)
        if "day" not in places:
            window = begins(min(days), self.zone), ends(max(days), self.zone)
        return Days(
            self.reads.queue,
            self.reads.states,
            self.zone,
            day=places.get("day"),
            account=places.get("account"),
            clocks=local_days.of_column("day", self.reads.columns.get("day", {})),
            since=window and window[0],
            until=window and window[1],
            within=within,
        )

    def _version(self, found: Found, accounts: Mapping[str, Accounts], day: str) -> str:
        watermark = self.watermark(found.held[day], accounts[day])
        return day_metadata.version(watermark, self.code_version, self.table, str(found.directory or ""))

    def _there(self, queue: SqlQueue, found: Found) -> There:
        account = "account" if self.by_account else None
        return published.in_outputs(
            queue, self.table, found.directory, found.days, account=account, counted=self.counted
        )

    def _shown(
        self, queue: SqlQueue, found: Found, accounts: Mapping[str, Accounts], days: Sequence[str], made: Made
    ) -> dict[str, dict[str, Any]]:
        stats = contents.stats(queue, found.about, days)
        shown = {}
        for day in days:
            of_rows = day_metadata.of_rows(made.rows, day, self.statistics)
            of_day = day_metadata.of_day(
                stats.get(day),
                found.held[day].first_finished(),
                self._version(found, accounts, day),
                made.counts[day],
            )
            of_accounts = {"accounts": len(accounts[day].done)} if self.by_account else {}
            # The asset's own statistics come first, and replace others of the same name.
            shown[day] = {**of_rows, **of_accounts, **made.shown.get(day, {}), **of_day, **of_rows}
        return shown

    def _checks(
        self,
        queue: SqlQueue,
        found: Found,
        accounts: Mapping[str, Accounts],
        there: There,
        shown: Mapping[str, Mapping[str, Any]],
    ) -> list[dg.AssetCheckResult]:
        low = {day: one.total(accounts[day].done) for day, one in found.held.items()}
        high = low
        if any(here and here.total not in (None, low[day]) for one in there.values() for day, here in one.items()):
            # Jobs may have been archived between this read and Spark's own.
            again = contents.held(queue, found.about, found.days)
            done = self.accounts(queue, again)
            high = {day: one.total(done[day].done) for day, one in again.items()}
        outputs = [
            DayOut(
                day,
                {name: one[day] for name, one in there.items()},
                rows=day_metadata.row_count(shown[day]),
                low=low[day],
                high=max(low[day], high[day]),
            )
            for day in found.days
        ]
        made = [day_checks.rows_in_rows_out(self.asset_key, outputs)]
        if self.by_account:
            made.append(day_checks.no_account_missing(self.asset_key, outputs, found.held, accounts))
        if self.deadline is not None:
            now = queue.database.run("clock", {})[0][0]
            made.append(day_checks.nothing_left(self.asset_key, accounts, self.deadline, now))
        if self.upstream is not None:
            made.append(day_checks.no_event_open(self.asset_key, accounts))
            made.append(day_checks.no_event_late(self.asset_key, found.days))
        return made
