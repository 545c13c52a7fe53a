-- The first job of each bucket and priority: what a sensor looks at.
--
-- Parameters: queue text.
-- Returns: one row for each bucket and priority that holds a job: when its first job is due, and for how many seconds it
--   has been (negative: not yet). Reads one index entry for each of them, never the backlog.
-- Locks: none.
SELECT
    b.bucket, level.priority, head.available_at,
    CAST(EXTRACT(EPOCH FROM statement_timestamp() - head.available_at) AS float8) AS due_seconds
FROM (
    SELECT generate_series(0, GREATEST(q.bucket_count - 1, (
        SELECT last.bucket FROM sqlqueue.job AS last WHERE last.queue = :queue ORDER BY last.bucket DESC LIMIT 1
    ))) AS bucket
    FROM sqlqueue.queue AS q
    WHERE q.name = :queue
) AS b
CROSS JOIN (VALUES (9), (8), (7), (6), (5), (4), (3), (2), (1), (0)) AS level (priority)
CROSS JOIN LATERAL (
    SELECT j.available_at
    FROM sqlqueue.job AS j
    WHERE j.queue = :queue
      AND j.bucket = CAST(b.bucket AS smallint)
      AND j.priority = CAST(level.priority AS smallint)
      AND j.available_at < 'infinity'
    ORDER BY j.available_at, j.id
    LIMIT 1
) AS head
