-- Count the jobs of a queue, without reading a whole backlog: the count of due jobs stops at one cap, and that of all the
-- others together at another. In a bucket that note_sweep has read less than 5 seconds ago the due jobs are read from the
-- head hint on; beside others, a job that became due before it, because it was committed late, moved back, or enqueued as
-- long due, is counted within 5 seconds. Where that finds none, all are read: a queue that holds a due job is never empty.
--
-- Parameters: queue text; cap integer; others integer (the other cap).
-- Returns: one row: ready (due now), running (under a lease), scheduled (due later: first runs, retries and snoozes
--   alike; or waiting for others of its key), held. Ready equal to the cap means "at least", and so does each of the
--   others when their sum is equal to theirs.
-- Locks: none.
-- Roles: consumer, operator, observer.
WITH lane AS MATERIALIZED (
    SELECT l.bucket, l.priority, l.since FROM sqlqueue.lane AS l WHERE l.queue = :queue
), hinted AS MATERIALIZED (
    SELECT
    FROM lane
    CROSS JOIN LATERAL (
        SELECT
        FROM sqlqueue.job AS j
        WHERE j.queue = :queue AND j.bucket = lane.bucket AND j.priority = lane.priority
          AND j.available_at >= COALESCE(lane.since, '-infinity')
          AND j.available_at <= statement_timestamp()
        LIMIT :cap
    ) AS due
    LIMIT :cap
), ready AS (
    SELECT FROM hinted
    UNION ALL
    (
        SELECT
        FROM lane
        CROSS JOIN LATERAL (
            SELECT
            FROM sqlqueue.job AS j
            WHERE j.queue = :queue AND j.bucket = lane.bucket AND j.priority = lane.priority
              AND j.available_at < lane.since
            LIMIT :cap
        ) AS due
        WHERE NOT EXISTS (SELECT FROM hinted)
        LIMIT :cap
    )
), waiting AS (
    SELECT later.state
    FROM lane
    CROSS JOIN LATERAL (
        SELECT j.state
        FROM sqlqueue.job AS j
        WHERE j.queue = :queue AND j.bucket = lane.bucket AND j.priority = lane.priority
          AND j.available_at > statement_timestamp()
        LIMIT :others
    ) AS later
    LIMIT :others
)
SELECT
    (SELECT count(*) FROM ready) AS ready,
    LEAST(count(*) FILTER (WHERE waiting.state = 'running') + (
        SELECT COALESCE(sum(p.job_count), 0) FROM sqlqueue.batch_pack AS p WHERE p.queue = :queue
    ), CAST(:others AS integer)) AS running,
    count(*) FILTER (WHERE waiting.state = 'queued') AS scheduled,
    count(*) FILTER (WHERE waiting.state = 'held') AS held
FROM waiting
