"""The block of a consumption: what reads the sealed jobs, and stages the results."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pyarrow as pa
from pyspark.errors import PySparkAttributeError
from pyspark.sql import DataFrame, SparkSession

from dagster_sqlqueue.errors import InvalidInput, QueueError
from dagster_sqlqueue.model.outcome import Outcome, Reject, Retry
from dagster_sqlqueue.model.queue import QueueSpec
from dagster_sqlqueue.queue import SqlQueue
from dagster_sqlqueue.spark import batches as core
from dagster_sqlqueue.spark import fields, outputs, parquet, remote, result_columns, sealed, sinks, stage_table
from dagster_sqlqueue.spark.batches import Batch
from dagster_sqlqueue.spark.options import OnBadValue
from dagster_sqlqueue.spark.sealed_read import SealedRead
from dagster_sqlqueue.spark.target_table import check_values

logger = logging.getLogger("dagster_sqlqueue")

_REMOTE_SLICES = 16
"""Of a read by way of Spark Connect, which does not say how many cores there are."""


@dataclass
class Consumption:
    """The block of a consumption: reads the sealed jobs, and takes the results that the end of the block publishes.

    Attributes:
        queue: where the jobs are.
        spark: the session; None for a driver that reads and writes with `arrow` alone.
        spec: the queue's declaration, where one was given.
        batches: what was sealed, one for each key.
        url: of the database, with its password: for tasks, never to be shown.
        lease_instead: makes a transactional batch a leased one, if no mode was given; None: the mode was given.
    """

    queue: SqlQueue
    spark: SparkSession | None
    spec: QueueSpec[Any] | None
    batches: Sequence[Batch]
    url: str = field(repr=False)
    lease_instead: Callable[[], Batch] | None = field(default=None, repr=False)
    _outputs: list[outputs.Output] = field(default_factory=list)
    _outcomes: dict[UUID, Outcome] = field(default_factory=dict)
    _asked: bool = False

    @property
    def batch(self) -> Batch:
        """The sealed batch: its id, key and number of jobs."""
        return self.batches[0]

    @property
    def job_count(self) -> int:
        """How many jobs were sealed."""
        return sum(batch.job_count for batch in self.batches)

    @property
    def settled(self) -> dict[str, int]:
        """How many jobs `fail` and `retry` have named so far, and after the publication of how many they decided; nothing
        where they are none.
        """
        kinds = {"jobs_failed": Reject, "jobs_retried": Retry}
        found = {name: sum(isinstance(one, kind) for one in self._outcomes.values()) for name, kind in kinds.items()}
        return {name: count for name, count in found.items() if count}

    @property
    def slices(self) -> int:
        """How many tasks share a read, at most."""
        if self.spark is None:
            return 4
        try:
            return 4 * int(self.spark.sparkContext.defaultParallelism)
        except PySparkAttributeError:
            return _REMOTE_SLICES

    def jobs(
        self,
        columns: Mapping[str, Mapping[str, str]] | None = None,
        *,
        payload: bool | None = None,
        on_bad_value: OnBadValue = "fail",
        max_connections: int | None = None,
    ) -> DataFrame:
        """Return the sealed jobs: `id`, `attempt`, `created_at` and the payload's fields as typed columns.

        Reading changes nothing: every action, every retried task and every speculative copy gets the same rows.

        Args:
            columns: name → {"path": "payload.field", "type": …}, as the option `columns` of the data source `sqlqueue`
                takes it; None: the fields of the payload's model, where `consume` was given a `QueueSpec`.
            payload: whether the whole payload comes as a column of JSON text; None: where there are no typed columns.
            on_bad_value: `null`: a field that cannot be cast to its column's type is NULL; `fail`: it fails the read.
            max_connections: how many tasks read at most, each with one connection; None: four for each core of the
                session, or one for every 100,000 jobs.

        Raises:
            InvalidInput: a column, `on_bad_value` or `max_connections` is not usable, or the payload's model does not have
                the field of a column.
        """
        read, wanted = self._read(columns, payload, on_bad_value, max_connections)
        return sealed.frame(self.session(), read, wanted)

    def arrow(
        self,
        columns: Mapping[str, Mapping[str, str]] | None = None,
        *,
        payload: bool | None = None,
        on_bad_value: OnBadValue = "fail",
    ) -> pa.Table:
        """The same jobs, read by this process without Spark."""
        read, wanted = self._read(columns, payload, on_bad_value)
        return sealed.table(read, wanted)

    def write_sql(
        self,
        rows: DataFrame | pa.Table,
        table: str,
        *,
        replace: outputs.Replace | None = None,
        key: Sequence[str] = (),
        by_tasks: bool | None = None,
    ) -> int:
        """Stage rows for a SQL table; the publishing transaction inserts them.

        Up to 100,000 rows are kept by the driver. More are written by Spark's tasks to a stage table beside the target,
        out of which the publishing transaction takes those of the accepted attempts.

        Args:
            rows: a DataFrame, or a table of Arrow.
            table: `table` or `schema.table`; made from the columns if it is not there.
            replace: one column and its values, None for NULL: all rows that have one of them go in the same transaction.
            key: the primary key of a table that is made.
            by_tasks: whether tasks write them; None: by the number of rows, for which they are computed twice if they are
                many.

        Returns:
            The number of rows.

        Raises:
            InvalidInput: the rows are something else or have no column, a column has no SQL counterpart, `replace`, `key`
                or the name of the table is not usable, the table lacks a column, needs another one, or has one of another
                type than the results or the values of `replace`, or rows of it that the block wrote before would be
                replaced. Nothing was computed.
            OutputNotWritable: the user may not write to the table, replace its rows or make it, or may create no table for
                the rows of tasks.
        """
        result_columns.check_rows(rows)
        replaced = outputs.one_column(replace)
        # Before any row is computed: a data frame has its columns already.
        columns = result_columns.schema_of(rows)
        target = result_columns.check_sql(self.queue, table, columns, key=key, replace=replaced and replaced[0])
        check_values(self.queue, target, columns, replaced)
        outputs.check_kept(target, replaced, self._outputs)
        kept = rows
        if isinstance(rows, DataFrame) and not by_tasks:
            kept = rows.toArrow() if by_tasks is False else rows.limit(sinks.MAX_ROWS + 1).toArrow()
            if by_tasks is None and kept.num_rows > sinks.MAX_ROWS:
                kept = rows
        if isinstance(kept, DataFrame):
            token = f"{self.batch.token}_{self.batch.id.hex[-12:]}_{len(self._outputs)}"
            staged = stage_table.stage(kept, self.url, target, self.batch.key, token)
            self._outputs.append(outputs.TableRows(target, staged, staged.schema, key, replaced))
            return staged.count
        self._outputs.append(outputs.TableRows(target, kept, kept.schema, key, replaced))
        return int(kept.num_rows)

    def write_parquet(
        self,
        rows: DataFrame | pa.Table,
        path: str | Path,
        *,
        partition_by: str | None = None,
        values: Sequence[Any] = (),
    ) -> None:
        """Stage Parquet files; after the publishing transaction they are moved into place.

        Args:
            rows: a DataFrame, whose tasks write, or a table of Arrow.
            path: a directory that driver and tasks share, mounted at the same place; or a URL that `fsspec` knows, `s3://…`
                say: the files are then written to a disk of this machine's first, which tasks that write must share.
            partition_by: a column whose values become directories: `path/day=2013-01-31` is replaced as a whole. None:
                the rows are added as `path/batch=…`.
            values: of that column, whose directories are emptied where there is no row.

        Raises:
            InvalidInput: the rows are something else, a column has a type that Parquet cannot hold, this process does not
                see all that the tasks wrote, rows of the same directory were staged before, or `partition_by` or its values
                are not usable.
            OutputNotWritable: nothing can be written there.
        """
        result_columns.check_rows(rows)
        result_columns.check_parquet(rows)
        columns = rows.columns if isinstance(rows, DataFrame) else rows.column_names
        emptied = parquet.directories(partition_by, columns, values)
        output = remote.writable(path)

        def write(staged: Path) -> list[str]:
            home = staged if partition_by else staged / f"batch={self.batch.id}"
            if isinstance(rows, DataFrame):
                parquet.by_tasks(rows, home, partition_by, output=output)
            else:
                parquet.by_driver(rows, home, partition_by)
            for name in emptied:
                (staged / name).mkdir(exist_ok=True)
            return sorted(found.name for found in staged.iterdir() if found.is_dir() and "=" in found.name)

        self.stage_files(output, write)

    def stage_files(self, output: Path | str, write: Callable[[Path], Sequence[str]]) -> None:
        """Stage files that a function writes below a directory; after the publishing transaction they are moved into
        place.

        Args:
            output: the directory, or the URL of one.
            write: gets the directory to write below, and returns the names of the directories that it made there; each
                replaces the one of its name.

        Raises:
            InvalidInput: a directory of that name was staged before.
            OutputNotWritable: nothing can be written there.
        """
        for batch in self.batches:
            outputs.discard_earlier(output, batch)
        name = f"{outputs.staged_name(self.batch)}-{len(self._outputs)}"

        def write_apart(staged: Path) -> Sequence[str]:
            names = write(staged)
            outputs.check_apart(output, names, self._outputs)
            return names

        self._outputs.append(outputs.staged_files(output, name, write_apart))

    def fail(self, jobs: Iterable[UUID | str] | DataFrame, reason: str) -> int:
        """Send single jobs to the dead letter; the others of the batch are not touched. Takes effect with the publication,
        but for jobs that `for_each_job` has reported an outcome of, which stands.

        Args:
            jobs: their ids, or a DataFrame with a column `id`.
            reason: why; kept with the job.

        Returns:
            How many they are.
        """
        return self._settle(jobs, Reject(reason))

    def retry(self, jobs: Iterable[UUID | str] | DataFrame, reason: str, *, after: float | None = None) -> int:
        """Send single jobs back to the queue for another attempt. Takes effect with the publication, but for jobs that
        `for_each_job` has reported an outcome of, which stands.

        Args:
            jobs: their ids, or a DataFrame with a column `id`.
            reason: why; kept with the job.
            after: seconds until they are due; None: by the queue's backoff.

        Returns:
            How many they are.
        """
        return self._settle(jobs, Retry(reason, after))

    def _settle(self, jobs: Iterable[UUID | str] | DataFrame, outcome: Outcome) -> int:
        found = [row["id"] for row in jobs.select("id").distinct().collect()] if isinstance(jobs, DataFrame) else jobs
        ids = set()
        for job in found:
            try:
                ids.add(job if isinstance(job, UUID) else UUID(job))
            except (ValueError, AttributeError, TypeError):
                raise InvalidInput(f"jobs holds {job!r}, which is no job's id") from None
        self._outcomes.update(dict.fromkeys(ids, outcome))
        return len(ids)

    def _read(
        self,
        columns: Mapping[str, Mapping[str, str]] | None,
        payload: bool | None,
        on_bad_value: OnBadValue,
        max_connections: int | None = None,
    ) -> tuple[SealedRead, list[str]]:
        if columns is not None:
            asked = fields.named(columns, sealed.TAKEN, live=True, schema=self.queue.database.schema)
            if self.spec is not None:
                result_columns.check_paths(self.spec.payload, columns)
        else:
            asked = {} if self.spec is None else sealed.columns_of(self.spec.payload)
        with_payload = not asked if payload is None else payload
        self._asked = True
        read = sealed.read_of(
            self.queue,
            self.url,
            self.batches,
            asked,
            slices=self.slices,
            on_bad_value=on_bad_value,
            max_connections=max_connections,
        )
        return read, [*sealed.JOB_COLUMNS, *asked, *(["payload"] if with_payload else [])]

    def need_lease(self) -> None:
        """Check that the batches are leased: tasks will report the outcomes of the jobs.

        Raises:
            InvalidInput: a transaction holds the jobs, and was asked for, or some were read of it.
            BatchLost: another owner has the batch.
        """
        if all(batch.snapshot is None for batch in self.batches):
            return
        if self.lease_instead is None or self._asked:
            raise InvalidInput(
                "for_each_job reports from Spark's tasks, which are not in the transaction of a transactional batch: consume"
                " with Mode.LEASED"
            )
        self.batches = (self.lease_instead(),)

    def session(self) -> SparkSession:
        """Return the Spark session.

        Raises:
            InvalidInput: there is none.
        """
        if self.spark is None:
            raise InvalidInput(
                "this consumption has no Spark session; read the jobs with arrow(), or give one to consume()"
            )
        return self.spark

    def publish(self) -> None:
        """Publish everything in one transaction: what the end of the block does.

        Raises:
            BatchLost: the batch was taken over; nothing was published.
            InvalidInput: a table does not take its rows, or a job that was failed or retried is not of the batch.
        """
        unmoved = bool(self._moved())
        try:
            if self._outcomes:
                for batch in self.batches:
                    # What was reported stands.
                    for job_id in core.outcomes(self.queue, batch):
                        self._outcomes.pop(job_id, None)
            with core.publication(
                self.queue, *self.batches, output=self._output(), unmoved=unmoved, outcomes=self._outcomes
            ) as transaction:
                for one in self._outputs:
                    one.write(transaction.connection)
        except psycopg.IntegrityError as error:
            # Constraints that are deferred are checked by the commit.
            schema, table = error.diag.schema_name, error.diag.table_name
            places = {one.target.place for one in self._outputs if isinstance(one, outputs.TableRows)}
            if not (places and table) or (schema == self.queue.database.schema and (schema, table) not in places):
                raise
            raise sinks.refusal(f"{schema}.{table}", error) from error

    def _output(self) -> dict[str, Any]:
        return {"owner": self._mark(), "outputs": [one.place() for one in self._outputs]}

    def _mark(self) -> str:
        return f"{self.batch.id}/{self.batch.token}"

    def published(self) -> bool | None:
        """Return whether the transaction was committed; None where the database cannot be asked."""
        try:
            return any(place.get("owner") == self._mark() for place in core.outputs(self.queue, self.batch.key))
        except QueueError:
            return None

    def finish(self) -> None:
        """Move the files into place, after the transaction, and note that they are."""

        def move() -> bool:
            for one in self._moved():
                one.finish()
            return True

        if self._moved():
            core.move(self.queue, self._mark(), move)

    def _moved(self) -> list[outputs.Moved]:
        return [one for one in self._outputs if isinstance(one, outputs.Files | outputs.RemoteFiles)]

    def drop(self) -> None:
        """Remove what was staged and is not published."""
        for one in self._outputs:
            try:
                one.drop()
            except Exception as error:
                logger.warning("something staged could not be removed, the next run does it: %s", error)
