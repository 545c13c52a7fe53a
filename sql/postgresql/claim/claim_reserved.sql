-- Claim jobs within what limit_reserve has reserved: claim_round_robin and rate_note in one statement, for queues that have
-- a limit and no turns. No lock of the whole queue is needed: what is used here counts as reserved until this commits.
--
-- Source and repairs: see claim_round_robin. Parameters: as there, and reservation uuid. Returns: as there; no row: nothing
--   is due, the reservation is used up or has expired, or the queue is paused or has other settings by now.
-- Locks: the reservation; the rows returned, in index order; rows locked by others are skipped. Guards: I3, I4, I5, I9: the
--   recorded time is never earlier than the starts it stands for.
-- Plan: as claim_round_robin. What is recorded of a rate is the number of the rows locked, and not of those updated, which
--   may be a few less: then the rows need not be kept for it, and the rate is a little lower for once.
-- Roles: consumer.
WITH reserved AS MATERIALIZED (
    SELECT r.id, LEAST(r.jobs, :limit) AS jobs
    FROM sqlqueue.limit_reservation AS r
    WHERE r.id = CAST(:reservation AS uuid)
    FOR UPDATE
), used AS (
    UPDATE sqlqueue.limit_reservation AS r
    SET jobs = r.jobs - reserved.jobs, expires_at = statement_timestamp() + interval '10 seconds'
    FROM reserved
    WHERE r.id = reserved.id
), allowance AS MATERIALIZED (
    SELECT reserved.jobs, q.rate_seconds, q.max_running
    FROM reserved
    JOIN sqlqueue.queue AS q ON q.name = :queue
    WHERE q.revision = :revision
      AND (q.paused_at IS NULL OR q.paused_until <= statement_timestamp())
), level AS MATERIALIZED (
    SELECT DISTINCT p.priority FROM sqlqueue.queue_priority AS p WHERE p.queue = :queue ORDER BY p.priority DESC
), head AS MATERIALIZED (
    SELECT due.version, due.available_at, due.suspect
    FROM unnest(CAST(:buckets AS smallint[]), CAST(:hints AS text[])) AS b (bucket, hint)
    CROSS JOIN LATERAL (SELECT CAST(b.hint AS text[]) AS begin OFFSET 0) AS hint
    CROSS JOIN LATERAL (
        SELECT candidate.version, candidate.available_at, candidate.suspect
        FROM level
        CROSS JOIN LATERAL (
            SELECT j.ctid AS version, j.available_at, j.state = 'running' AS suspect
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
            LIMIT (SELECT COALESCE(max(allowance.jobs), 0) FROM allowance)
            FOR UPDATE SKIP LOCKED
        ) AS candidate
        LIMIT (SELECT COALESCE(max(allowance.jobs), 0) FROM allowance)
    ) AS due
    LIMIT (SELECT COALESCE(max(allowance.jobs), 0) FROM allowance)
), taken AS MATERIALIZED (
    SELECT due.version, due.available_at
    FROM (
        SELECT
            array_agg(head.version) AS versions, array_agg(head.available_at) AS times,
            CASE array_position(array_agg(head.suspect), true)
                WHEN 1 THEN CASE WHEN :suspects THEN 1 ELSE 0 END
                ELSE array_position(array_agg(head.suspect), true) - 1
            END AS before
        FROM head
    ) AS seen
    CROSS JOIN LATERAL unnest(
        seen.versions[:COALESCE(seen.before, :limit)], seen.times[:COALESCE(seen.before, :limit)]
    ) AS due (version, available_at)
), noted AS (
    INSERT INTO sqlqueue.rate_start (queue, starts)
    SELECT :queue, sum.starts
    FROM (SELECT count(*) AS starts FROM taken) AS sum
    JOIN allowance ON allowance.rate_seconds IS NOT NULL
    WHERE sum.starts > 0
)
UPDATE sqlqueue.job AS j
SET state = 'running',
    available_at = statement_timestamp() + make_interval(secs => :lease_seconds),
    lease_no = j.lease_no + 1,
    attempt = sqlqueue.attempts_spent(j.attempt, j.state, j.alone) + 1,
    alone = j.state = 'running' OR (SELECT count(*) = 1 AND :single FROM taken),
    started_at = statement_timestamp(),
    claimed_by = :worker,
    batch_id = NULL,
    claim_token = NULL,
    limited = (SELECT allowance.max_running IS NOT NULL FROM allowance)
FROM taken
WHERE j.ctid = taken.version
RETURNING
    j.id, j.bucket, j.priority, j.lease_no, j.attempt, j.max_attempts, j.created_at, j.available_at AS lease_until,
    j.unique_key, j.ordering_key, CAST(j.payload AS text) AS payload, j.error, taken.available_at AS due_at, j.tags,
    j.order_no, j.timeout_seconds, j.backoff, j.cancel_requested_at IS NOT NULL AS cancel_requested, j.limited, j.alone
