-- Lock up to :limit due jobs, bucket after bucket in the order given, and leave them as they are: for a grant later in the
-- same transaction, once it is known how many may run, or for processing inside that transaction.
--
-- Source and repairs: see claim_round_robin. Parameters: queue text; revision bigint; buckets smallint[]; hints text[]
--   (as there); limit integer.
-- Returns: the jobs, in the order in which they were due; lease_no as it was, attempt: how many are spent; suspect: its
--   lease expired; frees_key: its claim frees its unique key.
-- Locks: the rows returned, in index order, until the transaction ends; rows locked by others are skipped. Guards: I5.
-- Roles: consumer, operator.
WITH level AS MATERIALIZED (
    SELECT DISTINCT p.priority FROM sqlqueue.queue_priority AS p WHERE p.queue = :queue ORDER BY p.priority DESC
)
SELECT due.*
FROM unnest(CAST(:buckets AS smallint[]), CAST(:hints AS text[])) AS b (bucket, hint)
CROSS JOIN LATERAL (SELECT CAST(b.hint AS text[]) AS begin OFFSET 0) AS hint
CROSS JOIN LATERAL (
    SELECT candidate.*
    FROM level
    CROSS JOIN LATERAL (
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
          AND j.available_at <= statement_timestamp()
        ORDER BY j.available_at, j.id
        LIMIT :limit
        FOR UPDATE SKIP LOCKED
    ) AS candidate
    LIMIT :limit
) AS due
WHERE EXISTS (
    SELECT FROM sqlqueue.queue AS q
    WHERE q.name = :queue AND q.revision = :revision
      AND (q.paused_at IS NULL OR q.paused_until <= statement_timestamp())
)
LIMIT :limit
