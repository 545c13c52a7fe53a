-- Read for a manager a random choice of :limit executable jobs, queued or with an expired lease, as they are now: of the
-- first ones of each bucket. Nothing is locked; grant_assign compares the lease numbers read here.
--
-- Source: the manager/worker article, which lists and shuffles so that two managers seldom grant the same job.
-- A choice finds each single job late: so a caller names buckets from time to time whose jobs come before the others, in
-- their order.
--
-- Parameters: queue text; revision bigint; buckets smallint[]; hints text[] (as for claim_round_robin); from_head
--   smallint[] (those of the buckets whose jobs come first); limit integer.
-- Returns: the jobs; lease_no as it was, attempt: how many are spent; suspect: its lease expired; frees_key: its claim
--   frees its unique key. Reads at most :limit from each bucket. Locks: none.
-- Roles: consumer, operator, observer.
WITH level AS MATERIALIZED (
    SELECT DISTINCT p.priority FROM sqlqueue.queue_priority AS p WHERE p.queue = :queue ORDER BY p.priority DESC
), candidate AS MATERIALIZED (
    SELECT
        due.id,
        CASE WHEN b.bucket = ANY (CAST(:from_head AS smallint[])) THEN row_number() OVER () END AS place
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
            LIMIT :limit
        ) AS entry
        LIMIT :limit
    ) AS due
    WHERE EXISTS (
        SELECT FROM sqlqueue.queue AS q
        WHERE q.name = :queue AND q.revision = :revision
          AND (q.paused_at IS NULL OR q.paused_until <= statement_timestamp())
    )
), chosen AS MATERIALIZED (
    SELECT choice.id, row_number() OVER () AS place
    FROM (
        SELECT candidate.id FROM candidate ORDER BY candidate.place NULLS LAST, random() LIMIT :limit
    ) AS choice
)
SELECT
    j.id, j.bucket, j.priority, j.lease_no,
    sqlqueue.attempts_spent(j.attempt, j.state, j.alone) AS attempt, j.max_attempts, j.created_at,
    j.available_at AS lease_until, j.unique_key, j.ordering_key, CAST(j.payload AS text) AS payload, j.error,
    j.available_at AS due_at, j.tags, j.order_no, j.timeout_seconds, j.backoff,
    j.cancel_requested_at IS NOT NULL AS cancel_requested, j.limited,
    j.unique_until_claim AND j.lease_no = 0 AS frees_key, j.state = 'running' AS suspect
FROM chosen
CROSS JOIN LATERAL (SELECT job.* FROM sqlqueue.job AS job WHERE job.id = chosen.id OFFSET 0) AS j
ORDER BY chosen.place
