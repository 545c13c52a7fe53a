"""Archived jobs, in full five million, read whole: each row's fields and the groups' sums are those of the database."""

import json
from concurrent.futures import ThreadPoolExecutor
from datetime import date, timedelta

import pytest
from pyspark.sql import DataFrameReader, SparkSession
from pyspark.sql import functions as sf

from dagster_sqlqueue import SqlQueue
from dagster_sqlqueue.spark.source import ddl
from tests.gate.patience import PATIENCE, sized
from tests.gate.plugin import note_figures
from tests.support import rows

ROWS = sized(20_000, 5_000_000)
DAYS = 8
FIRST = date(2013, 6, 1)
COLUMNS = {
    "account": {"path": "payload.account", "type": "string"},
    "amount": {"path": "payload.amount", "type": "bigint"},
    "note": {"path": "payload.note", "type": "string"},
    "status": {"path": "result.status", "type": "string"},
}

ORDERS = """
    INSERT INTO {s}.job_archive (id, queue, bucket, priority, state, lease_no, attempt, max_attempts, run_at, created_at,
        started_at, finished_at, region, tags, payload, result)
    SELECT gen_random_uuid(), 'work', n %% 16, n %% 10, CASE WHEN n %% 100 = 0 THEN 'failed' ELSE 'succeeded' END, 1, 1, 3,
        at, at, at, at + n %% 7 * interval '1 second', 'local', '{{}}',
        jsonb_build_object('account', 'account ' || n %% 997, 'amount', n * 7919 %% 1000003,
            'note', CASE WHEN n %% 3 = 0 THEN NULL ELSE repeat('é', CAST(n %% 5 AS integer)) || '"' || n END),
        CASE WHEN n %% 100 <> 0 THEN '{{"status": "paid"}}'::jsonb END
    FROM (
        SELECT n, %s::timestamptz + n * interval '86400 seconds' / %s AS at FROM generate_series(1, %s::bigint) AS s (n)
    ) AS made
"""
ROW = (
    "concat_ws('|', id, bucket, state, {micros}, account, CAST(amount AS {text}), coalesce(note, 'no note'),"
    " coalesce(status, 'no status'))"
)
IN_SQL = f"""
    SELECT state, count(*), sum(amount), sum(CAST(CAST('x' || left(md5({ROW}), 8) AS bit(32)) AS bigint))
    FROM (
        SELECT id, bucket, state, finished_at, payload ->> 'account' AS account,
            CAST(payload ->> 'amount' AS bigint) AS amount, payload ->> 'note' AS note, result ->> 'status' AS status
        FROM {{{{s}}}}.job_archive WHERE queue = 'work'
    ) AS read
    GROUP BY state ORDER BY state
""".format(micros="CAST(extract(epoch FROM finished_at) * 1000000 AS bigint)", text="text")


@pytest.mark.timeout(10 * PATIENCE)
def test_all_jobs_have_the_checksums_of_sql(queue: SqlQueue, spark: SparkSession, reader: DataFrameReader) -> None:
    day_rows = ROWS // DAYS

    def fill(day: int) -> None:
        rows(queue, ORDERS, f"{FIRST + timedelta(days=day)} 00:00 UTC", day_rows, day_rows)

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(fill, range(DAYS)))
    kinds = {"id": "string", "bucket": "int", "state": "string", "finished_at": "timestamp"}
    kinds |= {name: column["type"] for name, column in COLUMNS.items()}
    frame = reader.option("columns", json.dumps(COLUMNS)).schema(ddl(kinds)).load()
    row = ROW.format(micros="unix_micros(finished_at)", text="string")
    found = (
        frame.withColumn("checksum", sf.expr(f"CAST(conv(left(md5({row}), 8), 16, 10) AS bigint)"))
        .groupBy("state")
        .agg(sf.count("*"), sf.sum("amount"), sf.sum("checksum"))
        .orderBy("state")
        .collect()
    )
    expected = [(state, count, int(amount), int(check)) for state, count, amount, check in rows(queue, IN_SQL)]
    assert [tuple(one) for one in found] == expected
    assert sum(count for _, count, _, _ in expected) == ROWS
    note_figures(rows=ROWS, states=len(expected))
