-- Claim up to :limit due jobs, each priority of a bucket from a random point between its first and its last due job on, then
-- from its beginning: consumers that start together seldom compete for the same jobs. Unordered.
--
-- It is pick_fanout and grant in one statement, for queues without turns and limits: one round trip instead of four. Source
-- and random point: see pick_fanout. A job whose lease expired is claimed by itself, as by claim_round_robin.
--
-- Parameters: queue text; revision bigint; buckets smallint[]; hints text[] (as for claim_round_robin); from_head
--   smallint[] (as for pick_fanout); limit integer; lease_seconds float8; worker text; suspects, single boolean (as
--   there).
-- Returns: the jobs under their new lease, with the columns of claim_round_robin, attempt > max_attempts as there.
-- Plan: the update reads each row at the place where it was locked, as in claim_round_robin, and what is said there of rows
--   that another transaction changes meanwhile is true here.
-- Locks: the rows returned; rows locked by others are skipped. Guards: I3 (lease_no grows), I4.
-- Roles: consumer.
WITH level AS MATERIALIZED (
    SELECT DISTINCT p.priority FROM sqlqueue.queue_priority AS p WHERE p.queue = :queue ORDER BY p.priority DESC
), found AS MATERIALIZED (
    SELECT due.version, due.available_at, due.suspect
    FROM unnest(CAST(:buckets AS smallint[]), CAST(:hints AS text[])) AS b (bucket, hint)
    CROSS JOIN LATERAL (
        SELECT CAST(b.hint AS text[]) AS begin, b.bucket = ANY (CAST(:from_head AS smallint[])) AS at_head OFFSET 0
    ) AS hint
    CROSS JOIN LATERAL (
        SELECT candidate.version, candidate.available_at, candidate.suspect
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
            SELECT after.version, after.available_at, after.suspect
            FROM (
                SELECT j.ctid AS version, j.available_at, j.state = 'running' AS suspect
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
            SELECT before.version, before.available_at, before.suspect
            FROM (
                SELECT j.ctid AS version, j.available_at, j.state = 'running' AS suspect
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
), taken AS MATERIALIZED (
    SELECT due.version, due.available_at
    FROM (
        SELECT
            array_agg(found.version) AS versions, array_agg(found.available_at) AS times,
            CASE array_position(array_agg(found.suspect), true)
                WHEN 1 THEN CASE WHEN :suspects THEN 1 ELSE 0 END
                ELSE array_position(array_agg(found.suspect), true) - 1
            END AS before
        FROM found
    ) AS seen
    CROSS JOIN LATERAL unnest(
        seen.versions[:COALESCE(seen.before, :limit)], seen.times[:COALESCE(seen.before, :limit)]
    ) AS due (version, available_at)
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
    limited = false
FROM taken
WHERE j.ctid = taken.version
RETURNING
    j.id, j.bucket, j.priority, j.lease_no, j.attempt, j.max_attempts, j.created_at, j.available_at AS lease_until,
    j.unique_key, j.ordering_key, CAST(j.payload AS text) AS payload, j.error, taken.available_at AS due_at, j.tags,
    j.order_no, j.timeout_seconds, j.backoff, j.cancel_requested_at IS NOT NULL AS cancel_requested, j.limited, j.alone
