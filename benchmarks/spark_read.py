"""Rows that Spark reads from the archive in a second, beside its own JDBC source and COPY, on one server in one run.

Whole rows go to Spark's `noop` sink; typed fields of the payload are summed up by account and day. JDBC is set as a good
user would set it: `fetchsize` 10,000, and split by the bucket or by the time of the end; the faster one of the two counts.
It reads payloads, which Spark parses, or has a query take their fields. COPY is binary, on two connections, to nowhere.
"""

import functools
import statistics
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as sf
from sqlalchemy.engine import make_url

from benchmarks.harness import SPEC, Bench, Figure, note, rounds
from benchmarks.loading import PAYLOAD
from benchmarks.memory import peak
from dagster_sqlqueue.spark.options import FORMAT
from dagster_sqlqueue.spark.session import SparkSettings, open_spark
from dagster_sqlqueue.spark.source import register_source

COMMAND = "python -m benchmarks spark_read --rows N"
QUICK_ROWS = (50_000,)
ROWS = (1_000_000, 10_000_000)
ROUNDS = 3
DAYS = 10
JARS = Path("/usr/share/java")
WHOLE = (
    "id string, bucket int, priority int, state string, attempt int, created_at timestamp, finished_at timestamp,"
    " payload string"
)
TYPED = "account string, amount double, finished_at timestamp"
_SELECTED = (
    "CAST(id AS text) AS id, bucket, priority, state, attempt, created_at, finished_at,"
    " CAST(payload AS text) AS payload"
)
_FIELDS = "payload ->> 'account' AS account, CAST(payload ->> 'amount' AS double precision) AS amount, finished_at"

_SPLITS = ("bucket", "time")

_ARCHIVED = """
INSERT INTO {{s}}.job_archive (
    id, queue, bucket, priority, state, lease_no, attempt, max_attempts, run_at, created_at, started_at, finished_at, region,
    tags, payload
)
SELECT gen_random_uuid(), '{queue}', n % {buckets}, 0, 'succeeded', 1, 1, 5, at, at, at, at, 'local', '{{{{}}}}', {payload}
FROM (
    SELECT n, timestamptz '2013-01-01 00:00Z' + n * interval '{days} days' / {rows} AS at
    FROM generate_series({first}, {last}) AS n
) AS made
"""


def measure(bench: Bench) -> list[Figure]:
    """Rows in a second, and the most memory that driver, JVM and workers had together."""
    figures: list[Figure] = []
    jars = sorted(map(str, JARS.glob("postgresql*.jar")))
    if not jars:
        note("no JDBC driver: install Debian's libpostgresql-jdbc-java to compare with Spark's JDBC source; left out")
    conf = {"spark.jars": jars[-1]} if jars else {}
    address = _tcp(bench)
    if jars and not address:
        note("JDBC needs a server that listens on TCP: set SQLQUEUE_URL to one; left out")
        jars = []
    with open_spark(SparkSettings(driver_memory="3g", conf=conf)) as spark:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
        register_source(spark, bench.url, bench.queue.database.schema)
        for count in bench.rows or (QUICK_ROWS if bench.quick else ROWS):
            _fill(bench, count)
            figures += _measured(bench, spark, count, address if jars else None)
    bench.empty()
    return figures


