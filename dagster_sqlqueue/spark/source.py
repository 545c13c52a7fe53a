"""`spark.read.format("sqlqueue")`: a queue's archive, or a sealed batch, as rows of Arrow batches.

Options:
    queue: the queue (required).
    state: `archive` (default) or `batch`.
    batch_id: the batches to read, with commas between, for `batch`.
    states: archive states to read, with commas between; all of them by default.
    columns: JSON, name → {"path": "payload.x" or "result.x", "type": …}: fields taken out of the JSON by the database.
        Types: string, int, bigint, double, boolean, date, timestamp.
    where: JSON list of {"column", "op", "value"} over those columns; op is =, <, <=, >, >= or in.
    finished_from, finished_until: ISO timestamps with a zone, the second one exclusive.
    target_rows: rows for each partition (250,000).
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from dagster_sqlqueue import statements
from dagster_sqlqueue.database import Database, parse_url
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.queue import SqlQueue

FORMAT = "sqlqueue"

_PLAIN = {
    "id": ("CAST(id AS text)", "string"),
    "bucket": ("CAST(bucket AS integer)", "int"),
    "priority": ("CAST(priority AS integer)", "int"),
    "state": ("state", "string"),
    "attempt": ("attempt", "int"),
    "created_at": ("created_at", "timestamp"),
    "started_at": ("started_at", "timestamp"),
    "finished_at": ("finished_at", "timestamp"),
    "payload": ("CAST(payload AS text)", "string"),
    "result": ("CAST(result AS text)", "string"),
    "error": ("error", "string"),
}
_LIVE_ONLY_NULL = {"finished_at": "CAST(NULL AS timestamptz)", "result": "CAST(NULL AS text)"}
_CASTS = {
    "string": "text",
    "int": "integer",
    "bigint": "bigint",
    "double": "double precision",
    "boolean": "boolean",
    "date": "date",
    "timestamp": "timestamptz",
}
_OPERATORS = {"=", "<", "<=", ">", ">="}
_NAME = re.compile(r"^[A-Za-z_][A-Za-z0-9_]{0,62}$")
_MAX_PARTITIONS = 1_000


@dataclass
class Slice(InputPartition):
    """One part of a read: a condition on the rows, or None for nothing at all."""

    condition: str | None = None

    def __init__(self, condition: str | None) -> None:
        super().__init__(None)
        self.condition = condition


def register_source(spark: SparkSession, url: str, schema: str = statements.DEFAULT_SCHEMA) -> None:
    """Make the format `sqlqueue` known to the session.

    The URL travels inside the pickled class, never as an option: options are shown in plans and event logs.

    Args:
        spark: the session.
        url: see `dagster_sqlqueue.database.parse_url`.
        schema: where the queue's tables are.
    """
    parse_url(url)
    statements.quote_schema(schema)

    class SqlQueueSource(_Source):
        _where = (url, schema)

    spark.dataSource.register(SqlQueueSource)


def ddl(types: Mapping[str, str]) -> str:
    """Spark's notation of a schema: give it to `.schema(…)` to read these columns only."""
    return ", ".join(f"`{name}` {kind}" for name, kind in types.items())


class _Source(DataSource):
    _where: tuple[str, str]

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return ddl({name: kind for name, (_, kind) in _columns(self.options).items()})

    def reader(self, schema: StructType) -> DataSourceReader:
        return _Reader(self._where, dict(self.options), schema)


