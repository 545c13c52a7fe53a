"""`spark.read.format("sqlqueue")`: a queue's archive, its live jobs, or a sealed batch, as rows of Arrow batches.

Options:
    url, url_env: the database, where `register_source` was given none: a URL without a password, or the environment
        variable that holds one, read where the read is planned.
    database_schema: where the queue's tables are; what `register_source` was given or found in the environment.
    queue: the queue (required).
    state: `archive` (default), `live` or `batch`.
    batch_id: the batches to read, with commas between, for `batch`.
    states: states to read, with commas between; all of them by default.
    payload: the fields of the payload to have as columns, in Spark's notation: `account string, amount decimal(10,2)`.
    payload_prefix: what the names of these columns begin with.
    columns: JSON, name → {"path": "payload.x.y" or "result.x", "type": …}: fields from further down, or of the result.
        Types: string, smallint, int, bigint, float, double, boolean, date, timestamp, decimal(p,s).
    on_bad_value: `fail` (default), or `null`, for a field that cannot be cast.
    where: JSON list of {"column", "op", "value"} over those columns; op is =, <, <=, >, >= or in.
    finished_from, finished_until, created_from, created_until: ISO timestamps with a zone, the second ones exclusive.
    buckets: like 0,3,8-15.
    split: `time` (default) or `bucket`: how the archive is split among tasks.
    target_rows: rows for each slice (250,000), about.
    max_connections: tasks at most, each with one connection; slices beyond it are read one after another.
    limit: rows at most, read by one task; of the archive, those that finished first.
    consistent: `as_of` or `snapshot`; the latter is the default for live jobs. See docs/spark_reading.md.
    snapshot_seconds: how long a snapshot is kept, at most (600).
    statement_timeout: seconds for each statement of a task.
    batch_bytes: about the size of an Arrow batch (4 MiB).
"""

import os
from collections.abc import Mapping

from pydantic import BaseModel
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from dagster_sqlqueue.db.schema_name import Unnamed, default_schema, quote_schema
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.spark import fields, positions
from dagster_sqlqueue.spark import options as parts
from dagster_sqlqueue.spark.kinds import ddl
from dagster_sqlqueue.spark.options import FORMAT
from dagster_sqlqueue.spark.payload_columns import payload_schema
from dagster_sqlqueue.spark.payload_models import PayloadModels, payload_models

__all__ = ["ddl", "payload_schema", "register_source"]

_PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


def register_source(
    spark: SparkSession,
    url: str | None = None,
    schema: str | Unnamed = Unnamed.UNNAMED,
    *,
    payload: type[BaseModel] | Mapping[str, type[BaseModel]] | None = None,
    push_filters: bool = False,
) -> None:
    """Make the format `sqlqueue` known to the session.

    The URL is sent inside the pickled class, never as an option: options are shown in plans and event logs.

    Args:
        spark: the session.
        url: see `dagster_sqlqueue.db.urls.parse_url`; None: each read names its database by an option.
        schema: where the queue's tables are; not given: the environment variable `SQLQUEUE_SCHEMA` of this process, else
            `sqlqueue`.
        payload: the queues' payload model, or one for each queue by its name. Its fields are columns of every read
            without the option `payload`, see `payload_schema`; and every row that is written to the queue must fit it.
        push_filters: let the database apply Spark's filters, too, except to reads with the option `limit`; sets
            `spark.sql.python.filterPushdown.enabled`. Load a frame of its own for each query then: Spark 4.3 reads a
            frame with the filters of its first query.

    Raises:
        InvalidInput: the URL, the schema's name or a model is not usable. That a model's fields are no columns, a read says.
    """
    if url is not None:
        from dagster_sqlqueue.db.urls import parse_url

        parse_url(url)
    named = default_schema() if isinstance(schema, Unnamed) else schema
    quote_schema(named)
    models = payload_models(payload)
    if push_filters:
        spark.conf.set(_PUSHDOWN, "true")

    class SqlQueueSource(_Source):
        _where = (url, named)
        _models = models
        _pushing = push_filters

    spark.dataSource.register(SqlQueueSource)


class _Source(DataSource):
    """Every worker that plans or reads imports this module: each of its four parts imports its own modules."""

    _where: tuple[str | None, str]
    _models = PayloadModels()
    _pushing = False

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        # A stream asks for its schema here too, and checks its own options itself.
        return fields.default_schema(self._given(positions.batch_options(self.options)))

    def reader(self, schema: StructType) -> DataSourceReader:
        from dagster_sqlqueue.spark.batch_reader import PushingReader, Reader

        options = self._given(self.options)
        made = PushingReader if self._pushing else Reader
        return made(*self._place(options), options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        from dagster_sqlqueue.spark.stream_reader import StreamReader

        options = self._given(positions.batch_options(self.options))
        return StreamReader(self._place(options), options, positions.given(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from dagster_sqlqueue.spark.writer import Writer

        return Writer(*self._target(), schema, overwrite, self._models)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        from dagster_sqlqueue.spark.writer import StreamWriter

        return StreamWriter(*self._target(), schema, overwrite, self._models)

    def _target(self) -> tuple[tuple[str, str], dict[str, str]]:
        """Return where to write, and the other options."""
        options = {name.lower(): value for name, value in self.options.items()}
        return self._place(options), {name: value for name, value in options.items() if name not in parts.PLACE}

    def _given(self, given: Mapping[str, str]) -> dict[str, str]:
        """Return the options, checked, with the queue's own columns where none are asked for."""
        options = {name.lower(): value for name, value in given.items()}
        parts.check(options)
        self._place(options)
        if "payload" not in options and (model := self._models.of(options["queue"])):
            options["payload"] = model.schema()
        return options

    def _place(self, options: Mapping[str, str]) -> tuple[str, str]:
        """URL and schema.

        Raises:
            InvalidInput: there is no URL, more than one, or one that Spark would show.
        """
        url, schema = self._where
        given = [name for name in ("url", "url_env") if name in options]
        if len(given) == 2:
            raise InvalidInput("the options 'url' and 'url_env' are both given; keep one of them")
        if "url" in options:
            from dagster_sqlqueue.spark.urls import check_public

            check_public(options["url"])
            url = options["url"]
        elif "url_env" in options:
            url = os.environ.get(options["url_env"])
            if not url:
                raise InvalidInput(
                    f"the option 'url_env' names {options['url_env']!r}, which is not set in the environment of Spark's"
                    " driver, or of the Connect server"
                )
        if url is None:
            raise InvalidInput(
                f"the format {FORMAT!r} was registered without a URL: set the option url_env to the name of the environment"
                " variable that holds it, or use register_source(spark, url)"
            )
        schema = options.get("database_schema", schema)
        quote_schema(schema)
        return url, schema
