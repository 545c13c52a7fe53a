"""A run of the archive asset: replaces the days that changed, and claims nothing."""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from uuid import uuid4

import dagster as dg
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from dagster_sqlqueue.queue import SqlQueue
from dagster_sqlqueue.spark import day_metadata, outputs, sinks, stage_table, target_table
from dagster_sqlqueue.spark.archive_frame import archived
from dagster_sqlqueue.spark.closed_days import Computed, check_closed, check_kept
from dagster_sqlqueue.spark.consume_verbs import url_of
from dagster_sqlqueue.spark.contents import Accounts, Days, Held
from dagster_sqlqueue.spark.day_results import computed
from dagster_sqlqueue.spark.day_work import DayWork, Found, Made, together


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveDays(DayWork):
    """What an archive asset does."""

    def check(self, queue: SqlQueue, about: Days, days: Sequence[str]) -> None:
        """Check that the days are over."""
        check_closed(queue, about, days, queue.database.run("clock", {})[0][0])

    def check_changed(self, queue: SqlQueue, found: Found, days: Sequence[str]) -> None:
        """Check that none of them is replaced by what retention may have left of it."""
        held = {day: found.held[day] for day in days}
        before = {day: one for day in days if (one := _computed_from(found.last[day])) is not None}
        check_kept(queue, found.about.queue, held, before, queue.database.run("clock", {})[0][0])

    def accounts(self, queue: SqlQueue, held: Mapping[str, Held]) -> Mapping[str, Accounts]:
        """All that have jobs: a day that is over is done with."""
        return {day: Accounts(frozenset(one.jobs)) for day, one in held.items()}

    def watermark(self, held: Held, accounts: Accounts) -> str:
        """All that is archived of the day."""
        return held.watermark()

    def make(self, queue: SqlQueue, session: SparkSession, found: Found, days: Sequence[str], run_id: str) -> Made:
        """Replace the days: half of them at a time, where all have more rows than one transaction should publish."""
        try:
            return self._replaced(queue, session, found, days, run_id)
        except sinks.TooManyRows:
            if len(days) == 1:
                raise
        half = len(days) // 2
        return together([self.make(queue, session, found, part, run_id) for part in (days[:half], days[half:])])

    def _replaced(self, queue: SqlQueue, session: SparkSession, found: Found, days: Sequence[str], run_id: str) -> Made:
        dates = [date.fromisoformat(day) for day in days]
        jobs = archived(session, self.reads, found.about, days)
        made = computed(self.compute, jobs, self.key, dates, queue=queue, table=self.table)
        with contextlib.ExitStack() as stack:
            stack.enter_context(contextlib.closing(made))
            files = None
            if found.directory is not None:
                name = stack.enter_context(outputs.own_name(found.directory, self.name, run_id))
                files = outputs.staged_files(found.directory, name, made.stage)
                stack.callback(files.drop)
            if self.table is not None:
                target = target_table.find(queue, self.table)
                rows: pa.Table | stage_table.Staged = made.rows
                if made.frame is not None:
                    rows = self._staged(queue, made.frame, target, days[0])
                written = outputs.TableRows(target, rows, rows.schema, self.key, ("day", dates))
                stack.callback(written.drop)
                # Around the commit too, which checks the constraints that are deferred.
                with sinks.taking(self.table), queue.database.transaction() as transaction:
                    written.write(transaction.connection)
            if files is not None:
                files.finish()
        return Made(made.rows, made.counts)

    def _staged(self, queue: SqlQueue, frame: DataFrame, target: target_table.Target, day: str) -> stage_table.Staged:
        """Stage the rows of a day beside the table, by tasks. Rows that a killed run of the day left there are deleted
        first; another run of the day that is under way fails for want of its rows, and publishes nothing.
        """
        key = f"{self.name}/{day}"
        stage_table.sweep(queue, [key])
        return stage_table.stage(frame, url_of(queue), target, key, uuid4().hex[:12])


def _computed_from(last: dg.AssetMaterialization | None) -> Computed | None:
    """Return what a day was computed from the last time; None: it had no jobs, or was never computed."""
    jobs, first = (last.metadata.get(name) if last else None for name in ("jobs_read", day_metadata.FIRST_FINISHED))
    if jobs is None or first is None:
        return None
    return Computed(int(str(jobs.value)), datetime.fromtimestamp(float(str(first.value)), UTC))