class _Reader(DataSourceReader):
    def __init__(self, where: tuple[str, str], options: Mapping[str, str], schema: StructType) -> None:
        self._where = where
        self._options = options
        self._schema = schema
        known = _columns(options)
        unknown = [field.name for field in schema.fields if field.name not in known]
        if unknown:
            raise InvalidInput(f"columns {unknown} are not known; there are {sorted(known)}")
        self._select = ", ".join(f'{known[field.name][0]} AS "{field.name}"' for field in schema.fields)
        self._conditions = _conditions(options, known)

    def partitions(self) -> Sequence[InputPartition]:
        url, schema = self._where
        with SqlQueue(Database(url, schema=schema, pool_size=1, application_name="dagster-sqlqueue/spark")) as queue:
            queue.settings(_required(self._options, "queue"))
            if self._options.get("state", "archive") == "batch":
                return [Slice("TRUE")]
            return self._time_slices(queue)

    def _time_slices(self, queue: SqlQueue) -> list[InputPartition]:
        first, last, rows = queue.database.run(
            "spark_bounds",
            {
                "queue": self._options["queue"],
                "from_time": _moment(self._options, "finished_from"),
                "until_time": _moment(self._options, "finished_until"),
            },
        )[0]
        if not rows:
            return [Slice(None)]
        count = min(max(1, -(-rows // int(self._options.get("target_rows", "250000")))), _MAX_PARTITIONS)
        cuts = [first + (last - first) * n / count for n in range(count)] + [last + timedelta(microseconds=1)]
        return [
            Slice(f"finished_at >= '{low.isoformat()}' AND finished_at < '{high.isoformat()}'")
            for low, high in pairwise(cuts)
            if low < high
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Slice)
        if partition.condition is None:
            return
        import adbc_driver_postgresql.dbapi as adbc

        url, schema = self._where
        table = "job" if self._options.get("state", "archive") == "batch" else "job_archive"
        where = " AND ".join([partition.condition, *self._conditions])
        # The one statement that is composed: every part of it was checked and quoted above.
        sql = f"SELECT {self._select} FROM {statements.quote_schema(schema)}.{table} WHERE {where}"  # noqa: S608
        target = _arrow_schema(self._schema)
        with (
            adbc.connect(_libpq(url)) as connection,
            connection.cursor(adbc_stmt_kwargs={"adbc.postgresql.batch_size_hint_bytes": str(2**21)}) as cursor,
        ):
            cursor.execute(sql)
            for batch in cursor.fetch_record_batch():
                yield _fitted(batch, target)


def _columns(options: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Every column that can be asked for: its SQL, made of checked and quoted parts only, and its type."""
    known = dict(_PLAIN)
    if options.get("state", "archive") == "batch":
        known |= {name: (sql, known[name][1]) for name, sql in _LIVE_ONLY_NULL.items()}
    for name, column in _json(options, "columns", {}).items():
        if not _NAME.match(name):
            raise InvalidInput(f"column {name!r} is not usable: letters, digits and '_', at most 63")
        base, *path = str(column.get("path", "")).split(".")
        kind = column.get("type", "string")
        if base not in ("payload", "result") or not path or kind not in _CASTS:
            raise InvalidInput(
                f"column {name!r} is {column}; write path as payload.field or result.field, and type as one of"
                f" {', '.join(_CASTS)}"
            )
        field = f"{base} #>> {_literal_array(path)}"
        known[name] = (f"({field})" if kind == "string" else f"CAST({field} AS {_CASTS[kind]})", kind)
    return known


def _conditions(options: Mapping[str, str], known: Mapping[str, tuple[str, str]]) -> list[str]:
    found = [f"queue = {_literal(_required(options, 'queue'))}"]
    if options.get("state", "archive") == "batch":
        ids = ", ".join(f"CAST({_literal(part)} AS uuid)" for part in _required(options, "batch_id").split(","))
        found.append(f"batch_id IN ({ids}) AND state = 'running'")
    elif states := options.get("states"):
        found.append(f"state IN ({', '.join(_literal(state.strip()) for state in states.split(','))})")
    for test in _json(options, "where", []):
        column, operator, value = test.get("column"), test.get("op"), test.get("value")
        if column not in known or operator not in {*_OPERATORS, "in"}:
            raise InvalidInput(f"where has {test}; column is one of {sorted(known)}, op one of =, <, <=, >, >=, in")
        sql, kind = known[column]
        values = value if operator == "in" else [value]
        typed = ", ".join(f"CAST({_literal(str(v))} AS {_CASTS[kind]})" for v in values)
        found.append(f"{sql} IN ({typed})" if operator == "in" else f"{sql} {operator} {typed}")
    return found


def _fitted(batch: pa.RecordBatch, target: pa.Schema) -> pa.RecordBatch:
    arrays = [batch.column(n).cast(field.type) for n, field in enumerate(target)]
    return pa.RecordBatch.from_arrays(arrays, schema=target)


def _arrow_schema(schema: StructType) -> pa.Schema:
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")


def _libpq(url: str) -> str:
    return parse_url(url).set(drivername="postgresql").render_as_string(hide_password=False)


def _required(options: Mapping[str, str], name: str) -> str:
    if not options.get(name):
        raise InvalidInput(f"the option {name!r} of the format {FORMAT!r} is missing")
    return options[name]


def _json(options: Mapping[str, str], name: str, default: Any) -> Any:
    try:
        value = json.loads(options.get(name) or json.dumps(default))
    except json.JSONDecodeError as error:
        raise InvalidInput(f"the option {name!r} is not JSON: {error}") from None
    if not isinstance(value, type(default)):
        raise InvalidInput(f"the option {name!r} must be a JSON {'object' if default == {} else 'list'}")
    return value


def _moment(options: Mapping[str, str], name: str) -> datetime | None:
    text = options.get(name)
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = datetime.min
    if moment.tzinfo is None:
        raise InvalidInput(f"the option {name!r} is {text!r}; write an ISO timestamp with a zone")
    return moment


def _literal(text: str) -> str:
    if "\x00" in text:
        raise InvalidInput("a NUL character cannot be part of a value")
    quoted = text.replace("'", "''")
    return f"'{quoted}'" if "\\" not in text else "E'" + quoted.replace("\\", "\\\\") + "'"


def _literal_array(parts: Sequence[str]) -> str:
    return f"ARRAY[{', '.join(_literal(part) for part in parts)}]"
