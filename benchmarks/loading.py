"""Jobs by the hundred thousand: made on the server, as an application would have put them on the queue."""

import psycopg
from psycopg import sql

from benchmarks.harness import SPEC, Bench

PAYLOAD = """jsonb_build_object(
    'account', 'account-' || lpad(CAST(n % 105 AS text), 3, '0'), 'kind', 'arrived', 'number', n, 'amount', n * 0.25,
    'note', 'somewhat more than sixty characters of text, as an event has it.'
)"""

# Version 7 ids of 50 jobs a millisecond, in their order; the bucket is a hash, as an id's is.
_JOBS = """
INSERT INTO {s}.job (
    id, queue, bucket, priority, available_at, run_at, max_attempts, ordering_key, order_no, payload
)
SELECT
    CAST(
        lpad(to_hex(began.ms + n / 50), 12, '0') || '7' || lpad(to_hex(n % 50), 3, '0')
        || '8' || substr(md5(CAST(n AS text)), 1, 15)
    AS uuid),
    {queue}, abs(hashint4({hashed})) % {buckets}, 0, due.at, due.at, 5,
    CASE WHEN {keys} > 0 THEN 'key-' || n % {keys} END,
    CASE WHEN {keys} > 0 AND q.keyed THEN nextval({sequence}) END,
    {payload}
FROM generate_series({first}, {last}) AS n
CROSS JOIN (SELECT CAST(EXTRACT(EPOCH FROM now()) * 1000 AS bigint) AS ms) AS began
CROSS JOIN LATERAL (
    SELECT now() - interval '1 hour' + CASE WHEN {at_once} THEN interval '0' ELSE n * interval '10 microseconds' END AS at
) AS due
JOIN {s}.queue AS q ON q.name = {queue}
"""


def load(
    bench: Bench,
    jobs: int,
    *,
    schema: str | None = None,
    queue: str = SPEC.name,
    first: int = 1,
    keys: int = 0,
    at_once: bool = False,
) -> None:
    """Put so many due jobs on a queue of 16 buckets, 10 µs apart, with the payload of `event`.

    Args:
        bench: where.
        jobs: how many.
        schema: another one than the bench's.
        queue: its name.
        first: the number of the first of them; later ones are due later.
        keys: how many ordering keys they take in turn; 0: they have none.
        at_once: all are due at the same moment, as one transaction of a producer leaves them.
    """
    name = schema or bench.queue.database.schema
    hashed = sql.SQL("n % {}").format(keys) if keys else sql.SQL("n")
    statement = sql.SQL(_JOBS).format(
        s=sql.Identifier(name),
        sequence=sql.Literal(f'"{name}".job_order'),
        queue=queue,
        buckets=SPEC.bucket_count,
        hashed=hashed,
        keys=keys,
        payload=sql.SQL(PAYLOAD),
        first=first,
        last=first + jobs - 1,
        at_once=at_once,
    )
    with psycopg.connect(bench.url, autocommit=True) as connection:
        connection.execute(statement)
