"""`spark.readStream.format("sqlqueue")`: the archive of a queue as a stream, each ended job once.

Options, beside those of a batch read of the archive (`queue`, `states`, `columns`, `where`, `target_rows`):
    startingPosition: `earliest` (default), `latest`, or an ISO timestamp with a zone: jobs that ended from then on. A stream
        with a checkpoint goes on from there.
    maxRowsPerBatch: the most rows of a micro-batch; all that there are, if it is not given.
    failOnDataLoss: `false`: go on where the archive was trimmed before the stream had read it; else the query ends.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from dagster_sqlqueue.db.schema_name import quote_schema
from dagster_sqlqueue.errors import InvalidInput, QueueError
from dagster_sqlqueue.spark import conditions, fields, positions
from dagster_sqlqueue.spark import options as parts
from dagster_sqlqueue.spark.cuts import Cut, after, between, ranges
from dagster_sqlqueue.spark.positions import Position
from dagster_sqlqueue.spark.python import keep_imports
from dagster_sqlqueue.spark.shares import Share, Slice
from dagster_sqlqueue.spark.slice_reader import Reading

if TYPE_CHECKING:
    from pyarrow import RecordBatch

    from dagster_sqlqueue.queue import SqlQueue

logger = logging.getLogger("dagster_sqlqueue")

_BATCH_ONLY = (
    *("finished_from", "finished_until", "limit", "split", "max_connections", "consistent", "snapshot_seconds"),
)
_MAX_PARTITIONS = 1_000
_HERE = "UPDATE {} SET ended_in = pg_current_xact_id() WHERE ended_in >= pg_snapshot_xmax(pg_current_snapshot())"
_NOTED_EVERY = timedelta(hours=1)
"""How often a stream that finds nothing moves its offset on: retention has whole days."""


class JobsTrimmed(QueueError):
    """The archive was trimmed beyond the position up to which a stream had read it: jobs may have been removed unread.
    Give the queue a longer retention, and go on with the option `failOnDataLoss` = `false`, or begin with a new
    checkpoint.
    """


class Now(NamedTuple):
    """How far the archive is; see `stream_now.sql`."""

    snapshot: str
    at: datetime
    standby: bool
    foreign: bool
    kept_from: datetime | None
    oldest: datetime | None

    def may_miss(self, since: datetime) -> bool:
        """Return whether jobs that ended after a moment may have been trimmed."""
        return self.kept_from is not None and since < self.kept_from and (self.oldest is None or self.oldest > since)


@dataclass
class Part(InputPartition):
    """One part of a micro-batch: conditions, no two of which a row fulfils; since when the rows ended; the server."""

    conditions: Sequence[str]
    since: datetime
    server: int

    def __post_init__(self) -> None:
        super().__init__(None)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the archive of a queue as a stream.

    Args:
        where: URL and schema of the database.
        options: those that a batch read has as well, checked.
        own: those of a stream alone.
        schema: the columns to read.

    Raises:
        InvalidInput: an option or a column is not usable.
    """

    def __init__(
        self, where: tuple[str, str], options: Mapping[str, str], own: Mapping[str, str], schema: StructType
    ) -> None:
        if parts.state_of(options) != "archive":
            raise InvalidInput(
                f"live jobs and batches are no stream: the option 'state' is {options['state']!r}, of a stream it is archive"
            )
        if unusable := [name for name in _BATCH_ONLY if name in options]:
            raise InvalidInput(
                f"the option {unusable[0]!r} is for batch reads; a stream begins where the option 'startingPosition' says,"
                " and maxRowsPerBatch bounds what it reads at once"
            )
        known = fields.columns(options, where[1])
        fields.check_schema(schema, known)
        conditions.tests(options, known)
        self._where = where
        self._options = dict(options)
        self._queue = parts.required(options, "queue")
        from dagster_sqlqueue.spark.urls import server

        self._reading = Reading(server(*where), options, schema, known, [])
        self._target_rows = parts.target_rows(options)
        self._starting = positions.starting(own)
        self._most = positions.most_rows(own)
        self._fails = positions.fails_on_loss(own)
        self._ceiling: Now | None = None
        self._opened: SqlQueue | None = None
        self._begun = False

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return where a stream without a checkpoint begins."""
        self._open.settings(self._queue)
        match self._starting:
            case "latest":
                now = self._now()
                return Position(until=now.snapshot, time=now.at.isoformat()).offset()
            case datetime() as moment:
                return Position(since=moment.isoformat()).offset()
            case _:
                return Position().offset()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the bound that the option `maxRowsPerBatch` sets."""
        return ReadAllAvailable() if self._most is None else ReadMaxRows(self._most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix the end of what the query reads: all that the archive holds now."""
        self._ceiling = self._now()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the end of the next micro-batch; `start` where there is nothing to read.

        Raises:
            JobsTrimmed: see the class.
            UnknownQueue: the queue is not there any more.
        """
        position = Position.of(start)
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        now = self._now()
        self._check(position, now)
        if position.at is not None:
            return self._batch(position, position.left, most).offset()
        if self._ceiling is not None:
            now = self._ceiling
            if position.until == now.snapshot:
                return start
        rows, low = self._open.database.run(
            "stream_window",
            {"queue": self._queue, "after": position.until, "until": now.snapshot, "from_time": position.since},
        )[0]
        window = Position(
            position.until, now.snapshot, now.at.isoformat(), position.since, low and low.isoformat(), left=rows
        )
        if rows:
            return self._batch(window, rows, most).offset()
        noted = position.time is not None and now.at - datetime.fromisoformat(position.time) < _NOTED_EVERY
        return start if noted else window.offset()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the slices of a micro-batch."""
        first, last = Position.of(start), Position.of(end)
        if last.low is None:
            return []
        server = int(self._open.database.run("spark_server", {})[0][0])
        window = {"queue": self._queue, "after": last.after, "until": last.until}
        at, row = (
            first.begins() if (first.after, first.until) == (last.after, last.until) else (last.low, positions.FIRST)
        )
        seen = (
            f"pg_visible_in_snapshot(ended_in, '{last.until}') AND NOT pg_visible_in_snapshot(ended_in, '{last.after}')"
            f" AND finished_at >= '{at}' AND (finished_at, id) > ('{at}', '{row}')"
        )
        if last.at is not None:
            seen += f" AND finished_at <= '{last.at}' AND (finished_at, id) <= ('{last.at}', '{last.id}')"
        begins = datetime.fromisoformat(at)
        whole = last.at is None and at == last.low
        if last.rows <= self._target_rows and whole:
            # What one window holds is read by its transactions.
            oldest, newest = (snapshot.split(":")[end] for end, snapshot in enumerate((last.after, last.until)))
            number = "CAST(CAST(ended_in AS text) AS bigint)"
            seen += f" AND {number} >= {int(oldest)} AND {number} < {int(newest)}"
            return [Part([seen], begins, server)]
        cuts: list[Cut] = []
        if last.rows > self._target_rows:
            ends = {"end_at": last.at or "infinity", "end_id": last.id or positions.FIRST}
            step = max(self._target_rows, -(-last.rows // _MAX_PARTITIONS))
            found = self._open.database.run("stream_slices", {**window, "at": at, "id": row, **ends, "step": step})
            cuts = [Cut(*cut) for cut in found]
        until = None if last.at is None or last.id is None else after(datetime.fromisoformat(last.at), UUID(last.id))
        return [
            Part([f"{seen} AND {condition}" for condition in between(low, high)], low.at, server)
            for low, high in ranges(Cut(begins, UUID(row)), cuts, until)
        ]

    def read(self, partition: InputPartition) -> "Iterator[RecordBatch]":
        """Yield the rows of a slice.

        Raises:
            JobsTrimmed: some were trimmed after the batch had been planned.
        """
        if not isinstance(partition, Part):  # Spark makes one of its own where there are none
            return
        yield from self._reading.read(Share([Slice(one) for one in partition.conditions], partition.server))
        keep_imports()
        if self._fails:
            with closing(self._connected()) as queue:
                self._refuse_loss(partition.since, self._read_now(queue))

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing: the archive is not the stream's, and other readers have their own places."""

    def stop(self) -> None:
        """Close the connection."""
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    @property
    def _open(self) -> "SqlQueue":
        if self._opened is None:
            self._opened = self._connected()
        return self._opened

    def _connected(self) -> "SqlQueue":
        from dagster_sqlqueue.spark.urls import queue_at

        return queue_at(*self._where)

    def _read_now(self, queue: "SqlQueue") -> Now:
        return Now(*queue.database.run("stream_now", {"queue": self._queue})[0])

    def _now(self) -> Now:
        now = self._read_now(self._open)
        if now.standby:
            raise InvalidInput(
                "a stream cannot be read from a standby, which does not know which transactions are over; give the URL of"
                " the primary"
            )
        if now.foreign:
            archive = f"{quote_schema(self._where[1])}.job_archive"
            raise InvalidInput(
                f"the archive of {self._queue!r} holds jobs that were ended on another server and came here in a dump. Say"
                f" once that they are here, and begin with a new checkpoint: {_HERE.format(archive)}"
            )
        return now

    def _check(self, position: Position, now: Now) -> None:
        if int(position.until.split(":")[1]) > int(now.snapshot.split(":")[1]):
            raise InvalidInput(
                "the checkpoint is of another server, or of this one before it was restored from a dump: its transactions"
                " are ahead of the server's. Begin with a new checkpoint"
            )
        if not self._begun:
            self._open.settings(self._queue)
            self._begun = True
        since = position.at or position.time
        if since is not None and now.may_miss(datetime.fromisoformat(since)):
            self._refuse_loss(datetime.fromisoformat(since), now)

    def _refuse_loss(self, since: datetime, now: Now) -> None:
        if not now.may_miss(since):
            return
        message = (
            f"the stream of {self._queue!r} has read up to {since:%Y-%m-%d %H:%M:%S} UTC, and jobs that ended before"
            f" {now.kept_from:%Y-%m-%d} are not kept, or were not by an earlier retention or before the queue was made"
            " anew: some may have been removed unread"
        )
        if self._fails:
            raise JobsTrimmed(
                f"{message}. Give the queue a longer retention; then go on with the option failOnDataLoss = false, or begin"
                " with a new checkpoint"
            )
        logger.warning("%s", message)

    def _batch(self, window: Position, left: int, most: int | None) -> Position:
        """Return the end of the next batch of a window, so many rows of which are left."""
        if most is None:
            return window.up_to(None, left, 0)
        at, row = window.begins()
        place = {"queue": self._queue, "after": window.after, "until": window.until, "at": at, "id": row}
        found = self._open.database.run("stream_cut", {**place, "skip": most - 1})
        if len(found) < 2:
            return window.up_to(None, left, 0)
        return window.up_to((found[0][0], found[0][1]), most, max(left - most, 1))
