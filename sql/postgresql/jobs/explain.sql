-- Return what keeps a live job from being claimed, or how many jobs are before it, as of one moment.
--
-- Counts stop at :cap and then mean "at least". Before a job are, in its bucket, the jobs that are due with a higher
-- priority, or with the same one and due earlier. Leases count as long as they hold by the database's clock.
--
-- Parameters: id uuid; cap integer.
-- Returns: one row; none if the job is not live. Times are in seconds from now, negative for what is past; null for never.
--   leases: those that count towards max_running, with what claims have reserved. starts: those of the last rate_seconds.
--   first_*: the first live job of the key, where the queue's keys take turns. key_leases: those of the key.
-- Reads the job and its queue by their keys; at most :cap entries of job_claim for each priority not below the job's, of
--   job_limited, and of job_key_running; one of job_key; the starts of one interval. Locks: none.
-- Roles: consumer, operator, observer.
SELECT
    j.queue, j.state, j.bucket, j.priority, j.attempt, j.attempts_spent, j.max_attempts, j.claimed_by, j.ordering_key,
    j.error,
    CASE WHEN j.available_at = 'infinity' THEN NULL
         ELSE CAST(EXTRACT(epoch FROM j.available_at - statement_timestamp()) AS float8) END AS due_seconds,
    CAST(EXTRACT(epoch FROM j.cancel_requested_at - statement_timestamp()) AS float8) AS cancel_requested_seconds,
    CAST(EXTRACT(epoch FROM
        CASE WHEN q.paused_until <= statement_timestamp() THEN NULL ELSE q.paused_at END - statement_timestamp()
    ) AS float8) AS paused_seconds,
    CASE WHEN q.paused_at IS NOT NULL AND q.paused_until > statement_timestamp()
        THEN CAST(EXTRACT(epoch FROM q.paused_until - statement_timestamp()) AS float8) END AS resumes_seconds,
    q.ordered, q.max_running, q.max_running_per_key, q.rate_limit, q.rate_seconds,
    (
        SELECT COALESCE(sum(at_level.jobs), 0)
        FROM generate_series(j.priority, 9) AS level
        CROSS JOIN LATERAL (
            SELECT count(*) AS jobs
            FROM (
                SELECT
                FROM sqlqueue.job AS b
                WHERE b.queue = j.queue AND b.bucket = j.bucket AND b.priority = level
                  AND b.available_at <= statement_timestamp()
                  AND (level > j.priority OR (b.available_at, b.id) < (j.available_at, j.id))
                LIMIT :cap
            ) AS before
        ) AS at_level
    ) AS before,
    CASE WHEN q.max_running IS NOT NULL THEN (
        SELECT count(*)
        FROM (
            SELECT FROM sqlqueue.job AS r
            WHERE r.queue = j.queue AND r.limited AND r.state = 'running' AND r.available_at > statement_timestamp()
            LIMIT q.max_running
        ) AS running
    ) + (
        SELECT COALESCE(sum(r.jobs), 0)
        FROM sqlqueue.limit_reservation AS r
        WHERE r.queue = j.queue
          AND r.expires_at BETWEEN statement_timestamp() AND statement_timestamp() + interval '1 minute'
    ) END AS leases,
    CASE WHEN q.rate_limit IS NOT NULL THEN (
        SELECT COALESCE(sum(s.starts), 0)
        FROM sqlqueue.rate_start AS s
        WHERE s.queue = j.queue AND s.started_at > statement_timestamp() - make_interval(secs => q.rate_seconds)
    ) END AS starts,
    CASE WHEN j.order_no IS NOT NULL THEN (
        SELECT count(*)
        FROM (
            SELECT FROM sqlqueue.job AS r
            WHERE r.queue = j.queue AND r.ordering_key = j.ordering_key AND r.order_no IS NOT NULL
              AND r.state = 'running' AND r.available_at > statement_timestamp() AND r.id <> j.id
            LIMIT :cap
        ) AS running
    ) END AS key_leases,
    first.id AS first_id, first.state AS first_state, first.claimed_by AS first_claimed_by,
    b.key AS batch_key, b.owner AS batch_owner,
    CAST(EXTRACT(epoch FROM b.lease_until - statement_timestamp()) AS float8) AS batch_seconds
FROM (
    SELECT
        live.id, live.queue, live.state, live.bucket, live.priority, live.attempt,
        sqlqueue.attempts_spent(live.attempt, live.state, live.alone) AS attempts_spent, live.max_attempts, live.claimed_by,
        live.ordering_key, live.error, live.available_at, live.cancel_requested_at, live.order_no, live.batch_id
    FROM sqlqueue.job AS live
    WHERE live.id = CAST(:id AS uuid)
    UNION ALL
    SELECT
        p.id, p.queue, p.state, p.bucket, p.priority, p.attempt, p.attempts_spent, p.max_attempts, p.claimed_by,
        p.ordering_key, p.error, p.available_at, NULL, NULL, p.batch_id
    FROM sqlqueue.packed_jobs(ARRAY[CAST(:id AS uuid)]) AS p
) AS j
JOIN sqlqueue.queue AS q ON q.name = j.queue
LEFT JOIN sqlqueue.batch AS b ON b.id = j.batch_id AND b.state IN ('sealing', 'sealed')
LEFT JOIN LATERAL (
    SELECT f.id, f.state, f.claimed_by
    FROM sqlqueue.job AS f
    WHERE j.order_no IS NOT NULL AND f.queue = j.queue AND f.ordering_key = j.ordering_key AND f.order_no > 0
    ORDER BY f.order_no
    LIMIT 1
) AS first ON true
