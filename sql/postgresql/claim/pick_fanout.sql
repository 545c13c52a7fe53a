-- Lock up to :limit due jobs, each priority of a bucket from a random point between its first and its last due job on, then
-- from its beginning: consumers that start together seldom compete for the same jobs. Unordered.
--
-- The point lies between their times, and also between the first 48 bits of their ids, which in a version 7 UUID are its
-- time, because jobs enqueued at once all have the same due time. A job far older than the others would wait for the end
-- of their backlog: hardly any point is before it. So a caller names buckets that begin at their head from time to time.
--
-- Source: the fan-out view that Pachot published for YugabyteDB, repaired: FOR UPDATE SKIP LOCKED on a view over a CTE or a
-- UNION ALL locks no row at all in PostgreSQL, so each branch locks for itself, on the base table.
--
-- Parameters: queue text; revision bigint; buckets smallint[]; hints text[] (as for claim_round_robin); from_head
--   smallint[] (those of the buckets of which the oldest jobs are taken, and which have no hint); limit integer.
-- Returns: the jobs; lease_no as it was, attempt: how many are spent; suspect: its lease expired; frees_key: its claim
--   frees its unique key.
-- Locks: the rows returned, until the transaction ends; rows locked by others are skipped.
-- Roles: consumer, operator.
WITH level AS MATERIALIZED (
    SELECT DISTINCT p.priority FROM sqlqueue.queue_priority AS p WHERE p.queue = :queue ORDER BY p.priority DESC
)
SELECT due.*
FROM unnest(CAST(:buckets AS smallint[]), CAST(:hints AS text[])) AS b (bucket, hint)
CROSS JOIN LATERAL (
    SELECT CAST(b.hint AS text[]) AS begin, b.bucket = ANY (CAST(:from_head AS smallint[])) AS at_head OFFSET 0
) AS hint
CROSS JOIN LATERAL (
    SELECT candidate.*
    FROM level
    CROSS JOIN LATERAL (
        SELECT
            CASE WHEN hint.at_head THEN '-infinity'
                ELSE oldest.moment + random() * (newest.moment - oldest.moment) END AS point,
            CAST(
                CASE WHEN hint.at_head THEN repeat('0', 12) ELSE
                    lpad(to_hex(oldest.place + CAST(random() * (newest.place - oldest.place) AS bigint)), 12, '0')
                END || repeat('0', 20) AS uuid
            ) AS id
        FROM (
            SELECT
                GREATEST(j.available_at, '0001-01-01 00:00:00+00') AS moment,
                CAST(CAST('x' || left(replace(CAST(j.id AS text), '-', ''), 12) AS bit(48)) AS bigint) AS place
            FROM sqlqueue.job AS j
            WHERE j.queue = :queue
              AND j.bucket = b.bucket
              AND j.priority = level.priority
              AND (j.available_at, j.id) >= (
                  COALESCE(CAST(hint.begin[10 - level.priority] AS timestamptz), '-infinity'),
                  COALESCE(CAST(hint.begin[20 - level.priority] AS uuid), '00000000-0000-0000-0000-000000000000')
              )
              AND j.available_at <= statement_timestamp()
            ORDER BY j.available_at, j.id
            LIMIT 1
        ) AS oldest
        CROSS JOIN (
            SELECT
                GREATEST(j.available_at, '0001-01-01 00:00:00+00') AS moment,
                CAST(CAST('x' || left(replace(CAST(j.id AS text), '-', ''), 12) AS bit(48)) AS bigint) AS place
            FROM sqlqueue.job AS j
            WHERE j.queue = :queue
              AND j.bucket = b.bucket
              AND j.priority = level.priority
              AND (j.available_at, j.id) >= (
                  COALESCE(CAST(hint.begin[10 - level.priority] AS timestamptz), '-infinity'),
                  COALESCE(CAST(hint.begin[20 - level.priority] AS uuid), '00000000-0000-0000-0000-000000000000')
              )
              AND j.available_at <= statement_timestamp()
            ORDER BY j.available_at DESC, j.id DESC
            LIMIT 1
        ) AS newest
    ) AS start
    CROSS JOIN LATERAL (
        SELECT after.*
        FROM (
            SELECT
                j.id, j.bucket, j.priority, j.lease_no,
                sqlqueue.attempts_spent(j.attempt, j.state, j.alone) AS attempt, j.max_attempts, j.created_at,
                j.available_at AS lease_until, j.unique_key, j.ordering_key, CAST(j.payload AS text) AS payload, j.error,
                j.available_at AS due_at, j.tags, j.order_no, j.timeout_seconds, j.backoff,
                j.cancel_requested_at IS NOT NULL AS cancel_requested, j.limited,
                j.unique_until_claim AND j.lease_no = 0 AS frees_key, j.state = 'running' AS suspect
            FROM sqlqueue.job AS j
            WHERE j.queue = :queue
              AND j.bucket = b.bucket
              AND j.priority = level.priority
              AND (j.available_at, j.id) >= (start.point, start.id)
              AND j.available_at <= statement_timestamp()
            ORDER BY j.available_at, j.id
            LIMIT :limit
            FOR UPDATE SKIP LOCKED
        ) AS after
        UNION ALL
        SELECT before.*
        FROM (
            SELECT
                j.id, j.bucket, j.priority, j.lease_no,
                sqlqueue.attempts_spent(j.attempt, j.state, j.alone) AS attempt, j.max_attempts, j.created_at,
                j.available_at AS lease_until, j.unique_key, j.ordering_key, CAST(j.payload AS text) AS payload, j.error,
                j.available_at AS due_at, j.tags, j.order_no, j.timeout_seconds, j.backoff,
                j.cancel_requested_at IS NOT NULL AS cancel_requested, j.limited,
                j.unique_until_claim AND j.lease_no = 0 AS frees_key, j.state = 'running' AS suspect
            FROM sqlqueue.job AS j
            WHERE j.queue = :queue
              AND j.bucket = b.bucket
              AND j.priority = level.priority
              AND (j.available_at, j.id) >= (
                  COALESCE(CAST(hint.begin[10 - level.priority] AS timestamptz), '-infinity'),
                  COALESCE(CAST(hint.begin[20 - level.priority] AS uuid), '00000000-0000-0000-0000-000000000000')
              )
              AND (j.available_at, j.id) < (start.point, start.id)
            ORDER BY j.available_at, j.id
            LIMIT :limit
            FOR UPDATE SKIP LOCKED
        ) AS before
    ) AS candidate
    LIMIT :limit
) AS due
WHERE EXISTS (
    SELECT FROM sqlqueue.queue AS q
    WHERE q.name = :queue AND q.revision = :revision
      AND (q.paused_at IS NULL OR q.paused_until <= statement_timestamp())
)
LIMIT :limit
