-- What depth and archive_counts do not say of a queue: how long its oldest due job has waited, when the next one that
-- waits for its time becomes due, and how many dead letters it has, counted up to the cap. (The view queue_stats says
-- everything, with a cap of its own.)
--
-- Parameters: queue text; cap integer.
-- Returns: one row: oldest_seconds (null: nothing is due), next_seconds (null: nothing waits), dead. Steps over running
--   jobs, never over the backlog. Locks: none.
WITH lane AS MATERIALIZED (
    SELECT l.bucket, l.priority FROM sqlqueue.lane AS l WHERE l.queue = :queue
)
SELECT
    (
        SELECT CAST(EXTRACT(EPOCH FROM statement_timestamp() - min(due.available_at)) AS float8)
        FROM lane
        CROSS JOIN LATERAL (
            SELECT j.available_at
            FROM sqlqueue.job AS j
            WHERE j.queue = :queue AND j.bucket = lane.bucket AND j.priority = lane.priority
              AND j.available_at <= statement_timestamp()
            ORDER BY j.available_at
            LIMIT 1
        ) AS due
    ) AS oldest_seconds,
    (
        SELECT CAST(EXTRACT(EPOCH FROM min(later.available_at) - statement_timestamp()) AS float8)
        FROM lane
        CROSS JOIN LATERAL (
            SELECT j.available_at
            FROM sqlqueue.job AS j
            WHERE j.queue = :queue AND j.bucket = lane.bucket AND j.priority = lane.priority
              AND j.available_at > statement_timestamp() AND j.available_at < 'infinity' AND j.state = 'queued'
            ORDER BY j.available_at
            LIMIT 1
        ) AS later
    ) AS next_seconds,
    (
        SELECT count(*)
        FROM (
            SELECT
            FROM sqlqueue.job_archive AS a
            WHERE a.queue = :queue AND a.state = 'failed'
            ORDER BY a.finished_at DESC
            LIMIT :cap
        ) AS letter
    ) AS dead
