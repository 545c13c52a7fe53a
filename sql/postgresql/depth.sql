-- How many jobs a queue holds, without counting a backlog row by row: the count of what is due stops at the cap, and so
-- does that of all the others together.
--
-- Parameters: queue text; cap integer.
-- Returns: one row: ready (due now), running (under a lease), scheduled (due later: first runs, retries and snoozes
--   alike), held. Ready equal to the cap means "at least", and so does each of the others when their sum is equal to it.
-- Locks: none.
WITH lane AS MATERIALIZED (
    SELECT CAST(b.bucket AS smallint) AS bucket, CAST(level.priority AS smallint) AS priority
    FROM (
        SELECT generate_series(0, GREATEST(q.bucket_count - 1, (
            SELECT last.bucket FROM sqlqueue.job AS last WHERE last.queue = :queue ORDER BY last.bucket DESC LIMIT 1
        ))) AS bucket
        FROM sqlqueue.queue AS q
        WHERE q.name = :queue
    ) AS b
    CROSS JOIN (VALUES (9), (8), (7), (6), (5), (4), (3), (2), (1), (0)) AS level (priority)
), ready AS (
    SELECT
    FROM lane
    CROSS JOIN LATERAL (
        SELECT
        FROM sqlqueue.job AS j
        WHERE j.queue = :queue AND j.bucket = lane.bucket AND j.priority = lane.priority
          AND j.available_at <= statement_timestamp()
        LIMIT :cap
    ) AS due
    LIMIT :cap
), waiting AS (
    SELECT later.state
    FROM lane
    CROSS JOIN LATERAL (
        SELECT j.state
        FROM sqlqueue.job AS j
        WHERE j.queue = :queue AND j.bucket = lane.bucket AND j.priority = lane.priority
          AND j.available_at > statement_timestamp()
        LIMIT :cap
    ) AS later
    LIMIT :cap
)
SELECT
    (SELECT count(*) FROM ready) AS ready,
    count(*) FILTER (WHERE waiting.state = 'running') AS running,
    count(*) FILTER (WHERE waiting.state = 'queued') AS scheduled,
    count(*) FILTER (WHERE waiting.state = 'held') AS held
FROM waiting
