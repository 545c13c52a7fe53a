-- Lock the :limit first due jobs of all the buckets given: highest priority first, then the oldest, across buckets.
--
-- Source: the merge of bucket heads that Thangamani published for YugabyteDB, repaired: the published form locks through
-- the merging view, which locks nothing in PostgreSQL. Here the heads are read unlocked, :per_bucket of each, and what is
-- locked is then checked again on the base table.
--
-- Parameters: queue text; revision bigint; buckets smallint[]; hints text[] (as for claim_round_robin); limit,
--   per_bucket integer (the most heads to read of each bucket).
-- Returns: the jobs, in order; lease_no as it was, attempt: how many are spent; suspect: its lease expired; frees_key: its
--   claim frees its unique key; and with each, how many heads were read. When others have locked all of those, one row of
--   nulls: with as many heads as :per_bucket, or more, a larger :per_bucket may find jobs.
-- Locks: the rows returned, in their order, until the transaction ends; rows locked by others are skipped. Guards: I5.
-- Roles: consumer, operator.
WITH level AS MATERIALIZED (
    SELECT DISTINCT p.priority FROM sqlqueue.queue_priority AS p WHERE p.queue = :queue ORDER BY p.priority DESC
), candidate AS MATERIALIZED (
    SELECT due.id
    FROM unnest(CAST(:buckets AS smallint[]), CAST(:hints AS text[])) AS b (bucket, hint)
    CROSS JOIN LATERAL (SELECT CAST(b.hint AS text[]) AS begin OFFSET 0) AS hint
    CROSS JOIN LATERAL (
        SELECT entry.*
        FROM level
        CROSS JOIN LATERAL (
            SELECT j.id
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
            LIMIT :per_bucket
        ) AS entry
        LIMIT :per_bucket
    ) AS due
    WHERE EXISTS (
        SELECT FROM sqlqueue.queue AS q
        WHERE q.name = :queue AND q.revision = :revision
          AND (q.paused_at IS NULL OR q.paused_until <= statement_timestamp())
    )
), taken AS MATERIALIZED (
    SELECT
        j.id, j.bucket, j.priority, j.lease_no,
        sqlqueue.attempts_spent(j.attempt, j.state, j.alone) AS attempt, j.max_attempts, j.created_at,
        j.available_at AS lease_until, j.unique_key, j.ordering_key, CAST(j.payload AS text) AS payload, j.error,
        j.available_at AS due_at, j.tags, j.order_no, j.timeout_seconds, j.backoff,
        j.cancel_requested_at IS NOT NULL AS cancel_requested, j.limited,
        j.unique_until_claim AND j.lease_no = 0 AS frees_key, j.state = 'running' AS suspect
    FROM sqlqueue.job AS j
    WHERE j.id = ANY (ARRAY(SELECT candidate.id FROM candidate))
      AND j.available_at <= statement_timestamp()
    ORDER BY j.priority DESC, j.available_at, j.id
    LIMIT :limit
    FOR UPDATE SKIP LOCKED
)
SELECT taken.*, seen.heads
FROM (SELECT count(*) AS heads FROM candidate) AS seen
LEFT JOIN taken ON true
WHERE seen.heads > 0
ORDER BY taken.priority DESC, taken.due_at, taken.id
