"""Read the slices of a task one after another, each in a transaction of its own, as Arrow batches."""

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructType

from dagster_sqlqueue.db.schema_name import quote_schema
from dagster_sqlqueue.errors import BatchLost, InvalidInput
from dagster_sqlqueue.spark import kinds, nested
from dagster_sqlqueue.spark.conditions import Test, all_of
from dagster_sqlqueue.spark.fields import Column, selection
from dagster_sqlqueue.spark.literals import literal
from dagster_sqlqueue.spark.options import keeping, null_for_bad, number
from dagster_sqlqueue.spark.options import state_of as jobs_of
from dagster_sqlqueue.spark.shares import Share, Slice
from dagster_sqlqueue.spark.task_connection import ERRORS, Connection, Server, cancelled, connected, run, state_of

_DATES = date.min, date.max
_MOMENTS = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
_CURE = "mend or redrive the job, declare the column as string, or set on_bad_value to null"


class SnapshotGone(InvalidInput):
    """The snapshot of a read has ended before its tasks have read."""


class Reading:
    """Everything that a task has to know, but for its share.

    Args:
        server: the database.
        options: as they were given, checked.
        asked: the columns, as Spark wants them.
        known: every column there is.
        pushed: the filters that the database takes over.
    """

    def __init__(
        self,
        server: Server,
        options: Mapping[str, str],
        asked: StructType,
        known: Mapping[str, Column],
        pushed: Sequence[Test],
    ) -> None:
        self._server = server
        self._options = options
        self._asked = asked
        self._known = known
        self._pushed = pushed

    def read(self, share: Share) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a share.

        Raises:
            InvalidInput: a field is not of its type, naming the job; the snapshot has ended; a day of the archive was
                dropped since the read was planned; a statement took too long.
            BatchLost: a batch is over.
            DatabaseUnavailable, AccessRefused: see the classes.
        """
        target = arrow_schema(self._asked)
        with connected(self._server, keeping(self._options)) as connection:
            for one in share.slices:
                self._begin(connection, share)
                self._check_partitions(connection, one)
                yield from self._slice(connection, share, one, target)
                self._check_batches(connection, share)
                connection.execute("COMMIT")

    def _begin(self, connection: Connection, share: Share) -> None:
        isolation = "REPEATABLE READ" if share.snapshot else "READ COMMITTED"
        connection.execute(f"BEGIN ISOLATION LEVEL {isolation} READ ONLY")
        if share.snapshot:
            try:
                connection.execute(f"SET TRANSACTION SNAPSHOT {literal(share.snapshot)}")
            except Exception as error:
                if state_of(error) is None or (state_of(error) or "").startswith("57"):
                    raise
                reason = " ".join(str(error).split())
                raise SnapshotGone(
                    f"the snapshot {share.snapshot} that this frame was planned with has ended ({reason}): it was kept for"
                    " the seconds of the option 'snapshot_seconds', or a standby ended it for a change of the primary's."
                    " Load the frame again, and raise snapshot_seconds, or cache() the frame, if it is read for longer; on a"
                    " standby, set hot_standby_feedback = on"
                ) from None
        # How a timestamp without a zone, and a date like 1/2/2013, in a payload are read: a role may have its own setting.
        for setting in ("TIME ZONE 'UTC'", "datestyle = 'ISO, MDY'", "jit = off"):
            connection.execute(f"SET LOCAL {setting}")
        if (seconds := number(self._options, "statement_timeout")) is not None:
            # Before the lock, which may have to wait for a transaction that changes the table.
            connection.execute(f"SET LOCAL statement_timeout = '{seconds}s'")

    def _check_partitions(self, connection: Connection, one: Slice) -> None:
        """Keep the archive's days from being dropped while they are read; none may have been since the read was planned."""
        if jobs_of(self._options) != "archive":
            return
        run(connection, keeping(self._options), self._server.schema)
        if not one.partitions:
            return
        planned = json.dumps({oid: name for name, oid in one.partitions})
        if dropped := run(connection, "spark_partitions_gone", self._server.schema, planned):
            raise InvalidInput(
                f"the archive's partition {dropped[0]['name']!r} was dropped after this frame was planned, because the"
                " queue's retention is over for it: load the frame again, and read such a day before it is over"
            )

    def _check_batches(self, connection: Connection, share: Share) -> None:
        """Check that no batch is over: its jobs, or some, could not be read."""
        if share.held and (over := run(connection, "spark_batches_over", self._server.schema, share.held)):
            raise BatchLost(
                f"batch {over[0]['id']} is over: it was published, given up or taken over, or was never there, and its jobs"
                " are not to be read under it any more. Read a batch while it is sealed, and what it ended in the archive"
            )

    def _slice(self, connection: Connection, share: Share, one: Slice, target: pa.Schema) -> Iterator[pa.RecordBatch]:
        selected = selection(self._asked, self._known, self._options, share.server)
        conditions = all_of(self._options, self._known, self._pushed, share.server, self._server.schema)
        where = " AND ".join([f"({one.condition})", *conditions])
        # The one statement that is composed: every part of it was checked and quoted before.
        sql = f"SELECT {selected} FROM {self._table} WHERE {where} {share.tail}"  # noqa: S608
        try:
            for batch in connection.batches(sql, number(self._options, "batch_bytes") or 0):
                yield self._fitted(batch, target)
        except _Infinite as found:
            raise InvalidInput(f"{self._first_bad(where) or f'column {found}: {kinds.OUTSIDE}'}; {_CURE}") from None
        except nested.Unfit as found:
            raise InvalidInput(f"{self._first_bad(where) or f'a field: {found}'}; {_CURE}") from None
        except ERRORS as error:
            # The driver does not say of what kind an error in the middle of a result is: the jobs do.
            if cancelled(error) or not connection.alive() or not (named := self._first_bad(where)):
                raise
            raise InvalidInput(f"{named}; {_CURE}") from None

    @property
    def _table(self) -> str:
        # The jobs of large leased batches are in packs.
        name = "job_archive" if jobs_of(self._options) == "archive" else "live_job"
        return f"{quote_schema(self._server.schema)}.{name}"

    def _fitted(self, batch: pa.RecordBatch, target: pa.Schema) -> pa.RecordBatch:
        lenient = null_for_bad(self._options)
        arrays = []
        for column, field in zip(batch.columns, target, strict=False):
            if kinds.is_nested(kind := self._known[field.name].kind):
                arrays.append(nested.parsed(column, field, kind, lenient=lenient))
            else:
                arrays.append(_finite(column.cast(field.type), field, lenient))
        if not arrays:
            return pa.RecordBatch.from_struct_array(pa.array([{}] * batch.num_rows, pa.struct([])))
        return pa.RecordBatch.from_arrays(arrays, schema=target)

    def _first_bad(self, where: str) -> str | None:
        """Return the first of these jobs with a field that is not of its column's type, in words."""
        from dagster_sqlqueue.spark.bad_values import find_bad

        names = sorted(field.name for field in self._asked.fields)
        suspects = {name: self._known[name] for name in names if self._known[name].field}
        return find_bad(self._server.conninfo, self._table, where, suspects)


class _Infinite(Exception):
    """A column holds a moment that Spark cannot hold."""


def _finite(array: pa.Array, field: pa.Field, lenient: bool) -> pa.Array:
    """Check for the database's infinity: it arrives as a number that wrapped around, and would be read as a day long
    before Christ.
    """
    if not pa.types.is_temporal(field.type):
        return array
    low, high = (pa.scalar(end, field.type) for end in (_DATES if pa.types.is_date(field.type) else _MOMENTS))
    outside = pc.or_(pc.less(array, low), pc.greater(array, high))
    if not pc.any(outside).as_py():
        return array
    if lenient:
        return pc.if_else(outside, pa.scalar(None, field.type), array)
    raise _Infinite(repr(field.name))


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return Arrow's names of the columns that Spark asks for."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")
