-- Return the queues that stand still: paused ones, and those whose jobs are due and not claimed.
--
-- Parameters: seconds float8 (for how long, before it is reported).
-- Returns: queue, paused_seconds (null: not paused), due_seconds (how long the first due job has waited; null: none has
--   waited for so long), moving (a job of the queue ended within that time, or runs now). Only queues that stand still or
--   are paused. Locks: none. Plan: one probe of the claim index for each bucket and priority, the next 100 leases or
--   scheduled jobs of each, and one probe of the archive's index for each queue.
-- Roles: consumer, operator, observer.
WITH lane AS MATERIALIZED (
    SELECT q.name AS queue, CAST(b.bucket AS smallint) AS bucket, CAST(level.priority AS smallint) AS priority
    FROM sqlqueue.queue AS q
    CROSS JOIN LATERAL (
        -- A row beyond the last bucket that there can be is a stray, and would have all buckets before it probed.
        SELECT generate_series(0, LEAST(1023, GREATEST(q.bucket_count - 1, (
            SELECT last.bucket FROM sqlqueue.job AS last WHERE last.queue = q.name ORDER BY last.bucket DESC LIMIT 1
        )))) AS bucket
    ) AS b
    CROSS JOIN (VALUES (9), (8), (7), (6), (5), (4), (3), (2), (1), (0)) AS level (priority)
), first_due AS (
    SELECT
        lane.queue,
        CAST(EXTRACT(
            EPOCH FROM statement_timestamp() - min(GREATEST(due.available_at, '0001-01-01 00:00:00+00'))
        ) AS float8) AS seconds
    FROM lane
    CROSS JOIN LATERAL (
        SELECT j.available_at
        FROM sqlqueue.job AS j
        WHERE j.queue = lane.queue AND j.bucket = lane.bucket AND j.priority = lane.priority
          AND j.available_at <= statement_timestamp() - make_interval(secs => :seconds)
        ORDER BY j.available_at
        LIMIT 1
    ) AS due
    GROUP BY lane.queue
), running AS (
    SELECT DISTINCT lane.queue
    FROM lane
    CROSS JOIN LATERAL (
        SELECT j.state
        FROM sqlqueue.job AS j
        WHERE j.queue = lane.queue AND j.bucket = lane.bucket AND j.priority = lane.priority
          AND j.available_at > statement_timestamp()
        ORDER BY j.available_at
        LIMIT 100
    ) AS coming
    WHERE coming.state = 'running'
)
SELECT standing.queue, standing.paused_seconds, standing.due_seconds, standing.moving
FROM (
    SELECT
        q.name AS queue,
        CASE WHEN q.paused_until IS NULL
            THEN CAST(EXTRACT(EPOCH FROM statement_timestamp() - q.paused_at) AS float8) END AS paused_seconds,
        first_due.seconds AS due_seconds,
        EXISTS (SELECT FROM running WHERE running.queue = q.name)
        OR EXISTS (
            SELECT
            FROM sqlqueue.job_archive AS a
            WHERE a.queue = q.name AND a.finished_at > statement_timestamp() - make_interval(secs => :seconds)
        ) AS moving
    FROM sqlqueue.queue AS q
    LEFT JOIN first_due ON first_due.queue = q.name
    WHERE (q.paused_until > statement_timestamp()) IS NOT TRUE
) AS standing
WHERE standing.paused_seconds >= :seconds OR standing.due_seconds IS NOT NULL AND NOT standing.moving
ORDER BY standing.queue