def _tcp(bench: Bench) -> str | None:
    """The server's host and port for JDBC, which cannot use a socket; None when it listens on sockets only."""
    url = make_url(bench.url)
    if url.host:
        return _address(url.host, url.port or 5432)
    ((listens, port),) = bench.execute("SELECT current_setting('listen_addresses'), current_setting('port')")
    first = listens.split(",")[0].strip()
    host = {"*": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(first, first)
    return _address(host, int(port)) if host else None


def _address(host: str, port: int) -> str:
    """Host and port as a JDBC URL has them, where an IPv6 address stands in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _fill(bench: Bench, count: int) -> None:
    note(f"archiving {count:,} jobs")
    bench.empty()
    for day in range(DAYS):
        bench.execute(f"SELECT {{s}}.make_archive_partition(date '2013-01-01' + {day})")
    step = 500_000
    for first in range(0, count, step):
        last = min(first + step, count) - 1
        payload = PAYLOAD.replace("{", "{{").replace("}", "}}")
        text = _ARCHIVED.format(
            queue=SPEC.name, buckets=SPEC.bucket_count, payload=payload, days=DAYS, rows=count, first=first, last=last
        )
        bench.execute(text)
    bench.execute("VACUUM (ANALYZE) {s}.job_archive")
    bench.checkpoint()


def _measured(bench: Bench, spark: SparkSession, count: int, jdbc: str | None) -> list[Figure]:
    base = spark.read.format(FORMAT).option("queue", SPEC.name)
    typed = base.option("payload", "account string, amount double").schema(TYPED)
    untyped = spark.read.format(FORMAT).option("queue", SPEC.name).schema(WHOLE)
    by_bucket = spark.read.format(FORMAT).options(
        queue=SPEC.name, split="bucket", payload="account string, amount double"
    )
    ways: dict[str, Callable[[], object]] = {
        "whole rows": lambda: _drained(untyped.load()),
        "typed fields": lambda: _summed(typed.load(), count),
        "typed fields by bucket": lambda: _summed(by_bucket.schema(TYPED).load(), count),
        "COPY, whole rows": lambda: _copied(bench, _SELECTED),
        "COPY, typed fields": lambda: _copied(bench, _FIELDS),
    }
    for split in _SPLITS if jdbc else ():
        read = functools.partial(_jdbc, bench, spark, jdbc, _partitions(split, count))
        ways[f"JDBC by {split}, whole rows"] = lambda read=read: _drained(read())
        ways[f"JDBC by {split}, from_json"] = lambda read=read: _summed(_parsed(read()), count)
    if jdbc:
        # Without the column bucket, which is nothing to sum up.
        fields = functools.partial(_jdbc, bench, spark, jdbc, _partitions("time", count), _FIELDS)
        ways["JDBC by time, typed fields"] = lambda: _summed(fields(), count)

    def rate(work: Callable[[], object]) -> Callable[[], float]:
        def timed() -> float:
            began = time.perf_counter()
            work()
            return count / (time.perf_counter() - began)

        return timed

    note(f"reading {count:,} rows in {len(ways)} ways, {ROUNDS + 1} times")
    with peak() as most:
        values = rounds(1 if bench.quick else ROUNDS, *(rate(work) for work in ways.values()))
    found = dict(zip(ways, values, strict=True))
    of = f"{count:,} rows: "
    figures = [Figure(of + name, "rows/s", one, COMMAND) for name, one in found.items()]
    ratios: list[tuple[str, str, str, float | None, float | None]] = [
        ("typed fields ÷ COPY", "typed fields", "COPY, typed fields", 0.5, 0.7)
    ]
    # Small archives fit into the cache, where it makes no difference which pages a slice touches.
    ratios.append(
        ("by time ÷ by bucket", "typed fields", "typed fields by bucket", 1.5 if count >= 10_000_000 else None, None)
    )
    if jdbc:
        for of_jdbc in "whole rows", "from_json":
            found[f"JDBC, {of_jdbc}"] = max(
                (found[f"JDBC by {one}, {of_jdbc}"] for one in _SPLITS), key=statistics.median
            )
        ratios.append(("whole rows ÷ the faster JDBC", "whole rows", "JDBC, whole rows", 0.7, 1.4))
        ratios.append(("typed fields ÷ the faster JDBC and from_json", "typed fields", "JDBC, from_json", 1.5, 2.2))
        ratios.append(("typed fields ÷ JDBC, typed fields", "typed fields", "JDBC by time, typed fields", 0.9, 1.3))
    for name, ours, theirs, floor, aim in ratios:
        each = [a / b for a, b in zip(found[ours], found[theirs], strict=True)]
        figures.append(Figure(of + name, "×", each, COMMAND, None if bench.quick else floor, aim=aim))
    figures.append(Figure(of + "most memory, driver + JVM + workers", "MB", [most()], COMMAND))
    return figures


def _drained(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _summed(frame: DataFrame, count: int) -> None:
    found = (
        frame.groupBy("account", sf.to_date("finished_at")).agg(sf.count("*").alias("n"), sf.sum("amount")).toArrow()
    )
    total = sum(found.column("n").to_pylist())
    if total != count:
        raise AssertionError(f"{total} of {count} rows were read")


def _partitions(split: str, count: int) -> dict[str, str]:
    """How JDBC splits the archive: a partition for each bucket, or for as much time as has about 250,000 rows."""
    if split == "bucket":
        bounds = {"partitionColumn": "bucket", "lowerBound": "0", "upperBound": str(SPEC.bucket_count)}
        return {**bounds, "numPartitions": str(SPEC.bucket_count)}
    last = f"2013-01-{1 + DAYS:02} 00:00:00"
    bounds = {"partitionColumn": "finished_at", "lowerBound": "2013-01-01 00:00:00", "upperBound": last}
    return {**bounds, "numPartitions": str(max(2, count // 250_000))}


def _jdbc(
    bench: Bench, spark: SparkSession, address: str, partitions: Mapping[str, str], selected: str = _SELECTED
) -> DataFrame:
    url = make_url(bench.url)
    schema = bench.queue.database.schema
    reader: DataFrameReader = spark.read.format("jdbc").options(
        url=f"jdbc:postgresql://{address}/{url.database}",
        user=url.username or "postgres",
        password=url.password or "",
        driver="org.postgresql.Driver",
        dbtable=f"(SELECT {selected} FROM \"{schema}\".job_archive WHERE queue = '{SPEC.name}') AS read",
        fetchsize="10000",
        **partitions,
    )
    return reader.load()


def _parsed(frame: DataFrame) -> DataFrame:
    fields = sf.from_json("payload", "account string, amount double")
    return frame.select(fields.alias("p"), "finished_at").select("p.account", "p.amount", "finished_at")


def _copied(bench: Bench, selected: str) -> None:
    """Each of two connections takes half of the days, as a good user would."""

    def copy(half: int) -> None:
        with psycopg.connect(bench.url, autocommit=True) as connection:
            low, high = ("2013-01-01", "2013-01-06") if half == 0 else ("2013-01-06", "2014-01-01")
            query = (
                f'SELECT {selected} FROM "{bench.queue.database.schema}".job_archive'
                f" WHERE queue = '{SPEC.name}' AND finished_at >= '{low}Z' AND finished_at < '{high}Z'"
            )
            with connection.cursor().copy(f"COPY ({query}) TO STDOUT (FORMAT binary)".encode()) as copying:
                for _ in copying:
                    pass

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(copy, range(2)))
